"""vLLM engines in processes of their own: who answers, what happens when one dies, and that none outlives its trainer."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rlvr.config.config import LoraConfig
from rlvr.contracts import Completion, Request, SamplingParams, StaticQueue
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.samplers._colocated import ColocatedEngine, VLLMEngineConfig
from rlvr.samplers._local import engine_plan as fleet
from rlvr.samplers._local import engine_process as process
from rlvr.samplers._local import engine_worker as worker
from rlvr.samplers._local import engines as local
from rlvr.samplers._local.engine_plan import EnginePlan, plan_engines
from rlvr.samplers._local.load_balancer import PREFIX_BONUS_REQUESTS, EngineLoad, choose_engine, compute_max_request_tokens
from rlvr.samplers._local.message_socket import LENGTH_STRUCT, MessageSocket
from rlvr.samplers._local.process_group import kill_process_group, list_group_processes
from rlvr.samplers._local.rendezvous import SOCKET_FOLDER_VARIABLE, redirect_vllm_rendezvous_files
from rlvr.samplers._local.weight_loading import iter_tensors
from rlvr.samplers._servers.timeouts import Timeouts
from rlvr.samplers.vllm import VLLMSampler
from rlvr.task import Task, make_user_prompt
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.policy_weights import AdaptedModelWeights
from tests.samplers.test_vllm import STOPS, fresh, largest_difference, nudged, requests
from tests.training.peers.launch import ended, started

ROOT = Path(__file__).parents[2]
SAMPLING = SamplingParams(stop_ids=STOPS)


@pytest.fixture(scope="module", autouse=True)
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Engines of tests are stand-ins, except where a test says otherwise; what they share lies in a folder of its own."""
    patch, shared = pytest.MonkeyPatch(), tmp_path_factory.mktemp("shm")
    patch.setenv("STAND_SAYS", str(tmp_path_factory.mktemp("says") / "says"))
    patch.setattr(process, "WORKER_MODULE", "tests.samplers.engine_stand")
    patch.setattr(fleet, "SHARED_MEMORY", shared)
    patch.setattr("rlvr.samplers.vllm.get_installed_version", lambda: "0.32.0")
    yield shared
    patch.undo()


def beside(**settings: Any) -> VLLMSampler:
    return VLLMSampler(
        placement="local", **{"engines": 2, "max_num_seqs": 4, "start_timeout_s": 120.0, "completion_timeout_s": 60.0} | settings
    )


@pytest.fixture(scope="module")
def sampler(stand: Path) -> Iterator[VLLMSampler]:
    with beside() as made:
        made.update_from_model(fresh(), 0)
        yield made
    assert not list(stand.iterdir())  # nothing is left in shared memory


def inside(sampler: VLLMSampler) -> Any:
    return sampler._engine


def pids(sampler: VLLMSampler) -> list[int]:
    return [slot.process.pid for slot in inside(sampler).slots]


def in_mid_rollout(sampler: VLLMSampler, asked: list[Request], act: Callable[[int], None]) -> list[Completion]:
    """All completions; after the third one, something is done to the process of an engine that has requests."""
    found: dict[int, Completion] = {}
    for number, completion in sampler.stream_completions(asked, SAMPLING):
        found[number] = completion
        if len(found) == 3:
            act(next(slot.process.pid for slot in inside(sampler).slots if slot.load.running))
    return [found[number] for number in range(len(asked))]


