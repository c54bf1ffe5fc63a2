"""The token-level MDP: its transition rules, the Gymnasium environments built on them, tokenizers and transcripts.

`TokenEnv` and `TokenVectorEnv` are imported lazily, because they import Gymnasium and numpy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.mdp.env import TokenEnv as TokenEnv
    from rlvr.mdp.vector import TokenVectorEnv as TokenVectorEnv

_LAZY_MODULES = {"TokenEnv": "rlvr.mdp.env", "TokenVectorEnv": "rlvr.mdp.vector"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY_MODULES[name]), name)
