"""The page of a run: it holds everything, it needs nothing from outside, and nothing that a model wrote is read as HTML."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import socket
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlvr.cli.commands import run_command
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.evaluate import evaluate
from rlvr.runs.curves import MAX_POINTS
from rlvr.runs.run_log import RunLog
from rlvr.viewer import index
from rlvr.viewer.page_parts import EPISODES_PER_CHUNK, get_control_token_name
from rlvr.viewer.serve import PageServer
from rlvr.viewer.view import PAGE_FOLDER, SCRIPTS, STYLES, WrittenPage, watch_run, write_page
from tests.fixtures.tiny import tiny_run

SUMS = "tests/fixtures/worlds.py:Sums"
HOSTILE = "</script><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)><!--DATA--><!--SCRIPT--> \ud800 \u2028 é"


def episode(step: int = 1, text: str = "12", **changes: Any) -> dict[str, Any]:
    """A line of `episodes.jsonl` whose ids are those of the tiny run's tokenizer."""
    acted = [0, 0, 0, *[1] * (len(text) + 1)]
    row = {"step": step, "split": "train", "index": 0, "finish": "terminated", "task_id": "sums/0", "group": f"{step}:0", "text": text}
    row |= {"reward": 1.0, "advantage": 0.5, "stop_reason": "terminated", "turns": 1, "policy_version": 0, "error": ""}
    row |= {"verdict": {"score": 1.0, "reason": "12 equals 12", "fault": "none"}}
    row |= {
        "tokens": [1, 5, 2, *[4 + int(c) if c in "0123456789" else 3 for c in text], 0],
        "action_mask": acted,
        "logprobs": [-0.25] * len(acted),
    }
    return row | changes


def trained(folder: Path, rows: list[dict[str, Any]], steps: int = 2) -> Path:
    log = RunLog.create(folder, tiny_run())
    for step in range(1, steps + 1):
        log.log_metrics({"step": step, "reward": step / steps, "kl": None}, {"step": step, "step_time": 0.5})
    log.close()
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


def parts(page: Path) -> dict[str, Any]:
    """What a browser would unpack."""
    found = {}
    for name, text in re.findall(r'<script type="text/plain" id="([a-z0-9-]+)">([^<]*)</script>', page.read_text("utf-8")):
        raw = base64.b64decode(text, validate=True)
        found[name] = json.loads(raw if name == "head" else gzip.decompress(raw))
    return found


def test_every_episode_of_a_training_run_is_in_the_page(tmp_path: Path) -> None:
    rows = [episode(step, str(step)) for step in range(1, EPISODES_PER_CHUNK + 3)]
    made = write_page(trained(tmp_path / "a", rows))
    found = parts(made.path)
    assert made.path == tmp_path / "a" / "view.html" and made.size_bytes == made.path.stat().st_size
    assert found["head"]["runs"][0]["episodes"] == made.num_episodes == len(rows) == len(found["columns"]["step"])
    texts = [row for at in (0, 1) for row in found[f"texts-{at}"]]
    assert [row["text"] for row in texts] == [row["text"] for row in rows] and "texts-2" not in found
    ids, stretches, logprobs, ratios, advantages = found["tokens-0"][11]
    assert (ids, stretches, logprobs, ratios, advantages) == (rows[11]["tokens"], [3, 3], [25, 25, 25], None, None)
    assert "".join(found["columns"]["vocabulary"].get(str(token), "") for token in ids[3:]) == "12"
    assert found["columns"]["reason"] == {"words": ["12 equals 12"], "at": [0] * len(rows)}


def test_control_tokens_come_with_their_names(tmp_path: Path) -> None:
    assert parts(write_page(trained(tmp_path / "a", [episode()])).path)["columns"]["names"] == {
        "0": "<eos>",
        "1": "<user>",
        "2": "<policy>",
    }
    added = {7: SimpleNamespace(content="<|im_end|>", special=True), 8: SimpleNamespace(content="<think>", special=False)}
    loaded: Any = SimpleNamespace(tokenizer=SimpleNamespace(added_tokens_decoder=added))  # as Hugging Face's
    assert [get_control_token_name(loaded, token) for token in (6, 7, 8)] == ["", "<|im_end|>", ""], "<think> is text"