def moved(adapted: Any, seed: int) -> Any:
    """What an update does to an adapter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in (p for p in adapted.parameters() if p.requires_grad):
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return adapted


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text("utf-8").rpartition(")")[2].split()[0] == "Z"


def soon(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


@pytest.mark.slow
def test_both_engines_answer_with_the_trainer_s_weights(sampler: VLLMSampler) -> None:
    model, asked = fresh(), requests(24)
    for version in range(1, 4):
        sampler.update_from_model(nudged(model, 0.05, version), version)
        assert sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"] < 1e-4 and not any(
            slot.load.groups for slot in inside(sampler).slots
        )
        assert largest_difference(model, asked, sampler.sample(asked, SAMPLING)) < 1e-4
    assert all(slot.load.groups and not slot.load.running and not slot.load.tokens for slot in inside(sampler).slots)
    assert [path.name for path in inside(sampler)._weights_folder.iterdir()] == ["weights-3"]  # only the newest are kept
    sampler.update_from_model(fresh(2), 4)  # weights that have nothing to do with those before
    greedy = [sampler.sample([Request(asked[0].prompt, 12, seed)], SamplingParams(0.0, stop_ids=STOPS))[0] for seed in range(3)]
    assert len({tuple(c.tokens) for c in greedy}) == 1 and set(greedy[0].logprobs) == {0.0}
    with pytest.raises(ConfigError, match="134 tokens, and the vLLM engines beside the trainer allows 128"):
        sampler.sample([Request([2] * 34, 100)], SAMPLING)
    inside(sampler).sleep()
    assert [slot.reply for slot in inside(sampler).slots] == [{"told": "rested"}] * 2


@pytest.mark.slow
def test_a_killed_engine_is_restarted_and_its_requests_have_the_same_tokens(sampler: VLLMSampler) -> None:
    model, asked = fresh(), requests(30, max_tokens=40)
    sampler.update_from_model(model, 5)
    undisturbed = sampler.sample(asked, SAMPLING)
    before = pids(sampler)
    found = in_mid_rollout(sampler, asked, lambda pid: os.kill(pid, signal.SIGKILL))
    assert [c.tokens for c in found] == [c.tokens for c in undisturbed] and largest_difference(model, asked, found) < 1e-4
    sampler.update_from_model(nudged(model, 0.05, 1), 6)  # the restarted one gets newer weights too, and the probe looks at each
    assert (
        sum(a != b for a, b in zip(before, pids(sampler), strict=True)) == 1
        and sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"] < 1e-4
    )
    assert largest_difference(model, asked, sampler.sample(asked, SAMPLING)) < 1e-4
    assert not any(slot.num_deaths for slot in inside(sampler).slots)  # deaths in a row are counted


@pytest.mark.slow
def test_an_engine_that_hangs_is_killed_after_its_deadline(sampler: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(30, max_tokens=40)
    sampler.update_from_model(fresh(), 7)
    undisturbed, before = sampler.sample(asked, SAMPLING), pids(sampler)
    monkeypatch.setattr(inside(sampler), "timeouts", Timeouts(completion_timeout_s=3.0, start_timeout_s=120.0))
    found = in_mid_rollout(sampler, asked, lambda pid: os.kill(pid, signal.SIGSTOP))
    assert [c.tokens for c in found] == [c.tokens for c in undisturbed]
    assert all(gone(pid) for pid in set(before) - set(pids(sampler)))
    monkeypatch.undo()
    sampler.update_from_model(fresh(), 8)


@pytest.mark.slow
def test_an_engine_with_long_answers_is_not_killed_and_one_without_a_token_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is for no progress: a completion may take longer."""
    asked, timeouts = requests(3, max_tokens=40), {"engines": 1, "completion_timeout_s": 2.5}
    monkeypatch.setenv("STAND", "slow")
    with beside(**timeouts) as slow:
        slow.update_from_model(fresh(), 0)
        before, began = pids(slow), time.monotonic()
        assert all(completion.finish_reason != "error" for completion in slow.sample(asked, SamplingParams()))
        assert pids(slow) == before and time.monotonic() - began > 5
    monkeypatch.setenv("STAND", "idles")
    monkeypatch.setattr(local, "MAX_DEATHS", 1)
    with beside(**timeouts) as idle:
        idle.update_from_model(fresh(), 0)
        with pytest.raises(SamplerError, match=r"died 2 times in a row; the last time: it did not answer in time \(busy\)"):
            idle.sample(asked, SamplingParams())


