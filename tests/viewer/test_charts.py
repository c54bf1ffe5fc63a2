"""Charts, formulas, sorting, several runs, the index and a phone, in a real browser."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from rlvr.runs.run_log import read_jsonl
from rlvr.viewer.index import write_index
from rlvr.viewer.view import write_page
from tests.fixtures.browser import Chromium, Page
from tests.fixtures.recorded import recorded_run
from tests.viewer.test_chromium import OPENED, READY, agent_page, choose, count, opened

pytestmark = pytest.mark.chromium
REPORT = {"accuracy_before": 0.2, "accuracy_after": 0.6, "held_out_tasks": 50}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs that differ by their seed alone."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = [recorded_run(folder / f"tool-{seed}", steps=20, seed=seed) for seed in range(3)]
    for nth, run in enumerate(runs):
        (run / "report.json").write_text(json.dumps(REPORT | {"accuracy_after": 0.6 + nth / 10}), "utf-8")
    return runs


def rewritten(run: Path, **changes: Any) -> Path:
    """A run whose episodes all have these fields."""
    rows = [row | changes for row in read_jsonl(run / "episodes.jsonl")]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return run


def drawn(page: Page, selector: str) -> int:
    return int(page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def last_reward(run: Path) -> float:
    """The last point of a run's smoothed reward: the mean of two."""
    return sum([float(row["reward"]) for row in read_jsonl(run / "metrics.jsonl")][-2:]) / 2


