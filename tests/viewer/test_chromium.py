"""The page of a run in a real browser: it opens without a complaint, asks nobody, and does what its keys and filters say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlvr.evaluation.evaluate import evaluate
from rlvr.runs.run_log import read_jsonl
from rlvr.viewer.view import write_page
from tests.fixtures.browser import Chromium, Page
from tests.fixtures.recorded import agent_session, recorded_run

pytestmark = pytest.mark.chromium
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=https://evil.example/x onerror=alert(1)> \u202egnp.exe\u202c \u2028 \x00 é"
)
READY = "document.getElementById('rows').childElementCount > 0"
OPENED = "document.getElementById('detail').textContent.length > 0"
SHOWN = "[...document.querySelectorAll('#rows .row')].map(row => row.querySelector('.score').textContent)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return recorded_run(folder / "first", steps=40), recorded_run(folder / "second", steps=30, seed=1)


def opened(chromium: Chromium, path: Path, fragment: str = "") -> Page:
    page = chromium.open(path, fragment=fragment)
    page.until(READY)
    return page


def count(page: Page) -> str:
    return str(page.evaluate("document.getElementById('count').textContent"))


def choose(page: Page, **values: str) -> None:
    """Fill in filters as a person does, and wait for the list."""
    for name, value in values.items():
        page.evaluate(f"$('count').textContent = ''; $('f-{name}').value = {json.dumps(value)}")
        page.evaluate(f"$('f-{name}').dispatchEvent(new Event('input', {{ bubbles: true }}))")
        page.until("$('count').textContent.endsWith('episodes')")


def scores(run: Path) -> list[Any]:
    return [(row["verdict"] or {}).get("score") for row in read_jsonl(run / "episodes.jsonl")]


def test_the_page_opens_without_a_complaint_and_asks_nobody(chromium: Chromium, runs: tuple[Path, Path]) -> None:
    made = write_page(runs[0])
    page = opened(chromium, made.path)
    assert count(page) == f"{made.num_episodes} episodes" and made.num_episodes == 320
    assert page.evaluate("[document.querySelectorAll('#main svg').length, document.querySelectorAll('#curves svg').length]") == [1, 8]
    assert page.errors() == [] and page.requests() == [made.path.as_uri()]


def test_filters_and_search_leave_what_they_say(chromium: Chromium, runs: tuple[Path, Path]) -> None:
    page, told = opened(chromium, write_page(runs[0]).path), scores(runs[0])
    for name, keep in {"right": 1.0, "wrong": 0.0, "unscored": None, "partial": 0.5}.items():
        choose(page, verdict=name)
        assert count(page) == f"{told.count(keep)} of 320 episodes"
        assert set(page.evaluate(SHOWN)) == {"none" if keep is None else str(keep).removesuffix(".0")}
    choose(page, verdict="", fault="infra", step="3-4")
    assert count(page) == f"{told[16:32].count(None)} of 320 episodes"
    choose(page, fault="", step="", task="sums/train/11")
    rows = list(read_jsonl(runs[0] / "episodes.jsonl"))
    assert count(page) == f"{sum('sums/train/11' in row['task_id'] for row in rows)} of 320 episodes"
    choose(page, task="", search=rows[100]["text"])
    assert count(page) == "1 of 320 episodes" and page.errors() == []


def test_keys_lead_through_the_episodes(chromium: Chromium, runs: tuple[Path, Path]) -> None:
    page, rows = opened(chromium, write_page(runs[0]).path), list(read_jsonl(runs[0] / "episodes.jsonl"))
    for key in ("j", "j", "Enter"):
        page.press(key)
    page.until(OPENED)
    assert page.evaluate("state.open") == 1 and rows[1]["text"] in page.evaluate("$('detail').textContent")
    page.press("j")
    page.until("state.open === 2")
    page.press("]")
    page.until("state.open === 3")
    page.press("]")  # the last of its group
    page.press("[")
    page.until("state.open === 2")
    page.press("Escape")
    assert page.evaluate("$('detail').hidden") is True
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "f-search"
    page.press("j")
    page.until("$('count').textContent.includes(' of ')")
    assert page.evaluate("$('f-search').value") == "j", "in a field a letter is a letter"
    page.press("Escape")
    page.press("t")
    page.press("?")
    assert page.evaluate("document.documentElement.dataset.theme + $('help').open") == "lighttrue" and page.errors() == []


def test_tokens_are_coloured_by_what_was_asked_for(chromium: Chromium, runs: tuple[Path, Path]) -> None:
    page, rows = opened(chromium, write_page(runs[0]).path), list(read_jsonl(runs[0] / "episodes.jsonl"))
    at = next(n for n, row in enumerate(rows) if "log_ratio" in row and len(row["text"]) > 3)
    page.evaluate(f"choose({at}, true)")
    page.until(OPENED)
    seen = {}
    for _ in range(4):
        name = page.evaluate("document.querySelector('.colour').textContent")
        seen[name] = page.evaluate("[...document.querySelectorAll('.tokens .own')].map(token => token.getAttribute('style'))")
        page.evaluate("document.querySelector('.colour').remove()")
        page.press("c")
        page.until("document.querySelector('.colour') !== null")
    assert list(seen) == ["log-probability", "log-ratio, trainer to sampler", "advantage", "mask"]
    assert len(set(seen["log-ratio, trainer to sampler"])) > 1 == len(set(seen["mask"])) == len(set(seen["advantage"]))
    signs = {"--bad" if ratio < 0 else "--good" for ratio, own in zip(rows[at]["log_ratio"], rows[at]["action_mask"], strict=True) if own}
    assert signs == {style.split("(")[1].split(")")[0] for style in seen["log-ratio, trainer to sampler"]}


def test_two_runs_stand_side_by_side(chromium: Chromium, runs: tuple[Path, Path], tmp_path: Path) -> None:
    made = write_page(runs[0], tmp_path / "two.html", against=runs[1])
    page, (here, there) = opened(chromium, made.path), [list(read_jsonl(run / "episodes.jsonl")) for run in runs]
    drawn = "document.querySelectorAll('#curves path.series.{}').length"
    assert page.evaluate(drawn.format("c0")) == page.evaluate(drawn.format("c1")) > 8
    page.evaluate("choose(5, true)")
    page.until(OPENED)
    sides = page.evaluate("[...document.querySelectorAll('.beside section')].map(side => side.textContent)")
    assert len(sides) == 2 and here[5]["text"] in sides[0] and there[5]["text"] in sides[1]
    pairs = list(zip(scores(runs[0]), scores(runs[1]), strict=False))
    choose(page, difference="better here")
    assert count(page) == f"{sum(a is not None and b is not None and a > b for a, b in pairs)} of 320 episodes"
    choose(page, difference="only here")
    assert count(page) == "80 of 320 episodes"
    assert page.errors() == [] and page.requests() == [made.path.as_uri()]


SEEN = """(selector => [...document.querySelectorAll(selector)].filter(found => {
  const box = found.getBoundingClientRect(), hit = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return found.checkVisibility() && box.height > 10 && found.contains(hit);
}).map(found => found.innerText))"""
"""The texts of the elements that a person sees: shown, on the screen, and under nothing else."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("evaluations")
    for name, policy in (("gold", "scripted:gold"), ("noop", "scripted:noop")):
        evaluate("tests/fixtures/worlds.py:Sums", policy, tasks=10, n=2, out=folder / name)
    return folder / "gold", folder / "noop"


