"""Play the worlds of other projects with the real packages: one JSON line for each world, then one table with a row for each adapter.

    python benchmarks/envs/worlds.py [--only openenv,bfcl] [--tasks 3] [--kit | --kit-only]
        [--python VENV/bin/python] [--verifiers VENV/bin/python] [--legacy VENV/bin/python] [--inspect VENV/bin/python]

The interpreters have the packages: skyrl-gym, textworld, openenv and bfcl-eval; verifiers 0.4; verifiers 0.3 with staros-stardata and
sophistry-bench-sprint; inspect-ai. Without one, this interpreter is used; gymnasium, textarena and reasoning-gym always are in this one.

For each world: how many right conversations score 1; which wrong turns are paid; whether the same moves get the same answers again, from
right and from random moves; what a conversation gets whose world is killed (no score, and the next conversation is not touched); the faults
of a server; with `--kit`, how many checks of `rlvr check env` pass, and with `--kit-only` nothing else. A world that is refused is a line
with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlvr
from benchmarks.envs.games import wandered
from rlvr.conformance import adversarial_answers as canaries
from rlvr.conformance import envkit
from rlvr.conformance.checks import iter_checks
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.envs.external._reasoning_catalog import DATASET_NAMES
from rlvr.envs.external.bfcl import MULTI_TURN_CATEGORIES, SINGLE_TURN_CATEGORIES
from rlvr.envs.external.gymnasium import CATALOG_IDS
from rlvr.envs.external.textarena import ONE_PLAYER_GAMES, TWO_PLAYER_GAMES
from rlvr.errors import RlvrError
from tests.fixtures.theirs.folders import FOLDERS, written

HERE = Path(__file__).resolve().parent
WRONG = (*canaries.EMPTY_ANSWERS, *canaries.INJECTION_ANSWERS, "look", "0", "41 or 42")
FAULTS = ("fault hang", "fault raise", "fault large", "fault nan")
READ = 8
"""How many tasks of a split the kit reads here."""


@dataclass
class World:
    """One world, and how its right conversations are known: by default from the environment's own script.

    >>> World("textworld/1", "textworld", {"options": {"quest_length": 1}}).env
    'textworld'
    """

    name: str
    env: str
    settings: dict[str, Any]
    script: Callable[[Any, Any], Any] = field(default=lambda env, task: env.oracle_turns(task))
    faults: tuple[str, ...] = ()
    """Turns that bring out the faults of a server made for it."""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--world", default="", help="only worlds with this in their name")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--kit-only", action="store_true")
    parser.add_argument("--out", type=Path, help="a file to which the lines are appended; worlds that are in it are not played again")
    for name in ("python", "verifiers", "legacy", "inspect"):
        parser.add_argument(f"--{name}", default="")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out and given.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        for adapter, part in PARTS.items():
            if given.only and adapter not in given.only.split(","):
                continue
            for world in part(given, Path(folder)):
                if given.world in world.name and world.name not in {row["name"] for row in rows}:
                    seen = {} if given.kit_only else looked(world, given.tasks)
                    row = {"adapter": adapter, "name": world.name, **seen, **kit(world, given.kit or given.kit_only)}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    if given.out:
                        with given.out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    print(kits(rows) if given.kit_only else table(rows))


def questions(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Every data set of reasoning_gym."""
    yield from (World(f"reasoning_gym/{name}", "reasoning_gym", {"dataset": name}, gold) for name in sorted(DATASET_NAMES))


