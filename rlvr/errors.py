"""The exceptions of rlvr, in one tree: `except RlvrError` catches every error that rlvr raises on purpose, and no other.

RlvrError
├── ConfigError        a setting, an argument or a user's file is wrong             (exit code 2)
│   ├── NotFound       no plugin, file or run of that name                          (exit code 2)
│   └── MissingExtra   a package that this feature needs is not installed           (exit code 2)
├── PluginLoadError        a plugin exists and cannot be imported or built              (exit code 2)
├── CheckFailed        a conformance check found a defect                           (exit code 1)
├── EnvError           an environment broke its contract                            (exit code 2)
├── VerifierError      a verifier failed, through no fault of the answer
├── AnswerTypeError    a verifier was given an answer that is not a string          (exit code 2)
├── SandboxError       the sandbox, not the program in it, failed                   (exit code 2)
│   └── SandboxOutage   its engine stays away: a rollout stops                 (exit code 1)
├── TooManyHungCalls   verifiers or sessions hang: a rollout stops                 (exit code 1)
├── SamplerError       the sampler failed, or returned something impossible
├── ToolError          a tool rejects a call, with a message for the policy
└── ToolInfrastructureError        a tool or its server failed, not a rejected call

Each message has three parts: the wrong value, the allowed values, and what to do. Add a class only if some code must catch it separately
from its parent.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, TypeVar, cast


class RlvrError(Exception):
    """The base class of all errors that rlvr raises on purpose.

    >>> raise ConfigError("num_generations is 1; a group needs at least 2; set num_generations=8")
    Traceback (most recent call last):
    rlvr.errors.ConfigError: num_generations is 1; a group needs at least 2; set num_generations=8
    """

    exit_code = 3


class ConfigError(RlvrError, ValueError):
    """A setting, an argument or a file is wrong; raised before any work begins."""

    exit_code = 2
    says_everything = True
    """The message is for the caller, and the frames of the library below the call add nothing: see `rlvr.hints.shorten_traceback`."""


class NotFound(ConfigError):
    """No plugin, file or run has the given name."""


class MissingExtra(ConfigError):
    """A requested feature needs a package that is not installed."""

    def __init__(self, package: str, extra: str, alternative: str = "") -> None:
        self.package, self.extra = package, extra
        hint = f", or {alternative}" if alternative else ""
        super().__init__(f"{package} is not installed; `{format_install_command(extra)}`{hint}")

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (MissingExtra, (self.package, self.extra))


def format_install_command(extra: str = "") -> str:
    """Return the command that installs an extra: from the clone in a clone, otherwise the packages of the extra.

    >>> format_install_command("train").startswith("pip install ")
    True
    """
    root = Path(__file__).resolve().parents[1]
    inside = f"[{extra}]" if extra else ""
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if root == Path.cwd() else root}{inside}'"
    try:
        wanted = [line for line in requires("rlvr") or () if f'extra == "{extra}"' in line.replace("'", '"')]
    except PackageNotFoundError:
        wanted = []
    packages = " ".join(f"'{line.partition(';')[0].strip()}'" for line in wanted)
    return f"pip install {packages}" if packages else f"pip install 'rlvr{inside}'"


class PluginLoadError(RlvrError):
    """A plugin exists but cannot be imported, or its constructor raised."""

    exit_code = 2


class CheckFailed(RlvrError):
    """A conformance check completed and found a defect."""

    exit_code = 1


class EnvError(RlvrError):
    """An environment broke its contract, or was used in a way that its contract does not allow.

    Examples: an action outside the space, a step after the end, a prompt that does not fit.
    """

    exit_code = 2


class VerifierError(RlvrError):
    """A verifier failed through no fault of the answer, which then has no score (not the score 0)."""


class AnswerTypeError(RlvrError, TypeError):
    """A verifier was called with an answer that is not a string. This is a caller's error; nothing is scored."""

    exit_code = 2


