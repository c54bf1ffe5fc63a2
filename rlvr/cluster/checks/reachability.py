"""Check quickly that a cluster answers at an address. Ray itself retries for minutes and prints warnings."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

from rlvr.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
"""Timeout of a connection."""
JOIN_TIMEOUT_S = 30.0
"""Timeout for Ray to join a cluster, which normally takes about 3 seconds."""
JOIN_PROGRAM = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error', configure_logging=False)"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def check_port_open(address: str) -> None:
    """Raise ConfigError if nothing accepts connections at HOST:PORT. Addresses of another form, such as auto, are left to Ray.

    >>> check_port_open("auto")
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not host or "/" in host:
        return
    host = host.strip("[]")
    hosts = [host, *([socket.gethostname()] if host in LOOPBACK_HOSTS else [])]  # Ray connects to this machine by its own address
    why = ""
    for name in hosts:
        try:
            socket.create_connection((name, int(port)), CONNECT_TIMEOUT_S).close()
            return
        except (OSError, OverflowError, UnicodeError) as error:
            why = why or f"{type(error).__name__}: {error}"
    raise make_unreachable_error(address, why)


def check_can_join(address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
    """Raise ConfigError if Ray cannot join the cluster at this address. The attempt runs in a subprocess, which can be killed."""
    check_port_open(address)
    if importlib.util.find_spec("ray") is None:
        return  # the import raises the error
    with subprocess.Popen(
        [sys.executable, "-c", JOIN_PROGRAM, address], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise make_unreachable_error(
                address, f"something listens there, but Ray could not join it in {timeout_s:g} s (is it the port of Ray?)"
            ) from None
        finally:
            process.kill()
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        raise make_unreachable_error(address, lines[-1] if lines else f"Ray ended with {process.returncode}")


def make_unreachable_error(address: str, why: str) -> ConfigError:
    """Make the error for an address without a cluster.

    >>> str(make_unreachable_error("there:1", "refused")).partition(";")[0]
    "no Ray cluster answers at cluster.address 'there:1': refused"
    """
    return ConfigError(
        f"no Ray cluster answers at cluster.address {address!r}: {' '.join(why.split())[:200]}; "
        "start one with `ray start --head`, or set cluster.address to local"
    )
