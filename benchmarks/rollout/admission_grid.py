"""Does waiting for scarce things ever hang, and what does it cost? Conversations by boxes (sandbox sessions) by actors (threads of session calls).

    python benchmarks/rollout/admission_grid.py [--sandbox process] [--parts grid,service] [--only 97,4,64] [--all] [--still 60]
    python benchmarks/rollout/admission_grid.py --broken waits      checks the benchmark itself: it must end with exit code 1

Each conversation holds a box of its own from its opening to its end, and sleeps in two or three turns; the durations come from a fixed
seed. `grid`: 1 to 2,000 conversations of one rollout, 1 to 64 boxes, 1 to 64 actors; one JSON line for each cell. `service`: `rlvr serve` with
four times as many clients as boxes, who open sessions at once; a client that is refused asks again after a tenth of a second (`eager`), or as
`Retry-After` says (`polite`).

The best order is computed from the durations, with the time that opening and closing took in the same cell (in the service: before it, alone):
longest or shortest first or as they come, whichever ends first. An order that does not know the durations cannot do this where a place serves
few conversations: `bar_on` is the best order where all have a place, or a place serves 16 conversations or more, and the order as they come
elsewhere. Both ratios are printed. `ratio_alone` is that to the best order with the opening of boxes timed without a rollout. `own_cpu_ms` is this
process's own time for each.

Bars: no cell stands still (nothing opened, played, closed or verified for `--still` seconds; what stood still is printed); all have a verdict, and
each found its own box; no session, process, container or folder is left; the ratio is at most 1.10; meanwhile the service answers other calls
and turns within 1.5 s. As other load of the machine only adds time, a cell that misses its time is measured up to three times. Exit
code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import http.client
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks._peers.served import NDJSON, Service, serving  # noqa: E402
from rlvr.contracts import CapacityLimiter, Environment, SamplingParams, Sandbox, SandboxSession, SandboxSpec, Session, StepResult, Verifier  # noqa: E402
from rlvr.mdp.token_mdp import TokenMDP  # noqa: E402
from rlvr.mdp.tokenizers import CharTokenizer  # noqa: E402
from rlvr.registry.plugins import build  # noqa: E402
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed  # noqa: E402
from rlvr.samplers.scripted import ScriptedSampler  # noqa: E402
from rlvr.task import Task, Verdict, make_user_prompt  # noqa: E402
from rlvr.turns import Turn  # noqa: E402

MAX_RATIO, MAX_CALL_S, TRIES = 1.10, 1.5, 3
MANY_EACH = 16
"""So many conversations of a place make the last ones unimportant."""
CONVERSATIONS, BOXES, ACTORS = (1, 8, 97, 512, 2000), (1, 4, 16, 64), (1, 8, 64)
CELLS = {
    1: ((1, 1), (64, 64)),
    8: ((1, 1), (1, 64), (4, 8), (16, 1), (64, 64)),
    97: ((1, 8), (4, 1), (4, 64), (16, 8), (16, 64), (64, 1), (64, 8), (64, 64)),
    512: ((1, 64), (4, 8), (16, 64), (64, 8), (64, 64)),
    2000: ((1, 64), (4, 64), (16, 8), (64, 1), (64, 64)),
}
"""Boxes and actors by conversations: what runs without `--all`."""
BROKEN = {
    "": "",
    "waits": "each session waits for its box within its call, with a thread that the open ones need",
    "keeps": "no session closes its box",
    "one": "one conversation is admitted at a time",
}


class StoodStill(Exception):
    """Nothing happened for too long."""


class Progress:
    """What has happened so far, and when something last did."""

    def __init__(self) -> None:
        self.counts, self.lock, self.last_at = Counter[str](), threading.Lock(), time.monotonic()

    def add(self, what: str) -> None:
        """Something happened."""
        with self.lock:
            self.counts[what] += 1
            self.last_at = time.monotonic()


def watched(work: Callable[[], Any], progress: Progress, still_s: float) -> Any:
    """Run it in a thread and return its result; raise StoodStill, with where all threads are, if nothing happens for so long."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(_try(work)), daemon=True)
    progress.last_at = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        if time.monotonic() - progress.last_at > still_s and thread.is_alive():
            raise StoodStill(f"nothing happened for {still_s:g} s after {dict(progress.counts)}; threads at {dict(where_threads_are())}")
    if isinstance(given[0], BaseException):
        raise given[0]
    return given[0]


