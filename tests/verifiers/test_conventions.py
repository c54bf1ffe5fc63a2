"""Each convention of `symbolic` changes a verdict, and the table in verifiers/README.md has all of them with their defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

import rlvr
from rlvr.errors import ConfigError
from rlvr.registry.plugins import PACKAGE_FOLDER
from rlvr.verifiers.math.conventions import ALLOWED_VALUES, MathConventions

CHANGES: dict[str, tuple[str, str, float | None, Any, float]] = {
    "percent": (r"\boxed{50}", r"50\%", 1.0, "strict", 0.0),
    "units": (r"\boxed{12}", "12 cm", 1.0, "required", 0.0),
    "order": (r"\boxed{2, 1}", "1, 2", 1.0, "strict", 0.0),
    "brackets": (r"\boxed{1, 2}", "(1, 2)", 1.0, "strict", 0.0),
    "form": (r"\boxed{2/4}", "1/2", 1.0, "reduced", 0.0),
    "base": (r"\boxed{101}", "101_2", 0.0, "optional", 1.0),
    "multiple_answers": (r"\boxed{7}. \boxed{8}", "8", 0.0, "last", 1.0),
    "worked_out": (r"\boxed{48+48/2}", "72", 0.0, "lenient", 1.0),
    "allow_symbol": (r"\boxed{x}", "x", None, True, 1.0),
    "tolerance": (r"\boxed{\pi}", "3.14", 1.0, 1e-4, 0.0),
    "min_gold_digits": (r"\boxed{\pi}", "3.14", 1.0, 4, 0.0),
    "min_answer_digits": (r"\boxed{0.33}", "1/3", 0.0, 2, 1.0),
}
"""Answer, gold, score by default, another value, and the score with it; the examples of the table."""


@pytest.mark.parametrize("name", [field.name for field in fields(MathConventions)])
def test_a_convention_changes_a_verdict(name: str) -> None:
    answer, gold, usual, value, changed = CHANGES[name]
    assert rlvr.verify("symbolic", answer=answer, reference=gold).score == usual
    assert rlvr.verify("symbolic", answer=answer, reference=gold, conventions={name: value}).score == changed


def test_the_table_has_every_convention_with_its_default() -> None:
    page = (PACKAGE_FOLDER.parent / "verifiers" / "README.md").read_text("utf-8")
    rows = {row[1]: (row[2], row[3]) for row in re.finditer(r"^\| `(\w+)` \| (.+?) \| (.+?) \|", page, re.M) if row[1] in CHANGES}
    for field in fields(MathConventions):
        values, default = rows[field.name]
        told = str(field.default).lower() if isinstance(field.default, bool) else str(field.default) or "none"
        assert default.strip("`") == told
        assert {*ALLOWED_VALUES.get(field.name, ())} - {""} <= {*re.findall(r"`([^`]+)`", values)}


def test_an_unknown_convention_gets_the_whole_list() -> None:
    with pytest.raises(ConfigError, match=r"there is no convention 'case_sensitive'; allowed: .*worked_out"):
        rlvr.make_verifier("symbolic", conventions={"case_sensitive": True})
