"""The command line: what can be typed, what is printed when it fails, and the exit code. The work is in `rlvr.commands`.

Exit codes: 0 all is well, 1 a check failed, 2 something the user wrote is wrong, 3 something of ours is wrong.
A user sees one message on standard error, never a traceback; RLVR_TRACEBACK=1 brings it back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rlvr.errors import RlvrError

app = typer.Typer(
    name="rlvr",
    help="Environments and verifiers for reinforcement learning from verifiable rewards.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for eyes.")]
KINDS = "envs, verifiers, sandboxes, samplers, algorithms, recipes"


@app.command("list")
def list_(kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=f"One of: {KINDS}.")] = None, json: Json = False) -> None:
    """Show what is registered."""
    from rlvr.commands import listing

    listing.list_plugins(kind, json=json)


@app.command()
def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="env, verifier, sandbox, sampler, algorithm or recipe.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, or path/to/file.py:Object.")],
    json: Json = False,
) -> None:
    """Explain one plugin: what it is for, what settings it takes."""
    from rlvr.commands import listing

    listing.show_plugin(kind, name, json=json)


def main() -> None:
    """The entry point of the `rlvr` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Obey one command line and hand back its exit code; nothing but `KeyboardInterrupt` of the parent gets out."""
    try:
        code = app(args=list(arguments), prog_name="rlvr", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("RLVR_TRACEBACK"):
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, RlvrError):
        return _fail(f"error: {error}", error.exit_code)
    if type(error).__name__ == "Abort":
        return _fail("stopped", 130)
    if callable(show := getattr(error, "show", None)):  # Typer's own complaints about the arguments
        show()
        return 2
    return _fail(f"internal error: {type(error).__name__}: {error}\nThis is a fault of rlvr; RLVR_TRACEBACK=1 shows where it happened.", 3)


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
