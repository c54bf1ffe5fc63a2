"""A Ray cluster of two nodes in one machine, and a sampler whose process can be harmed at a moment that the test names."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from rlvr.cluster.ray_transport import _RolloutActor
from rlvr.contracts import Completion, Request, RequestQueue, SamplingParams
from rlvr.samplers.scripted import ScriptedSampler

MARK = "RLVR_TEST_CLUSTER"
"""In the environment of every process of a cluster, so that what is left can be found."""
OBJECTS = 100 << 20
LEAVING_S = 20.0
"""How long processes may take to end after the cluster was shut down."""


class Paced(ScriptedSampler):
    """Answers with random tokens, which depend on the seed alone, so many seconds each. It imports no torch.

    `dies` names tasks at which the process is killed: `times` times, counted by files in the folder `home`.
    """

    def __init__(self, *, seconds: float = 0.0, dies: Sequence[str] = (), times: int = 10**6, home: str = "") -> None:
        super().__init__(answer="random")
        self.seconds, self.dies, self.times, self.home = seconds, list(dies), times, home

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for found in super().stream_completions(requests, sampling):
            time.sleep(self.seconds)
            self._meet(requests[found[0]])
            yield found

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        while (asked := queue.pop(1)) is not None:
            for number, request in asked:
                time.sleep(self.seconds)
                self._meet(request)
                yield number, self._complete(request)
            if not asked:
                yield None

    def _meet(self, request: Request) -> None:
        if request.task is None or request.task.id not in self.dies:
            return
        before = len(list(Path(self.home).glob("death-*")))
        if before < self.times:
            Path(self.home, f"death-{before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class SlowToLoad(_RolloutActor):
    """Takes its time to load weights. Its collector refuses what is asked of it before."""

    def load_weights(self, *given: Any) -> None:
        time.sleep(0.7)
        super().load_weights(*given)


class Idle:
    """Something else on a machine."""

    def pulse(self) -> None:
        pass


class Nodes:
    """The cluster of a test module.

    >>> with two_nodes() as nodes: nodes.address                                            # doctest: +SKIP
    '127.0.0.1:6379'
    """

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.ray = ray
        ray._raylet.Config.initialize("")  # Ray reads its environment when it is imported, and this process may have done that before
        head = {"num_cpus": 4, "object_store_memory": OBJECTS, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self.cluster.address
        self.other: Any = self.cluster.add_node(num_cpus=4, object_store_memory=OBJECTS)
        ray.init(address=self.address, log_to_driver=False, logging_level="error", configure_logging=False)

    def lose(self) -> None:
        """End the second node at once, with all that runs on it."""
        self.cluster.remove_node(self.other, allow_graceful=False)

    def close(self) -> None:
        self.ray.shutdown()
        self.cluster.shutdown()


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """The cluster; at the end none of its processes is left, however the tests ended."""
    mark, nodes, folder = uuid4().hex, None, os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    settings = {MARK: mark, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    before = {name: os.environ.get(name) for name in [*settings, "RAY_AUTH_MODE"]}
    os.environ.pop("RAY_AUTH_MODE", None)  # a cluster made so has no token, and tests before may have asked for one
    os.environ.update(settings)
    try:
        nodes = Nodes()
        yield nodes
    finally:
        try:
            if nodes is not None:
                nodes.close()
            left = ended(mark)
        finally:
            for pid in running(mark):
                os.kill(pid, signal.SIGKILL)
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
        assert not left, f"left running after the tests: {left}"


def ended(mark: str, limit_s: float = LEAVING_S, *, but: str = "") -> dict[int, str]:
    """Wait until all processes with this mark have ended, except those with a word in their command; returns those that have not."""
    until = time.monotonic() + limit_s
    while True:
        left = {pid: command for pid, command in running(mark).items() if not but or but not in command}
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.2)


def running(mark: str) -> dict[int, str]:
    """The processes that were started with this mark, and their commands, as the kernel says."""
    found = dict[int, str]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue
    return found
