"""Episodes as columns: every value comes back, few bytes, and bytes that are not columns are refused in words."""

from __future__ import annotations

import json
import math
import struct
import time
import zlib
from collections import OrderedDict
from dataclasses import replace
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import HEADER, MAGIC, CorruptData, EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.task import Fault, StepReward, Verdict
from rlvr.turns import CallStatus


class Kind(str, Enum):  # noqa: UP042 -- unlike a StrEnum, its str is not its value
    A = "a"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    acted = [False, *draw(st.lists(st.booleans(), max_size=20))] if draw(st.booleans()) else []
    biggest = draw(st.sampled_from([100, 200_000, 2**40]))
    numbers = st.floats(-50, 0, width=draw(st.sampled_from([32, 64])))
    failed = draw(st.booleans())
    pays = st.sampled_from([0.0, 1.0, -0.1]) if not failed else st.just(0.0)
    judged = st.sampled_from(
        [None, Verdict(0.5, "half", {"a": 0.25}, detail={"x": (1, [2])}, step_rewards=[StepReward(0.2, 0), StepReward(0.3, characters=4)]),
         Verdict(0.0, "it hung \ud800", fault=Fault.ANSWER), Verdict(None, "no engine", fault=Fault.INFRA)]
    )  # fmt: skip
    return Episode(
        draw(st.text(min_size=1, max_size=5)),
        "1:0",
        [draw(st.integers(-1, biggest)) for _ in acted],
        acted,
        [draw(numbers) if chosen else 0.0 for chosen in acted],
        [draw(pays) if chosen else 0.0 for chosen in acted],
        StopReason.FAILED if failed else draw(st.sampled_from([StopReason.TERMINATED, StopReason.TRUNCATED])),
        draw(st.integers(-1, 9)),
        draw(judged),
        draw(st.text(max_size=9)),
        draw(st.integers(0, 5)),
        draw(st.text(max_size=5)),
        draw(st.dictionaries(st.text(max_size=4), plain, max_size=3)),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(episodes(), max_size=3), max_size=3))
def test_every_value_comes_back_equal_and_of_its_type(groups: list[list[Episode]]) -> None:
    back = decode_episodes(EncodedEpisodes.from_bytes(encode_episodes(groups).to_bytes()))
    assert back == groups and repr(back) == repr(groups)


def long(members: int = 4, tokens: int = 4000) -> list[Episode]:
    """A group of long answers, whose log-probabilities fit float32."""
    acted = [False] * 20 + [True] * (tokens - 20)
    logprobs = [0.0] * 20 + [-(k % 97) / 64 for k in range(tokens - 20)]
    rewards = [0.0] * (tokens - 1) + [1.0]
    ids = [k * 7919 % 150_000 for k in range(tokens)]
    return [
        Episode("t", "1:0", ids, acted, logprobs, rewards, StopReason.TERMINATED, verdict=Verdict(1.0, "right"), meta={"index": 7})
        for _ in range(members)
    ]


def test_a_token_takes_at_most_eight_and_a_half_bytes() -> None:
    groups = [long()] * 2
    told = encode_episodes(groups).to_bytes()
    assert len(told) < 8.5 * 4000 * 8


class Level(IntEnum):
    LOW = 3


def test_metadata_comes_back_equal_in_plain_types() -> None:
    meta = {"status": CallStatus.OK, "level": Level.LOW, "both": (Level.LOW, np.float64(0.5), Kind.A), "by": OrderedDict({(1, 2): "x"})}
    [[back]] = decode_episodes(encode_episodes([[Episode("t", "g", [], [], [], [], StopReason.TERMINATED, meta=meta)]]))
    assert back.meta == meta
    assert back.meta["status"] == CallStatus.OK and [type(value) for value in back.meta["both"]] == [int, float, str]
    assert type(back.meta["level"]) is int and type(back.meta["by"]) is dict


def test_whole_numbers_of_any_length_travel() -> None:
    meta = {"huge": 10**5000, "small": -(2**64) - 1, "in": [(-(10**4400), 2**64, -(2**64))]}
    columns = EncodedEpisodes.from_bytes(
        encode_episodes([[Episode("t", "g", [], [], [], [], StopReason.TERMINATED, meta=meta)]]).to_bytes()
    )
    assert decode_episodes(columns)[0][0].meta == meta