def test_the_main_chart_has_the_mean_of_the_seeds_a_band_and_held_out_points(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    lowest, middle, highest = sorted(seeds, key=last_reward)
    page = opened(chromium, write_page(middle, tmp_path / "v.html", others=[lowest, highest]).path)
    assert [drawn(page, f"#main {what}") for what in ("path.band", "path.series:not(.faint)", "path.series.faint", "circle.held")] == [
        1,
        1,
        3,
        2,
    ]
    told = page.evaluate("document.querySelector('#main').innerText")
    assert "reward, 3 runs" in told and "smallest to largest" in told and "0.7" in told
    last = [last_reward(run) for run in seeds]
    shown = page.evaluate("document.querySelector('#main .legend b').textContent")
    assert [float(value) for value in re.findall(r"[\d.]+", shown)] == pytest.approx([sum(last) / 3, min(last), max(last)], abs=6e-4)
    single = opened(chromium, write_page(seeds[0], tmp_path / "one.html").path)
    assert [drawn(single, f"#main {what}") for what in ("path.band", "path.whisker", "circle.held")] == [0, 2, 2]
    assert page.errors() == single.errors() == []


def test_the_shares_of_solved_groups_add_up(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    page = opened(chromium, write_page(seeds[0], tmp_path / "v.html").path)
    titles = page.evaluate("[...document.querySelectorAll('#curves figcaption b')].map(title => title.textContent)")
    assert titles[:2] == ["groups by share of right answers", "reward by part"] and drawn(page, "#curves path.layer") == 4
    values = page.evaluate("[...document.querySelectorAll('#curves figure')][0].querySelectorAll('.legend b').length")
    assert values == 4
    sums = page.evaluate("Object.values(page.runs[0].panels.find(p => p.stacked).lines).reduce((a, b) => a.map((x, i) => x + b[i]))")
    assert sums == pytest.approx([1.0] * len(sums))


def test_a_chart_is_saved_as_a_file_that_needs_no_style_sheet(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    page = opened(chromium, write_page(seeds[0], tmp_path / "v.html", others=seeds[1:2], against=seeds[2]).path, "#theme=dark")
    chromium.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for selector, name in (
        ("#main", "reward.svg"),
        ("#plots", "difference-of-held-out-accuracy-points.svg"),
        ("#curves", "groups-by-share-of-right-answers.svg"),
    ):
        page.evaluate(f"document.querySelector('{selector} .save').click()")
        deadline = time.monotonic() + 20
        while not (tmp_path / name).is_file() and time.monotonic() < deadline:
            time.sleep(0.02)
        text = (tmp_path / name).read_text("utf-8")
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title") is not None and "class=" not in text and "var(" not in text
        assert all(len(path.get("stroke", "")) > 2 for path in root.iter(f"{SVG}path"))
        colours = {part.get(name_, "") for part in root.iter() for name_ in ("fill", "stroke")}
        assert any(colour.startswith("rgb(") for colour in colours) and "rgb(124, 176, 255)" not in colours, "the light theme, for paper"
    main = ElementTree.fromstring((tmp_path / "reward.svg").read_text("utf-8"))
    words = "".join(text.text or "" for text in main.iter(f"{SVG}text"))
    assert "tool, 2 runs" in words and "tool-2" in words and "step" in words
    assert page.errors() == [] and all(address.startswith(("file:", "blob:")) for address in page.requests())


FORMULAS = {
    r"\frac{1}{2}": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"x^2_1": "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>",
    r"2^10": "<msup><mn>2</mn><mn>1</mn></msup><mn>0</mn>",
    r"\sqrt[3]{x+1}": "<mroot><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow><mn>3</mn></mroot>",
    r"\sum_{i=1}^n i": "<munderover><mo>∑</mo>",
    r"\left(\frac{a}{b}\right)^2": '<msup><mrow><mo stretchy="true">(</mo>',
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": "<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr>",
    r"x \in \mathbb{R}, \text{ so } x^2 \geq 0": "<mi>ℝ</mi>",
    r"\boxed{42}": 'class="boxed"><mn>42</mn>',
    r"f'(x)": "<msup><mi>f</mi><mo>′</mo></msup>",
    r"90^\circ": "<msup><mn>90</mn><mo>∘</mo></msup>",
}
NOT_UNDERSTOOD = [
    r"\href{javascript:alert(1)}{x}", r"\def\x{\x\x}\x", "{", "}", r"\frac{1}", "x^", r"\left(", "{" * 500 + "}" * 500, "a & b",
    r"\begin{tikzpicture}\end{tikzpicture}", r"\begin{constructor}x\end{constructor}", "x" * 5000, r"\constructor", r"\__proto__{x}",
]  # fmt: skip


BARE = [r"\frac{14}{3}", r"2 \unknown{x}", r"so \alpha is the angle", "12"]


@pytest.fixture(scope="module")
def any_page(chromium: Chromium, seeds: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Page:
    return opened(chromium, write_page(seeds[0], tmp_path_factory.mktemp("any") / "v.html").path)


def test_a_short_answer_cannot_nest_elements_without_end(any_page: Page) -> None:
    """Hundreds of nested rows freeze the layout of a tab for minutes."""
    depth = (
        "(text) => { const above = (e) => (e ? 1 + above(e.parentElement) : 0);"
        " return Math.max(0, ...[...(mathOf(text)?.querySelectorAll('*') ?? [])].map(above)); }"
    )
    primes, boxes = "x" + "'" * 1900 + "^2", r"\boxed" * 300 + "x"
    assert any_page.evaluate(f"({depth})({json.dumps(primes)})") < 8
    assert any_page.evaluate(f"mathOf({json.dumps(primes)})?.textContent").count("′") == 1900
    assert any_page.evaluate(f"({depth})({json.dumps(boxes)})") < 90  # it stays as it was written


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_usual_formulas_are_set(any_page: Page, formula: str) -> None:
    assert FORMULAS[formula] in any_page.evaluate(f"mathOf({json.dumps(formula)})?.outerHTML ?? ''")


def test_what_is_not_understood_stays_as_it_was_written(any_page: Page) -> None:
    assert any_page.evaluate(f"{json.dumps(NOT_UNDERSTOOD)}.filter(text => mathOf(text) !== null)") == []
    texts = ["it costs $5 and $6", r"$\unknown{x}$ and \boxed{", "$ x $", "a $ b", r"\( \oops \)"]
    unset = f"{json.dumps(texts)}.map(text => {{ const box = make('p'); return [setMath(box, text), box.textContent]; }})"
    assert any_page.evaluate(unset) == [[0, text] for text in texts]
    assert any_page.evaluate(f"{json.dumps(BARE)}.map(marked)") == [r"$\frac{14}{3}$", r"2 \unknown{x}", r"so \alpha is the angle", "12"]
    mixed = r"so $x=1$, \(y\) and \[z^2\]: \boxed{\frac{1}{2}} costs $5"
    assert any_page.evaluate(f"setMath(make('p'), {json.dumps(mixed)})") == 4
    for attack in (r"\(" * 20000, "$" * 49999, r"\$" * 24000, r"\boxed{" * 6000, r"$\text{<img src=x onerror=alert(1)></script>}$" * 100):
        found = any_page.evaluate(
            f"(() => {{ const box = make('p'); setMath(box, {json.dumps(attack)}); return box.querySelectorAll('img, script').length; }})()"
        )
        assert found == 0
    assert any_page.errors() == []


def test_formulas_are_set_in_questions_and_answers_and_can_be_shown_as_written(chromium: Chromium, tmp_path: Path) -> None:
    run = rewritten(recorded_run(tmp_path / "run", steps=1), text=r"so $\frac{1}{2}$ it is", reference=r"\boxed{\frac12}")
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(1, true)")
    page.until(OPENED)
    assert (
        drawn(page, "#detail mfrac") == 2 and page.evaluate("document.querySelector('#detail mfrac').getBoundingClientRect().height") > 15
    )
    page.press("m")
    page.until("document.querySelectorAll('#detail mfrac').length === 0")
    assert r"so $\frac{1}{2}$ it is" in page.evaluate("$('detail').innerText") and page.errors() == []


def test_a_click_on_a_column_sorts_by_it(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    page, rows = opened(chromium, write_page(seeds[0], tmp_path / "v.html").path), list(read_jsonl(seeds[0] / "episodes.jsonl"))
    click, order = "document.querySelector('#titles .{}').click()", "state.shown.map(episode => run.columns.{}[episode])"
    page.evaluate(click.format("advantage"))
    assert page.evaluate(order.format("advantage")) == sorted((round(row["advantage"], 4) for row in rows), reverse=True)
    page.evaluate(click.format("score"))
    scores = page.evaluate(order.format("score"))
    known = [score for score in scores if score is not None]
    assert known == sorted(known, reverse=True) and scores[len(known) :] == [None] * scores.count(None), "without a score comes last"
    page.evaluate(click.format("score"))
    assert page.evaluate(order.format("score"))[0] == 0.0 and page.evaluate(order.format("score"))[-1] is None
    assert page.evaluate("document.querySelector('#titles .score').getAttribute('aria-sort')") == "ascending"
    again = opened(chromium, tmp_path / "v.html", page.evaluate("location.hash"))
    assert again.evaluate("state.sort") == "score" and again.evaluate(order.format("score"))[0] == 0.0
    page.evaluate(click.format("score"))
    assert page.evaluate("state.shown[0]") == 0 and page.errors() == []


def test_calls_are_counted_in_the_list_and_unfold_on_a_click(chromium: Chromium, tmp_path: Path) -> None:
    page = agent_page(chromium, tmp_path)
    cells = "[...document.querySelectorAll('#rows .row')].map(row => row.querySelector('.{}').textContent)"
    assert page.evaluate(cells.format("calls"))[:3] == ["", "5", ""] and page.evaluate(cells.format("turns"))[1] == "4"
    assert page.evaluate("[...document.querySelectorAll('details.call')].some(fold => fold.open)") is False
    page.evaluate("document.querySelector('.unfold').click()")
    assert page.evaluate("[...document.querySelectorAll('details.call')].every(fold => fold.open)") is True
    assert page.evaluate("getComputedStyle(document.querySelector('.call code')).display") == "none", "no argument is shown twice"


def test_control_tokens_have_their_names_and_part_the_messages(chromium: Chromium, tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"logprobs": [-0.5] * 7, "log_ratio": [0.0] * 7, "text": "5"}
    run = rewritten(recorded_run(tmp_path / "run", steps=1), tokens=[1, 5, 14, 5, 2, 9, 0], action_mask=[0] * 5 + [1] * 2, **numbers)
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(0, true)")
    page.until(OPENED)
    assert page.evaluate("document.querySelector('#detail .tokens').textContent") == "<user>1+1<policy>5<eos>"
    parts = "[...document.querySelectorAll('#detail > h2')].map(title => [title.textContent, title.nextElementSibling.textContent])"
    assert ["user", "1+1"] in page.evaluate(parts) and page.errors() == []


CHATML = [
    "<|im_start|>",
    "system\nBe brief.",
    "<|im_end|>",
    "\n",
    "<|im_start|>",
    "user\nuser\n2+2?",
    "<|im_end|>",
    "\n",
    "<|im_start|>",
    "assistant\n",
]
LLAMA = [
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "user",
    "<|end_header_id|>",
    "\n\n2+2?",
    "<|eot_id|>",
    "<|start_header_id|>",
    "assistant",
]


@pytest.mark.parametrize(
    ("pieces", "messages"),
    [
        (CHATML, [["system", "Be brief."], ["user", "user\n2+2?"]]),
        ([*LLAMA, "<|end_header_id|>", "\n\n"], [["user", "2+2?"]]),
        (["2+2="], [["prompt", "2+2="]]),
    ],
)
def test_a_prompt_is_parted_at_the_control_tokens(any_page: Page, pieces: list[str], messages: list[list[str]]) -> None:
    names = {nth: piece for nth, piece in enumerate(pieces) if piece.startswith("<|")}
    columns = {"vocabulary": {nth: "" if nth in names else piece for nth, piece in enumerate(pieces)}, "names": names}
    told = f"promptOf({{ columns: {json.dumps(columns)} }}, [{[*range(len(pieces))]}, [{len(pieces)}]])"
    assert any_page.evaluate(told) == messages


def test_another_run_of_the_page_can_be_listed(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    page = opened(chromium, write_page(seeds[0], tmp_path / "v.html", others=seeds[1:]).path)
    assert page.evaluate("[run.head.name, other, $('runs').hidden]") == ["tool-0", None, False]
    page.evaluate("$('f-run').value = '2'; $('f-next').value = '1'; $('f-next').dispatchEvent(new Event('change'))")
    page.until("typeof run === 'object' && run.head.name === 'tool-2' && other?.head.name === 'tool-1' && " + READY)
    text = next(iter(read_jsonl(seeds[2] / "episodes.jsonl")))["text"]
    choose(page, search=text)
    assert count(page).startswith("1 of") and page.errors() == []


def test_vast_and_hostile_answers_do_not_stop_the_page(chromium: Chromium, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", steps=1)
    rows = list(read_jsonl(run / "episodes.jsonl"))
    vast = "9" * 1_000_000
    tokens = {"tokens": [5] * 20_000, "action_mask": [1] * 20_000, "logprobs": [-0.5] * 20_000, "log_ratio": None}
    rows[1] |= {"text": vast + "<img src=x onerror=alert(1)>", **tokens}
    rows[2] |= {"text": "a\ud800b \x00 \u202eevil\u202c \u200f", "reference": "</script><b>"}
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(1, true)")
    page.until(OPENED)
    assert drawn(page, "#detail .tokens span") == 5000 and drawn(page, "#detail img") == 0
    assert "15,000 more tokens of 20,000" in page.evaluate("document.querySelector('.rest').textContent")
    page.evaluate("document.querySelector('.rest').click()")
    assert drawn(page, "#detail .tokens span") == 20_000 and drawn(page, ".rest") == 0
    page.evaluate("choose(2, true)")
    page.until("$('detail').innerText.includes('⟨U+202E⟩evil')")
    text = page.evaluate("$('detail').innerText")
    assert "⟨U+0000⟩" in text and "⟨U+200F⟩" in text and "</script><b>" in text
    assert drawn(page, "#detail b b, #detail script") == 0 and page.errors() == []


def test_a_text_of_half_a_million_lines_opens_at_once(chromium: Chromium, tmp_path: Path) -> None:
    """It is laid out in pieces, each to the end of a line."""
    run = recorded_run(tmp_path / "run", steps=1)
    rows = list(read_jsonl(run / "episodes.jsonl"))
    text = "\n".join(f"line {k}" for k in range(500_000))
    rows[1] |= {"text": text}
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = opened(chromium, write_page(run).path)
    page.evaluate("choose(1, true)")
    page.until(OPENED)
    began = time.monotonic()
    page.evaluate("document.querySelector('#detail details.fold').open = true")
    page.evaluate("document.querySelector('#detail details.fold').getBoundingClientRect().height")
    assert time.monotonic() - began < 5
    shown = "[...document.querySelectorAll('#detail details.fold pre')].map((pre) => pre.textContent).join('')"
    for clicks in range(3):
        part = page.evaluate(shown)
        assert text.startswith(part) and part.endswith("\n") and 45_000 * (clicks + 1) <= len(part) <= 50_000 * (clicks + 1)
        page.evaluate("document.querySelector('#detail details.fold .piece').click()")
    halves = "x\U0001f600" * 100_000
    pieces = page.evaluate(f"[...folded('', {json.dumps(halves)}).querySelectorAll('pre')].map((pre) => pre.textContent)")
    assert halves.startswith(pieces[0]) and pieces[0][-1] in halves  # no half of a character
    assert page.errors() == []


def phone(chromium: Chromium, path: Path, ready: str = READY) -> Page:
    page = chromium.open(path)
    page.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    page.go(path.resolve().as_uri())
    page.until(ready)
    return page


@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_screen(chromium: Chromium, seeds: list[Path], tmp_path: Path) -> None:
    page = phone(chromium, write_page(seeds[0], tmp_path / "v.html", others=seeds[1:2], against=seeds[2]).path)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 390
    assert page.evaluate("document.querySelector('#rows .row .answer').getBoundingClientRect().width") > 280
    assert page.evaluate("document.querySelector('#main svg').getBoundingClientRect().width") > 320
    assert page.evaluate("getComputedStyle(document.querySelector('#main text')).fontSize") == "11px"
    page.evaluate("choose(1, true)")
    page.until(OPENED)
    assert page.evaluate(wide) <= 390 and page.evaluate("$('detail').getBoundingClientRect().width") > 330
    agent = agent_page(chromium, tmp_path)
    agent.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    agent.evaluate("document.querySelector('.unfold').click()")
    assert agent.evaluate(wide) <= 390 and page.errors() == []
    table = phone(chromium, write_index(seeds[0].parent, tmp_path / "i.html").path, "document.querySelector('.runs') !== null")
    assert table.evaluate(wide) <= 390 and table.errors() == []


def test_the_index_shows_twenty_runs_at_a_glance(chromium: Chromium, tmp_path: Path) -> None:
    for nth in range(20):
        run = recorded_run(tmp_path / "runs" / f"{'tool' if nth % 2 else 'none'}-{nth}", steps=3, seed=nth, members=2)
        config = run / "config.yaml"
        told = config.read_text("utf-8").replace("learning_rate: ", f"learning_rate: {nth % 2 + 1}").replace("seed: 0", f"seed: {nth}")
        config.write_text(told, "utf-8")
        (run / "report.json").write_text(json.dumps(REPORT | {"accuracy_after": nth / 20}), "utf-8")
    write_page(tmp_path / "runs" / "none-0")
    page = chromium.open(write_index(tmp_path / "runs").path)
    page.until("document.querySelectorAll('.runs tbody tr').length === 20")
    assert page.evaluate("document.querySelector('.runs').getBoundingClientRect().height") < 800
    assert drawn(page, "#main path.band") == 2 and drawn(page, ".spark path") == 20
    head = page.evaluate("[...document.querySelectorAll('.runs th')].map(cell => cell.textContent)")
    assert {"run", "reward", "after", "seed", "learning_rate"} <= {*head}
    page.evaluate("[...document.querySelectorAll('.runs th')].find(cell => cell.textContent === 'after').click()")
    first = "document.querySelector('.runs tbody tr').innerText"
    assert "95.0 %" in page.evaluate(first) and "tool-19" in page.evaluate(first)
    page.evaluate("document.querySelector('.runs input').click()")
    assert drawn(page, "#main path.band") == 1
    assert page.evaluate("[...document.querySelectorAll('.runs a')].map(link => link.textContent)") == ["none-0"]
    page.evaluate("document.querySelector('.runs a').click()")
    page.until("document.title.startsWith('none-0') && " + READY)
    assert page.errors() == []


def test_the_names_of_the_axes_are_inside_the_chart(chromium: Chromium, seeds: list[Path]) -> None:
    page = opened(chromium, write_page(seeds[0]).path)
    ends = page.evaluate(
        "[...document.querySelectorAll('#main text.name')].map((text) => [text.textContent, text.closest('svg').viewBox.baseVal.height"
        " - (text.getBBox().y + text.getBBox().height)])"
    )
    name, room = ends[0]
    assert name == "step" and room >= 0