class SandboxError(RlvrError):
    """The sandbox failed (no engine, a dead container, a broken channel). Not raised for failures of the program in it."""

    exit_code = 2


class SandboxOutage(SandboxError):
    """The engine of the sandbox has been away for so long that a rollout stops, instead of leaving answers without a score."""

    exit_code = 1


class TooManyHungCalls(RlvrError):
    """So many calls of a verifier or a session hang that a rollout stops, instead of leaving answers without a score."""

    exit_code = 1


class SamplerError(RlvrError):
    """The sampler failed, or returned token ids that are impossible for the request."""


class AllClusterWorkersLost(SamplerError):
    """All rollout workers or all verifier workers of a run failed, and none is restarted."""


class ToolError(RlvrError):
    """A tool rejects a call; the policy gets the message as the result, and the conversation continues."""


class ToolInfrastructureError(RlvrError):
    """A tool, or something it depends on, failed. The conversation ends without a score, or with its own 0 if only its call causes that."""


Verify = TypeVar("Verify", bound=Callable[..., Any])


def require_text_answers(verify_method: Verify) -> Verify:
    """Make a verifier's `verify` raise AnswerTypeError for an answer that is not a string: a caller's error is not a wrong answer.

    >>> import rlvr
    >>> rlvr.make_verifier("numeric").verify(rlvr.Task("2+2=", "4"), ["4"])
    Traceback (most recent call last):
    rlvr.errors.AnswerTypeError: Numeric verifies a text, and was given a list: ['4']; give it the text of the answer
    """

    @wraps(verify_method)
    def checked(self: Any, task: Any, answer: object) -> Any:
        if isinstance(task, str):
            raise ConfigError("verify takes a Task, then the answer; for two texts write rlvr.verify(verifier, answer, reference)")
        if not isinstance(answer, str):
            raise _build_answer_type_error(self, answer)
        return verify_method(self, task, answer)

    return cast(Verify, checked)


def _build_answer_type_error(verifier: Any, answer: object) -> AnswerTypeError:
    chat = isinstance(answer, Sequence) and answer and all(isinstance(message, Mapping) for message in answer)
    hint = "; the text of a list of messages is messages[-1]['content']" if chat else ""
    return AnswerTypeError(
        f"{type(verifier).__name__} verifies a text, and was given a {type(answer).__name__}: {answer!r:.80}; "
        f"give it the text of the answer{hint}"
    )


def describe_exception(error: BaseException) -> str:
    """Describe an exception by its type and text; never raises, even if the exception's text does.

    >>> describe_exception(KeyError("a1"))
    "KeyError: 'a1'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its text cannot be shown)"


def escape_control_characters(text: str) -> str:
    r"""Write control characters as escapes: text of a model or a server must not clear a terminal, set its title or turn its lines around.

    >>> escape_control_characters("a\x1b[2Jb\nc\u202e")
    'a\\x1b[2Jb\nc\\u202e'
    """
    if text.isprintable():
        return text
    harmless = (c if c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs" else "" for c in text)
    return "".join(shown or c.encode("unicode_escape").decode("ascii") for shown, c in zip(harmless, text, strict=True))


def format_suggestion(unknown_name: str, allowed_names: Iterable[str], *, max_names: int = 12) -> str:
    """Build the end of a "no such name" message: the nearest name, then the allowed names.

    >>> format_suggestion("symbolc", ["exact", "symbolic"])
    "did you mean 'symbolic'? Allowed: exact, symbolic"
    """
    names = sorted(allowed_names)
    near = [name for name in names if sorted(name) == sorted(unknown_name)]  # letters in another order: gpro is grpo
    near = near or difflib.get_close_matches(unknown_name, names, n=1, cutoff=0.6)
    shown = ", ".join(names[:max_names]) + (f", ... ({len(names)} in all)" if len(names) > max_names else "")
    if not names:
        return "none are known"
    return f"did you mean {near[0]!r}? Allowed: {shown}" if near else f"allowed: {shown}"
