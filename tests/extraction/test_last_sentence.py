"""Values that only the last sentence of a text states, and last sentences that state none."""

from __future__ import annotations

import pytest

from rlvr.extraction import extract_answer

FOUND = [
    ("We add.\nThe number of bags is 12.", "12"),
    ("We add **9** and 1.\nTom has **10** apples.", "10 apples"),
    ("Some work.\nThe sum of the parts is $5$.", "$5$"),
    ("2 + 3 = 5\n\nIt will take her 5 days.", "5 days"),
    ("4 + 4 = 8\n\nThere are 8 coffee mugs in the teacher's lounge.", "8 coffee"),
    ("Half of 40.\n\nTherefore, 20% of the cars are automatic.", "20%"),
    ("Half of 34.\n\nSo 17 oranges are good.", "17 oranges"),
    ("We solve it.\n\nThe integers are n = 1 and n = -2.", "n = 1 and n = -2"),
    ("We square it.\n\nThe distance is 3\u221a13 units.", "3\u221a13 units"),
    ("A long one.\n\nSo (p, q, r) = (6, 31, -1).", "(6, 31, -1)"),
    ("It grows.\n\nSo x \u2208 (3, 4].", "x \u2208 (3, 4]"),
    ("It is unbounded.\n\n$$(2,\\infty)$$", "$$(2,\\infty)$$"),
    ("She covers the most distance in the least time.\n\n**Evelyn**", "Evelyn"),
    ("He had 12. Now he has 5.", "5"),
    ("Isolating gives 2x = 290, such that the angle is 145\u00b0.", "145\u00b0"),
]
NOT_FOUND = [
    "We add.\nThe number 42 is even.",
    "The product is 281.\nThe product is 280.",
    "We add.\nIs it 12?",
    "We add.\nThe number of bags is not 12.",
    "We add.\nThe number of bags is 12 or 13.",
    "We add.\nThe number of bags could be 12.",
    "We add.\nThere are at least 12 bags.",
    "We add.\nThere are 12 bags and two boxes.",
    "We add.\nThe first bag has 12 apples.",
    "We add.\nStep 3 is 12.",
    "We add.\nIf there are bags, it is 12.",
    "We add.\nx = 5 and y = 2.",
    "We add.\nThe number of bags is 12 and the number of boxes is $5$ or so.",
    "We add.\nA verifier should accept 12.",
    "We add.\n(B) **280**",
    "We add.\n\n**Step 1**",
    "**41**\n\n**42**",
    "We add.\nThe total is 12 because",
    "It is 12.\nNo more work is done here.",
    "Now we know.\nI doubt that it will take her 5 days.",
    "Now we know.\nIt takes her ~5 days.",
    "Now we know.\nIt takes her negative 5 days.",
    "Now we know.\nMy friend says that it takes her 5 days.",
    "Now we know.\nIt will n\u200bot take her 5 days.",
    "Now we know.\nIt will n\u043et take her 5 days.",
    "Now we divide.\nEach chapter takes her 5 days.",
    "Now we divide both sides.\nThe speed is 60 km/h too low.",
]


@pytest.mark.parametrize(("text", "answer"), FOUND)
def test_the_value_of_the_last_sentence_is_found(text: str, answer: str) -> None:
    assert extract_answer(text).text == answer


@pytest.mark.parametrize("text", NOT_FOUND)
def test_a_last_sentence_without_one_value_is_no_answer(text: str) -> None:
    assert extract_answer(text).text is None
