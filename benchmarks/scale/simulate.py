"""Schedules of sampling and training on many machines, simulated: a virtual clock drives the pool that runs a real cluster.

    python benchmarks/scale/simulate.py [--steps 15] [--seeds 1] [--only tail|faults|internet] [--engines 64] [--train-s 114] ...

`tail`: verl's published run (Qwen2.5-Math-7B on H20, 512 prompts of 16 answers of up to 28,672 tokens; docs/advance/fully_async.md). Rows
by the same rule as a published one must be within 20 % of it; others have a published row of another rule beside them, for comparison.
The gain is against the row `k = 1, batch after batch`, which is rlvr's rule in one process. `faults`: slow machines and machines that are
lost, with and without backup copies. `internet`: workers of unlike speed on unlike links that come and go, with whole weights and with
changes; minutes for thousands of them.

Speeds and lengths are set by hand (see `_engines.py`), not fitted; `fitted.py` fits them to a run. Not simulated: verification.
One JSON line for each row: seconds of a step, the share of time in which engines sample and the trainer trains, ages of tokens.
Exit code 1 if a figure is more than 20 % from the published one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from _network import Links
from _world import Figures, Rule, Setup, World

OLD_S = {32: 108.0, 64: 70.0, 128: 54.0}
UPDATE_S = {32: 270.0, 64: 133.0, 128: 114.0}
"""Published: old log-probabilities and update, where all machines do both."""


@dataclass(frozen=True, slots=True)
class Row:
    """A simulated run, and the published figure beside it.

    >>> Row(Rule("k = 0"), Setup()).published is None
    True
    """

    rule: Rule
    setup: Setup
    published: float | None = None
    same_rule: bool = False
    note: str = ""


def tail_rows(args: argparse.Namespace) -> list[Row]:
    """The table of verl's run."""
    base = Setup(engines=args.engines, train_s=args.train_s, load_s=args.load_s, room=args.room)
    single = replace(base, groups=base.groups * base.members, members=1, room=base.room * base.members)  # verl deals answers, not groups
    rows = [
        Row(Rule("synchronous"), replace(single, engines=n, train_s=OLD_S[n] + UPDATE_S[n]), published, True, f"{n} machines for both")
        for n, published in ((32, 790.0), (64, 365.0), (128, 356.0))
    ]
    after = "staleness 0, streamed"
    rows += [
        Row(Rule("k = 0"), base, note="64 + 64"),
        Row(Rule("k = 1, batch after batch", k=1, overlap=False), base, 231.0, True, after),
        Row(Rule("k = 2, batch after batch", k=2, overlap=False), base),
        Row(Rule("k = 1", k=1), base),
        Row(Rule("k = 2", k=2), base, 171.0, note="staleness 0.1, partial answers"),
        Row(Rule("k = 4", k=4), base, 151.0, note="staleness 0.5, partial answers"),
        Row(Rule("k = 1, backups", k=1, backups=0.1), base),
        Row(Rule("k = 1, cut at 8k, batch after batch", k=1, cut=8_192, overlap=False), base),
        Row(Rule("k = 1, cut at 16k", k=1, cut=16_384), base),
        Row(Rule("k = 1, cut at 8k", k=1, cut=8_192), base),
        Row(Rule("k = 1, cut at 4k", k=1, cut=4_096), base),
    ]
    return rows


def fault_rows(args: argparse.Namespace) -> list[Row]:
    """Slow and mortal machines."""
    base = Setup(engines=args.engines, train_s=args.train_s, load_s=args.load_s, room=args.room)
    slow, mortal = replace(base, slow_share=0.1), replace(base, up_s=1800.0)
    rows = []
    for k in (0, 2):
        for share in (0.0, 0.1):
            with_copies = ", backups" if share else ""
            rows.append(Row(Rule(f"k = {k}{with_copies}", k=k, backups=share), slow, note="a tenth of the machines is 3 times as slow"))
            rows.append(Row(Rule(f"k = {k}{with_copies}", k=k, backups=share), mortal, note="a machine is lost after 30 min on average"))
    return rows