@pytest.mark.parametrize("acted", [[], [False], [False, True], [False, True, False], [False, False, True, True, False, True, False, False]])
@pytest.mark.parametrize("first", [0, 5, 1 << 20, -1, 1 << 33])
def test_runs_of_the_mask_and_ids_of_any_size_come_back(acted: list[bool], first: int) -> None:
    """Also between others, whose tokens, log-probabilities and rewards are beside theirs."""
    logprobs = [-float(k) if flag else 0.0 for k, flag in enumerate(acted)]
    rewards = [[0.0] * len(acted), [-3.0 if flag else 0.0 for flag in acted]]
    if True in acted:
        rewards += [[0.0] * k + [2.0] + [0.0] * (len(acted) - k - 1) for k, flag in enumerate(acted) if flag]
    ids = [first + k for k in range(len(acted))]
    mine = [Episode("t", "g", ids, acted, logprobs, paid, StopReason.TERMINATED) for paid in rewards]
    groups = [long(1, 30), mine, long(2, 40), mine]
    back = decode_episodes(EncodedEpisodes.from_bytes(encode_episodes(groups).to_bytes()))
    assert back == groups and repr(back) == repr(groups)


def test_a_value_that_is_not_plain_is_refused_by_its_name() -> None:
    odd = Episode("sums/7", "g", [], [], [], [], StopReason.TERMINATED, meta={"tree": object()})
    with pytest.raises(TypeError, match=r"'sums/7' cannot be encoded: <object .*> is a object, not text"):
        encode_episodes([[odd]])


def test_damage_at_any_byte_is_found() -> None:
    told = encode_episodes([long(2, 60)]).to_bytes()
    for place in range(0, len(told), 7):
        hurt = bytearray(told)
        hurt[place] ^= 4
        with pytest.raises(CorruptData, match="columns of episodes"):
            decode_episodes(EncodedEpisodes.from_bytes(bytes(hurt)))


@pytest.mark.parametrize("end", [0, 5, len(MAGIC) + 3, 200, -1])
def test_a_cut_block_is_refused(end: int) -> None:
    with pytest.raises(CorruptData):
        EncodedEpisodes.from_bytes(encode_episodes([long(2, 60)]).to_bytes()[:end])


def test_a_pickle_is_not_opened() -> None:
    with pytest.raises(CorruptData, match="are not columns of episodes: they begin with b'"):
        EncodedEpisodes.from_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")


def forged(table: Any, body: bytes = b"") -> bytes:
    """A block with a right checksum."""
    text = json.dumps(table).encode()
    rest = struct.pack("<Q", len(text)) + text + body
    return MAGIC + HEADER.pack(zlib.crc32(rest), len(rest)) + rest


NONE = [["<u2", 0], ["|u1", 0], ["<f4", 0], ["<i8", 0], ["<f8", 0]]
ROW = ["t", "g", "terminated", 0, None, "", 1, "", ["plain", {}]]


def test_the_forger_of_these_tests_can_write_a_right_block() -> None:
    assert decode_episodes(EncodedEpisodes.from_bytes(forged([NONE, [0], [1], [ROW]])))[0][0].task_id == "t"


@pytest.mark.parametrize(
    "table",
    [
        [],
        {},
        7,
        [NONE, [0], [1]],
        [NONE, [0], [2], [ROW]],
        [NONE, [0, 0], [1], [ROW]],
        [NONE, [-1], [1], [ROW]],
        [NONE, [3], [1], [ROW]],
        [[["|O", 1], *NONE[1:]], [0], [1], [ROW]],
        [[["<u2", 10**9], *NONE[1:]], [0], [1], [ROW]],
        [[["<u2", -1], *NONE[1:]], [0], [1], [ROW]],
        [NONE, [0], [1], [ROW[:-1]]],
        [NONE, [0], [1], [[*ROW[:2], "over", *ROW[3:]]]],
        [NONE, [0], [1], [[*ROW[:-1], ["marked", ["set", 1]]]]],
        [NONE, [0], [1], [[*ROW[:4], ["2", "", ["plain", {}], "none", ["plain", {}], []], *ROW[5:]]]],
        [[["<u2", 10**30], *NONE[1:]], [0], [1], [ROW]],
        [NONE, [0], [1.0], [ROW]],
        [NONE, [True], [1], [ROW]],
        [NONE, {}, [], []],
        [NONE, [], [], ""],
    ],
    ids=range(20),
)
def test_a_forged_block_is_one_sentence(table: Any) -> None:
    with pytest.raises(CorruptData, match=r"columns .*(cannot be read|cannot be one): ") as told:
        decode_episodes(EncodedEpisodes.from_bytes(forged(table)))
    assert "\n" not in str(told.value)


PAID = [["<u2", 2], ["|u1", 1], ["<f4", 1], ["<i8", 1], ["<f8", 1]]
NUMBERS = struct.pack("<HHBfqd", 5, 6, 0b01000000, -0.5, 1, 1.0)


