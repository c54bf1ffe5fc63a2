"""Play every game that `gymnasium` and `textarena` offer, with the real packages: what wins, what random moves get, how long a move takes.

    python benchmarks/envs/games.py [--env textarena] [--only TicTacToe,Nim] [--games 3]

For each game: the score of its script where it has one (it must be 1), the scores of random play, verdicts without a score and why,
the slowest move, and whether the same moves get the same answers again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from typing import Any

import rlvr
from rlvr.conformance.conversationkit import PlayedConversation, play_conversation
from rlvr.envs.external.gymnasium import CATALOG_IDS
from rlvr.envs.external.textarena import ONE_PLAYER_GAMES, TWO_PLAYER_GAMES
from rlvr.task import Task

BRACKETS = re.compile(r"\[[^\[\]]{1,20}\]")
MOVES = [
    *(f"[{number}]" for number in range(21)),
    *(f"[{row} {column}]" for row in range(5) for column in range(5)),
    *("[A C]", "[A B]", "[B C]", "[up]", "[left]", "[down]", "[right]", "[accept]", "[continue]", "[red]", "[blue]", "[0 1 2]", "[1 2 3]"),
]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--games", type=int, default=3)
    given = parser.parse_args()
    named = [("gymnasium", "id", name) for name in CATALOG_IDS] + [
        ("textarena", "game", name) for name in (*ONE_PLAYER_GAMES, *TWO_PLAYER_GAMES)
    ]
    rows = []
    for env, key, name in named:
        if given.env in ("", env) and (not given.only or name in given.only.split(",")):
            with rlvr.make_env(env, **{key: name}) as made:
                made.prepare()
                rows.append(looked(made, name, given.games))
            print(json.dumps(rows[-1]), flush=True)
    wins = [row["script"] for row in rows if row["script"] is not None]
    unscored = sum(len(row["unscored"]) for row in rows)
    print(json.dumps({"games": len(rows), "scripts": len(wins), "scripts_won": wins.count(1.0), "unscored": unscored}))


def looked(env: Any, name: str, games: int) -> dict[str, Any]:
    """What became of a few games."""
    row: dict[str, Any] = {"name": name, "script": None, "random": [], "unscored": [], "slowest": 0.0, "repeats": True}
    for number in range(games):
        task = env.task(env.splits[0], number if env.size(env.splits[0]) is None else 0)
        script = env.oracle_turns(task)
        if script is not None:
            row["script"] = min(row["script"] or 1.0, play_conversation(env, task, script)[0].score or 0.0)
        said, heard, verdict, slowest = wandered(env, task, random.Random(f"{name}/{number}"))
        again = PlayedConversation(env, task)
        for move in said:
            again.step(move)
        row["repeats"] &= [one.messages for one in again.step_results] == heard
        again.session_handle.close()
        row["slowest"] = round(max(row["slowest"], slowest), 3)
        row["random"].append(verdict.score)
        if verdict.score is None:
            row["unscored"].append(verdict.reason[:200])
    return row


def wandered(env: Any, task: Task, dice: random.Random) -> tuple[list[str], list[Any], Any, float]:
    """One game with random moves: among the legal ones where they are known, else those that the text shows and some others."""
    play, said, text, slowest = PlayedConversation(env, task), list[str](), task.question, 0.0
    while len(said) < env.max_turns and not (play.step_results and play.step_results[-1].done):
        known = env.words() if hasattr(env, "words") else env.settings["moves"] or [*sorted(set(BRACKETS.findall(text))), *MOVES]
        said.append(dice.choice(known))
        began = time.perf_counter()
        play.step(said[-1])
        slowest = max(slowest, time.perf_counter() - began)
        text = play.step_results[-1].messages[-1]["content"] if play.step_results[-1].messages else ""
    heard = [one.messages for one in play.step_results]
    return said, heard, play.verify_and_close(), slowest


if __name__ == "__main__":
    main()
