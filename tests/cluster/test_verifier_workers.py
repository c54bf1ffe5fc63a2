"""The verifier workers of a run over a pretended Ray: started, watched, started again, and clear words where none is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.cluster.verifier_actors import VerifierActor, VerifierActorPool, make_ask_verdict
from rlvr.cluster.verifier_workers import VerifierBusy, VerifierClient, VerifierLost, VerifierLostBeforeVerification
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Transcript
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from tests.cluster.test_actors import PLACE, Ray, RayError, RayTaskError

TASK, SAID = Task(make_user_prompt("2+2="), "4", id="t"), Transcript("4")


HEARD: list[list[str]] = []


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged goes to the list of the hosts that were made last."""
    monkeypatch.setattr("rlvr.cluster.verifier_actors.logger.warning", lambda words, *values: HEARD[-1].append(words % values))


def hosts(**settings: Any) -> tuple[VerifierActorPool, Ray, list[str]]:
    ray, told = Ray(CPU=4.0), list[str]()
    HEARD.append(told)
    return VerifierActorPool(ray, ClusterConfig(verifier_workers=1, **settings), {}, heartbeat_interval_s=5.0, max_missed=3), ray, told


def test_a_host_can_be_asked_once_it_has_begun() -> None:
    made, ray, _ = hosts()
    assert not made.restart_lost_workers() and not made.ready_actors
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers() and list(made.ready_actors) == ["j0.0"] and not made.restart_lost_workers()
    made.close()
    assert ray.killed == 1 and not made.ready_actors


def test_a_host_that_dies_or_gives_no_pulse_is_started_again_so_many_times_and_then_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ray, told = hosts(max_restarts_per_worker=1)
    clock = [0.0]
    monkeypatch.setattr("rlvr.cluster.verifier_actors.time.monotonic", lambda: clock[0])
    made.slots[0].last_change = 0.0
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers()
    clock[0] += 5
    assert not made.restart_lost_workers()
    ray.last("report_busy_thread_fraction").ends(RayError("The actor died. See the logs."))
    assert made.restart_lost_workers() and told == [
        "verifier worker j0.0 is lost: RayError: The actor died; it is restarted (at most 1 more times)"
    ]
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers() and list(made.ready_actors) == ["j0.1"]
    for passed in (5, 9):
        clock[0] += passed
        assert not made.restart_lost_workers()
    clock[0] += 2
    with pytest.raises(SamplerError, match=r"no verifier worker is left: each was started 2 times; .* --resume"):
        made.restart_lost_workers()
    assert (
        told[1]
        == "verifier worker j0.1 is lost: no heartbeat in 15 s (cluster.heartbeat_timeout_s); "
        "it is not restarted, the run continues with fewer workers"
        and made.num_lost == 2
    )


def test_the_run_goes_on_with_the_hosts_that_are_left() -> None:
    ray, told = Ray(CPU=4.0), list[str]()
    HEARD.append(told)
    made = VerifierActorPool(ray, ClusterConfig(verifier_workers=2, max_restarts_per_worker=0), {}, heartbeat_interval_s=5.0, max_missed=3)
    for call in [call for call in ray.calls if call.name == "build_worker"]:
        call.ends(PLACE)
    assert made.restart_lost_workers()
    made._handle_loss(made.slots[0], "killed")
    made.restart_lost_workers()
    assert list(made.ready_actors) == ["j1.0"] and told[0].endswith("it is not restarted, the run continues with fewer workers")


def test_a_host_that_can_never_start_ends_the_run_at_once() -> None:
    made, ray, told = hosts()
    ray.last("build_worker").ends(RayTaskError(ConfigError("no such\nfile")))
    with pytest.raises(RlvrError, match=r"verifier worker j0.0 cannot start: ConfigError: no such file"):
        made.restart_lost_workers()
    assert not told


def test_a_driver_that_stood_still_takes_no_host_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ray, told = hosts()
    clock = [made.slots[0].last_change]
    monkeypatch.setattr("rlvr.cluster.verifier_actors.time.monotonic", lambda: clock[0])
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers()
    for passed in (6, 3600, 1):  # frozen while a pulse was under way: its answer is not here yet
        clock[0] += passed
        assert not made.restart_lost_workers() and not told
    ray.last("report_busy_thread_fraction").ends(1.0)
    clock[0] += 1
    assert not made.restart_lost_workers() and not told