def gymnasium(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Those of `rlvr list envs --of gymnasium`."""
    yield from (World(f"gymnasium/{name}", "gymnasium", {"id": name}) for name in CATALOG_IDS)


def textarena(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Every game that is offered."""
    yield from (World(f"textarena/{name}", "textarena", {"game": name}) for name in (*ONE_PLAYER_GAMES, *TWO_PLAYER_GAMES))


def skyrl(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """The seven of the package, over sums."""
    rows = folder / "rows.jsonl"
    sums = [(random.Random(n).randint(10, 999), random.Random(-n).randint(10, 999)) for n in range(1, 60)]
    made = [{"prompt": [{"role": "user", "content": f"{a} + {b} = ?"}], "extra_info": {}, "right": str(a + b)} for a, b in sums]
    for row in made:
        row |= {"reward_spec": {"ground_truth": row["right"]}, "reward_model": {"ground_truth": row["right"]}}
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    for id in ("gsm8k", "gsm8k_multi_turn", "aime", "lcb", "search", "searchcode", "text2sql"):
        yield World(f"skyrl_gym/{id}", "skyrl_gym", {"id": id, "rows": str(rows), "python": given.python}, gold)


def stories(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Adventures with short and with longer quests."""
    for length in (1, 4):
        yield World(f"textworld/{length}", "textworld", {"options": {"quest_length": length}, "python": given.python})


def servers(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Three servers of the real package, started here."""
    scripts = {
        "guess": lambda env, task: [str(random.Random(task.reference["seed"]).randint(1, 9))],
        "count": lambda env, task: [str(int(task.question.rpartition(" ")[2]) + n) for n in (1, 2, 3)],
        "echo": lambda env, task: [task.question.removeprefix("Say ")],
    }
    for name, script in scripts.items():
        command = [given.python or sys.executable, str(HERE / "_tasksets" / "openenv_servers.py"), name, "{port}"]
        how: dict[str, Any] = {} if name == "count" else {"won": 1.0}
        faults = FAULTS if name == "guess" else ()
        yield World(f"openenv/{name}", "openenv", {"server": command, "step_s": 3.0, **how}, script, faults)


def folders(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Ten task folders, one world each, so that each has a line."""
    for name in FOLDERS:
        where = folder / "folders" / name
        where.mkdir(parents=True)
        written(where, name)
        yield World(f"harbor/{name}", "harbor", {"path": str(where)})


def calls(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Every category that is offered."""
    yield from (
        World(f"bfcl/{name}", "bfcl", {"category": name, "python": given.python})
        for name in (*SINGLE_TURN_CATEGORIES, *MULTI_TURN_CATEGORIES)
    )


def tasksets(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Three tasksets of v1, and those that verifiers brings."""
    scripts = {
        "sums_v1": lambda env, task: [str(sum(map(int, task.question.removesuffix(" =").split(" + "))))],
        "letters_v1": lambda env, task: [str(task.question.removesuffix("?").split()[-1].count(task.question.split()[3]))],
        "reversed_v1": lambda env, task: [task.question.split()[-1][::-1]],
    }
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={HERE / "_tasksets"} exec {given.verifiers or sys.executable} "$@"\n')
    python.chmod(0o755)
    common = {"python": str(python), "limit": 40, "score_s": 20.0}
    for name, script in scripts.items():
        yield World(f"verifiers_env/v1/{name}", "verifiers_env", {"id": name, **common}, script)
    shipped = {"textarena": {"game": "Wordle-v0"}, "openenv": {}, "nemo_gym": {}, "harbor": {}}
    for name, settings in shipped.items():
        yield World(f"verifiers_env/v1/{name}", "verifiers_env", {"id": name, "settings": settings, **common})


def legacy(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """The environments of v0 of two packages."""
    for name in ("stardata.envs.constraint_gym", "stardata.envs.sokoban_gym", "sophistry_bench_sprint"):
        settings = {"id": name, "interface": "v0", "python": given.legacy, "limit": 40}
        yield World(f"verifiers_env/v0/{name}", "verifiers_env", settings, gold)


def inspected(given: argparse.Namespace, folder: Path) -> Iterator[World]:
    """Two tasks of Inspect."""
    for name in ("doubled", "chosen"):
        settings = {"task": f"{HERE / '_tasksets' / 'inspect_evals.py'}:{name}", "python": given.inspect}
        yield World(f"inspect_task/{name}", "inspect_task", settings, gold)


PARTS: dict[str, Callable[[argparse.Namespace, Path], Iterator[World]]] = {
    "reasoning_gym": questions,
    "gymnasium": gymnasium,
    "textarena": textarena,
    "skyrl_gym": skyrl,
    "textworld": stories,
    "openenv": servers,
    "harbor": folders,
    "bfcl": calls,
    "verifiers_env": tasksets,
    "verifiers_env v0": legacy,
    "inspect_task": inspected,
}


def gold(env: Any, task: Any) -> list[str] | None:
    """The right answer as a conversation of one turn, if it is known."""
    answer = env.gold(task)
    return None if answer is None else [answer]


def looked(world: World, tasks: int) -> dict[str, Any]:
    """What right and wrong conversations of a few tasks of each split get; or why the world is refused."""
    row: dict[str, Any] = {"scripts": 0, "right": 0, "wrong": 0, "paid": [], "unscored": [], "repeats": True, "killed": "-", "faults": {}}
    began = time.perf_counter()
    try:
        env: Any = rlvr.make_env(world.env, **world.settings)
    except RlvrError as error:
        return {"refused": str(error)[:300]}
    with env:
        try:
            env.prepare()
            env.task(env.splits[0], 0)
        except RlvrError as error:
            return {"refused": str(error)[:300]}
        for split in env.splits:
            size = env.size(split)
            for index in range(tasks if size is None else min(tasks, size)):
                one(env, env.task(split, index), world, row, all_wrong=index == 0)
        row["faults"] = {said: told(play_conversation(env, env.task("train", 0), [said, "5"])[0]) for said in world.faults}
        row["killed"] = killed(env, world)
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def one(env: Any, task: Any, world: World, row: dict[str, Any], *, all_wrong: bool) -> None:
    """The conversations of one task."""
    script = world.script(env, task)
    if script is not None:
        (verdict, play), (again, replay) = play_conversation(env, task, script), play_conversation(env, task, script)
        row["scripts"] += 1
        row["right"] += verdict.score == 1.0
        row["repeats"] &= verdict == again and heard(play) == heard(replay)
        if verdict.score is None:
            row["unscored"].append(f"{task.id}: its script: {verdict.reason}"[:200])
    if world.env in ("gymnasium", "textarena"):
        said, first, verdict, _ = wandered(env, task, random.Random(task.id))
        replay = play_conversation(env, task, said)[1]
        row["repeats"] &= [one.messages for one in replay.step_results] == first
        if verdict.score is None:
            row["unscored"].append(f"{task.id}: random moves: {verdict.reason}"[:200])
    for said in (*WRONG, task.question) if all_wrong else ("0",):
        found = play_conversation(env, task, [said])[0]
        if script is not None and [said] == script:
            continue
        row["wrong"] += 1
        if found.score is None or found.score > 0:
            row["unscored" if found.score is None else "paid"].append(f"{task.id}: {said[:20]!r}: {found.reason}"[:200])


def heard(play: PlayedConversation) -> list[Any]:
    """What the world said, without the seconds that it took."""
    return [(one.messages, one.done, [(result.ok, result.text) for result in one.tool_results]) for one in play.step_results]


def killed(env: Any, world: World) -> str:
    """What a conversation gets whose process is killed in the middle, and whether the next one is well."""
    host, task = getattr(env, "host", None), env.task(env.splits[0], 0)
    script = world.script(env, task) or [env.words()[0] if hasattr(env, "words") else "[0]"]  # a move that reaches the world
    if host is None or (world.env == "bfcl" and "single" in task.reference and task.reference["single"]):
        return "-"
    play = PlayedConversation(env, task)
    host._process.kill()
    host._process.wait()
    play.step(script[0])
    verdict = play.verify_and_close()
    after = play_conversation(env, task, script)[0]
    return f"{told(verdict)}, then {told(after)}"


def told(verdict: Any) -> str:
    """A score, and whose fault it is if there is one.

    >>> told(rlvr.Verdict(1.0, "right"))
    '1.0'
    """
    return f"{verdict.score}" + ("" if verdict.fault.value == "none" else f" ({verdict.fault.value})")


def kit(world: World, wanted: bool) -> dict[str, Any]:
    """How many checks of `rlvr check env` pass, and what fails."""
    if not wanted:
        return {}
    envkit.NUM_READ_TASKS = READ
    began = time.perf_counter()
    try:
        checks = list(iter_checks("env", world.env, world.settings))
    except RlvrError as error:
        return {"kit": f"refused: {error}"[:300]}
    if cannot := next((check.detail for check in checks if not check.ok and "ConfigError" in check.detail), ""):
        return {"kit": f"refused: {cannot.partition('ConfigError: ')[2]}"[:300]}
    bad = [f"{check.name}: {check.detail}"[:200] for check in checks if not check.ok]
    skipped = sum(check.skipped for check in checks)
    return {
        "kit": {
            "passed": len(checks) - len(bad) - skipped,
            "skipped": skipped,
            "failed": bad,
            "seconds": round(time.perf_counter() - began, 1),
        }
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each adapter, as Markdown."""
    head = ("adapter", "worlds played", "refused", "right paid", "wrong paid", "no score", "same again", "killed", "kit passed")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for adapter in dict.fromkeys(row["adapter"] for row in rows):
        mine = [row for row in rows if row["adapter"] == adapter]
        run = [row for row in mine if "refused" not in row]
        kits = [row["kit"] for row in run if isinstance(row.get("kit"), dict)]
        lost = sum(row["killed"].startswith("None (infra), then 1.0") or row["killed"].startswith("None (infra), then 0.0") for row in run)
        cells = [
            adapter,
            len(run),
            len(mine) - len(run),
            f"{sum(row['right'] for row in run)}/{sum(row['scripts'] for row in run)}",
            f"{sum(len(row['paid']) for row in run)}/{sum(row['wrong'] for row in run)}",
            sum(len(row["unscored"]) for row in run),
            f"{sum(row['repeats'] for row in run)}/{len(run)}",
            f"{lost}/{sum(row['killed'] != '-' for row in run)}",
            f"{sum(not one['failed'] for one in kits)}/{len(kits)}" if kits else "-",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def kits(rows: list[dict[str, Any]]) -> str:
    """Of each adapter, how many worlds pass the kit, and which are refused or fail and why, as Markdown."""
    lines = ["| adapter | worlds | passed | refused | failed |", "|---|---|---|---|---|"]
    for adapter in dict.fromkeys(row["adapter"] for row in rows):
        mine = [row for row in rows if row["adapter"] == adapter]
        refused = [f"{row['name']}: {row['kit']}" for row in mine if isinstance(row["kit"], str)]
        failed = [
            f"{row['name']}: {'; '.join(row['kit']['failed'])}" for row in mine if isinstance(row["kit"], dict) and row["kit"]["failed"]
        ]
        passed = len(mine) - len(refused) - len(failed)
        lines.append(f"| {adapter} | {len(mine)} | {passed} | {'<br>'.join(refused) or 0} | {'<br>'.join(failed) or 0} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    main()
