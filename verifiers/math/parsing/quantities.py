"""Parser of quantities: a value with a unit, a base or a name before or after it, and clock times."""

from __future__ import annotations

import re

from rlvr.verifiers.math.parsing.atoms import AtomParser
from rlvr.verifiers.math.parsing.grammar import TIMES_SIGNS
from rlvr.verifiers.math.parsing.tokens import Token
from rlvr.verifiers.math.parsing.tree import ParseError, Tree
from rlvr.verifiers.math.parsing.units import (
    NON_UNIT_WORDS,
    NUMBER_MULTIPLES,
    VALUE_CHANGING_WORDS,
    is_letter_unit,
    is_unit,
    parse_unit_label,
)
from rlvr.verifiers.math.values.rational import to_rational

CONJUNCTIONS = frozenset(("and", "or", "und", "oder"))
_NAMING_WORDS = "a the of in for is by below above under off at with without from between"
NAMING_WORDS = frozenset(_NAMING_WORDS.split())
"""Words that are not allowed in a counted thing, but may be in the name of a value: `the distance from A = 5`."""


class QuantityParser(AtomParser):
    """Parses units, clock times and named values; lists and relations are parsed by `parse.py`."""

    def is_conjunction(self, token: Token) -> bool:
        """Whether a token is the word `and` or `or`."""
        return token.kind in ("word", "text") and token.text.strip(" ,").lower() in CONJUNCTIONS

    def parse_label(self) -> Tree | None:
        """Parse words before an equals sign that name the value: `Area = 5`; None if there are none."""
        if self.peek().kind not in ("word", "text"):
            return None
        at = self.position
        name: list[str] = []
        while self.peek().kind in ("word", "text") and len(name) < 6:
            name.append(self.next_token().text)
        if name and self.peek().text == "=" and (len(name) > 1 or len(name[0]) > 3) and re.fullmatch(r"[a-zA-Z ]+", " ".join(name)):
            if set(" ".join(name).lower().split()) & ((NON_UNIT_WORDS | VALUE_CHANGING_WORDS) - NAMING_WORDS):
                raise ParseError(f"the words {' '.join(name)[:40]!r} are not a name")
            return ("sym", " ".join(name).strip())
        self.position = at
        return None

    def parse_clock(self) -> Tree | None:
        """Parse a clock time: `12:05`, `3:30 PM`; None for anything else."""
        if self.peek().kind != "num" or self.peek(1).kind == "eof":
            return None
        a, colon, b, after = (self.peek(k) for k in range(4))
        if a.text.isdigit() and colon.kind in ("word", "text") and 1 <= int(a.text[:3]) <= 12:
            half = colon.text.lower().replace(".", "").strip()
            dots = [self.peek(k).text for k in range(2, 5)]
            if half in ("am", "pm") or (half in ("a", "p") and dots[0] == "." and dots[1].lower() == "m"):
                self.position += 2 + (0 if len(half) == 2 else 3 if dots[2] == "." else 2)
                return ("time", int(a.text), 0, half[0] + "m")
        if not (b.kind == "num" and colon.text == ":" and a.text.isdigit() and b.text.isdigit() and len(b.text) == 2):
            return None
        half, dotted = "", False
        if after.kind in ("word", "text"):
            half = after.text.lower().replace(".", "").strip()
            dotted = half in ("a", "p") and self.peek(4).text == "." and self.peek(5).text.lower() == "m"
            half = half + "m" if dotted else half
            if half not in ("am", "pm"):
                return None
            self.position += 3 + (2 if dotted else 0)
            self.accept(".") if dotted else None
        elif after.kind != "eof" and after.text not in (",", "."):
            return None
        if int(a.text) > 24 or int(b.text) > 59:
            return None
        self.position += 4 if half and not dotted else 3
        return ("time", int(a.text), int(b.text), half)

    def parse_unit(self, tree: Tree) -> Tree:
        """Parse a unit after a value: the words up to the next sign that cannot belong to a unit."""
        label = ""
        while True:
            token = self.peek()
            wordy = token.kind == "text" or (token.kind == "word" and not self.is_factor_start(token))
            if wordy and not self.is_conjunction(token) and token.text.lower() not in ("mod", "base", "u"):
                label += " " + self.next_token().text
            elif label and token.text == "^" and not label.endswith("^"):
                self.position += 1
                power = self.parse_argument(whole=True)
                label += "^" + (str(power[1]) if power[0] == "num" else "-" + str(power[1][1]) if power[0] == "neg" else "?")
            elif (
                label
                and token.text in TIMES_SIGNS
                and (self.peek(1).kind == "text" or is_unit(self.peek(1).text) or is_letter_unit(self.peek(1).text))
            ):
                self.position += 1
            elif label and token.text == "/" and self.peek(1).kind in ("word", "text"):
                self.position += 1
                label += " /"
            elif token.kind == "word" and label and not self.is_conjunction(token) and token.text.lower() not in ("mod", "base"):
                label += " " + self.next_token().text
            else:
                break
        if self.peek().text == "base" or label.strip().lower().removeprefix("in ").startswith("base"):
            return self.parse_base(tree, label)
        label = label.strip()
        first, _, rest = label.partition(" ")
        times = NUMBER_MULTIPLES.get(first.lower()) or NUMBER_MULTIPLES.get(first.lower().removesuffix("s"))
        if times:
            tree, label = ("mul", tree, ("num", times, 1)), rest
        if not label:
            return tree
        if tree[0] == "unit" and tree[2] == "dollar" and parse_unit_label(label) is not None:
            return tree if label.lower().rstrip("s") == "dollar" else ("unit", tree[1], "dollar " + label)
        if parse_unit_label(label) is None:
            raise ParseError(f"the words {label[:40]!r} are left over")
        if tree[0] == "unit":
            raise ParseError(f"two units follow each other: {tree[2]}, {label[:40]}")
        return ("unit", tree, label)

    def parse_smaller_unit(self, tree: Tree) -> Tree:
        """Parse a smaller unit of the same kind after a larger one: `2 hours 30 minutes`, `5 dollars and 25 cents`."""
        at, large = self.position, parse_unit_label(tree[2]) if tree[0] == "unit" and tree[1][0] in ("num", "add") else None
        if large is None:
            return tree
        self.position += self.is_conjunction(self.peek()) or self.peek().text == ","
        if self.peek().kind == "num" and self.peek(1).kind in ("word", "text"):
            part = self.parse_unit(self.parse_factor())
            small = parse_unit_label(part[2]) if part[0] == "unit" and part[1][0] in ("num", "dec") else None
            if small is not None and small[0] == large[0] != () and (ratio := small[1] / large[1]) * (to_rational(part[1]) or 1) < 1:
                more: Tree = ("mul", part[1], ("num", ratio.numerator, ratio.denominator))
                return self.parse_smaller_unit(("unit", ("add", tree[1], more), tree[2]))
        self.position = at
        return tree

    def is_unit_word(self, token: Token) -> bool:
        """Whether a factor of a compound unit may be here: the m of kg·m/s²."""
        return token.kind == "text" or is_unit(token.text) or is_letter_unit(token.text)

    def parse_base(self, tree: Tree, label: str) -> Tree:
        """Parse a base after a numeral: `52 base 8`, `52 in base 8`."""
        words = label.lower().split()
        if not words or words[-1] != "base":
            self.next_token()
        base = self.next_token()
        if tree[0] != "num" or tree[2] != 1 or not base.text.isdigit() or len(base.text) > 2 or not 2 <= int(base.text) <= 36:
            raise ParseError("the base must be a known one")
        return ("base", str(tree[1]), int(base.text))