def _try(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:
        return error


def where_threads_are() -> Counter[str]:
    """The lines of rlvr and of this file at which threads are, the innermost of each."""
    found = Counter[str]()
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None and not any(part in at.f_code.co_filename for part in ("/rlvr/", "admission_grid")):
            at = at.f_back
        if at is not None and at.f_code.co_name not in ("watched", "where_threads_are", "_run_worker"):
            found[f"{Path(at.f_code.co_filename).name}:{at.f_lineno} {at.f_code.co_name}"] += 1
    return found


# ---- the conversations


def draw_turns(seed: int, index: int, mean_s: float) -> list[float]:
    """The seconds of each turn of a conversation, which has `mean_s` on average."""
    dice = random.Random(f"{seed} {index}")
    return [dice.uniform(0.5, 1.5) * mean_s / 2.5 for _ in range(dice.choice((2, 3)))]


def describe_box(name: str) -> SandboxSpec:
    """A small box in which a name is written."""
    return SandboxSpec(files={"name": name.encode()}, memory_mb=192, disk_mb=32, processes=16)


class OwnBox(Verifier):
    """Whether a conversation has read its own name in its box at the end."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """1.0 for the name."""
        return Verdict(float(answer == task.id), f"the box of {answer}")


class Boxed(Environment):
    """Conversations with a box each."""

    needs = {"sandbox": "docker"}
    max_turns, max_prompt_tokens, max_new_tokens = 3, 24, 12

    def __init__(self, *, sandbox: Sandbox, mean_s: float = 0.1, seed: int = 0, broken: str = "") -> None:
        self.verifier, self.sandbox, self.mean_s, self.seed, self.broken = OwnBox(), sandbox, mean_s, seed, broken
        self.progress, self.lock = Progress(), threading.Lock()
        self.costs: dict[int, list[float]] = {}
        """The seconds of opening and of closing, by conversation."""

    def task(self, split: str, index: int) -> Task:
        """Its name is its number."""
        return Task(make_user_prompt(f"{index}="), id=f"boxed/{split}/{index}", reference="1")

    def new_session(self, task: Task, *, seed: int) -> Session:
        """One with a box."""
        return HeldBox(self, task)

    def get_session_limiters(self, task: Task) -> Sequence[CapacityLimiter]:
        """Those of the sandbox."""
        return () if self.broken == "waits" else super().get_session_limiters(task)

    def add_cost(self, index: int, began: float) -> None:
        """Something that a box needs has ended."""
        with self.lock:
            self.costs.setdefault(index, []).append(time.perf_counter() - began)


class HeldBox(Session):
    """Holds a box, and sleeps in each turn."""

    box: SandboxSession | None = None

    def __init__(self, env: Boxed, task: Task) -> None:
        self.env, self.task, self.index, self.read = env, task, int(task.id.rpartition("/")[2]), ""
        self.turns = draw_turns(env.seed, self.index, env.mean_s)

    def start_tools(self) -> Sequence[Any]:
        """Open the box."""
        assert self.env.sandbox is not None
        began = time.perf_counter()
        self.box = self.env.sandbox.create_session(describe_box(self.task.id))
        self.env.add_cost(self.index, began)
        self.env.progress.add("opened")
        return ()

    def step(self, turn: Turn) -> StepResult | None:
        """Sleep; at the end, read the name in the box."""
        assert self.box is not None
        time.sleep(self.turns.pop(0))
        self.env.progress.add("turns")
        if self.turns:
            return StepResult(make_user_prompt("+"))
        began = time.perf_counter()
        self.read = self.box.read_file("name").decode()
        self.env.add_cost(self.index, began)
        return None

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """What was in the box."""
        return self.read

    def close(self) -> None:
        """Close the box."""
        if self.box is not None and self.env.broken != "keeps":
            began = time.perf_counter()
            self.box.close()
            self.env.add_cost(self.index, began)
            self.env.progress.add("closed")


# ---- the best order


def simulate(jobs: Sequence[Sequence[float]], boxes: int, actors: int) -> float:
    """When the last conversation ends that is admitted in this order; each call of a job needs one of the actors.

    >>> simulate([[1.0, 1.0], [1.0, 1.0]], 2, 1), simulate([[2.0], [1.0], [1.0]], 2, 2)
    (4.0, 2.0)
    """
    waiting, ready, number, now = deque(deque(job) for job in jobs), deque[deque[float]](), itertools.count(), 0.0
    events: list[tuple[float, int, deque[float]]] = []
    while True:
        while boxes and waiting:
            boxes -= 1
            ready.append(waiting.popleft())
        while actors and ready:
            actors -= 1
            job = ready.popleft()
            heapq.heappush(events, (now + job.popleft(), next(number), job))
        if not events:
            return now
        now, _, job = heapq.heappop(events)
        actors += 1
        if job:
            ready.append(job)
        else:
            boxes += 1


def compare(seconds: float, jobs: Sequence[Sequence[float]], boxes: int, actors: int) -> dict[str, Any]:
    """The time that a cell took, against that of the best order and of the order as they come, and which has the bar."""
    as_they_come = simulate(jobs, boxes, actors)
    best = min(as_they_come, *(simulate(sorted(jobs, key=sum, reverse=longest), boxes, actors) for longest in (True, False)))
    places = min(boxes, actors)
    is_best = len(jobs) <= places or len(jobs) >= MANY_EACH * places
    return {
        "seconds": round(seconds, 2),
        "bound_s": round(max(sum(map(sum, jobs)) / places, max(map(sum, jobs))), 2),
        "best_s": round(best, 2),
        "as_they_come_s": round(as_they_come, 2),
        "ratio": round(seconds / best, 3),
        "ratio_as_they_come": round(seconds / as_they_come, 3),
        "bar_on": "best" if is_best else "as they come",
        "in_time": seconds <= MAX_RATIO * (best if is_best else as_they_come),
    }


# ---- the grid


def list_left_over(pids: Sequence[int]) -> list[str]:
    """The processes, folders and containers that processes with these numbers have left: the first is this one or has ended."""
    from rlvr.sandbox._outside import engine
    from rlvr.sandbox.process import FOLDER_PREFIX

    found, owners = [], set(map(str, pids))
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            is_own = path.parent.name in owners and int(path.parent.name) != os.getpid()
            command = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if (parent in owners or is_own) and state != "Z" and "hang_watchdog.py" not in command:  # it lives as long as this process
                found.append(f"process {path.parent.name} {command[:80]}")
    for note in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/owner"):
        with contextlib.suppress(OSError, IndexError):
            if note.read_text().split("|")[3] in owners:
                found.append(f"folder {note.parent.name}")
    if os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists():
        client = engine.connect(10)
        try:
            for one in client.containers.list(all=True, filters={"label": engine.LABEL}, ignore_removed=True):
                if (one.labels.get(engine.LABEL) or "|||").split("|")[3] in owners:
                    found.append(f"container {one.id[:12]}")
        finally:
            client.close()
    return found


def open_boxes(sandbox: Sandbox, count: int, threads: int, progress: Progress) -> tuple[float, list[list[float]]]:
    """Open and close so many boxes: the seconds in all, and those of opening, reading and closing of each."""

    def one(_: int) -> list[float]:
        times = [time.perf_counter()]
        box = sandbox.create_session(describe_box("nobody"))
        times.append(time.perf_counter())
        box.read_file("name")
        times.append(time.perf_counter())
        box.close()
        times.append(time.perf_counter())
        progress.add("opened alone")
        return [end - begin for begin, end in itertools.pairwise(times)]

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        costs = list(pool.map(one, range(count)))
        return time.perf_counter() - began, costs


def choose_mean(conversations: int, boxes: int, actors: int) -> float:
    """The mean seconds of a conversation: sleeping takes longer than opening and than the rollout's own work, and 2,000 with one box still end."""
    places = min(boxes, actors, conversations)
    return min(max(3.0, 0.02 * conversations) * places / conversations, 3.0)


def run_cell(sandbox: Any, conversations: int, boxes: int, actors: int, args: argparse.Namespace) -> dict[str, Any]:
    """One rollout."""
    mean_s = choose_mean(conversations, boxes, actors)
    threads = min(boxes, actors, conversations)
    count = max(24, 2 * threads)
    row: dict[str, Any] = {"part": "grid", "sandbox": args.sandbox, "conversations": conversations, "boxes": boxes, "actors": actors}
    env, tokenizer = Boxed(sandbox=sandbox, mean_s=mean_s, seed=args.seed, broken=args.broken), CharTokenizer()
    sampler = ScriptedSampler(answers=["1"])
    sampler.setup(env, tokenizer)
    asked = [RolloutRequest(env.task("train", i), str(i), derive_seed(i)) for i in range(conversations)]

    def measure_alone() -> tuple[list[float], float]:
        open_boxes(sandbox, threads, threads, env.progress)  # it starts what serves the boxes
        costs = open_boxes(sandbox, 12, 1, env.progress)[1]
        return [statistics.median(one[part] for one in costs) for part in range(3)], open_boxes(sandbox, count, threads, env.progress)[
            0
        ] / count

    def work() -> list[Any]:
        places = 1 if args.broken == "one" else 256
        with Rollout(TokenMDP(env, tokenizer), sampler=sampler, session_workers=actors, max_open_sessions=places) as rollout:
            episodes = []
            for _, episode in rollout.stream_episodes(asked, SamplingParams(stop_ids=tokenizer.stop_ids)):
                episodes.append(episode)
                env.progress.add("verdicts")
            return episodes

    try:
        alone, each_s = watched(measure_alone, env.progress, args.still)
        began, own = time.perf_counter(), time.process_time()
        episodes = watched(work, env.progress, args.still)
    except StoodStill as error:
        limiter = sandbox.session_limiter
        return row | {"stood_still": f"{error}; {limiter.num_held} of {limiter.capacity} boxes held", "in_time": False, "passed": False}
    seconds, own = time.perf_counter() - began, time.process_time() - own
    plain = [draw_turns(args.seed, i, mean_s) for i in range(conversations)]
    turns = [list(one) for one in plain]
    for i, (opened, *ended) in env.costs.items():
        turns[i] = [opened, *turns[i], sum(ended)]
    row |= {"mean_s": round(mean_s, 4), **compare(seconds, turns, boxes, actors)}
    floor = min(
        simulate([[alone[0], *one, alone[1] + alone[2]] for one in sorted(plain, key=sum, reverse=longest)], boxes, actors)
        for longest in (True, False)
    )
    row |= {
        "ratio_alone": round(seconds / max(floor, conversations * each_s), 3),
        "box_ms": round(1000 * statistics.mean(sum(costs) for costs in env.costs.values()), 1),
        "box_alone_ms": round(1000 * sum(alone), 1),
        "box_each_ms": round(1000 * each_s, 1),
        "own_cpu_ms": round(1000 * own / conversations, 2),
        "verdicts": sum(episode.is_scored for episode in episodes),
        "own_box": sum(episode.reward == 1.0 for episode in episodes),
        "still_held": sandbox.session_limiter.num_held,
    }
    errors = Counter(episode.error for episode in episodes if episode.error)
    row |= {"errors": dict(errors.most_common(3))} if errors else {}
    row["passed"] = row["in_time"] and row["verdicts"] == row["own_box"] == conversations and not row["still_held"]
    return row


def repeat(cell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure a cell, and again if only its time is above the bar."""
    for tries in range(1, TRIES + 1):
        row = cell() | {"tries": tries}
        if row["in_time"] or "stood_still" in row:
            break
    return row


def run_grid(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All cells, those with the same number of boxes in one sandbox."""
    grid = {count: tuple(itertools.product(BOXES, ACTORS)) for count in CONVERSATIONS} if args.all else CELLS
    cells = [(count, boxes, actors) for count, pairs in grid.items() for boxes, actors in pairs]
    cells = [tuple(map(int, one.split(","))) for one in args.only] or cells  # type: ignore[misc]
    for boxes in sorted({cell[1] for cell in cells}):
        settings = {"trusted": True} if args.sandbox == "process" else {}
        sandbox = build("sandbox", args.sandbox, max_sessions=boxes, **settings)
        stood_still = False
        try:
            for cell in [cell for cell in cells if cell[1] == boxes]:
                row = repeat(partial(run_cell, sandbox, *cell, args))
                yield row
                if stood_still := "stood_still" in row:
                    break  # its threads still wait in this sandbox
        finally:
            closing = threading.Thread(target=sandbox.close, daemon=True)
            closing.start()
            closing.join(60)
        left = list_left_over([os.getpid()])
        is_right = not left and not closing.is_alive() and not stood_still
        yield {"part": "left over", "sandbox": args.sandbox, "boxes": boxes, "left_over": left, "passed": is_right}


# ---- the service


class Clients:
    """Threads that open sessions, play them and close them, all at once."""

    def __init__(self, service: Service, *, each: int, polite: bool, mean_s: float, seed: int) -> None:
        self.service, self.each, self.polite, self.mean_s, self.seed = service, each, polite, mean_s, seed
        self.progress, self.lock, self.over = Progress(), threading.Lock(), threading.Event()
        self.turns, self.ends, self.scores, self.statuses = list[list[float]](), list[list[float]](), list[Any](), Counter[str]()
        """The seconds of the turns, and those of opening and of closing, of each conversation; the scores; the replies by kind."""
        self.errors = Counter[str]()
        self.late = {"turns": 0.0, "healthz": 0.0, "tasks": 0.0}
        """The longest that each kind of call took; of a turn, without its own sleep."""

    def ask(self, path: str, body: Any) -> tuple[int, Any, float]:
        """One request, until it is not refused for being too many: the status, the reply, and the seconds of the last attempt."""
        while True:
            began, link = time.perf_counter(), http.client.HTTPConnection(self.service.host, self.service.port, timeout=120)
            try:
                link.request(
                    "GET" if body is None else "POST",
                    path,
                    None if body is None else json.dumps(body),
                    NDJSON | {"content-type": "application/json"},
                )
                reply = link.getresponse()
                data, pause = reply.read(), float(reply.getheader("Retry-After") or 0.1)
            finally:
                link.close()
            with self.lock:
                self.statuses[f"{path.rpartition('/')[2]} {reply.status}"] += 1
            if reply.status != 429 or self.over.is_set():
                return reply.status, json.loads(data), time.perf_counter() - began
            time.sleep(pause if self.polite else random.uniform(0.05, 0.15))

    def fail(self, what: str, said: Any) -> None:
        """A call has failed."""
        with self.lock:
            self.errors[f"{what}: {said.get('error')}"] += 1

    def note(self, what: str, seconds: float) -> None:
        """Remember the slowest."""
        with self.lock:
            self.late[what] = max(self.late[what], seconds)

    def play(self, client: int) -> None:
        """The conversations of one client."""
        for index in range(client * self.each, (client + 1) * self.each):
            status, said, open_s = self.ask("/sessions", {"index": index})
            if status != 201:
                self.fail("open", said)
                continue
            self.progress.add("opened")
            turns, place = draw_turns(self.seed, index, self.mean_s), f"/sessions/{said['session']}"
            for planned in turns:
                status, said, taken = self.ask(f"{place}/step", {"text": "1"})
                if status != 200:
                    self.fail("step", said)
                    break
                self.note("turns", taken - planned)
                self.progress.add("turns")
            status, said, close_s = self.ask(f"{place}/close", {})
            with self.lock:
                self.scores.append((said.get("verdict") or {}).get("score"))
                self.turns.append(turns)
                self.ends.append([open_s, close_s])
            self.progress.add("closed")

    def ask_others(self) -> None:
        """Ask whether the service is well, and for a task, again and again."""
        while not self.over.wait(0.2):
            for what, body in (("healthz", None), ("tasks", {"index": 0})):
                self.note(what, self.ask(f"/{what}", body)[2])

    def run(self, count: int) -> None:
        """All clients."""
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(self.play, range(count)))


def run_service(args: argparse.Namespace, boxes: int, workers: int, *, polite: bool) -> dict[str, Any]:
    """`rlvr serve` with so many boxes in all, and four times as many clients."""
    settings = {"trusted": True} if args.sandbox == "process" else {}
    mean_s, each, threads = 1.5, 4, boxes // workers + 2
    sandbox = {"name": args.sandbox, "max_sessions": boxes // workers, **settings}
    env = {"name": f"{Path(__file__).resolve()}:Boxed", "sandbox": sandbox, "mean_s": mean_s, "seed": args.seed, "broken": args.broken}
    row: dict[str, Any] = {"part": "service", "sandbox": args.sandbox, "boxes": boxes, "workers": workers, "clients": 4 * boxes}
    row |= {"polite": polite}
    with serving("exact", "--env", json.dumps(env), "--workers", str(workers), "--threads", str(threads)) as service:
        Clients(service, each=1, polite=False, mean_s=0.01, seed=args.seed).run(boxes)  # it starts what serves the boxes
        alone = Clients(service, each=12, polite=False, mean_s=0.01, seed=args.seed)
        alone.run(1)
        clients = Clients(service, each=each, polite=polite, mean_s=mean_s, seed=args.seed)
        other, pids = threading.Thread(target=clients.ask_others, daemon=True), service.pids()
        other.start()
        began = time.perf_counter()
        try:
            watched(lambda: clients.run(4 * boxes), clients.progress, args.still)
        except StoodStill as error:
            row["stood_still"] = f"{error}; {dict(clients.statuses)}"
        seconds = time.perf_counter() - began
        clients.over.set()
        other.join(30)
    if "stood_still" in row:
        return row | {"in_time": False, "passed": False}
    open_s, close_s = (statistics.median(one[end] for one in alone.ends) for end in (0, 1))
    jobs = [[open_s, *turns, close_s] for turns in clients.turns]
    row |= {"conversations": len(jobs), **compare(seconds, jobs, boxes, boxes), "open_and_close_ms": round(1000 * (open_s + close_s), 1)}
    row |= {
        "verdicts": sum(score is not None for score in clients.scores),
        "own_box": clients.scores.count(1.0),
        "refused": sum(count for what, count in clients.statuses.items() if what.endswith(" 429")),
        "slowest_ms": {what: round(1000 * seconds) for what, seconds in clients.late.items()},
        "errors": dict((alone.errors + clients.errors).most_common(3)),
        "left_over": list_left_over(pids),
    }
    is_quick = max(clients.late.values()) <= MAX_CALL_S
    row["in_time"] = is_quick and row["in_time"]
    row["passed"] = row["in_time"] and row["own_box"] == 4 * boxes * each and not row["left_over"]
    return row


def main() -> int:
    """Run the cells, and print a line for each and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", default="process", help="process, docker or bubblewrap")
    parser.add_argument("--parts", default="grid,service")
    parser.add_argument("--only", nargs="*", default=[], metavar="N,BOXES,ACTORS", help="these cells instead")
    parser.add_argument("--all", action="store_true", help="the whole grid, 60 cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--still", type=float, default=60.0, help="seconds without progress after which a cell is taken to hang")
    parser.add_argument(
        "--broken", default="", choices=list(BROKEN), help="; ".join(f"{name}: {what}" for name, what in BROKEN.items() if name)
    )
    args = parser.parse_args()
    rows, began = [], time.perf_counter()

    def say(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    if "grid" in args.parts:
        for row in run_grid(args):
            say(row)
    if "service" in args.parts:
        for boxes, workers, polite in ((8, 1, False), (16, 2, False), (8, 1, True)):
            say(repeat(partial(run_service, args, boxes, workers, polite=polite)))
    timed = [row for row in rows if "ratio" in row]
    barred = [row["ratio" if row["bar_on"] == "best" else "ratio_as_they_come"] for row in timed]
    result = {
        "sandbox": args.sandbox,
        "cells": len(rows),
        "hangs": sum("stood_still" in row for row in rows),
        "worst_ratio": max(barred, default=None),
        "worst_ratio_to_best": max((row["ratio"] for row in timed), default=None),
        "bar": MAX_RATIO,
        "seconds": round(time.perf_counter() - began, 1),
        "passed": all(row["passed"] for row in rows),
    }
    print(json.dumps(result), flush=True)
    sys.stdout.flush()
    if result["hangs"]:
        os._exit(1)  # what hangs must not keep this process
    return int(not result["passed"])


if __name__ == "__main__":
    sys.exit(main())
