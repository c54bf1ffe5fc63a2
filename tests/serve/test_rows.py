"""Rows and the lines that answer them: what is read fast is what `json` reads, and what is written fast is what `json` writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rlvr.serve import rows
from rlvr.serve.rows import BadRow, decode_json_leniently, format_verdict_line, parse_row, parse_row_index, strip_row_index
from rlvr.task import Fault, Verdict

ODD = (
    "12345678901234567890123", "-9223372036854775809", "1e400", "-0", "-0.0", "NaN", "-Infinity", "5e-324", "1.7976931348623159e308",
    '"\\ud800"', '"\\ud83d\\ude00"', '"\x7f\u2028\u0663"', '{"a": 1, "a": 2}', "\t[1, 2.50, true, null] \r", "[" * 900 + "]" * 900,
)  # fmt: skip
WRONG = ("", "[1,]", "01", "1.", "+1", '"\x01"', '"\\x"', '{"a": 1}x', "{'a': 1}", "nan", "[" * 100_000, "9" * 5000, '{"a" 1}')


@pytest.fixture(params=[msgspec.json.decode, json.loads], ids=["msgspec", "json"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "fast_decode", request.param)


def told(reads: Callable[[bytes], Any], data: bytes) -> str:
    try:
        return repr(reads(data))
    except (ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


def test_the_service_reads_with_msgspec() -> None:
    assert rows.fast_decode is msgspec.json.decode


@pytest.mark.usefixtures("reader")
def test_every_row_is_read_as_json_reads_it() -> None:
    dice = random.Random(7)
    numbers = [f"{dice.randrange(10 ** dice.randrange(1, 20))}.{dice.randrange(10**9)}e{dice.randrange(-330, 310)}" for _ in range(500)]
    for text in (*ODD, *WRONG, *numbers):
        data = text.encode()
        assert told(decode_json_leniently, data) == told(json.loads, data), text[:60]
    for data in (b"\xff", b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", '{"a": 1}'.encode("utf-16")):
        assert told(decode_json_leniently, data) == told(json.loads, data), data


@pytest.mark.usefixtures("reader")
def test_a_wrong_row_has_the_same_message_with_either_reader() -> None:
    with pytest.raises(BadRow, match=r"this row is not JSON \(Expecting value: line 1 column 15 \(char 14\)\)"):
        parse_row(b'{"reference": }')
    assert parse_row(b'{"reference": NaN, "answer": "\\ud800", "id": 12345678901234567890123}')[0::2] == (12345678901234567890123, "\ud800")


NAMES = (None, 0, -7, 10**30, "", 'a "quoted" \\ one', "\ud800\x00\u2028\n", True, 1.5, ["a", {"b": None}])
VERDICTS = (
    Verdict(1.0, "equal"), Verdict(0.1 + 0.2, 'é "x"\n\ud800'), Verdict(None, "away", fault=Fault.INFRA),
    Verdict(0.0, "", fault=Fault.ANSWER), Verdict(0.5, "parts", {"a": 0.5}), Verdict(1.0, "detail", detail={"n": float("nan")}),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_every_verdict_is_written_as_json_writes_it(name: Any) -> None:
    for verdict in VERDICTS:
        line = format_verdict_line(name, verdict, 12)
        assert line == json.dumps({"index": 12, "id": name, **verdict.to_dict()}).encode()
        assert parse_row_index(line) == 12 and strip_row_index(line) == format_verdict_line(name, verdict)
