"""The transport over a pretended Ray: pulses, errors and messages. With the real one: benchmarks/scale/equal.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.cluster.event_log import find_ray_stderr_file, read_last_lines
from rlvr.cluster.machines import (
    change_to_driver_folder,
    check_capacity,
    end_actor,
    get_pid_scope_id,
    get_process_identity,
    get_process_start_time,
)
from rlvr.cluster.ray_transport import RayTransport
from rlvr.cluster.rollout_worker import WorkerSettings
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.transport import TaskEnded, WeightsLoaded, WorkerLost, WorkerStarted
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import SamplingParams
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Task, make_user_prompt


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Call:
    """One call of an actor; the test says how it ends."""

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        self.name, self.given, self.done = name, given, False
        self.value: Any = None

    def ends(self, value: Any = None) -> None:
        self.done, self.value = True, value


class Ray:
    """As much of Ray as the transport uses."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, **resources: float) -> None:
        self.resources, self.calls, self.killed = resources, list[Call](), 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "n1", "Alive": True, "Resources": self.resources}, {"NodeID": "n2", "Alive": False}]

    def available_resources(self) -> dict[str, float]:
        return {}

    def remote(self, **how: Any) -> Any:
        assert how["max_restarts"] == how["max_task_retries"] == 0
        return lambda kind: SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda: Actor(self)))

    def put(self, data: bytes) -> bytes:
        return data

    def wait(self, calls: list[Call], *, num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        assert 0 < num_returns <= len(calls)
        done = [call for call in calls if call.done][:num_returns]
        return done, [call for call in calls if call not in done]

    def get(self, call: Call, *, timeout: float) -> Any:
        if isinstance(call.value, Exception):
            raise call.value
        return call.value

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        self.killed += 1

    def last(self, name: str) -> Call:
        return [call for call in self.calls if call.name == name][-1]


class Actor:
    def __init__(self, ray: Ray) -> None:
        self.ray = ray

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Call:
            self.ray.calls.append(Call(name, given))
            return self.ray.calls[-1]

        return SimpleNamespace(remote=remote, options=lambda **how: SimpleNamespace(remote=remote))


PLACE = {"pid": 2**22 + 1, "host": "far", "pids": "elsewhere", "node": "n1", "born": "1"}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray(CPU=4.0)
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def started(**place: Any) -> RayTransport:
    transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
    transport.start_worker("c0.0")
    transport.ray.last("heartbeat").ends(0.0)
    transport.ray.last("build_worker").ends(PLACE | place)
    assert transport.poll(0) == [WorkerStarted("c0.0")]
    return transport


def test_orders_come_back_as_events(ray: Ray) -> None:
    transport = started()
    transport.store_weights(3, WeightUpdate(iter([b"w", b"x"])))
    load, assign = LoadWeights("c0.0", 3, 1), DispatchTask("c0.0", "g", 3, 1)
    transport.send_weight_update(load)
    assert (
        ray.last("load_weights").given == (3, [WeightUpdate([b"w", b"x"])], ClusterConfig().startup_timeout_s) and transport.poll(0) == []
    )
    ray.last("load_weights").ends()
    assert transport.poll(0) == [WeightsLoaded(load)]
    transport.start_task(assign, [], SamplingParams(), 9)
    ray.last("run_task").ends((b"data", 0.5))
    assert transport.poll(0) == [TaskEnded(assign, b"data", 0.5)]


def test_a_collector_gets_the_changes_since_what_it_has_and_a_new_one_gets_everything(ray: Ray) -> None:
    transport = started()
    for version in range(4):
        transport.store_weights(version, WeightUpdate([f"v{version}"], is_delta=version > 0))

    def sent(version: int) -> list[Any]:
        transport.send_weight_update(LoadWeights("c0.0", version, 1))
        call = ray.last("load_weights")
        call.ends()
        assert transport.poll(0) == [WeightsLoaded(LoadWeights("c0.0", version, 1))]
        return [bucket for parcel in call.given[1] for bucket in parcel.buckets]

    assert sent(1) == ["v0", "v1"] and sent(3) == ["v2", "v3"]
    assert sent(2) == ["v0", "v1", "v2"]  # there is no way back
    transport.kill_worker("c0.0")
    transport.start_worker("c0.0")
    ray.last("build_worker").ends(PLACE)
    assert transport.poll(0) == [WorkerStarted("c0.0")] and sent(3) == ["v0", "v1", "v2", "v3"]


@pytest.mark.parametrize(("node", "blame"), [("n1", True), ("n2", False)])
def test_a_dead_process_is_a_loss_and_its_work_is_to_blame_unless_its_machine_is_gone(ray: Ray, node: str, blame: bool) -> None:
    transport = started(node=node)
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    ray.last("run_task").ends(RayError("The actor died. See the logs."))
    [lost] = transport.poll(0)
    assert lost == WorkerLost("c0.0", f"RayError (process {PLACE['pid']} on far): The actor died", may_be_cause=blame)
    transport.kill_worker("c0.0")
    assert ray.killed == 1 and transport.poll(0) == []


def test_an_error_of_ours_at_the_start_is_hopeless_and_any_other_is_not(ray: Ray) -> None:
    transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
    for error, hopeless in ((ConfigError("no\nsuch file"), True), (OSError("no memory"), False)):
        transport.start_worker("c0.0")
        ray.last("build_worker").ends(RayTaskError(error))
        [lost] = transport.poll(0)
        assert lost == WorkerLost("c0.0", f"{type(error).__name__}: {' '.join(str(error).split())}", is_permanent=hopeless)
    transport = started()  # what one could start with, another one lacks: its machine, or what the one before it has left there
    transport.start_worker("c1.0")
    ray.last("build_worker").ends(RayTaskError(ConfigError("no memory on the GPU")))
    assert transport.poll(0) == [WorkerLost("c1.0", "ConfigError: no memory on the GPU", is_permanent=False)]


def test_one_of_several_workers_that_fails_with_an_error_of_ours_does_not_end_the_run(ray: Ray) -> None:
    transport = RayTransport(ClusterConfig(rollout_workers=3), {}, WorkerSettings("float32", False, 1))
    for worker, words, hopeless in (
        ("c0.0", "set train.steps to 0", False),
        ("c0.1", "set train.steps to 0", False),
        ("c1.0", "no such file", False),
        ("c2.0", "no such file", True),
    ):
        transport.start_worker(worker)
        ray.last("build_worker").ends(RayTaskError(ConfigError(words)))
        assert transport.poll(0) == [WorkerLost(worker, f"ConfigError: {words}", is_permanent=hopeless)]


def test_a_collector_without_a_pulse_is_lost_and_one_that_was_not_asked_is_not(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, clock = started(), [1000.0]
    monkeypatch.setattr("rlvr.cluster.ray_transport.time.monotonic", lambda: clock[0])
    transport._heartbeats["c0.0"] = (None, clock[0])
    clock[0] += 600  # the trainer has trained meanwhile, and nobody asked
    assert transport.poll(0) == []
    ray.last("heartbeat").ends(1.0)
    clock[0] += 1
    assert transport.poll(0) == []
    clock[0] += 6
    assert transport.poll(0) == [] and len([call for call in ray.calls if call.name == "heartbeat"]) == 3
    clock[0] += 9
    assert transport.poll(0) == []
    clock[0] += 2
    assert transport.poll(0) == [WorkerLost("c0.0", "no heartbeat in 15 s (cluster.heartbeat_timeout_s)")]


def test_a_collector_that_ray_cannot_place_is_lost_with_what_is_free_and_the_first_one_ends_the_run(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, clock = started(), [1000.0]
    monkeypatch.setattr("rlvr.cluster.ray_transport.time.monotonic", lambda: clock[0])
    transport._heartbeats.clear()
    why = (
        "no machine had capacity for it within 120 s (cluster.placement_timeout_s): it needs 1 CPUs "
        "on one machine, and 0 of 4 CPUs are free; "
        "wait until other processes end, or ask for less"
    )
    for hopeless in (False, True):
        transport._has_started = not hopeless
        transport.start_worker("c1.0")
        clock[0] += 119
        assert transport.poll(0) == []
        clock[0] += 2
        assert transport.poll(0) == [WorkerLost("c1.0", why, may_be_cause=False, is_permanent=hopeless)]
        transport.kill_worker("c1.0")


def with_logs_in(folder: Path) -> Any:
    """Ray's own module, as far as it says where the logs of this session are."""
    return SimpleNamespace(_global_node=SimpleNamespace(get_logs_dir_path=lambda: str(folder)))


def test_the_last_words_are_in_the_log_here_and_in_the_latest_pulse_elsewhere(
    ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "worker.err"
    log.write_text(":job_id:01000000\n" + "old\n" * 50 + "x" * 500 + "\nFatal Python error: Bus error\n\nExtension modules: a, b\n")
    monkeypatch.setitem(sys.modules, "ray._private.worker", with_logs_in(tmp_path))
    near = started(pids=get_pid_scope_id(), log=str(log))
    words = near.get_worker_location_and_log("c0.0")["words"]
    assert words[-2:] == ["Fatal Python error: Bus error", "Extension modules: a, b"] and len(words) == 30 and len(words[-3]) == 300
    near.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    ray.last("run_task").ends(RayError("Worker exit detail: error code 2. End of file. Some common causes"))
    [lost] = near.poll(0)
    assert isinstance(lost, WorkerLost) and lost.reason.endswith("on far): Fatal Python error: Bus error")
    far = started(log=str(log))
    assert far.get_worker_location_and_log("c0.0")["words"] == []
    far._heartbeats["c0.0"] = (None, 0.0)
    far.poll(0)
    ray.last("heartbeat").ends(["what it said last"])
    far.poll(0)
    assert far.get_worker_location_and_log("c0.0") == {"host": "far", "pid": PLACE["pid"], "node": "n1", "words": ["what it said last"]}
    assert far.get_worker_location_and_log("c7.0") == {"words": []}


def test_a_process_without_a_log_has_no_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlvr.cluster.event_log.os.readlink", lambda path: "pipe:[7]")
    assert find_ray_stderr_file() == "" and read_last_lines("") == read_last_lines(str(tmp_path)) == []


def test_words_of_a_stopped_collector_do_not_come_any_more(ray: Ray) -> None:
    transport = started()
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    transport.kill_worker("c0.0")
    ray.last("run_task").ends((b"data", 0.5))
    assert transport.poll(0) == []


@pytest.mark.parametrize("name", ["raylet", "gcs_server", "log_monitor"])
def test_the_end_of_a_service_of_the_run_s_own_cluster_is_told(ray: Ray, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    transport, process = started(), SimpleNamespace(pid=7, returncode=-9)
    node = SimpleNamespace(dead_processes=lambda: [(name, process)])
    monkeypatch.setitem(sys.modules, "ray._private.worker", SimpleNamespace(_global_node=node))
    transport._owns_cluster = False
    transport.poll(0)  # the cluster of somebody else is no child of this process
    transport._owns_cluster = True
    if name == "log_monitor":
        transport.poll(0)
        return
    with pytest.raises(SamplerError, match=rf"process {name} \(7\) has ended with -9, .*; continue with --resume"):
        transport.poll(0)


def test_too_small_a_cluster_is_one_sentence(ray: Ray) -> None:
    words = (
        r"cluster.rollout_workers is 3, each with 1 CPUs and 1 GPUs on one machine, and the cluster has capacity for 0 of them "
        r"\(its machines: 4 CPUs, 0 GPUs\); ask for fewer or for smaller ones, or add machines"
    )
    with pytest.raises(ConfigError, match=words):
        RayTransport(ClusterConfig(rollout_workers=3, gpus_per_rollout_worker=1.0), {}, WorkerSettings("float32", False, 1))


def test_a_cluster_that_is_connected_already_is_used_as_it_is(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hands the environment on to nodes and drivers: one that asks for tokens cannot talk to a cluster that has none."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    RayTransport(ClusterConfig(address="local"), {}, WorkerSettings("float32", False, 1)).close()
    assert "RAY_AUTH_MODE" not in os.environ


def test_a_cluster_that_does_not_answer_is_one_sentence(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**how: Any) -> None:
        raise ConnectionError("nobody\nthere")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init, raising=False)
    for address, words in (
        ("auto", "no Ray cluster answers at cluster.address 'auto': nobody there; start one with"),
        ("local", "Ray could not start a cluster on this machine: nobody there"),
    ):
        with pytest.raises(ConfigError, match=words):
            RayTransport(ClusterConfig(address=address), {}, WorkerSettings("float32", False, 1))


def test_the_object_store_of_a_local_cluster_has_room_for_two_versions_of_the_weights(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every version goes through the disk."""
    asked = dict[str, Any]()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **how: asked.update(how), raising=False)
    monkeypatch.setattr(ray, "shutdown", lambda: None, raising=False)
    for megabytes, room in ((1, 200), (150, 300)):
        RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1, weight_bytes=megabytes << 20)).close()
        assert asked["object_store_memory"] == room << 20


@pytest.mark.parametrize("mine", [False, True])
def test_sigterm_ends_a_run_with_its_rollout_workers_as_ctrl_c_does(ray: Ray, monkeypatch: pytest.MonkeyPatch, mine: bool) -> None:
    """Ray's own handlers would print a stack and abort, and replace one that was there."""
    before = signal.signal(signal.SIGTERM, print if mine else signal.SIG_DFL)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **how: signal.signal(signal.SIGTERM, lambda *given: os.abort()), raising=False)
    monkeypatch.setattr(ray, "shutdown", lambda: None, raising=False)
    try:
        transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
        if mine:
            assert signal.getsignal(signal.SIGTERM) is print
        else:
            with pytest.raises(SystemExit, match="143"):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a second one is not waited for
        transport.close()
        assert signal.getsignal(signal.SIGTERM) is (print if mine else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_address_at_which_nothing_listens_is_said_at_once_without_ray(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for more than two minutes."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"no Ray cluster answers at cluster.address '127.0.0.1:{port}': .*refused; start one with"):
        RayTransport(ClusterConfig(address=f"127.0.0.1:{port}"), {}, WorkerSettings("float32", False, 1))


def test_a_task_that_cannot_be_sent_is_one_sentence(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(*given: Any) -> Any:
        raise TypeError("Could not serialize the argument Task(...) for a task or actor.")

    transport = started()
    monkeypatch.setitem(transport._actors, "c0.0", SimpleNamespace(run_task=SimpleNamespace(remote=remote)))
    task = Task(make_user_prompt("2+2="), "4", id="t")
    with pytest.raises(RlvrError, match=r"the tasks from group g on cannot be sent to a rollout worker: Could not .*pickle can write"):
        transport.start_task(DispatchTask("c0.0", "g", 0, 1), [RolloutRequest(task, "g", 0)], SamplingParams(), 0)


def test_weights_without_room_are_one_sentence(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(data: bytes) -> bytes:
        raise RayError("Failed to put object. The disk is full.")

    monkeypatch.setattr(ray, "put", put)
    with pytest.raises(RlvrError, match=r"version 3 of the weights has no room in Ray's object store .*: Failed to put object; free some"):
        started().store_weights(3, WeightUpdate([b"w"]))


def test_a_driver_that_stood_still_takes_nobody_for_lost(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, clock = started(), [1000.0]
    monkeypatch.setattr("rlvr.cluster.ray_transport.time.monotonic", lambda: clock[0])
    transport._heartbeats["c0.0"] = (None, clock[0] - 6)
    assert transport.poll(0) == []
    clock[0] += 3600  # frozen while a pulse was under way: its answer is not here yet
    assert transport.poll(0) == []
    clock[0] += 1
    assert transport.poll(0) == []
    clock[0] += 9.5
    assert transport.poll(0) == [WorkerLost("c0.0", "no heartbeat in 15 s (cluster.heartbeat_timeout_s)")]


def test_what_comes_back_and_cannot_be_read_is_a_loss(ray: Ray) -> None:
    transport = started()
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    ray.last("run_task").ends(ValueError("not a pickle"))
    assert transport.poll(0) == [WorkerLost("c0.0", f"ValueError (process {PLACE['pid']} on far): not a pickle")]


def test_what_ended_a_constructor_is_in_the_reason(ray: Ray) -> None:
    transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
    transport.start_worker("c0.0")
    said = (
        "The actor died because of an error in its creation task, ray::A.__init__()\n  File x\nModuleNotFoundError: No module named 'rlvr'"
    )
    ray.last("build_worker").ends(RayError(said.replace("\\n", "\n")))
    assert transport.poll(0) == [WorkerLost("c0.0", "RayError: ModuleNotFoundError: No module named 'rlvr'")]


def test_rays_own_words_stay_off_standard_output(ray: Ray, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RAY_IGNORE_UNHANDLED_ERRORS", raising=False)
    worker = SimpleNamespace(print_worker_logs=lambda data, sink, ignore_prefix: print(data["lines"], file=sink))
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, lambda **how: None, raising=False)
    RayTransport(ClusterConfig(address="auto"), {}, WorkerSettings("float32", False, 1)).close()
    worker.print_worker_logs({"lines": ["out of memory"]}, sys.stdout, ignore_prefix=False)
    assert capsys.readouterr() == ("", "['out of memory']\n") and os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] == "1"


def test_rollout_workers_work_in_the_drivers_folder(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes begin where `ray start` was typed; a relative path in a recipe means another file there."""
    monkeypatch.chdir(tmp_path)
    transport = RayTransport(ClusterConfig(verifier_workers=1), {}, WorkerSettings("float32", False, 1))
    transport.start_worker("c0.0")
    assert [call.given[-1] for call in ray.calls if call.name == "build_worker"] == [str(tmp_path)] * 2
    monkeypatch.chdir("/")
    change_to_driver_folder(str(tmp_path / "not here"))
    assert os.getcwd() == "/"
    change_to_driver_folder(str(tmp_path))
    assert os.getcwd() == str(tmp_path)


def test_a_setting_that_no_collector_can_sample_by_ends_the_run(ray: Ray) -> None:
    transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
    for name, error, hopeless in (
        ("load_weights", ConfigError("x"), False),
        ("run_task", ConfigError("x"), True),
        ("run_task", OSError("x"), False),
    ):
        transport.start_worker("c0.0")
        ray.last("build_worker").ends(PLACE)
        transport.poll(0)
        if name == "load_weights":
            transport.store_weights(0, WeightUpdate(()))
            transport.send_weight_update(LoadWeights("c0.0", 0, 1))
        else:
            transport.start_task(DispatchTask("c0.0", "0:0", 0, 1), [], SamplingParams(), 0)
        ray.last(name).ends(RayTaskError(error))
        [event] = transport.poll(0)
        assert isinstance(event, WorkerLost) and event.is_permanent == hopeless, (name, event)
        transport.kill_worker("c0.0")


NODE = """
import subprocess, sys
name, child = sys.argv[1:]
open("/proc/self/comm", "w").write(name)
made = subprocess.Popen(
    [sys.executable, "-c", f"open('/proc/self/comm', 'w').write({child!r}); print(flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
made.stdout.readline()
print(made.pid, flush=True)
print(made.wait(), flush=True)
"""


@contextmanager
def running_under(node: str, child: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of this name, which waits, and the one that has started it and prints how it ended."""
    above = subprocess.Popen([sys.executable, "-c", NODE, node, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert above.stdout is not None
    pid = int(above.stdout.readline())
    try:
        yield above, pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        above.communicate(timeout=20)


def test_only_the_process_itself_is_ended_and_not_one_that_has_got_its_number(ray: Ray) -> None:
    with running_under("raylet", "ray::Actor.f") as (node, pid):
        place = get_process_identity() | {"pid": pid, "born": get_process_start_time(pid), "is_known_to_ray": True}
        end_actor(ray, None, place | {"born": "1"})
        end_actor(ray, None, place | {"is_known_to_ray": False})
        assert get_process_start_time(pid)
        end_actor(ray, None, place)
        assert node.stdout is not None and node.stdout.readline().strip() == "-9" and get_process_start_time(pid) == ""


@pytest.mark.parametrize(("node", "child"), [("python", "ray::Actor.f"), ("raylet", "python"), ("python", "python")])
def test_a_worker_that_names_another_process_as_its_own_does_not_get_it_ended(ray: Ray, node: str, child: str) -> None:
    with running_under(node, child) as (_, pid):
        killed = list[int]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlvr.cluster.machines.os.kill", lambda number, _: killed.append(number))
            for named in (pid, os.getpid(), os.getppid(), 1):
                place = get_process_identity() | {"pid": named, "born": get_process_start_time(named), "is_known_to_ray": True}
                end_actor(ray, None, place)
        assert killed == []


def with_pids(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """A table of Ray that has this pid for every actor."""
    monkeypatch.setitem(sys.modules, "ray._private.state", SimpleNamespace(actors=lambda name: {"Pid": pid} if name == "a1" else {}))
    monkeypatch.setattr(Actor, "_actor_id", SimpleNamespace(hex=lambda: "a1"), raising=False)


def test_a_worker_that_names_the_worker_of_another_run_as_its_own_is_lost_and_ends_nothing(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_under("raylet", "ray::Actor.f") as (_, pid):
        with_pids(monkeypatch, 2**22 + 1)
        transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
        transport.start_worker("c0.0")
        ray.last("build_worker").ends(get_process_identity() | {"pid": pid, "born": get_process_start_time(pid)})
        [lost] = transport.poll(0)
        assert isinstance(lost, WorkerLost) and f"Ray has started it as {PLACE['pid']}" in lost.reason
        transport.kill_worker("c0.0")
        assert get_process_start_time(pid)


def test_a_worker_whose_pid_ray_knows_is_ended_by_it(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_under("raylet", "ray::Actor.f") as (node, pid):
        with_pids(monkeypatch, pid)
        started(**get_process_identity() | {"pid": pid, "born": get_process_start_time(pid)}).kill_worker("c0.0")
        assert node.stdout is not None and node.stdout.readline().strip() == "-9"


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


RESULTS: list[Any] = [
    5, None, (), (b"x",), (b"x", 1.0, 2.0), {"a": 1, "b": 2}, "ab", [b"x", 0.5], (memoryview(b"xyz")[::2], 0.5), ("text", 0.5), (5, 0.5),
    *((b"x", seconds) for seconds in ("z", None, float("nan"), float("inf"), -1.0, -1e308, True, 10**400, [1])),
]  # fmt: skip


@pytest.mark.parametrize("value", RESULTS, ids=map(str, range(len(RESULTS))))
def test_a_result_that_is_not_bytes_and_seconds_loses_the_worker_and_not_the_run(ray: Ray, value: Any) -> None:
    transport = started()
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    ray.last("run_task").ends(value)
    [lost] = transport.poll(0)
    assert isinstance(lost, WorkerLost) and "damaged" in lost.reason and not lost.is_permanent
    transport.kill_worker("c0.0")


PLACES: list[Any] = [
    5, None, {}, [], "here", {"pid": 1}, {**PLACE, "pid": "x"}, {**PLACE, "pid": -1}, {**PLACE, "pid": 0}, {**PLACE, "pid": True},
    {**PLACE, "pid": 10**5000}, {**PLACE, "host": 5}, {**PLACE, "pids": ["y"]}, {**PLACE, "born": None}, {**PLACE, "node": 1},
    {**PLACE, "log": 5}, {**PLACE, "host": "h" * 10**6},
]  # fmt: skip


@pytest.mark.parametrize("value", PLACES, ids=lambda value: type(value).__name__)
def test_a_worker_that_says_no_place_at_its_start_is_lost_and_the_run_goes_on(ray: Ray, value: Any) -> None:
    transport = RayTransport(ClusterConfig(), {}, WorkerSettings("float32", False, 1))
    transport.start_worker("c0.0")
    ray.last("build_worker").ends(value)
    [lost] = transport.poll(0)
    assert isinstance(lost, WorkerLost) and "damaged" in lost.reason and not lost.is_permanent
    assert transport.get_worker_location_and_log("c0.0") == {"words": []}
    transport.kill_worker("c0.0")
    assert started().get_worker_location_and_log("c0.0")["pid"] == PLACE["pid"]


def test_no_file_is_read_as_a_log_that_is_not_among_rays_logs(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, secret = tmp_path / "logs", tmp_path / "secret"
    logs.mkdir()
    secret.write_text("a password\n")
    (logs / "linked.err").symlink_to(secret)
    os.mkfifo(logs / "pipe.err")
    (logs / "worker.err").write_text("its own words\n")
    paths = [str(secret), f"{logs}/../secret", str(logs / "linked.err"), str(logs / "pipe.err"), str(logs), "", "\0"]
    for module in (with_logs_in(logs), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "ray._private.worker", module)
        assert [started(pids=get_pid_scope_id(), log=path).get_worker_location_and_log("c0.0")["words"] for path in paths] == [[]] * len(
            paths
        )
    assert started(pids=get_pid_scope_id(), log=str(logs / "worker.err")).get_worker_location_and_log("c0.0")["words"] == []
    monkeypatch.setitem(sys.modules, "ray._private.worker", with_logs_in(logs))
    assert started(pids=get_pid_scope_id(), log=str(logs / "worker.err")).get_worker_location_and_log("c0.0")["words"] == ["its own words"]


@pytest.mark.parametrize("said", [5, "x", {"a": 1}, [5], [None], ["x" * 10**6] * 100])
def test_a_heartbeat_with_anything_but_lines_or_with_too_many_is_harmless(ray: Ray, said: Any) -> None:
    transport = started()
    transport._heartbeats["c0.0"] = (None, 0.0)
    transport.poll(0)
    ray.last("heartbeat").ends(said)
    transport.poll(0)
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    ray.last("run_task").ends(RayError("The actor died. See the logs."))
    [lost] = transport.poll(0)
    assert isinstance(lost, WorkerLost) and len(repr(transport.get_worker_location_and_log("c0.0"))) < 20_000


def test_an_error_that_cannot_say_itself_loses_the_worker_and_not_the_run(ray: Ray) -> None:
    transport = started()
    transport.start_task(DispatchTask("c0.0", "g", 0, 1), [], SamplingParams(), 0)
    failed = RayTaskError(OSError())
    failed.cause = Unsayable()
    ray.last("run_task").ends(failed)
    assert transport.poll(0) == [WorkerLost("c0.0", "Unsayable")]


def test_nothing_is_heard_of_a_stopped_collector_however_long_it_is_gone(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, clock = started(), [1000.0]
    monkeypatch.setattr("rlvr.cluster.ray_transport.time.monotonic", lambda: clock[0])
    transport.start_worker("c1.0")
    transport.kill_worker("c0.0")
    transport.kill_worker("c1.0")
    for _ in range(60):
        clock[0] += 6
        assert transport.poll(0) == []


def test_a_collector_that_was_placed_may_take_its_time_to_start(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, clock = started(), [1000.0]
    monkeypatch.setattr("rlvr.cluster.ray_transport.time.monotonic", lambda: clock[0])
    transport.kill_worker("c0.0")
    transport.start_worker("c1.0")
    ray.last("heartbeat").ends([])
    for _ in range(60):
        clock[0] += 6
        assert transport.poll(0) == []


def test_a_word_to_stop_names_the_call_and_comes_too_late_for_one_that_is_gone(ray: Ray) -> None:
    transport, order = started(), DispatchTask("c0.0", "g", 0, 1)
    transport.cancel_task(order)
    assert ray.last("cancel").given == (order,)
    transport.kill_worker("c0.0")
    transport.cancel_task(order)
    assert len([call for call in ray.calls if call.name == "cancel"]) == 1


def test_verifier_workers_are_named_to_all_that_are_there_and_to_each_that_comes(ray: Ray) -> None:
    transport = RayTransport(ClusterConfig(verifier_workers=1, cpus_per_verifier_worker=0.5), {}, WorkerSettings("float32", False, 1))
    host = ray.last("build_worker")

    def named() -> list[Any]:
        return [(list(call.given[0]), call.given[1]) for call in ray.calls if call.name == "set_verifier_workers"]

    transport.start_worker("c0.0")
    ray.last("build_worker").ends(PLACE)
    assert transport.poll(0) == [WorkerStarted("c0.0")] and named() == [([], 1)]
    host.ends(PLACE)
    assert transport.poll(0) == [] and named() == [([], 1), (["j0.0"], 2)]
    transport.start_worker("c1.0")
    ray.last("build_worker").ends(PLACE)
    assert transport.poll(0) == [WorkerStarted("c1.0")] and named()[2:] == [(["j0.0"], 3)]
    transport.close()
    assert ray.killed == 3


def test_rollout_workers_and_verifier_workers_must_have_room_together() -> None:
    check_capacity(ClusterConfig(rollout_workers=3, verifier_workers=1), [{"CPU": 4.0}])
    with pytest.raises(ConfigError, match=r"cluster.verifier_workers is 1, each with 1 CPUs on one machine, and .* capacity for 0"):
        check_capacity(ClusterConfig(rollout_workers=4, verifier_workers=1), [{"CPU": 4.0}])


def test_a_process_here_that_has_the_number_of_one_elsewhere_is_left_alone(ray: Ray) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = get_process_identity() | {"pid": process.pid, "born": get_process_start_time(process.pid), "is_known_to_ray": True}
    end_actor(ray, None, place | {"pids": "another machine"})
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=20)
