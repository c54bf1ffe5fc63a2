"""The world `search_qa`: its questions, the way to their answers, and who must not be paid."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from rlvr import make_env
from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs.search_qa import RELATIONS, build_entities
from rlvr.errors import ConfigError
from rlvr.task import Task
from tests.attacks.searches import ATTACKS, search, submit

ENV: Any = make_env("search_qa")
TASKS = [ENV.task(split, index) for split in ENV.splits for index in range(100)]


def passages(task: Task) -> dict[str, str]:
    return {thing.title: thing.text for thing in build_entities(str(task.meta["world"]), 60).values()}


@pytest.mark.slow
def test_the_script_is_paid_and_each_search_finds_the_passage_of_its_hop() -> None:
    for task in TASKS:
        verdict, play = play_conversation(ENV, task, ENV.oracle_turns(task))
        assert verdict.score == 1.0, (task.id, verdict)
        texts, path = passages(task), list(task.meta["path"])
        for title, after, (ok, found) in zip(path, [*path[1:], task.reference[0]], play.tool_results, strict=False):
            assert ok and texts[title] in found and after in texts[title], task.id
    assert {task.meta["hops"] for task in TASKS} == {2, 3}
    asked = Counter(relation for task in TASKS for relation, row in RELATIONS.items() if row[3] and row[3].split("{")[0] in task.question)
    assert len(asked) >= 7, asked


def test_no_passage_and_no_prompt_has_the_question_and_its_answer() -> None:
    for task in TASKS:
        first, answer = task.meta["path"][0], task.reference[0]
        assert first in task.question and answer not in task.question
        assert all(title not in task.question for title in task.meta["path"][1:])
        assert not any(first in text and answer in text for text in passages(task).values()), task.id


def test_the_first_search_alone_does_not_have_the_answer_often() -> None:
    """Somebody who searches for the question once, and copies what is there, must choose between many names."""
    found = [
        task.reference[0] in play_conversation(ENV, task, [search(task.question.split("\n")[0]), ""])[1].tool_results[0][1]
        for task in TASKS
    ]
    assert sum(found) / len(found) < 0.35


@pytest.mark.slow
def test_constant_answers_are_not_paid() -> None:
    constants = {answer for task in TASKS for answer in task.reference} | {"", "0", "1", "the", "none", "unknown"}
    paid = Counter({said: sum(ENV.select_answer(task, [said]) in task.reference for task in TASKS) for said in constants})
    assert paid.most_common(1)[0][1] <= 1  # its own task


@pytest.mark.parametrize("form", ["{}", "**{}**", "\\boxed{{{}}}", "It took two searches.\nThe answer is {}.", "<answer>{}</answer>"])
def test_an_answer_may_be_declared_in_many_ways(form: str) -> None:
    for task in TASKS[:20]:
        for turn in (form.format(task.reference[-1]), submit(form.format(task.reference[0]))):
            assert play_conversation(ENV, task, [turn])[0].score == 1.0, (task.id, turn)


def test_the_same_task_and_passages_in_another_process() -> None:
    code = (
        "import rlvr; from rlvr.envs.search_qa import build_entities; env = rlvr.make_env('search_qa'); t = env.task('test', 3); "
        "print(t.question, t.reference, [x.text for x in build_entities(t.meta['world'], 60).values()])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    task = ENV.task("test", 3)
    assert told.strip() == f"{task.question} {task.reference} {list(passages(task).values())}"


def test_splits_share_no_question_and_no_answer() -> None:
    train, test = ([task for task in TASKS if f"/{split}/" in task.id] for split in ("train", "test"))
    assert len(train) == len(test) == 100
    for part in (lambda task: task.question, lambda task: task.reference[0]):
        assert not {part(task) for task in train} & {part(task) for task in test}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_not_paid_and_has_a_score(name: str) -> None:
    for task in TASKS[:3]:
        verdict, _ = play_conversation(ENV, task, ATTACKS[name][: ENV.max_turns])
        assert verdict.score == 0.0, verdict


def test_every_name_on_the_way_and_every_name_found_is_wrong() -> None:
    for task in TASKS[:20]:
        wrong = [*task.meta["path"], *list(passages(task))[:5], " or ".join([task.reference[0], task.meta["path"][0]])]
        for said in wrong:
            if said != task.reference[0]:
                assert play_conversation(ENV, task, [submit(said)])[0].score == 0.0, (task.id, said)


def test_conversations_share_the_index_and_not_their_passages() -> None:
    one, again, other = (ENV.new_session(task, seed=0) for task in (TASKS[0], TASKS[0], TASKS[1]))
    try:
        for session in (one, again, other):
            session.start_tools()
        indexes = [session._tools_by_name["search"].index for session in (one, again, other)]
        assert indexes[0] is indexes[1] and indexes[0] is not indexes[2]
        title = TASKS[1].meta["path"][0]
        assert passages(TASKS[1])[title] in other._tools_by_name["search"].search(title)
        assert passages(TASKS[1])[title] not in one._tools_by_name["search"].search(title, limit=20)
    finally:
        for session in (one, again, other):
            session.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hops": [4]}, "a list out of 2 and 3"),
        ({"hops": 2}, "a list"),
        ({"num_entities": 10}, "num_entities is 10"),
        ({"num_entities": True}, "num_entities is True"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env("search_qa", **settings)
