r"""Measure the cost of hostile answers, for themselves and for others, and whether killed workers change a verdict. Three JSON lines.

    python benchmarks/symbolic/hostile.py [--strings 200000] [--batch 5000]

1. Hostile answers among 1,000 easy ones, from 8 threads and from asyncio: the slowest hostile one, the easy ones' p99 with and
   without them, resident memory, and a canary file that no answer may create.
2. Random and mutated strings: exceptions that escape, and verdicts that are not a score.
3. A batch during which workers are killed with SIGKILL: verdicts that differ from the undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlvr.task import Task, Verdict, make_user_prompt
from rlvr.verifiers.symbolic import Symbolic

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "corpora" / "math"
CANARY = "CANARY"
ROUNDS = 5
"""How often the mixture is judged: ten of a thousand waits are too few for a percentile."""
SLOW = r"|(\sin x+\cos x+\tan x+\cot x+\sec x+1)^{12}+\sqrt{1+\sin^2 x}|"

HOSTILE = [
    "9^{9^{9^{9}}}",
    "10^{10^{10}}",
    "2^{2^{2^{2^{2^{2}}}}}",
    "7^{77777777}",
    "(10^9)!",
    "((5!)!)!",
    "170!^{170!}",
    r"\binom{10^9}{5\cdot10^8}",
    r"\binom{99999}{50000}",
    "(" * 3000 + "1" + ")" * 3000,
    r"\frac{1}{" * 200 + "1" + "}" * 200,
    "2^{" * 1000,
    "{" * 100_000,
    "[" * 100_000,
    r"\sum_{k=1}^{10000000} k",
    r"\sum_{k=1}^{10^{6}} \frac{1}{k}",
    r"\prod_{n=1}^{\infty} n",
    r"\int_0^{1} e^{x^2} dx",
    "$" * 20_000,
    r"\boxed{" * 20_000,
    r"\boxed{1}" * 20_000,
    "answer is " * 20_000,
    "<answer>" * 20_000,
    "</think>" * 20_000,
    "<think>" * 20_000,
    "9" * 200_000,
    "1" * 999 + "/" + "7" * 999,
    "0." + "3" * 100_000,
    "(x+1)^{999999}",
    "(a+b+c+d+e+f)^{60}",
    "(x+1)^{64}(x-1)^{64}(x+2)^{64}",
    "((((x^{64})^{64})^{64})^{64})^{64}",
    "(((((x+1)^{9}+1)^{9}+1)^{9}+1)^{9}+1)^{9}",
    "x" * 5_000,
    "1," * 3_000,
    "-" * 5_000 + "1",
    "+" * 5_000,
    r"\sin(" * 30 + "x" + ")" * 30,
    r"\sqrt{" * 35 + "2" + "}" * 35,
    "1" + "+1/3" * 1_500,
    "x" + "+x^{2}" * 500,
    "1e999999",
    r"\tan(10^{10^{6}})",
    r"\begin{vmatrix}" + r"\\".join("&".join(f"x_{i}{j}" for j in range(9)) for i in range(9)) + r"\end{vmatrix}",
    r"\begin{pmatrix}" + r"\\".join("&".join("1" for _ in range(60)) for _ in range(60)) + r"\end{pmatrix}",
    r"\{" + "1," * 900 + r"1\}",
    r"e^{e^{e^{e^{e}}}}",
    r"\pm1\pm1\pm1\pm1\pm1\pm1\pm1\pm1",
    "|x|" * 300,
    "|" * 35 + "x" + "|" * 35,
    r"\sqrt{1+" * 30 + "x" + "}" * 30,
    r"\frac{1}{" + r"\sum_{k=1}^{299}" * 8 + "1}",
    SLOW,
    SLOW + "+1",
    r"|\sin x|^{99}+|\cos x|^{98}+|\tan x|^{97}",
    "٣" * 500,
    "\u202e1\u200b",
    "１" * 300,
    "\x00" * 100,
    f"__import__('os').system('touch {CANARY}')",
    f"eval(open('{CANARY}','w'))",
    f"().__class__.__base__.__subclasses__()[0] or open('{CANARY}','w')",
    rf"\input{{|touch {CANARY}}}",
    f"$(touch {CANARY})",
]

GAP = "+|x-1000|+x-1000"
"""A term that is zero at the sample points: expressions that differ by it are only distinguished by algebra."""
LONG = [
    r"+|(\sin x+1)^{12}(\cos x-2)^{11}|-|(1+\sin x)^{12}||(\cos x-2)^{11}|",
    r"+|(\sin x+\cos x+\tan x+2)^{9}|-|(2+\tan x+\cos x+\sin x)^{4}||(2+\tan x+\sin x+\cos x)^{5}|",
    r"+|\sqrt{x^2+1}+\sqrt{x^4+2}|^{8}-|\sqrt{x^2+1}+\sqrt{2+x^4}|^{5}|\sqrt{1+x^2}+\sqrt{x^4+2}|^{3}",
    r"+|e^{\sin x}+\ln(x^2+2)|^{7}-|\ln(2+x^2)+e^{\sin x}|^{3}|e^{\sin x}+\ln(x^2+2)|^{4}",
    r"+\lfloor x^2+\sin x\rfloor-\lfloor \sin x+x^2\rfloor+"
    + "+".join(rf"|\sin({k}x)\cos({k}x)|-\frac12|\sin({2 * k}x)|" for k in range(1, 9)),
]
"""Problems that keep algebra busy until its time is up."""


def rows(families: list[str] | None = None) -> list[dict[str, Any]]:
    """Pairs of the corpus."""
    files = sorted(CORPUS.glob("*.jsonl"))
    return [json.loads(line) for file in files if not families or file.stem in families for line in file.read_text("utf-8").splitlines()]


def ask(verifier: Symbolic, reference: str, answer: str) -> Verdict:
    """One verdict."""
    return verifier.verify(Task(make_user_prompt("?"), id="t", reference=reference), answer)


def easy(count: int) -> list[tuple[str, str, bool]]:
    """Ordinary pairs."""
    plain = [row for row in rows(["integers", "fractions", "decimals", "sets", "polynomials", "intervals", "radicals"])]
    rng = random.Random(5)
    return [(row["reference"], row["answer"], False) for row in (rng.choice(plain) for _ in range(count))]


def timed(verifier: Symbolic, work: tuple[str, str, bool]) -> tuple[bool, float, float | None]:
    """Whether it was hostile, its time, and its score."""
    start = time.perf_counter()
    score = ask(verifier, work[0], work[1]).score
    return work[2], time.perf_counter() - start, score


def mixed(way: str) -> dict[str, Any]:
    """The easy ones alone, then mixed with the hostile ones."""
    calm = easy(1000)
    bombs = [(("1", "x^2+1", r"|\sin x|")[k % 3], text, True) for k, text in enumerate(HOSTILE)]
    bombs += [("x^2+1", "x^2+1" + GAP + text, True) for text in LONG]
    both = calm + bombs
    random.Random(6).shuffle(both)
    found: dict[str, Any] = {"way": way, "hostile": len(bombs), "easy": len(calm), "rounds": ROUNDS}
    timings: dict[str, list[tuple[bool, float, float | None]]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        for name, work in (("without", calm), ("with", both)):
            timings[name] += judged(way, work)
    for name, results in timings.items():
        waits = sorted(s for hostile, s, _ in results if not hostile)
        found[f"easy_p99_ms_{name}"] = round(1000 * waits[int(0.99 * len(waits))], 2)
        if name == "with":
            found["slowest_hostile_s"] = round(max(s for hostile, s, _ in results if hostile), 2)
            found["hostile_paid"] = sum(score == 1.0 for hostile, _, score in results if hostile)
            found["hostile_without_score"] = sum(score is None for hostile, _, score in results if hostile)
    found["easy_p99_ratio"] = round(found["easy_p99_ms_with"] / found["easy_p99_ms_without"], 2)
    return found | {"peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "canary": Path(CANARY).exists()}


def judged(way: str, work: list[tuple[str, str, bool]]) -> list[tuple[bool, float, float | None]]:
    """All of it, with a verifier after `prepare()`."""
    with Symbolic(workers=2, cache=1) as verifier:
        verifier.prepare()
        ask(verifier, "|x-1|", "|1-x|")
        time.sleep(1)  # the second worker
        if way != "threads":
            return asyncio.run(gathered(verifier, work))
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda item: timed(verifier, item), work))


async def gathered(verifier: Symbolic, work: list[tuple[str, str, bool]]) -> list[tuple[bool, float, float | None]]:
    """All of it from one event loop, eight at a time."""
    gate = asyncio.Semaphore(8)

    async def one(item: tuple[str, str, bool]) -> tuple[bool, float, float | None]:
        async with gate:
            return await asyncio.to_thread(timed, verifier, item)

    return list(await asyncio.gather(*(one(item) for item in work)))


def strings(count: int) -> Iterator[str]:
    """Random tokens, and answers of the corpus with a few tokens changed."""
    rng = random.Random(9)
    seeds = [row["answer"] for row in rows()]
    pieces = [
        *"0123456789+-*/^_=<>(){}[]|,.!'%$&x\\ \n\t٣é",
        r"\frac",
        r"\sqrt",
        r"\boxed{",
        r"\text{",
        r"\pm",
        r"\begin{cases}",
        r"\\",
        "or",
        "^{",
    ]
    for _ in range(count):
        text = rng.choice(seeds) if rng.random() < 0.6 else "".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))
        for _ in range(rng.randint(0, 3)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(pieces) + text[at + rng.randint(0, 2) :]
        yield text


def fuzz(count: int) -> dict[str, Any]:
    """Every string against a gold, and as a gold."""
    escaped, odd, slowest = 0, 0, 0.0
    golds = ["12", r"\frac{1}{2}", "(1,2]", "x^2+1", r"\text{east}", "1,2", r"\begin{pmatrix}1\\2\end{pmatrix}", "y=2x+3", "52_8", "x>2"]
    with Symbolic() as verifier:
        for k, text in enumerate(strings(count)):
            start = time.process_time()
            for reference, answer in ((golds[k % 10], text), (text, golds[k % 10])):
                try:
                    score = ask(verifier, reference, answer).score
                    odd += not (score is None or 0 <= score <= 1)
                except Exception:
                    escaped += 1
            slowest = max(slowest, time.process_time() - start)
    return {"strings": count, "exceptions": escaped, "odd_verdicts": odd, "slowest_cpu_s": round(slowest, 2)}


def laborious(count: int) -> list[tuple[str, str]]:
    """Different pairs, one in ten of them wrong, that only algebra can decide: each one goes to a worker.

    The wrong ones differ from the gold only away from the sample points.
    """
    return [(f"|x-{n}|", f"|{n}-x|" if n % 10 else f"{n}-x") for n in range(1000, count + 1000)]


def killed(count: int) -> dict[str, Any]:
    """A batch that keeps the workers busy, undisturbed and with kills: of busy workers, at least one answer apart."""
    rng = random.Random(8)
    known = rows()
    pairs = [(row["reference"], row["answer"]) for row in rng.choices(known, k=count - count // 4)] + laborious(count // 4)
    rng.shuffle(pairs)
    with Symbolic(workers=2) as verifier, ThreadPoolExecutor(4) as threads:
        calm = list(threads.map(lambda pair: ask(verifier, *pair).score, pairs))
    shots, answered = 0, 0
    done = threading.Event()

    def shoot(target: Symbolic) -> None:
        nonlocal shots
        seen = 0
        while not done.wait(0.1):
            pids = target.pool.list_pids()
            before = {pid: spent(pid) for pid in pids}
            time.sleep(0.05)
            working = [pid for pid in pids if spent(pid) > before[pid]]
            if working and answered > seen:  # faster kills than replies would only show a dead pool
                seen = answered
                os.kill(rng.choice(working), signal.SIGKILL)
                shots += 1

    def under_fire(pair: tuple[str, str]) -> float | None:
        nonlocal answered
        score = ask(target, *pair).score
        answered += 1
        return score

    with Symbolic(workers=2) as target, ThreadPoolExecutor(4) as threads:
        shooter = threading.Thread(target=shoot, args=[target])
        shooter.start()
        fired = list(threads.map(under_fire, pairs))
        done.set()
        shooter.join()
    different = sum(a != b for a, b in zip(calm, fired, strict=True))
    paid = sum(score == 1.0 for score in calm)
    return {"batch": len(pairs), "paid": paid, "killed_at_work": shots, "verdicts_that_differ": different}


def spent(pid: int) -> int:
    """The processor ticks that a process has used; 0 if it no longer exists."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def main() -> None:
    """Run the three measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--strings", type=int, default=200_000)
    options.add_argument("--batch", type=int, default=5_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for way in ("threads", "asyncio"):
            print(json.dumps(mixed(way)), flush=True)
        print(json.dumps(killed(given.batch)), flush=True)
        print(json.dumps(fuzz(given.strings)), flush=True)
        print(json.dumps({"files_made": sorted(os.listdir(folder))}))
        os.chdir("/")


if __name__ == "__main__":
    main()
