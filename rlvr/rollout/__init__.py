"""Rollouts: conversations from the prompt to the verdict, verification in threads, and replay."""

import sys
from types import ModuleType
from typing import Any


class _RolloutModule(ModuleType):
    """The module itself, which may be called, as in other libraries: it hides a function of its name.

    >>> import rlvr.rollout
    >>> rlvr.rollout("arithmetic", "scripted:gold").score
    1.0
    """

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from rlvr.synonyms import play_episodes

        return play_episodes(*args, **settings)


sys.modules[__name__].__class__ = _RolloutModule