@pytest.mark.parametrize("row", [5, None, "ab", [], {}, ["t"]], ids=str)
def test_a_forged_row_is_one_sentence_where_a_reward_is_paid(row: Any) -> None:
    assert decode_episodes(EncodedEpisodes.from_bytes(forged([PAID, [2], [1], [ROW]], NUMBERS)))[0][0].reward == 1.0
    with pytest.raises(CorruptData, match="columns hold an episode that cannot be one: "):
        decode_episodes(EncodedEpisodes.from_bytes(forged([PAID, [2], [1], [row]], NUMBERS)))


@pytest.mark.parametrize(
    ("mask", "logprob", "place", "reward", "end"),
    [
        (0b10000000, -0.5, 0, 1.0, "terminated"),  # the policy chose the first token
        (0b01000000, 0.5, 1, 1.0, "terminated"),
        (0b01000000, -math.inf, 1, 1.0, "terminated"),
        (0b01000000, math.nan, 1, 1.0, "terminated"),
        (0b01000000, -0.5, 1, math.inf, "terminated"),
        (0b01000000, -0.5, 1, math.nan, "terminated"),
        (0b01000000, -0.5, 0, 1.0, "terminated"),  # paid for a token of the prompt
        (0b01000000, -0.5, -1, 1.0, "terminated"),
        (0b01000000, -0.5, 2, 1.0, "terminated"),
        (0b01000000, -0.5, 1, 1.0, "failed"),
    ],
)
def test_forged_numbers_that_no_episode_may_have_are_one_sentence(mask: int, logprob: float, place: int, reward: float, end: str) -> None:
    numbers = struct.pack("<HHBfqd", 5, 6, mask, logprob, place, reward)
    with pytest.raises(CorruptData, match=r"cannot be one: episode of 't'|do not fit each other"):
        decode_episodes(EncodedEpisodes.from_bytes(forged([PAID, [2], [1], [[*ROW[:2], end, *ROW[3:]]]], numbers)))


def test_what_is_left_over_after_the_arrays_is_refused() -> None:
    with pytest.raises(CorruptData, match="3 bytes are left over"):
        EncodedEpisodes.from_bytes(forged([PAID, [2], [1], [ROW]], NUMBERS + b"abc"))


def test_another_layout_is_named() -> None:
    with pytest.raises(CorruptData, match=r"have another layout, b'rlvr columns 2\\n', than this version of rlvr reads"):
        EncodedEpisodes.from_bytes(MAGIC.replace(b"1", b"2") + forged([NONE, [0], [1], [ROW]])[len(MAGIC) :])


def test_deep_nesting_is_refused_too() -> None:
    text = ("[" * 100_000 + "]" * 100_000).encode()
    rest = struct.pack("<Q", len(text)) + text
    with pytest.raises(CorruptData, match="RecursionError"):
        EncodedEpisodes.from_bytes(MAGIC + HEADER.pack(zlib.crc32(rest), len(rest)) + rest)


def test_the_values_of_a_table_are_counted_outside_of_its_texts() -> None:
    texts = [replace(long(1, 60)[0], text=text) for text in (",[{" * 100, '",[{' * 100, "\\," * 100, '\\",' * 100)]
    data = encode_episodes([texts]).to_bytes()
    assert len(EncodedEpisodes.from_bytes(data, max_values=300).episode_lengths) == 4
    with pytest.raises(CorruptData, match="more than 10 values"):
        EncodedEpisodes.from_bytes(data, max_values=10)
    begun = time.perf_counter()
    for text in (b'"' + b'\\"' * 500_000, b'"\\' * 500_000 + b"\\"):
        rest = struct.pack("<Q", len(text)) + text
        with pytest.raises(CorruptData, match="JSONDecodeError"):
            EncodedEpisodes.from_bytes(MAGIC + HEADER.pack(zlib.crc32(rest), len(rest)) + rest, max_values=10)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("logprobs", math.nan, r"logprobs\[20\] is nan"),
        ("logprobs", 0.5, "above 0"),
        ("logprobs", -math.inf, "not a finite number"),
        ("rewards", math.inf, r"rewards\[59\] is inf"),
        ("reward_positions", 3, "policy did not generate"),
    ],
)
def test_numbers_that_no_episode_may_have_are_refused(name: str, value: float, words: str) -> None:
    columns = encode_episodes([long(1, 60)])
    changed: Any = {name: np.full_like(getattr(columns, name), value)}
    with pytest.raises(CorruptData, match=f"an episode that cannot be one: .*{words}"):
        decode_episodes(replace(columns, **changed))
