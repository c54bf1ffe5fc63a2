"""What `unit_tests` compares: outputs, results as plain data, and the wire that carries them."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.contracts import Sandbox
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, make_user_prompt
from rlvr.verifiers.code.compare_text import is_same_text
from rlvr.verifiers.code.compare_values import is_same_value
from rlvr.verifiers.code.reference import untag_values
from rlvr.verifiers.code.wire import NotData, OpaqueValue, decode, encode, find_non_data
from rlvr.verifiers.unit_tests import UnitTests


@pytest.mark.parametrize(("said", "wanted", "rule", "same"), [
    ("1 2\n", "1  2", "tokens", True),
    ("1 2 3", "1 2", "tokens", False),
    ("", "", "tokens", True),
    ("\ufeff1", "1", "tokens", False),
    ("\x1b[0m1", "1", "tokens", False),
    ("1\0", "1", "tokens", False),
    ("1 2", "1  2", "exact", False),
    ("a \nb\n\n", "a\nb", "lines", True),
    ("b\na", "a\nb", "lines", False),
    ("b\na", "a\nb", "unordered", True),
    ("a\na", "a\nb", "unordered", False),
    ("0.3333", "0.33333", {"name": "tolerance", "absolute": 1e-3}, True),
    ("0.3333", "0.33333", "tokens", False),
    ("nan", "0.5", {"name": "tolerance", "absolute": 1e9}, False),
    ("inf", "1", {"name": "tolerance", "relative": 1e9}, False),
    ("1_0", "10", {"name": "tolerance", "absolute": 1}, False),
    ("1e999", "1", {"name": "tolerance", "relative": 1e9}, False),
])  # fmt: skip
def test_texts_are_compared_by_the_declared_rule(said: str, wanted: str, rule: Any, same: bool) -> None:
    assert is_same_text(said.encode(), wanted.encode(), {"name": rule} if isinstance(rule, str) else rule) is same


@pytest.mark.parametrize(("got", "wanted", "rule", "same"), [
    ([1, (2, 3)], [1, [2, 3]], {"name": "exact"}, True),
    (1.0, 1, {"name": "exact"}, True),
    (True, 1, {"name": "exact"}, False),
    (1, True, {"name": "exact"}, False),
    (None, 0, {"name": "exact"}, False),
    ("1", 1, {"name": "exact"}, False),
    ({"a": [1]}, {"a": (1,)}, {"name": "exact"}, True),
    ({1, 2}, [1, 2], {"name": "exact"}, False),
    ([2, 1], [1, 2], {"name": "unordered"}, True),
    ([2, 2], [1, 2], {"name": "unordered"}, False),
    (0.1 + 0.2, 0.3, {"name": "tolerance", "absolute": 1e-9}, True),
    (float("nan"), float("nan"), {"name": "tolerance", "absolute": 1}, False),
    (10**400, 1.0, {"name": "tolerance", "relative": 1}, False),
    (OpaqueValue("f"), OpaqueValue("f"), {"name": "exact"}, False),
])  # fmt: skip
def test_values_are_compared_as_plain_data(got: Any, wanted: Any, rule: Any, same: bool) -> None:
    assert is_same_value(got, wanted, rule) is same


def test_the_reference_may_say_what_json_cannot() -> None:
    wanted = untag_values({"__dict__": [[1, {"__tuple__": [1, {"__set__": [2]}]}], [2, {"__bytes__": "00ff"}]]})
    assert wanted == {1: (1, {2}), 2: b"\x00\xff"}
    with pytest.raises(ConfigError, match="bytes"):
        untag_values({"__bytes__": "zz"})


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_data_crosses_unchanged(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value and type(back) is type(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["i", "f", "b", "ba", "c", "r", "fr", "l", "t", "s", "fs", "dq", "it", "d", "dec", "o"]),
    st.lists,
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_anything_else_is_refused_and_nothing_worse(data: Any) -> None:
    with contextlib.suppress(NotData):
        decode(data)


def test_a_subclass_arrives_as_its_base() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class List(list):
        def __eq__(self, other: object) -> bool:
            return True

    class Always:
        def __eq__(self, other: object) -> bool:
            return True

    assert type(decode(encode(Sly(3)))) is int and decode(encode(Sly(3))) == 3
    assert decode(encode(List([Sly(1)]))) == [1] and type(decode(encode(List()))) is list
    assert decode(encode(Always())) != 3


@pytest.mark.parametrize("forged", [
    ["fr", [["i", "0x1" + "3" * 200_000], ["i", "0x1" + "5" * 200_000]]],
    ["s", [["i", hex(k * (2**61 - 1))] for k in range(1, 3000)]],
    ["d", [[["i", hex(k * (2**61 - 1))], 0] for k in range(1, 3000)]],
    ["s", [["t", [0] * 100 + [-1 - (n >> k & 1) for k in range(6)]] for n in range(64)]],
], ids=["a fraction to reduce", "a set that hashes alike", "a table that hashes alike", "long tuples that hash alike"])  # fmt: skip
def test_data_that_only_serves_to_keep_us_busy_is_refused(forged: Any) -> None:
    with pytest.raises(NotData):
        decode(forged)


def test_honest_sets_with_a_few_keys_alike_are_read() -> None:
    points = set(itertools.product((-1, -2), repeat=6))
    assert len({hash(point) for point in points}) == 1
    assert decode(json.loads(json.dumps(encode(points)))) == points


@pytest.mark.parametrize(("got", "wanted", "same"), [
    ({True}, {1}, False),
    ({1}, {True}, False),
    ({1.0}, {1}, True),
    ({True, 2}, {2, True}, True),
    ({(1, True)}, {(1, 1)}, False),
    ({(1, (2, False))}, {(1, (2, 0))}, False),
    ({frozenset({True})}, {frozenset({1})}, False),
    ({True: "a"}, {1: "a"}, False),
    ({0: "a"}, {False: "a"}, False),
    ({(True,): 1}, {(1,): 1}, False),
    ({1: "a"}, {1.0: "a"}, True),
    ({None: 1}, {None: 1}, True),
    ({("bool", True)}, {True}, False),
    ({float("nan")}, {float("nan")}, False),
    (frozenset({1}), {1}, False),
])  # fmt: skip
def test_true_is_not_1_in_a_set_or_as_a_key_either(got: Any, wanted: Any, same: bool) -> None:
    assert is_same_value(got, wanted, {"name": "exact"}) is same
    assert is_same_value([got], [wanted], {"name": "tolerance", "absolute": 0.5}) is same


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_reading_piece_by_piece_is_the_same_as_reading_it_all(said: bytes, wanted: bytes) -> None:
    def lines(text: bytes) -> list[bytes]:
        return [line.rstrip(b" \t\r") for line in text.rstrip().split(b"\n")]

    for mine, theirs in ((said, wanted), (said + b" \n" + wanted, said + b"\t\n" + wanted), (wanted + b"\n" + said, said + b"\n" + wanted)):
        assert is_same_text(mine, theirs, {"name": "tokens"}) is (mine.split() == theirs.split())
        assert is_same_text(mine, theirs, {"name": "lines"}) is (lines(mine) == lines(theirs))
        assert is_same_text(mine, theirs, {"name": "unordered"}) is (sorted(lines(mine)) == sorted(lines(theirs)))


def test_words_that_lie_across_two_pieces_are_whole() -> None:
    for gap in (0, 1, 2, 5):
        text = b"x" * ((1 << 18) - gap) + b" 12 345 " + b"y" * ((1 << 18) + gap) + b"  6\n"
        assert is_same_text(text, b" \n ".join(text.split()), {"name": "tokens"})
        assert not is_same_text(text, text.replace(b"12 345", b"123 45"), {"name": "tokens"})


def test_what_is_no_data_is_found_in_any_depth() -> None:
    assert not list(find_non_data([None, True, 1, "a", b"a", {1: (2, {3})}, range(3), iter([print]), {}.keys(), OpaqueValue("f")]))
    loop: list[Any] = [1]
    loop.append(loop)
    assert not list(find_non_data(loop))
    assert list(find_non_data({"a": ({"b": [print]},)})) == [print]


HEAVY = """
import itertools, os
try:
    out = os.fstat(5) and 5
