"""An address at which no cluster is: one sentence within the limit, where Ray itself asks for minutes."""

from __future__ import annotations

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from rlvr.cluster.checks.doctor import check_cluster_ready
from rlvr.cluster.checks.reachability import check_can_join, check_port_open
from rlvr.cluster.ray_transport import connect_ray
from rlvr.config.cluster import ClusterConfig
from rlvr.errors import ConfigError
from tests.fixtures.endpoint import closed_port

CLOSED = closed_port().removeprefix("http://")
NOBODY = ["nowhere.invalid:1", "1.2.3.4.5:99", CLOSED, CLOSED.replace("127.0.0.1", "localhost")]


@pytest.mark.parametrize("address", NOBODY, ids=["no name", "no address", "no listener", "no listener by name"])
def test_where_nobody_listens_a_run_and_the_doctor_say_so_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**how: object) -> None:
        raise AssertionError("Ray must not be asked: it asks for minutes")

    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=SimpleNamespace(RayError=OSError))
    )
    for ask in (connect_ray, check_cluster_ready):
        began = time.monotonic()
        with pytest.raises(ConfigError, match=rf"no Ray cluster answers at cluster.address '{address}': .*; start one with `ray"):
            ask(ClusterConfig(address=address))
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["auto", "local", "", "/tmp/x", "host:port", "http://x:1", ":6379"])
def test_other_forms_of_addresses_are_left_to_ray(address: str) -> None:
    check_port_open(address)


def test_somebody_who_listens_and_says_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=r"something listens there, but Ray could not join it in 3 s \(is it the port of Ray"):
            check_can_join(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=3.0)
        assert 3 <= time.monotonic() - began < 15


def test_what_ray_says_to_an_address_is_passed_on() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at cluster.address 'host:port': ValueError: Unable to parse port"):
        check_can_join("host:port")


def test_the_doctor_tries_to_join_in_a_process_of_its_own_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    def no(address: str) -> None:
        tried.append(address)
        raise ConfigError("it does not answer")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr("rlvr.cluster.checks.doctor.check_can_join", no)
    with pytest.raises(ConfigError, match="it does not answer"):
        check_cluster_ready(ClusterConfig(address="auto"))
    assert tried == ["auto"]