def test_an_evaluation_opens_on_its_table_of_figures(chromium: Chromium, measured: tuple[Path, Path], tmp_path: Path) -> None:
    page = opened(chromium, write_page(measured[0]).path)
    (table,) = page.evaluate(f"{SEEN}('#figures table')")
    assert "avg" in table and "100.0%" in table and "pass@n" in table
    page = opened(chromium, write_page(measured[0], tmp_path / "two.html", against=measured[1]).path)
    here, there = page.evaluate(f"{SEEN}('#figures table')")
    assert "100.0%" in here and "100.0%" not in there and "0.0%" in there
    assert page.evaluate(f"{SEEN}('#figures h2')") == ["gold", "noop"]
    (compared,) = page.evaluate(f"{SEEN}('#compared table')")
    assert "+100.0" in compared and "0.002" in compared and len(page.evaluate(f"{SEEN}('.forest')")) == 2
    assert page.errors() == []


def test_a_training_run_opens_on_its_curves(chromium: Chromium, runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = opened(chromium, write_page(runs[0]).path)
    assert len(page.evaluate(f"{SEEN}('#main figure')")) == 1 and len(page.evaluate(f"{SEEN}('#curves figure')")) >= 4
    assert page.evaluate("$('figures').hidden") is True
    page = opened(chromium, write_page(runs[0], tmp_path / "two.html", against=runs[1]).path)
    (main,) = page.evaluate(f"{SEEN}('#main figure')")
    assert "first" in main and "second" in main


def test_a_training_episode_shows_its_question_and_its_turns(chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", steps=1)
    rows: list[dict[str, Any]] = []
    for row in read_jsonl(run / "episodes.jsonl"):
        tokens, acted = row["tokens"], row["action_mask"]
        rows.append(row | {"turns": 2, "tokens": [*tokens, *tokens], "action_mask": [*acted, *acted]} if len(rows) == 2 else row)
        rows[-1] |= {"logprobs": [-0.1] * len(rows[-1]["tokens"])}
        rows[-1].pop("log_ratio", None)
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    parts = "[...document.querySelectorAll('#detail > h2')].map(title => [title.textContent, title.nextElementSibling.textContent])"
    for at, told in ((1, ["prompt"]), (2, ["prompt", "policy", "environment", "policy"])):
        page.evaluate(f"choose({at}, true)")
        page.until(f"state.open === {at} && document.querySelector('#detail b').textContent === {json.dumps(rows[at]['task_id'])}")
        page.until(f"document.querySelectorAll('#detail > h2').length > {len(told)}")
        shown = [part for part in page.evaluate(parts) if part[0] in ("prompt", "policy", "environment")]
        assert [title for title, _ in shown] == told and shown[0][1] == "3+4=" and page.errors() == []
        assert [text for title, text in shown if title == "policy"] in ([], [rows[at]["text"]] * 2)


@pytest.mark.parametrize(
    ("thoughts", "titles"),
    [(["six sevens </script>"], ["reasoning, 20 characters"]), (["", "hm"], ["reasoning of turn 2, 2 characters"])],
)
def test_reasoning_apart_from_the_answer_is_folded_and_found(
    thoughts: list[str], titles: list[str], chromium: Chromium, tmp_path: Path
) -> None:
    run = recorded_run(tmp_path / "run", steps=1)
    rows = [row | ({"reasoning": thoughts} if at == 1 else {}) for at, row in enumerate(read_jsonl(run / "episodes.jsonl"))]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    folds = "[...document.querySelectorAll('#detail details.reasoning')]"
    shown = f"{folds}.map(fold => [fold.open, ...[...fold.children].map(part => part.textContent)])"
    for at, told in ((1, [[False, title, text] for title, text in zip(titles, filter(None, thoughts), strict=True)]), (2, [])):
        page.evaluate(f"choose({at}, true)")
        page.until(f"{OPENED} && state.open === {at} && {folds}.length === {len(told)}")
        assert page.evaluate(shown) == told and page.errors() == []
    choose(page, search=thoughts[-1])
    assert count(page).startswith("1 of ")


def test_a_long_name_of_a_task_loses_its_beginning(chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", steps=1)
    rows = [row | {"task_id": f"{'ab'[at % 2]}/{'long/' * 40}{at}"} for at, row in enumerate(read_jsonl(run / "episodes.jsonl"))]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    cell = "document.querySelector('#rows .row .task')"
    assert page.evaluate(f"{cell}.getBoundingClientRect().right - {cell}.firstChild.getBoundingClientRect().right") == pytest.approx(
        0, abs=1
    )
    assert page.evaluate(f"{cell}.scrollWidth > {cell}.clientWidth && {cell}.textContent") == rows[0]["task_id"]


def test_what_only_the_other_run_has_is_told(chromium: Chromium, runs: tuple[Path, Path], tmp_path: Path) -> None:
    short = Path(shutil.copytree(runs[1], tmp_path / "short"))
    rows = [{name: value for name, value in row.items() if name != "kl"} for row in read_jsonl(short / "metrics.jsonl")]
    (short / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(short, tmp_path / "two.html", against=runs[0]).path)
    assert "80 episodes are only in first" in page.evaluate("$('against').textContent") and count(page) == "240 episodes"
    own = "f => [f.querySelector('b').textContent, f.querySelectorAll('path.c0').length]"
    drawn = page.evaluate(f"[...document.querySelectorAll('#curves figure')].map({own})")
    assert [title for title, own in drawn if not own] == ["KL to the reference"] and len(drawn) == 8
    page = opened(chromium, write_page(runs[0], tmp_path / "other.html", against=runs[1]).path)
    assert "only in" not in page.evaluate("$('against').textContent") and page.errors() == []


@pytest.mark.parametrize("tests", [[None, "a", {"name": "t"}], [{"ok": "yes"}], [3], "none", {"ok": True}])
def test_tests_of_another_form_are_shown_as_they_are(tests: Any, chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", steps=1)
    judged = {"score": 0.0, "reason": "no", "fault": "none", "detail": {"tests": tests}}
    rows = [row | {"verdict": judged} for row in read_jsonl(run / "episodes.jsonl")]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(1, true)")
    page.until(OPENED)
    shown = page.evaluate("[...document.querySelectorAll('#detail h2')].map(h => h.textContent).join()")
    assert "notes of the verifier" in shown and "passed" not in shown and page.errors() == []


def test_what_a_model_wrote_is_shown_and_never_obeyed(chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / HOSTILE.replace("/", "")[:20], steps=2)
    tests = {"tests": [{"name": HOSTILE, "ok": False, "why": HOSTILE}], "note": HOSTILE}
    judged = {"score": 0.0, "reason": HOSTILE, "fault": "none", "components": {HOSTILE: 0.0}, "detail": tests}
    rows = [
        row | {"text": HOSTILE, "task_id": HOSTILE, "stop_reason": HOSTILE, "verdict": judged} for row in read_jsonl(run / "episodes.jsonl")
    ]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    made = write_page(run, tmp_path / "view.html")
    page = opened(chromium, made.path)
    page.evaluate("choose(3, true)")
    page.until(OPENED)
    choose(page, search="<script>")
    assert count(page) == "16 episodes"
    text = page.evaluate("document.body.innerText")
    assert "<script>document.title='owned'</script>" in text and "⟨U+202E⟩gnp.exe" in text and "⟨U+0000⟩" in text and "⟨U+2028⟩" in text
    assert "\u202e" not in text and page.evaluate("document.title") != "owned" and page.evaluate("document.images.length") == 0
    assert page.errors() == [] and page.requests() == [made.path.as_uri()]


def test_a_figure_that_is_no_number_blanks_no_page(chromium: Chromium, measured: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(measured[0], tmp_path / "odd")
    report = json.loads((folder / "report.json").read_text("utf-8"))
    report["envs"]["Sums"]["mean_score"] |= {"low": float("nan"), "high": float("inf")}
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    rows = [row | {"advantage": float("nan")} for row in read_jsonl(folder / "episodes.jsonl")]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(folder).path)
    assert count(page) == "20 episodes" and page.errors() == []


@pytest.mark.slow
def test_a_page_that_reads_itself_again_comes_back_as_it_was(chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", steps=4)
    page = opened(chromium, write_page(run, tmp_path / "view.html", reload_s=1).path)
    choose(page, verdict="right")
    page.press("j")
    page.press("Enter")
    page.until(OPENED)
    before = page.evaluate("location.hash.split('&').slice(0, 2).join()")
    with (run / "episodes.jsonl").open("a") as log:
        log.writelines(json.dumps(row | {"step": 5}) + "\n" for row in list(read_jsonl(run / "episodes.jsonl"))[:8])
    write_page(run, tmp_path / "view.html")  # as `watch` does once the run has ended
    page.until("typeof run === 'object' && run.head.episodes === 40 && " + OPENED)
    page.until(READY)
    assert page.evaluate("location.hash.split('&').slice(0, 2).join()") == before and "of 40 episodes" in count(page)
    assert page.evaluate("$('going').hidden") is True and page.errors() == []


def agent_page(chromium: Chromium, folder: Path, hostile: str = "") -> Page:
    """The page of a run whose second episode is a conversation with tools, opened at it."""
    run = recorded_run(folder / "run", steps=1)
    rows = list(read_jsonl(run / "episodes.jsonl"))
    rows[1] |= {"turns": 4, "session": agent_session(hostile), "text": f"42{hostile}"}
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(1, true)")
    page.until("document.querySelector('.talk') !== null")
    return page


def test_a_conversation_is_shown_as_turns_with_calls_as_cards(chromium: Chromium, tmp_path: Path) -> None:
    page = agent_page(chromium, tmp_path)
    heads = page.evaluate(
        "[...document.querySelectorAll('.call')].map(card => card.querySelector('.who').innerText.split('\\n').join(' '))"
    )
    assert heads == [
        "python print(6 * 7) , 3 ok → 42 0.25 s",
        "search not run: unknown tool → Error: this call was not run. There is no such tool. Use one of the to",
        "a call without a name {broken not run: bad json → Error: this call was not run.",
        "bash cat log ok → line 0 of a long log line 1 of a long log line 2 of a long log line 3 1.5 s output was cut",
        "bash exit 1 error → exit status 1 0.01 s",
    ]
    told = page.evaluate("[...document.querySelectorAll('.talk > .turn, .talk > .reply')].map(box => box.querySelector('.who').innerText)")
    assert [" ".join(head.split()) for head in told] == [
        "user",
        "turn 1 policy",
        "turn 2 policy cut off by the token limit",
        "turn 3 policy",
        "user",
        "turn 4 policy",
    ]
    assert "4 turns  ·  5 calls  ·  3 not ok" in page.evaluate("$('detail').textContent")
    folds = "[...document.querySelectorAll('.talk details')].filter(fold => fold.querySelector('summary').textContent.startsWith"
    for title, text in (("reasoning", "six sevens"), ("4,489 characters", "line 199 of a long log"), ("tools: ", "Run Python.")):
        fold = f"{folds}('{title}'))[0]"
        assert page.evaluate(f"{fold}.open") is False and text in page.evaluate(f"{fold}.textContent")
    choose(page, search="line 199 of a long log")
    assert count(page) == "1 of 8 episodes" and page.errors() == []


def test_what_a_tool_returned_is_shown_and_never_obeyed(chromium: Chromium, tmp_path: Path) -> None:
    hostile = HOSTILE + "\" onclick=\"document.title='owned'\" '"
    page = agent_page(chromium, tmp_path, hostile)
    page.evaluate("[...document.querySelectorAll('details')].forEach(fold => { fold.open = true; })")
    text = page.evaluate("document.querySelector('.talk').innerText")
    assert text.count("<script>document.title='owned'</script>") > 200 and text.count('onclick="document.title') > 200
    assert page.evaluate("document.querySelectorAll('.talk script, .talk img, .talk [onclick]').length") == 0
    assert page.evaluate("document.title") != "owned" and "\u202e" not in page.evaluate("document.body.textContent")
    assert page.errors() == [] and len(page.requests()) == 1