except OSError:
    out = 4
def put(body):
    raw = body.encode()
    view = memoryview(len(raw).to_bytes(4, "big") + raw)
    while view:
        view = view[os.write(out, view) :]
put('{"value": ["l", ["f"]]}')
rows = []
for signs in itertools.islice(itertools.product(("-1", "-2"), repeat=10), 1000):
    rows.append('["t",[' + ",".join(["0"] * 3000 + list(signs)) + "]]")
put('{"case":0,"value":["s",[' + ",".join(rows) + "]]}")
import time
time.sleep(60)
"""


def test_a_result_that_is_slow_to_read_costs_its_own_limits_and_not_our_process(process_sandbox: Sandbox) -> None:
    """Building this set takes seconds in one piece: whoever builds it stops every other thread of its process."""
    calls = {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": {"__set__": [1]}}], "limits": {"cpu_s": 1, "wall_s": 5}}
    verifier = UnitTests(sandbox=process_sandbox)
    used = time.process_time()
    verdict = verifier.verify(Task(make_user_prompt("x"), calls, id="t"), f"```python\n{HEAVY}\n```")
    used = time.process_time() - used
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict
    assert used < verdict.detail["cpu_s"] / 4, "the sandbox does the work, not we"


@pytest.mark.parametrize("rule", ["tokens", "lines", "unordered", "tolerance"])
def test_an_output_is_read_no_further_than_to_its_first_difference(rule: str) -> None:
    said = b"2\n" * 4_000_000
    began = time.process_time()
    assert not is_same_text(said, b"1\n" * 10, {"name": rule, "absolute": 0})
    ours = time.process_time() - began
    sorted(said.split())
    assert ours < (time.process_time() - began - ours) / 2