def test_tokens_are_those_that_an_endpoint_counted(tmp_path: Path) -> None:
    made = write_page(trained(tmp_path / "a", [episode(usage=[100, 7]), episode()]))
    assert parts(made.path)["columns"]["tokens"] == [7, 3]


def test_tasks_of_one_name_keep_their_samples_apart(tmp_path: Path) -> None:
    groups = ("1:0", "1:0", "1:1", "1:1", "2:0")
    made = write_page(trained(tmp_path / "a", [episode(int(group[0]), group=group, task_id="one") for group in groups]))
    assert parts(made.path)["columns"]["sample"] == [0, 1, "0.1", "1.1", 0]


def test_curves_are_those_of_the_logs_and_a_panel_without_a_number_is_left_out(tmp_path: Path) -> None:
    panels = {panel["title"]: panel for panel in parts(write_page(trained(tmp_path / "a", [episode()])).path)["head"]["runs"][0]["panels"]}
    assert panels["reward"]["lines"] == {"reward": [0.5, 1.0]} and panels["reward"]["steps"] == [1, 2]
    assert panels["step time by phase, seconds"]["lines"] == {"step_time": [0.5, 0.5]}
    assert not any("KL" in title or title == "entropy" for title in panels)


def test_a_run_with_rollout_workers_shows_who_works_what_was_lost_and_what_limits_it(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", [episode()])
    shares = {
        "cluster/sampling_fraction": 0.9,
        "cluster/idle_fraction": 0.1,
        "cluster/loading_fraction": 0.0,
        "cluster/trainer_busy_fraction": 0.3,
        "cluster/workers_lost": 1.0,
    }
    times = [{"step": step, "step_time": 0.5, "time/wait_for_batch": 0.4, **shares} for step in (1, 2)]
    (folder / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times), "utf-8")
    events = [{"event": event} for event in ("lost", "lost", "given_up")]
    (folder / "rollout_workers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events), "utf-8")
    head = parts(write_page(folder).path)["head"]["runs"][0]
    panels = {panel["title"]: panel["lines"] for panel in head["panels"]}
    assert panels["activity, fraction of a step"]["cluster/trainer_busy_fraction"] == [0.3, 0.3] and panels["rollout workers"] == {
        "cluster/workers_lost": [1.0, 1.0]
    }
    assert (head["facts"]["rollout_workers_lost"], head["facts"]["calls_given_up"]) == (2, 1) and "resumed" not in head["facts"]
    assert head["facts"]["speed"] == "the trainer waits for rollout workers 80% of the step, and they sample 90% of it: add rollout workers"


def test_a_long_curve_is_averaged(tmp_path: Path) -> None:
    reward = parts(write_page(trained(tmp_path / "a", [], steps=2 * MAX_POINTS)).path)["head"]["runs"][0]["panels"][0]
    assert len(reward["steps"]) == len(reward["lines"]["reward"]) == MAX_POINTS and reward["steps"][-1] == 2 * MAX_POINTS
    assert reward["lines"]["reward"][0] == pytest.approx(1.5 / (2 * MAX_POINTS))


def test_an_evaluation_shows_its_figures_and_the_samples_that_count(tmp_path: Path) -> None:
    evaluate(SUMS, "scripted:gold", tasks=10, n=2, out=tmp_path / "a")
    log = tmp_path / "a" / "episodes.jsonl"
    first = json.loads(log.read_text("utf-8").splitlines()[0])
    with log.open("a") as file:
        file.write(json.dumps(first | {"text": "asked again"}) + "\n")
    found = parts(write_page(tmp_path / "a").path)
    assert found["head"]["runs"][0]["kind"] == "evaluation" and found["head"]["runs"][0]["episodes"] == 20
    assert found["head"]["runs"][0]["figures"]["lines"][0][:3] == ["Sums", "2", "100.0%"]
    assert found["texts-0"][0]["text"] == "asked again" and found["texts-0"][0]["prompt"][0]["role"] == "user"
    assert len(set(found["columns"]["group"]["at"])) == 10 and "state" not in found["head"]["runs"][0]["facts"]
    (tmp_path / "a" / "report.json").unlink()  # as of a run that was killed
    assert parts(write_page(tmp_path / "a").path)["head"]["runs"][0]["facts"]["state"] == "unfinished"


def test_tests_and_faults_come_with_their_episode(tmp_path: Path) -> None:
    tests = {"tests": [{"name": "1", "ok": False, "why": "the output differs"}]}
    broken = {"score": None, "reason": "the engine does not answer", "fault": "infra"}
    rows = [
        episode(verdict={"score": 0.0, "reason": "0 of 1", "fault": "none", "detail": tests, "components": {"tests": 0.0}}),
        episode(verdict=broken),
        episode(verdict=None),
    ]
    found = parts(write_page(trained(tmp_path / "a", rows)).path)
    assert found["texts-0"][0]["detail"] == tests and found["texts-0"][0]["components"] == {"tests": 0.0}
    assert found["columns"]["score"] == [0.0, None, None]
    assert [found["columns"]["fault"]["words"][at] for at in found["columns"]["fault"]["at"]] == ["none", "infra", "no verdict"]


def test_nothing_a_model_wrote_is_html(tmp_path: Path) -> None:
    verdict = {"score": 0.0, "reason": HOSTILE, "fault": "none", "detail": {"tests": [{"name": HOSTILE, "ok": False, "why": HOSTILE}]}}
    tame = write_page(trained(tmp_path / "same", [episode()]), tmp_path / "tame.html").path.read_text("utf-8")
    made = write_page(trained(tmp_path / "a", [episode(text=HOSTILE, task_id=HOSTILE, error=HOSTILE, verdict=verdict)]))
    page = made.path.read_text("utf-8")
    empty = r'(<script type="text/plain" id="[a-z0-9-]+">)[^<]*'
    assert re.sub(empty, r"\1", page) == re.sub(empty, r"\1", tame), "but for the packed data, the two pages are the same"
    assert parts(made.path)["texts-0"][0]["text"] == HOSTILE


def test_the_page_asks_nobody_and_runs_only_its_own_script(tmp_path: Path) -> None:
    page = write_page(trained(tmp_path / "a", [episode(text=HOSTILE)])).path.read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]+\.|\bsrc=|\bhref=|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page)
    assert "default-src 'none'" in page and "'unsafe" not in page
    assert not re.search(r"<!--[A-Z]+-->", page), "a mark of the frame was not filled in"