def internet_rows(args: argparse.Namespace) -> list[Row]:
    """Workers that anybody lends: a 7B model of 15 GB, speeds 1 to 10, links of 10 to 1,000 Mbit/s, gone after two hours on average."""
    times = {"train_s": 300.0, "load_s": args.load_s, "up_s": 7200.0, "back_s": 600.0}
    rows = []
    for workers in args.workers:
        for delta, rules in ((1.0, ((2, 0.1),)), (0.02, ((2, 0.0), (1, 0.1), (2, 0.1), (4, 0.1)))):
            links = Links(15.0, delta=delta, relays=args.relays, relay_mbit=10_000, slowest_mbit=10, fastest_mbit=1_000)
            setup = Setup(engines=workers, groups=workers, room=4, spread=10.0, links=links, **times)
            for k, backups in (rule for rule in rules if rule[0] in args.k):
                rule = Rule(f"k = {k}" + (", backups" if backups else ""), k=k, backups=backups)
                rows.append(Row(rule, setup, note="whole copies" if delta == 1 else f"changes of {delta:.0%}"))
    return rows


def simulated(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a row, the mean over the seeds."""
    began = time.perf_counter()
    found: list[Figures] = [World(row.setup, row.rule, steps=args.steps, seed=seed).run() for seed in range(args.seeds)]
    step_s = statistics.mean(figures.step_s() for figures in found)
    told: dict[str, Any] = {"rule": row.rule.name, "machines": row.setup.engines, "step_s": round(step_s, 1)}
    told |= {"engines_busy": round(statistics.mean(figures.busy for figures in found), 3)}
    told |= {"trainer_busy": round(row.setup.train_s / step_s, 3), "mean_age": round(statistics.mean(figures.age for figures in found), 2)}
    if row.published is not None:
        told |= {"published_s": row.published, "ratio": round(step_s / row.published, 3), "same_rule": row.same_rule}
    for name in ("again", "given_up"):
        if count := sum(getattr(figures, name) for figures in found):
            told[name] = count
    orders = row.setup.groups * args.steps * args.seeds
    told["pool_us_a_group"] = round(1e6 * sum(figures.pool_s for figures in found) / orders, 1)
    if row.setup.links.whole_gb:
        told |= {"gb_a_step": round(sum(figures.sent_gb for figures in found) / args.steps / args.seeds, 1)}
        told |= {"again_share": round(told.get("again", 0) / orders, 4)}
    return told | {"note": row.note, "seconds": round(time.perf_counter() - began, 1)}


def printed(rows: Sequence[Row], args: argparse.Namespace, base: str) -> list[dict[str, Any]]:
    """Each row as it is found, with its gain over the row of that name."""
    found, before = list[dict[str, Any]](), None
    for row in rows:
        told = simulated(row, args)
        before = told["step_s"] if told["rule"] == base else before
        if before:
            told["gain"] = round(before / told["step_s"], 2)
        print(json.dumps(told), flush=True)
        found.append(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=["tail", "faults", "internet"])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--train-s", type=float, default=114.0, help="seconds of an update on the trainer's machines")
    parser.add_argument("--load-s", type=float, default=5.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[200, 1000, 5000], help="of `internet`")
    parser.add_argument("--relays", type=int, default=8, help="of `internet`: they send weights, 10 Gbit/s each")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4], help="of `internet`")
    parser.add_argument("--room", type=int, default=16, help="groups in an engine at once")
    args = parser.parse_args()
    rows = printed(tail_rows(args), args, "k = 1, batch after batch") if args.only in (None, "tail") else []
    if args.only in (None, "faults"):
        printed(fault_rows(args), args, "")
    if args.only == "internet":
        printed(internet_rows(args), args, "")
    far = [row["rule"] for row in rows if row.get("same_rule") and not 0.8 <= row["ratio"] <= 1.2]
    print(json.dumps({"passed": not far, "further_than_20_percent": far}))
    sys.exit(bool(far))


if __name__ == "__main__":
    main()
