"""Answers to tasks of `repository` that reach attributes by names which are data, and never run."""

from __future__ import annotations

import pytest

from rlvr.envs._repository.answers import UnacceptableAnswer, graft_functions

ORIGINAL = "import re\n\n\ndef words(text):\n    return re.findall(r'\\w+', text)\n"
BUGGY = ORIGINAL.replace("findall", "split")
ENUM = "    E = re.enum.Enum('E', [('_' + '_eq_' + '_', lambda s, o: True), ('A', 1)])\n    return E.A\n"
CLASS = "    class K(dict, metaclass=Other):\n        pass\n    return K\n"
PATTERN = "    match text:\n        case str(value):\n            return value\n"
FORMAT = "    return ('{0._' + '_class_' + '_}').format(text)\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ENUM, "uses 'Enum'"),
        (CLASS, "has a class"),
        (PATTERN, "has a pattern of a class"),
        (FORMAT, "has the format of a text that is no literal"),
        ("    import collections\n    return collections.namedtuple('E', [text])\n", "uses 'namedtuple'"),
    ],
)
def test_what_reaches_attributes_by_data_scores_0(body: str, reason: str) -> None:
    answer = ORIGINAL.replace("    return re.findall(r'\\w+', text)\n", body)
    with pytest.raises(UnacceptableAnswer, match=reason):
        graft_functions(ORIGINAL, BUGGY, answer, ["words"])


def test_what_the_original_has_stays_allowed() -> None:
    for body in (CLASS, PATTERN, FORMAT):
        original = ORIGINAL.replace("    return re.findall(r'\\w+', text)\n", body.replace(", metaclass=Other", ""))
        assert graft_functions(original, original.replace("text):", "text, x=1):"), original, ["words"]) == original
    plain = ORIGINAL.replace("re.findall(r'\\w+', text)", "'{} words'.format(len(text.split()))")
    assert graft_functions(ORIGINAL, BUGGY, plain, ["words"]) == plain
