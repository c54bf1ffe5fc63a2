"""An index of runs, and the server that shows pages while a command runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from rlvr.cli.commands import run_command
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.evaluate import evaluate
from rlvr.viewer.index import find_runs, write_index
from rlvr.viewer.live import LAST_PAGE_TIMEOUT_S, serve_index, serve_run
from rlvr.viewer.serve import PageServer
from rlvr.viewer.view import write_page
from tests.config.test_config import LAUGHS
from tests.fixtures.recorded import recorded_run
from tests.viewer.test_view import parts


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two training runs of one condition, an evaluation, a broken run, and a folder that is no run."""
    recorded_run(tmp_path / "sums" / "a-0", steps=30)
    recorded_run(tmp_path / "sums" / "a-1", steps=4, seed=1)
    (tmp_path / "sums" / "a-0" / "report.json").write_text('{"accuracy_before": 0.1, "accuracy_after": 0.5, "held_out_tasks": 50}')
    evaluate("tests/fixtures/worlds.py:Sums", "scripted:gold", tasks=3, out=tmp_path / "gold")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("seed: [")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_every_run_is_listed_with_what_it_reached(runs: Path) -> None:
    write_page(runs / "gold")
    made = write_index(runs)
    assert (made.path, made.num_episodes) == (runs / "index.html", 4)
    entries = {entry["name"]: entry for entry in parts(made.path)["head"]["entries"]}
    assert list(entries) == ["broken", "gold", "sums/a-0", "sums/a-1"]
    first, second, gold = entries["sums/a-0"], entries["sums/a-1"], entries["gold"]
    assert first["condition"] == second["condition"] == 0 and first["label"] == "a"
    assert (first["accuracy_after"], first["finished"], second["finished"], second["steps"]) == (0.5, True, False, 4)
    assert len(first["panels"][0]["steps"]) == 30 and [point[:2] for point in first["held_out"]] == [[0, 0.1], [30, 0.5]]
    assert (gold["kind"], gold["with"], gold["accuracy_after"], gold["page"]) == ("evaluation", "scripted:gold", 1.0, "gold/view.html")
    assert entries["broken"]["kind"] == "unreadable" and "config.yaml" in entries["broken"]["why"] and not first["page"]


def test_an_adapter_is_a_column_with_its_rank_and_the_steps_are_no_second_column(runs: Path) -> None:
    config = runs / "sums" / "a-1" / "config.yaml"
    settings = yaml.safe_load(config.read_text("utf-8"))
    settings["model"]["lora"], settings["train"]["steps"] = {"rank": 8}, settings["train"]["steps"] + 7
    config.write_text(yaml.safe_dump(settings), "utf-8")
    varied = parts(write_index(runs).path)["head"]["varied"]
    assert [(column["key"], column["values"]) for column in varied] == [("model.lora", {"sums/a-0": "none", "sums/a-1": "rank 8"})]
    config.write_text(yaml.safe_dump({**settings, "model": {**settings["model"], "lora": None}}), "utf-8")
    assert parts(write_index(runs).path)["head"]["varied"] == []


def test_settings_that_differ_are_columns(runs: Path) -> None:
    config = runs / "sums" / "a-1" / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("learning_rate: ", "learning_rate: 1"), "utf-8")
    head = parts(write_index(runs).path)["head"]
    assert [column["key"] for column in head["varied"]] == ["train.learning_rate"], "of two that change together, one"
    assert len({*head["varied"][0]["values"].values()}) == 2
    assert {entry.get("condition") for entry in head["entries"]} == {None, 0, 1}


def test_a_folder_without_runs_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFound, match="is not a run and contains none"):
        write_index(tmp_path)
    assert run_command(["view", str(tmp_path)]) == 2 and "is not a run" in capsys.readouterr().err
    (tmp_path / "index.html").write_text("my own page")
    recorded_run(tmp_path / "a", steps=1)
    with pytest.raises(ConfigError, match="not a page written by rlvr"):
        write_index(tmp_path)