def test_how_busy_the_hosts_are_comes_with_their_pulses(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ray, _ = hosts()
    clock = [made.slots[0].last_change]
    monkeypatch.setattr("rlvr.cluster.verifier_actors.time.monotonic", lambda: clock[0])
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers() and made.busy_fraction == 0.0
    clock[0] += 6
    made.restart_lost_workers()
    ray.last("report_busy_thread_fraction").ends(0.9)
    made.restart_lost_workers()
    assert made.busy_fraction == 0.9
    made._handle_loss(made.slots[0], "killed")
    assert made.busy_fraction == 0.0


def test_what_only_one_host_lacks_does_not_end_the_run() -> None:
    made, ray, told = hosts()
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers()
    made._handle_loss(made.slots[0], "killed")
    ray.last("build_worker").ends(RayTaskError(ConfigError("no such file")))
    assert made.restart_lost_workers() is False and told[1].startswith(
        "verifier worker j0.1 is lost: ConfigError: no such file; it is restarted"
    )


def test_a_host_in_which_as_many_verifications_hang_as_it_can_have_says_so_by_its_pulse() -> None:
    actor = VerifierActor()
    assert asyncio.run(actor.report_busy_thread_fraction()) == 0.0
    actor.host = SimpleNamespace(executor=SimpleNamespace(has_too_many_hung_threads=True))
    with pytest.raises(RuntimeError, match="hanging verifications occupy all its threads"):
        asyncio.run(actor.report_busy_thread_fraction())


def test_a_host_that_is_not_ready_in_time_is_started_again() -> None:
    made, ray, told = hosts(startup_timeout_s=0.001)
    made.slots[0].last_change -= 1
    assert not made.restart_lost_workers() and "j0.0 is lost: it was not ready after 0.001 s (cluster.startup_timeout_s)" in told[0]
    assert len([call for call in ray.calls if call.name == "build_worker"]) == 2


@pytest.mark.parametrize(
    ("call", "alone", "raised", "kind"),
    [
        ("verify", False, RayError("The actor died."), VerifierLost),
        ("verify", True, RayError("The actor died."), VerifierLost),
        ("verify", True, RayTaskError(VerifierBusy("it came late")), VerifierBusy),
        ("reserve_exclusively", True, RayError("The actor died."), VerifierLostBeforeVerification),
        ("reserve_exclusively", True, asyncio.CancelledError(), VerifierLostBeforeVerification),
        ("reserve_exclusively", True, RayTaskError(VerifierBusy("others are judged here")), VerifierBusy),
        ("verify", False, RayTaskError(ValueError("odd")), ValueError),
    ],
)
def test_how_a_host_was_lost_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, call: str, alone: bool, raised: BaseException, kind: type[BaseException]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", Ray())
    asked = list[str]()

    def method(name: str) -> Any:
        async def remote(*given: Any) -> Verdict:
            asked.append(name)
            if name == call:
                raise raised
            return Verdict(1.0, "judged")

        return SimpleNamespace(remote=remote)

    ask = make_ask_verdict(SimpleNamespace(verify=method("verify"), reserve_exclusively=method("reserve_exclusively")))
    with pytest.raises(kind) as found:
        asyncio.run(asked_for(ask(TASK, SAID, alone)))
    assert (
        type(found.value) is kind
        and asked == (["reserve_exclusively", "verify"] if alone else ["verify"])[: 1 if call == "reserve_exclusively" else 2]
    )


async def asked_for(verdict: Awaitable[Verdict]) -> Verdict:
    return await verdict


def test_one_of_several_hosts_that_fails_with_an_error_of_ours_does_not_end_the_run() -> None:
    ray, told = Ray(CPU=4.0), list[str]()
    HEARD.append(told)
    made = VerifierActorPool(ray, ClusterConfig(verifier_workers=2), {}, heartbeat_interval_s=5.0, max_missed=3)
    first, second = [call for call in ray.calls if call.name == "build_worker"]
    first.ends(RayTaskError(ConfigError("no\x1b[2J such file")))
    assert not made.restart_lost_workers() and told[0].startswith("verifier worker j0.0 is lost: ConfigError: no [2J such file; ")
    second.ends(RayTaskError(ConfigError("no\x1b[2J such file")))
    with pytest.raises(RlvrError, match=r"verifier worker j1.0 cannot start: ConfigError: no \[2J such file"):
        made.restart_lost_workers()


def test_a_host_whose_words_cannot_be_read_is_lost_and_the_run_goes_on() -> None:
    made, ray, told = hosts()
    ray.last("build_worker").ends(ValueError("not a pickle"))
    assert not made.restart_lost_workers() and "ValueError: not a pickle" in told[0]


@pytest.mark.parametrize(
    "forged", [{"score": float("nan")}, {"score": "1"}, {"score": None}, {"reason": 5}, {"components": 5}, {"fault": 5}]
)
def test_a_verdict_that_is_none_comes_with_no_score(forged: dict[str, Any]) -> None:
    lie = object.__new__(Verdict)
    for name in Verdict.__slots__:
        object.__setattr__(lie, name, forged.get(name, getattr(Verdict(1.0, "right"), name)))

    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        return lie

    client = VerifierClient(no_worker_timeout_s=5.0)
    client.set_workers({"j0.0": ask})
    verdict = asyncio.run(client.verify(TASK, SAID))
    assert verdict.score is None and verdict.fault is Fault.INFRA and "j0.0 raised" in verdict.reason


def test_a_host_that_is_always_busy_is_not_asked_for_ever() -> None:
    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        raise VerifierBusy("ask again")

    client = VerifierClient(no_worker_timeout_s=5.0)
    client.set_workers({"j0.0": ask})
    verdict = asyncio.run(asyncio.wait_for(client.verify(TASK, SAID), 10))
    assert verdict.fault is Fault.INFRA and "no exclusive verification" in verdict.reason


@pytest.mark.parametrize("busy", [10**400, float("nan"), float("inf"), -1, 5, "x", None, True, 1j], ids=lambda value: repr(value)[:5])
def test_a_host_whose_pulse_is_no_share_is_lost_and_the_run_goes_on(busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ray, told = hosts()
    clock = [0.0]
    monkeypatch.setattr("rlvr.cluster.verifier_actors.time.monotonic", lambda: clock[0])
    ray.last("build_worker").ends(PLACE)
    assert made.restart_lost_workers()
    clock[0] += 5
    made.restart_lost_workers()
    ray.last("report_busy_thread_fraction").ends(busy)
    assert made.restart_lost_workers() and "what it said is damaged: the busy share" in told[0]