@pytest.mark.slow
def test_an_engine_is_not_blamed_for_time_in_which_the_trainer_did_not_listen(
    sampler: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that was stopped, or whose verifiers took long, finds the answers that came meanwhile."""
    sampler.update_from_model(fresh(), 7)
    before = pids(sampler)
    monkeypatch.setattr(inside(sampler), "timeouts", Timeouts(completion_timeout_s=2.0, start_timeout_s=120.0))
    monkeypatch.setattr(local, "STALL_S", 0.5)
    in_mid_rollout(sampler, requests(30, max_tokens=40), lambda pid: time.sleep(3.0))
    assert pids(sampler) == before


def framed(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH_STRUCT.pack(len(data)) + data


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        framed("x")[:4] + b"\xff",
        framed({"told": "sings"}),
        framed({"told": "ended", "id": 0, "tokens": [1, 2], "logprobs": [0.0], "finish_reason": "stop", "error": ""}),
    ],
    ids=["no JSON", "an unknown word", "fewer log-probabilities"],
)
def test_an_engine_that_sends_garbage_is_started_again(sampler: VLLMSampler, said: bytes) -> None:
    asked = requests(20, max_tokens=20)
    sampler.update_from_model(fresh(), 7)
    undisturbed, before = sampler.sample(asked, SAMPLING), pids(sampler)
    file = Path(os.environ["STAND_SAYS"])

    def babbles(pid: int) -> None:
        file.write_bytes(said)

    found = in_mid_rollout(sampler, asked, babbles)
    assert not file.exists() and [c.tokens for c in found] == [c.tokens for c in undisturbed]
    sampler.update_from_model(fresh(), 8)
    assert sum(a != b for a, b in zip(before, pids(sampler), strict=True)) == 1


@pytest.mark.slow
def test_weights_that_do_not_fit_are_said_with_where_they_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails as a file does that may not become so long. An engine that dies then does not answer without weights."""
    with beside(engines=1) as sampler:
        sampler.update_from_model(fresh(), 0)
        with (
            no_room(),
            pytest.raises(SamplerError, match=r"could not be written to \S+: .*too large.*; set weights_folder to one with room"),
        ):
            sampler.update_from_model(fresh(), 1)
        monkeypatch.setattr(local, "MAX_DEATHS", 1)
        os.kill(pids(sampler)[0], signal.SIGKILL)
        with pytest.raises(RlvrError, match="weights-0' is not a folder"):
            sampler.sample(requests(3), SAMPLING)
    with beside(weights_folder="/nowhere/at/all") as other, pytest.raises(ConfigError, match="weights_folder /nowhere/at/all cannot be"):
        other.update_from_model(fresh(), 0)


@contextmanager
def no_room() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


SHARES = """
import multiprocessing, sys, time
from multiprocessing.shared_memory import SharedMemory
def child(names):
    names.put(SharedMemory(create=True, size=64).name)
    time.sleep(60)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    context.Process(target=child, args=(names,)).start()
    print(SharedMemory(create=True, size=64).name, names.get(), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("first", ["none", "one of them"])
def test_what_killed_processes_shared_is_removed(tmp_path: Path, first: str) -> None:
    """Queues between the processes of an engine are shared memory; each kill would leave hundreds of megabytes."""
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        names = [Path("/dev/shm", name.decode()) for name in parent.stdout.readline().split()]
        assert (
            len(names) == 2
            and all(name.exists() for name in names)
            and sorted(list_group_processes(parent.pid).values()) == [False, False, True]
        )
        if first != "none":
            parent.kill()  # by somebody else: by the system, without memory
        kill_process_group(parent.pid, timeout_s=10.0)
        assert not any(name.exists() for name in names) and not list_group_processes(parent.pid)


@pytest.mark.slow
def test_an_abandoned_stream_leaves_nothing_running_and_nothing_behind(sampler: VLLMSampler) -> None:
    asked = requests(20, max_tokens=40)
    sampler.update_from_model(fresh(), 9)
    whole = sampler.sample(asked, SAMPLING)
    stream = sampler.stream_completions(asked, SAMPLING)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not any(slot.load.running for slot in inside(sampler).slots)
    assert [c.tokens for c in sampler.sample(asked, SAMPLING)] == [c.tokens for c in whole]


@pytest.mark.slow
def test_an_engine_with_other_weights_after_a_restart_is_refused(sampler: VLLMSampler) -> None:
    sampler.update_from_model(fresh(), 10)
    sent = inside(sampler)._weights_folder / "weights-10"

    def swapped(pid: int) -> None:
        shutil.rmtree(sent)
        fresh(2).save_pretrained(sent)
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(SamplerError, match=r"engine \d beside the trainer was restarted and has other weights than before"):
        in_mid_rollout(sampler, requests(60, max_tokens=60), swapped)
        sampler.sleep()  # waits for all, if the others were faster than the restart
    sampler.update_from_model(fresh(), 11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble, error, words",
    [
        ("refuses", ConfigError, "this engine cannot run this model"),
        ("dies", SamplerError, r"engine 0 beside the trainer died 1 times in a row; the last time: RuntimeError: out of memory"),
    ],
)
def test_what_does_not_start_ends_in_words(
    trouble: str, error: type[Exception], words: str, stand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND", trouble)
    monkeypatch.setattr(local, "MAX_DEATHS", 0)
    before = set(stand.iterdir())
    with beside(engines=1) as sampler, pytest.raises(error, match=words):
        sampler.update_from_model(fresh(), 0)
    assert set(stand.iterdir()) == before


SCRIPT = """
import sys
from pathlib import Path
from rlvr.samplers._local import engine_process as process
process.WORKER_MODULE = "tests.samplers.engine_stand"
home = Path(sys.argv[1])
start = {"do": "start", "model": str(home), "whole": False, "tied": None, "place": {"dtype": "float32"}, "home": str(home)}
heard = lambda engine, message: print(engine.pid, flush=True)
process.EngineProcess(start, heard, log=home / "log", gpus=None, home=str(home), send_timeout_s=9.0)
sys.stdin.read()
"""


@pytest.mark.slow
def test_engines_end_when_the_trainer_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    home = tmp_path / "weights"
    home.mkdir()
    command = [sys.executable, "-c", SCRIPT, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as trainer:
        assert trainer.stdout is not None
        engine = int(trainer.stdout.readline())
        assert not gone(engine) and home.exists()
        trainer.kill()
        assert soon(lambda: gone(engine)) and not home.exists()  # and the weights in shared memory are gone


def test_a_request_goes_where_least_is_under_way_unless_its_prompt_is_known() -> None:
    loads, request = [EngineLoad(64), EngineLoad(64)], Request([1] * 10, 90, task=Task(make_user_prompt("x"), None, id="t"))
    assert choose_engine(loads, request, "a") == 0
    loads[0].add(0, request, "a")
    assert (choose_engine(loads, request, "b"), choose_engine(loads, request, "a")) == (1, 0)
    for number in range(1, PREFIX_BONUS_REQUESTS + 2):
        loads[0].add(number, request, "a")
    assert choose_engine(loads, request, "a") == 1  # too far ahead
    assert loads[0].tokens == (PREFIX_BONUS_REQUESTS + 2) * compute_max_request_tokens(request) and [
        number for number, *_ in loads[0].remove_all()
    ] == list(range(PREFIX_BONUS_REQUESTS + 2))
    loads[1].max_requests = 0
    assert choose_engine(loads, request, "b") == 0 and choose_engine(loads[1:], request, "b") is None


def test_engines_get_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [plan_engines(None, [2, 3, 4, 5], 2, None).get_devices(number) for number in range(2)] == [("2", "3"), ("4", "5")]
    assert plan_engines(2, None, 1, torch.device("cpu")) == EnginePlan(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert plan_engines(2, None, 1, torch.device("cuda", 1)) == EnginePlan(2, ("5", "5"))  # beside the trainer, on its own
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert plan_engines(None, [2, 3], 1, None) == EnginePlan(1, ("7",))  # the second of two training processes gets the second half
    for gpus, width, words in (
        ([2], 1, "cannot be some engines of 1 for each of 2"),
        ([2, 9], 1, "sees 4 GPUs"),
        (None, 2, "name the GPUs"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_engines(None, gpus, width, torch.device("cuda", 0))


@pytest.mark.slow
def test_each_of_two_training_processes_has_an_engine_of_its_own(tmp_path: Path) -> None:
    """The main one writes the weights, once; the engines of both load them."""
    codes = ended(started(2, "tests.samplers.trainers", [str(tmp_path)], tmp_path / "said"), 200)
    assert codes == [0, 0], "".join(path.read_text()[-2000:] for path in sorted((tmp_path / "said").iterdir()))
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(max(each["probe"] + each["differences"]) < 1e-4 for each in told)
    assert [each["written"] for each in told] == [[1, 1], [0, 0]] and told[0]["engine"] != told[1]["engine"]
    assert all(gone(each["engine"]) for each in told) and not list(tmp_path.glob("rlvr-*"))


def test_an_engine_sees_its_own_devices_and_no_launcher() -> None:
    made = process.build_engine_variables({"RANK": "1", "MASTER_PORT": "5", "ACCELERATE_USE_FSDP": "1", "PATH": "/bin"}, ("3", "4"))
    assert made["CUDA_VISIBLE_DEVICES"] == "3,4" and made["PATH"] == "/bin" and made["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert not {"RANK", "MASTER_PORT", "ACCELERATE_USE_FSDP"} & set(made)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"placement": "colocated", "engines": 2}, "set placement: local"),
        ({"placement": "local", "urls": ["http://x:1"]}, "a server needs URLs"),
        ({"placement": "local", "engines": 0}, "at least one of each"),
        ({"placement": "local", "gpus": []}, "at least one of each"),
        ({"placement": "local", "memory_fraction": 1.5}, "above 0 and at most 1"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VLLMSampler(**settings)


def test_the_processes_of_an_engine_read_all_files_of_the_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({f"{name}.weight": torch.full((2,), float(ord(name)))}, tmp_path / f"model-{name}.safetensors")
    found = [(name, tensor.tolist()) for name, tensor in iter_tensors(str(tmp_path), {"a.weight": "head.weight"})]
    assert found == [("a.weight", [97.0] * 2), ("head.weight", [97.0] * 2), ("b.weight", [98.0] * 2)]


def test_weights_go_to_memory_only_where_they_fit_twice(stand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    size = sum(weight.numel() * 4 for weight in model.parameters())
    for free, where in ((2 * size + 1, stand), (2 * size - 1, Path(tempfile.gettempdir()))):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert fleet.choose_parent_of_weights_folder(model) == where


def test_messages_are_whole_or_they_are_none() -> None:
    ours, theirs = socket.socketpair()
    one, other = MessageSocket(ours), MessageSocket(theirs)

    def send(number: int) -> None:
        for _ in range(5):
            one.send({"from": number, "text": "x" * 400_000})

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    with ours, theirs:
        found = [other.receive() for _ in range(20)]
    assert sorted(message["from"] for message in found if message) == sorted([*range(4)] * 5)
    for data in (b"\0\0", LENGTH_STRUCT.pack(30) + b'{"told": "half"}', framed([1]), LENGTH_STRUCT.pack((1 << 32) - 1) + b"{}"):
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(data)
            ours.close()
            assert MessageSocket(theirs).receive() is None


def test_who_does_not_read_holds_nobody_up_for_longer_than_the_timeout() -> None:
    ours, theirs = socket.socketpair()
    failed = list[BaseException]()

    def send() -> None:
        try:
            MessageSocket(ours, send_timeout_s=0.2).send({"text": "x" * 4_000_000})
        except OSError as error:
            failed.append(error)

    sender = threading.Thread(target=send, daemon=True)
    with ours, theirs:
        sender.start()
        sender.join(20)
        assert failed


@pytest.mark.slow
def test_an_engine_that_does_not_read_is_killed(tmp_path: Path) -> None:
    heard: SimpleQueue[Any] = SimpleQueue()
    start = {"do": "start", "model": "", "whole": True, "tied": None, "place": {"dtype": "float32"}, "home": str(tmp_path)}
    engine = process.EngineProcess(
        start, lambda _, message: heard.put(message), log=tmp_path / "log", gpus=None, home="", send_timeout_s=0.5
    )
    assert heard.get(timeout=100)["told"] == "ready"
    os.kill(engine.pid, signal.SIGSTOP)
    engine.send({"do": "score", "tokens": list(range(1_000_000))})
    assert heard.get(timeout=20) is None and soon(lambda: gone(engine.pid))
    engine.kill()


def test_a_rollout_that_ends_early_aborts_what_is_running() -> None:
    ours, theirs = socket.socketpair()
    orders, left = worker.Orders(), list[int]()

    class Fake:
        def stream_from_queue(self, feed: worker.SocketRequestQueue, sampling: SamplingParams) -> Iterator[Any]:
            feed.pop(9)
            try:
                yield 0, Completion([1], [-0.5], "stop")
                left.append(feed.num_running)
                orders.put({"do": "end"})
                feed.pop(9)
                for _ in range(9):
                    yield None
                left.append(0)
            finally:
                left.append(-1)

    subject = worker.EngineWorker.__new__(worker.EngineWorker)
    subject.connection, subject.orders, subject.engine = MessageSocket(ours), orders, Fake()  # type: ignore[assignment]
    for number in range(2):
        orders.put({"do": "ask", "id": number, "prompt": [1], "max_tokens": 2, "seed": 0})
    with ours, theirs:
        subject.serve(SamplingParams())
        told = MessageSocket(theirs).receive()
    assert left == [1, -1] and told is not None and (told["id"], told["tokens"], told["finish_reason"]) == (0, [1], "stop")


def test_what_vllm_names_after_its_files_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SHARED_MEMORY", tmp_path)
    for name in ("home-0-a", "home-1-b", "home-10-c", "another-0-d"):
        (tmp_path / name).touch()
    fleet.clear_shared_memory(Path("/somewhere/home"), "1-")
    assert {path.name for path in tmp_path.iterdir()} == {"home-0-a", "home-10-c", "another-0-d"}
    fleet.clear_shared_memory(Path("/somewhere/home"))
    assert [path.name for path in tmp_path.iterdir()] == ["another-0-d"]


@pytest.mark.vllm
def test_sockets_of_each_engine_are_in_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an engine before made vLLM remember the folder, which is gone; a path that is too long for sockets is not used."""
    from vllm import envs
    from vllm.utils.network_utils import get_open_zmq_ipc_path

    monkeypatch.setenv(SOCKET_FOLDER_VARIABLE, "/of/the/user")
    for folder in ("/one", "/two"):
        with redirect_vllm_rendezvous_files(Path(folder)):
            envs.enable_envs_cache()
            assert get_open_zmq_ipc_path().startswith(f"ipc://{folder}/")
        assert os.environ[SOCKET_FOLDER_VARIABLE] == "/of/the/user"
    with redirect_vllm_rendezvous_files(Path("/x" * 40)):
        assert get_open_zmq_ipc_path().startswith("ipc:///of/the/user/")


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_engine_of_two_processes_has_the_trainer_s_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split over two processes; `killed_engines.py --width 2` kills one of them."""
    monkeypatch.setattr(process, "WORKER_MODULE", "rlvr.samplers._local.engine_worker")
    monkeypatch.setattr(fleet, "SHARED_MEMORY", Path("/dev/shm"))
    monkeypatch.setenv("TMPDIR", folder := tempfile.mkdtemp())  # of the engine's processes
    model, asked = fresh(), requests(12)
    with beside(engines=1, tensor_parallel_size=2, kv_cache_gb=0.1, start_timeout_s=500.0, completion_timeout_s=120.0) as sampler:
        for version in range(3):
            sampler.update_from_model(nudged(model, 0.05, version), version)
            assert sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"] < 1e-4
        assert largest_difference(model, asked, sampler.sample(asked, SAMPLING)) < 1e-4
        [engine], home = pids(sampler), inside(sampler)._folder
        assert sorted(list_group_processes(engine).values()) == [False, False, False, True]
        maps = [Path(f"/proc/{pid}/maps").read_text().split() for pid in list_group_processes(engine)]
        shared = {word for words in maps for word in words if word.startswith("/dev/shm/")}
        assert len(shared) >= 3 and home.exists() and any(path.is_socket() for path in home.rglob("*"))
    assert not any(path.is_socket() for path in Path(folder).rglob("*"))
    shutil.rmtree(folder)
    assert not home.exists() and not list_group_processes(engine) and not [path for path in shared if Path(path).exists()]


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_engine_is_killed_and_restarted_with_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights, adapter and requests go to the second process as they went to the first; merged weights say the same."""
    monkeypatch.setattr(process, "WORKER_MODULE", "rlvr.samplers._local.engine_worker")
    adapted, asked = moved(adapter.add_adapter(fresh(tie_word_embeddings=True), LoraConfig(rank=4)), 1), requests(24, max_tokens=40)
    weights = AdaptedModelWeights(adapted)
    with beside(engines=1, kv_cache_gb=0.1, start_timeout_s=500.0, completion_timeout_s=120.0) as sampler:
        sampler.update_weights(weights, 0)
        sent = inside(sampler)._weights_folder
        written = (sent / "base").stat().st_mtime_ns
        undisturbed = sampler.sample(asked, SAMPLING)
        assert largest_difference(adapted, asked, undisturbed) < 1e-4
        found = in_mid_rollout(sampler, asked, lambda pid: os.kill(pid, signal.SIGKILL))
        assert [c.tokens for c in found] == [c.tokens for c in undisturbed] and weights._merged_model is None
        moved(adapted, 2)
        sampler.update_weights(weights, 1)
        assert {path.name for path in sent.iterdir()} == {"base", "adapter-1"} and (sent / "base").stat().st_mtime_ns == written  # once
        apart = sampler.sample(asked, SAMPLING)
        assert [c.tokens for c in apart] != [c.tokens for c in undisturbed] and largest_difference(adapted, asked, apart) < 1e-4
        sampler.update_from_model(weights.gather_model(), 2)
        merged = sampler.sample(asked, SAMPLING)
        assert [c.tokens for c in merged] == [c.tokens for c in apart]
        for one, other in zip(merged, apart, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


class SteppedEngine:
    """The part of vLLM's engine that this process steps: one request, a token a step, or none if it `hangs`."""

    def __init__(self, num_tokens: int, *, hangs: bool) -> None:
        self.num_tokens, self.hangs, self.tokens = num_tokens, hangs, list[int]()
        self.name = ""
        self.output_processor = SimpleNamespace(request_states={})

    def add_request(self, name: str, *_: Any, **__: Any) -> None:
        self.name = name
        self.output_processor.request_states[name] = SimpleNamespace(
            detokenizer=SimpleNamespace(num_output_tokens=lambda: len(self.tokens))
        )

    def step(self) -> list[Any]:
        time.sleep(0.02)
        if self.hangs:
            return []
        self.tokens.append(2)
        if len(self.tokens) < self.num_tokens:
            return []
        self.output_processor.request_states.clear()
        flat = SimpleNamespace(token_ids=self.tokens, logprobs=[-0.5] * len(self.tokens))
        completion = SimpleNamespace(token_ids=self.tokens, logprobs=flat, finish_reason="length")
        return [SimpleNamespace(request_id=self.name, finished=True, outputs=[completion])]

    def abort_request(self, names: list[str]) -> None: ...


@pytest.mark.parametrize("hangs", [False, True])
def test_the_engine_in_this_process_may_take_long_for_an_answer_and_not_for_a_token(hangs: bool) -> None:
    engine = ColocatedEngine.__new__(ColocatedEngine)
    vars(engine).update(
        completion_timeout_s=0.5, max_model_len=128, _adapter=None, _request_ids=count(), _num_ended_tokens=0,
        _llm=SimpleNamespace(llm_engine=SteppedEngine(60, hangs=hangs)), _make_sampling_params=lambda request, sampling: None,
    )  # fmt: skip
    began = time.monotonic()
    answers = engine.stream_from_queue(StaticQueue([Request([1], 60)]), SamplingParams())
    if hangs:
        with pytest.raises(SamplerError, match=r"generated no token of 1 completions within 0.5 s \(completion_timeout_s\)"):
            list(answers)
        assert time.monotonic() - began < 10
    else:
        [(_, completion)] = filter(None, answers)
        assert len(completion.tokens) == 60 and time.monotonic() - began > 1.2 and engine.count_all_generated_tokens() == 60


def test_an_engine_gets_the_arguments_of_vllm_and_its_own_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = list[dict[str, Any]]()
    monkeypatch.setattr("rlvr.samplers.vllm.get_installed_version", lambda: "0.32.0")
    sampler = VLLMSampler(placement="local", engine_args={"kv_cache_dtype": "fp8", "max_num_batched_tokens": 8192})
    config = VLLMEngineConfig(**json.loads(json.dumps(asdict(sampler.engine_config))))  # as it reaches another process
    monkeypatch.setattr("rlvr.samplers._colocated._vllm", lambda: SimpleNamespace(LLM=lambda folder, **more: given.append(more)))
    engine = ColocatedEngine.__new__(ColocatedEngine)
    vars(engine).update(_folder=tmp_path, config=config, is_on_gpu=True, _tied_weights=None)
    engine._create_llm("a folder")
    assert given[0]["kv_cache_dtype"] == "fp8" and given[0]["max_num_batched_tokens"] == 8192 and given[0]["max_num_seqs"] == 256
    for placement, name, words in (
        ("local", "gpu_memory_utilization", "sets itself; write memory_fraction="),
        ("local", "logprobs_mode", "sets itself"),
        ("server", "kv_cache_dtype", "the command that starts the server"),
    ):
        with pytest.raises(ConfigError, match=words):
            VLLMSampler(placement=placement, urls=["http://localhost:1"] if placement == "server" else None, engine_args={name: 1})