def test_the_command_writes_an_index_of_a_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["view", str(runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 4 and told["written"] == str(runs / "index.html")


def test_links_are_not_followed_and_runs_in_runs_not_listed(runs: Path) -> None:
    (runs / "sums" / "round").symlink_to(runs)
    recorded_run(runs / "sums" / "a-0" / "inner", steps=1)
    assert [str(found.relative_to(runs)) for found in find_runs(runs)] == ["broken", "gold", "sums/a-0", "sums/a-1"]


def test_a_run_that_cannot_be_read_is_listed_whatever_is_wrong(runs: Path) -> None:
    for name, text in (("deep", "[" * 50_000), ("digits", "9" * 10_000), ("laughs", LAUGHS)):
        shutil.copytree(runs / "gold", runs / name)
        (runs / name / "eval.yaml").write_text("seed: " + text)
    assert write_index(runs).num_episodes == 7


def got(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def test_only_the_address_that_was_told_answers(tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    page.write_text("the page")
    asked: list[str] = []

    def pages(path: str) -> Path | None:
        asked.append(path)
        return page if path == "" else None

    before = threading.active_count()
    with PageServer(pages) as served:
        base = f"http://{urlsplit(served.url).netloc}"
        assert got(served.url) == (200, b"the page")
        for wrong in ("/", "/guess/", f"/{served.token}x/", f"/{served.token}/../p.html"):
            assert got(base + wrong)[0] == 404
        assert got(served.url, Host="evil.example:80")[0] == 404, "a foreign name that was made to point here"
        assert asked == ["", "../p.html"], "without the token nothing is looked up"
        with pytest.raises(ConfigError, match=r"port \d+ cannot be used"):
            PageServer(pages, port=int(base.rpartition(":")[2]))
    with pytest.raises(OSError, match=r"refused|reset"):
        urllib.request.urlopen(served.url, timeout=5)
    with pytest.raises(ConfigError, match="port 70000 cannot be used"):
        PageServer(pages, port=70000)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_run_is_served_while_it_grows_and_the_last_page_once_more(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "a", steps=2)
    log = (folder / "episodes.jsonl").read_text("utf-8")
    seen: list[Any] = []
    reloads: list[int] = []
    ended = threading.Event()

    def reload(url: str) -> None:  # as an open page does
        with contextlib.suppress(OSError):
            while not ended.wait(0.2):
                reloads.append(got(url)[0])

    def told(url: str, written: Any) -> None:
        seen.append((written.num_episodes, got(url)[1].count(b"<script")))
        if len(seen) == 1:
            (folder / "episodes.jsonl").write_text(log * 2, "utf-8")
        else:
            (folder / "report.json").write_text("{}", "utf-8")
            threading.Thread(target=reload, args=[url], daemon=True).start()

    began = time.monotonic()
    assert serve_run([folder], None, on_written=told, poll_interval_s=0.05).num_episodes == 32
    ended.set()
    assert time.monotonic() - began < LAST_PAGE_TIMEOUT_S  # the last page was taken, so nobody waited for it
    assert reloads and {*reloads} == {200}
    assert [count for count, _ in seen] == [16, 32] and seen[0][1] > 3


def test_a_page_that_lies_in_a_run_is_not_served(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    own, link = runs / "gold" / "view.html", runs / "broken" / "view.html"
    own.write_text("<meta content='rlvr view'><script>alert(1)</script>")
    os.utime(own, (2e9, 2e9))  # newer than the run
    link.symlink_to(tmp_path / "secret.txt")
    got_pages: dict[str, tuple[int, bytes]] = {}

    def told(url: str, written: Any) -> None:
        got_pages.update({name: got(f"{url}{name}/view.html") for name in ("gold", "broken")})

    serve_index(runs, None, on_written=told, poll_interval_s=0.01, max_polls=1)
    assert got_pages["gold"][0] == 200 and b"alert(1)" not in got_pages["gold"][1]
    assert got_pages["broken"] == (404, b"")
    assert (tmp_path / "secret.txt").read_text() == "a secret"


def test_the_pages_of_an_index_are_written_when_they_are_asked_for(runs: Path) -> None:
    seen: dict[str, int] = {}

    def told(url: str, written: Any) -> None:
        head = parts(written.path)["head"]
        assert all(entry["page"] for entry in head["entries"]) and head["reload_s"]
        for path in ("", "sums/a-1/view.html", "notes/view.html", "sums/../sums/a-1/view.html", "sums/a-1/config.yaml", "broken/view.html"):
            seen[path] = got(url + path)[0]

    serve_index(runs, None, on_written=told, poll_interval_s=0.01, max_polls=2)
    assert seen == {
        "": 200,
        "sums/a-1/view.html": 200,
        "notes/view.html": 404,
        "sums/../sums/a-1/view.html": 404,
        "sums/a-1/config.yaml": 404,
        "broken/view.html": 404,
    }
    assert {entry["name"] for entry in parts(runs / "index.html")["head"]["entries"] if entry["page"]} == {"sums/a-1"}, (
        "on disk only what is there"
    )