def test_two_runs_are_both_in_the_page(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "a", [episode(1, "1"), episode(2, "2")]), trained(tmp_path / "b", [episode(1, "3")], steps=5)
    found = parts(write_page(one, against=two).path)
    assert [(head["name"], head["episodes"], head["facts"]["steps"]) for head in found["head"]["runs"]] == [("a", 2, 2), ("b", 1, 5)]
    assert [row["text"] for row in found["texts-0"]] == ["1", "2"] and [row["text"] for row in found["1-texts-0"]] == ["3"]
    evaluate(SUMS, "scripted:gold", tasks=2, out=tmp_path / "c")
    with pytest.raises(ConfigError, match="cannot be compared: one is a training run"):
        write_page(one, against=tmp_path / "c")


def test_what_the_trainer_saw_comes_with_the_tokens(tmp_path: Path) -> None:
    learned: dict[str, Any] = {"log_ratio": [0.0] * 3 + [0.5, -0.25, 0.001], "advantages": [0.0] * 3 + [1.0, 0.5, 0.25]}
    assert parts(write_page(trained(tmp_path / "a", [episode(**learned)])).path)["tokens-0"][0][3:] == [[500, -250, 1], [1000, 500, 250]]


def test_a_run_that_is_watched_is_written_again_as_it_grows(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", [episode(1)])
    seen: list[tuple[int, int]] = []
    assert parts(write_page(folder).path)["head"]["runs"][0]["facts"]["state"] == "unfinished"

    def told(written: WrittenPage) -> None:
        seen.append((written.num_episodes, parts(written.path)["head"]["reload_s"]))
        if len(seen) == 1:
            (folder / "episodes.jsonl").write_text("".join(json.dumps(episode(step)) + "\n" for step in (1, 2)), "utf-8")
        else:
            (folder / "report.json").write_text('{"accuracy_after": 0.5}', "utf-8")

    last = watch_run(folder, on_written=told, poll_interval_s=0.01)
    assert seen == [(1, 1), (2, 1)] and last.num_episodes == 2
    assert parts(last.path)["head"]["reload_s"] == 0 and parts(last.path)["head"]["runs"][0]["facts"] == {"steps": 2, "accuracy_after": 0.5}


def test_a_report_of_too_many_tasks_takes_no_time(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", [episode(1)])
    (folder / "report.json").write_text('{"held_out_tasks": 100000000000, "accuracy_after": 0.5}', "utf-8")
    began = time.monotonic()
    assert write_page(folder).num_episodes == 1 and time.monotonic() - began < 5


def test_a_watch_outlives_a_line_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = trained(tmp_path / "a", [episode(1)])
    log, whole = folder / "episodes.jsonl", json.dumps(episode(1)) + "\n"
    seen: list[int] = []

    def mend_once_told() -> None:
        until = time.monotonic() + 60
        while "not written again" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
        log.write_text(whole * 3, "utf-8")

    def told(written: WrittenPage) -> None:
        seen.append(written.num_episodes)
        if len(seen) == 1:
            log.write_text(whole + "{torn\n" + whole, "utf-8")
            threading.Thread(target=mend_once_told, daemon=True).start()
        else:
            (folder / "report.json").write_text("{}", "utf-8")

    assert watch_run(folder, on_written=told, poll_interval_s=0.01).num_episodes == 3
    assert seen == [1, 3] and caplog.text.count("the page is not written again") == 1


def test_a_run_that_is_watched_from_its_first_moment_and_left_with_ctrl_c(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", [], steps=0)

    def told(written: WrittenPage) -> None:
        raise KeyboardInterrupt

    def begin() -> None:
        (folder / "episodes.jsonl").write_text(json.dumps(episode(1)) + "\n", "utf-8")

    timer = threading.Timer(0.1, begin)
    timer.start()
    assert watch_run(folder, on_written=told, poll_interval_s=0.01).num_episodes == 1
    timer.join()
    with pytest.raises(NotFound, match="is not a run"):
        watch_run(tmp_path / "none")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a", [episode(1), episode(2)])
    log = folder / "episodes.jsonl"
    log.write_text(log.read_text("utf-8")[:-40], "utf-8")
    assert write_page(folder).num_episodes == 1


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["view", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "is not a run" in said and "rlvr train" in said and said.count("\n") == 1
    RunLog.create(tmp_path / "a", tiny_run()).close()
    with pytest.raises(NotFound, match="nothing to show yet"):
        write_page(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"after the first 0 does not have the format that rlvr writes \(KeyError"):
        write_page(trained(tmp_path / "b", [{"step": 1}]))
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(trained(tmp_path / "c", [episode()]), tmp_path / "no" / "folder.html")


def test_the_command_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path / "a", [episode()])
    assert run_command(["view", str(folder), "--out", str(tmp_path / "b.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": str(folder), "written": str(tmp_path / "b.html"), "episodes": 1, "bytes": (tmp_path / "b.html").stat().st_size}


def test_the_page_is_kept_readable() -> None:
    used = {"__init__.py", "page.html", "index.html", *STYLES, *SCRIPTS, *index.SCRIPTS}
    assert {path.name for path in PAGE_FOLDER.iterdir() if path.is_file()} == used
    assert all(path.read_text("utf-8").count("\n") <= 350 for path in PAGE_FOLDER.iterdir())


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    evaluate(SUMS, "scripted:gold", tasks=2, out=tmp_path / "e")
    page, notes = tmp_path / "page.html", tmp_path / "notes.html"
    assert write_page(tmp_path / "e", page).size_bytes == write_page(tmp_path / "e", page).size_bytes
    notes.write_text("precious")
    with pytest.raises(ConfigError, match="so it is not overwritten"):
        write_page(tmp_path / "e", notes)
    assert notes.read_text() == "precious"
    os.mkfifo(pipe := tmp_path / "pipe")  # as a device is none
    with pytest.raises(ConfigError, match="so it is not overwritten"):
        write_page(tmp_path / "e", pipe)
    assert pipe.is_fifo()


def test_a_browser_that_goes_away_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("x" * 10_000_000)
    with PageServer(lambda path: page) as served:
        host, port = urlsplit(served.url).netloc.split(":")
        for path in (urlsplit(served.url).path, "/elsewhere"):
            with socket.create_connection((host, int(port))) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets the connection
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n".encode())
                time.sleep(0.3)  # the server reads, and waits for the rest
        until = time.monotonic() + 30
        while [thread for thread in threading.enumerate() if "process_request_thread" in thread.name] and time.monotonic() < until:
            time.sleep(0.05)
    assert capfd.readouterr().err == ""
