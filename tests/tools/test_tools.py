"""Our own tools, each with what it is for and what it must refuse."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.contracts import ExecutionResult, ExitStatus
from rlvr.contracts.tool import ToolContext, run_tool_call
from rlvr.errors import ConfigError, MissingExtra, ToolError, ToolInfrastructureError
from rlvr.tools._arithmetic import evaluate
from rlvr.tools.bash import Bash
from rlvr.tools.calculator import Calculator
from rlvr.tools.files import MAX_FILE_BYTES, Files
from rlvr.tools.python import Python
from rlvr.tools.search import Search
from rlvr.tools.sql import Sql
from rlvr.tools.submit import Submit
from rlvr.turns import Call, ToolResult
from tests.tools.fakes import FakeBox


def said(opened: Any, name: str, **given: Any) -> ToolResult:
    return run_tool_call(opened, Call("0.0", name, given))


SUMS = [
    ("2+2=", "4"), ("-2^2", "-4"), ("2^3^2", "512"), ("2^-2", "0.25"), ("1/3*3", "1"), ("0.1+0.2", "0.3"), ("7//2", "3"), ("-7%3", "2"),
    ("22/7", "22/7 (about 3.142857142857142857142857142857143)"), ("sqrt(9/4)", "1.5"), ("sqrt(2)", "about 1.414213562373095048801688724209698"),
    ("round(2.5)", "3"), ("round(-1.005, 2)", "-1.01"), ("gcd(12, 18)", "6"), ("max(1, 2.5, 2)", "2.5"), ("(-1)^10^300", "1"), ("0^0", "1"),
    ("3 × 4 ÷ 2", "6"), ("floor(-0.5)", "-1"), ("comb(50, 25)", "126410606437752"), ("1e3", "1000"), ("5²", "25"),
]  # fmt: skip
REFUSED = [
    ("", "ends where"), ("2 3", "not expected"), ("1,000", "write 1000"), ("1/0", "division by zero"), ("2^99999", "too large"),
    ("10^10^10", "too large"), ("1e9999", "too many digits"), ("(" * 500 + "1", "nested"), ("-" * 500 + "1", "signs"), ("1" * 3000, "characters"),
    ("sqrt(-1)", "not a real"), ("ln(0)", "infinite"), ("exp(10^9)", "too large"), ("factorial(10^9)", "up to 1000"), ("abs", "parenthesis"),
    ("__import__('os').system('id')", "cannot be read"), ("x+1", "not expected"), ("max()", "not expected"), ("(1", "not closed"),
    ("(1/3)^(10^9)", "too large"), ("0^-1", "division by zero"), ("sqrt(1, 2)", "takes 1"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), SUMS)
def test_the_calculator_is_exact(expression: str, value: str) -> None:
    assert Calculator().calculator(expression) == value


@pytest.mark.parametrize(("expression", "words"), REFUSED)
def test_the_calculator_says_what_it_cannot_do(expression: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        Calculator().calculator(expression)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="0123456789+-*/%^(),. esqrtlnpifactorialround", max_size=60))
def test_no_expression_breaks_the_calculator(text: str) -> None:
    with suppress(ToolError):
        Calculator().calculator(text)


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.integers(-(10**30), 10**30), min_size=2, max_size=6), signs=st.lists(st.sampled_from("+-*"), min_size=5, max_size=5)
)
def test_the_calculator_agrees_with_python_on_whole_numbers(numbers: list[int], signs: list[str]) -> None:
    text = f"({numbers[0]})" + "".join(f"{sign}({number})" for sign, number in zip(signs, numbers[1:], strict=False))
    assert evaluate(text).number == Fraction(eval(text))  # the text is ours


OUTCOMES = [
    (ExecutionResult(ExitStatus.OK, exit_code=0), "[no output]"),
    (ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"a\n", stderr_bytes=b"warn\n"), "a\nwarn"),
    (ExecutionResult(ExitStatus.RUNTIME_ERROR, exit_code=2, stderr_bytes=b"no"), "no\n[exit code 2]"),
    (ExecutionResult(ExitStatus.TIMEOUT, stdout_bytes=b"1\n"), "1\n[stopped: it ran longer than 30 s]"),
    (ExecutionResult(ExitStatus.MEMORY_LIMIT), "[stopped: it used too much memory]"),
    (ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"\xff", truncated=True), "\ufffd\n[the output was cut off]"),
]


@pytest.mark.parametrize(("outcome", "text"), OUTCOMES, ids=range(len(OUTCOMES)))
def test_what_a_command_did_is_told(outcome: ExecutionResult, text: str) -> None:
    with Bash().session(ToolContext(sandbox_session=FakeBox(lambda source: outcome))) as bash:
        result = said(bash, "bash", command="x")
    assert (result.text, result.ok) == (text, True)


@pytest.mark.parametrize(("make", "name", "key"), [(Bash, "bash", "command"), (Python, "python", "code")])
def test_a_box_that_fails_is_nobodys_answer(make: Any, name: str, key: str) -> None:
    box = FakeBox(lambda source: ExecutionResult(ExitStatus.INTERNAL_ERROR, reason="the daemon is gone"))
    with make().session(ToolContext(sandbox_session=box)) as opened, pytest.raises(ToolInfrastructureError, match="the daemon is gone"):
        said(opened, name, **{key: "1"})
    with pytest.raises(ValueError, match="timeout"):
        make(call_timeout_s=0)


def test_files_are_read_written_and_edited() -> None:
    box = FakeBox()
    with Files().session(ToolContext(sandbox_session=box)) as files:
        assert said(files, "write_file", path="a/b.txt", text="one\ntwo\nthree\n").ok
        assert said(files, "read_file", path="a/b.txt", first=2, lines=1).text == "2\ttwo\n[1 more lines]"
        assert said(files, "edit_file", path="a/b.txt", old="two", new="2").text == "Replaced it in a/b.txt, line 2."
        assert box.files["a/b.txt"] == b"one\n2\nthree\n"
        box.files |= {"bin": b"\xff\xfe", "big": b"x" * (MAX_FILE_BYTES + 1), "e": b""}
        assert said(files, "read_file", path="e").text == "[the file is empty]"
        refusals: list[tuple[str, dict[str, Any], str]] = [
            ("edit_file", {"path": "a/b.txt", "old": "e", "new": ""}, "occurs 3 times"),
            ("edit_file", {"path": "a/b.txt", "old": "zwei", "new": ""}, "occurs 0 times"),
            ("edit_file", {"path": "a/b.txt", "old": "", "new": "x"}, "old is empty"),
            ("read_file", {"path": "none"}, "No such file"),
            ("read_file", {"path": "a/b.txt", "first": 9}, "past its end"),
            ("read_file", {"path": "a/b.txt", "first": 0}, "at least 1"),
            ("read_file", {"path": "bin"}, "UTF-8"),
            ("read_file", {"path": "big"}, "larger"),
            ("write_file", {"path": "/ro/x", "text": ""}, "Permission denied"),
            ("write_file", {"path": "x", "text": "\ud800"}, "UTF-8"),
            ("write_file", {"path": "x", "text": "x" * (MAX_FILE_BYTES + 1)}, "larger"),
            ("write_file", {"path": "a\0b", "text": ""}, "path"),
            ("write_file", {"path": "", "text": ""}, "path"),
        ]
        for name, given, words in refusals:
            result = said(files, name, **given)
            assert not result.ok and words in result.text, (name, given, result)
        assert box.files["a/b.txt"] == b"one\n2\nthree\n"


def test_submit_ends_the_conversation() -> None:
    with Submit().session() as submit:
        result = said(submit, "submit", answer="42")
    assert (result.done, result.text) == (True, "42")


SCRIPT = "create table t(n, s); insert into t values (1, 'a'), (2, null);"
ENDLESS = "with recursive c(n) as (select 1 union all select n + 1 from c) "


def test_sql_reads_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCRIPT)
    connection.close()
    before = path.read_bytes()
    other = tmp_path / "other.db"
    with Sql(path=str(path)).session() as sql:
        assert said(sql, "sql", query="select * from t").text == "n\ts\n1\ta\n2\tNULL"
        assert "create table" in said(sql, "sql", query="select sql from sqlite_schema").text.lower()
        for query in ("update t set n = 5", "drop table t", f"attach '{other}' as x", f"vacuum into '{other}'", "begin", "pragma query_only = off",
                      "create temp table q(x)", "select load_extension('x')", "select 1; select 2", "selec", "select '\ud800'", "select \0"):  # fmt: skip
            assert not said(sql, "sql", query=query).ok, query
    assert path.read_bytes() == before and not other.exists()


def test_sql_scratch_copies_are_each_conversations_own(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCRIPT)
    connection.close()
    plugin = Sql(path=str(path), mode="scratch")
    with plugin.session() as one, plugin.session() as two:
        assert said(one, "sql", query="delete from t").text == "2 rows changed."
        assert said(one, "sql", query="select * from t").text == "n\ts\n[no rows]"
        assert said(two, "sql", query="select count(*) as c from t").text == "c\n2"
        for query in (
            f"attach '{other}' as x",
            f"vacuum into '{other}'",
            "pragma max_page_count = 999999999",
            "pragma writable_schema = on",
        ):
            assert not said(one, "sql", query=query).ok, query
        full = said(one, "sql", query=f"create table z as {ENDLESS} select hex(zeroblob(20000)) as x from c")
        assert not full.ok and "full" in full.text
    assert not other.exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from t").fetchone() == (2,)
    connection.close()


def test_sql_has_limits_on_time_rows_and_sizes() -> None:
    with Sql(script=SCRIPT, call_timeout_s=0.3, max_rows=3).session() as sql:
        costly = "select sum(instr(x, substr(x, 1, 24000) || 'b')) from c, (select replace(hex(zeroblob(24000)), '0', 'a') as x)"
        for query in (f"{ENDLESS} select count(*) from c", ENDLESS + costly):
            start = time.monotonic()
            result = said(sql, "sql", query=query)
            assert not result.ok and "longer than 0.3 s" in result.text and time.monotonic() - start < 60
        assert said(sql, "sql", query=f"{ENDLESS} select n from c").text == "n\n1\n2\n3\n[more than 3 rows; the rest is not shown]"
        assert not said(sql, "sql", query="select zeroblob(1000000000)").ok
        assert len(said(sql, "sql", query="select hex(zeroblob(40000)) as x").text) < 300
        assert said(sql, "sql", query="select count(*) as c from t").text == "c\n2", "the next statement runs"


def build_straight_query(columns: int) -> str:
    """A query in which SQLite never jumps: its progress handler is not asked before all `trim`s are done, two seconds for a column."""
    one = "+".join(["length(trim(a,c))"] * 20)
    return (
        "with v(a) as materialized (select replace(hex(zeroblob(49900)),'0','b')), "
        f"w(c) as materialized (select replace(hex(zeroblob(100)),'0','a')||'b') select {','.join([one] * columns)} from v,w"
    )


@pytest.mark.parametrize("mode", ["read", "scratch"])
def test_sql_stops_a_statement_that_never_jumps(mode: Any) -> None:
    with Sql(script=SCRIPT, mode=mode, call_timeout_s=0.3).session() as sql:
        if mode == "scratch":
            assert said(sql, "sql", query="delete from t").ok
        start = time.monotonic()
        result = said(sql, "sql", query=build_straight_query(40))
        assert not result.ok and "longer than 0.3 s" in result.text and time.monotonic() - start < 20
        assert ("as it was at the start" in result.text) == (mode == "scratch")
        assert said(sql, "sql", query="select count(*) as c from t").text == "c\n2", "the next statement runs"


def test_sql_keeps_what_a_conversation_has_opened_between_its_statements() -> None:
    with Sql(script=SCRIPT, mode="scratch").session() as sql:
        for query in ("begin", "delete from t", "create temp table x(n)", "insert into x select count(*) from t", "rollback"):
            said(sql, "sql", query=query)
        assert said(sql, "sql", query="select count(*) as c from t").text == "c\n2"


def test_an_sql_process_that_somebody_kills_is_no_fault_of_the_statement() -> None:
    with Sql(script=SCRIPT).session() as sql:
        assert isinstance(sql, Sql) and sql._process is not None
        sql._process.kill()
        with pytest.raises(ToolInfrastructureError, match="was killed"):
            sql.sql("select 1")


def test_sql_takes_the_database_of_the_task() -> None:
    with Sql(script="create table a(x)").session(ToolContext(data={"script": "create table b(x)"})) as sql:
        assert said(sql, "sql", query="select name from sqlite_schema").text == "name\nb"
    for tool, words in ((Sql(), "no database"), (Sql(path="/nowhere.db"), "no database"), (Sql(script="creat"), "does not run")):
        with pytest.raises(ConfigError, match=words):
            tool.start()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.md").write_text("The river Aller flows through Celle.\n\n" + "Cranes breed in Lapland. " * 60, "utf-8")
    (folder / "b.txt").write_text("Ada Lovelace wrote the first program.", "utf-8")
    (folder / "c.bin").write_bytes(b"program program program")
    return folder


@pytest.mark.parametrize(
    "query", ["select printf('%.*c', 2000000000, 'x')", "select format('%2000000000d')", "select printf('%-0.99999f', 1)"]
)
def test_printf_cannot_hold_a_conversation_up(query: str) -> None:
    with Sql(script="create table t(n)").session() as sql:
        assert "more than three digits" in said(sql, "sql", query=query).text
        assert said(sql, "sql", query="select printf('%5.2f %s', 2, 'b*') as p").text == "p\n 2.00 b*"


def test_search_finds_by_words(texts: Path) -> None:
    plugin = Search(path=str(texts))
    with plugin.session() as search:
        assert search.index is plugin.index, "one index serves all conversations"
        best = said(search, "search", query="who wrote the first program").text
        assert best.startswith("[1] (b.txt#0)\nAda Lovelace") and "c.bin" not in best
        assert said(search, "search", query="cranes", limit=1).text.endswith("...")
        for nothing in ("zebra", "", "\ud800", "\0"):
            assert said(search, "search", query=nothing).text == "No passage contains any of these words."
        assert not said(search, "search", query="a", limit=0).ok and not said(search, "search", query="x" * 5000).ok


def test_search_reads_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "x7", "title": "Rain", "text": "It falls."}\n\n{"text": "Snow melts."}\n', "utf-8")
    assert Search(path=str(path)).search("rain") == "[1] Rain (x7)\nIt falls."
    path.write_text('{"body": 1}\n', "utf-8")
    with pytest.raises(ConfigError, match='line 1 has no "text"'):
        Search(path=str(path))
    with pytest.raises(ConfigError, match="no file or folder"):
        Search(path=str(tmp_path / "none"))


def test_search_without_its_package_says_which(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises((MissingExtra, ModuleNotFoundError)) as told:
        Search(path=str(texts))
    assert isinstance(told.value, MissingExtra) and "[search]'" in str(told.value)


def test_searching_does_not_load_numba_beside_an_engine() -> None:
    code = "import sys; from rlvr.tools.search import _import_bm25s; _import_bm25s(); print([m for m in ('numba', 'llvmlite') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
