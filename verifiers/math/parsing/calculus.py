"""Parser of big operators: sums, products, integrals, limits and derivatives.

They are parsed so that a gold can contain one, and so that an answer which merely restates the question can be refused.
"""

from __future__ import annotations

import re

from rlvr.verifiers.math.parsing.grammar import GREEK_LETTERS, ExpressionParser
from rlvr.verifiers.math.parsing.tokens import Token
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError, Tree

BIG_OPERATORS = {r"\sum": "sum", r"\prod": "prod", r"\int": "integral", r"\lim": "limit"}
ARROWS = (r"\to", r"\rightarrow", r"\longrightarrow")
ONE: Tree = ("num", 1, 1)
MAX_INTEGRALS = 8


class CalculusParser(ExpressionParser):
    """Parses the operand of a big operator, and its bound variable."""

    def parse_big_operator(self, sign: str) -> Tree:
        """Parse a sum, a product, an integral or a limit."""
        if sign == r"\lim":
            return self.parse_limit()
        low = self.parse_argument(whole=True) if self.accept("_") else None
        high = self.parse_argument(whole=True) if self.accept("^") else None
        if low is None and self.accept("_"):
            low = self.parse_argument(whole=True)
        if sign == r"\int":
            body, name = self.parse_integrand()
            if low is not None and high is not None:
                return ("integral", body, name, low, high)
            if low is None and high is None:
                return ("integral", body, name)
            raise ParseError("an integral has only one bound")
        body = self.parse_product()
        if low is not None and high is not None and low[0] == "rel" and low[2] == "=" and len(low) == 4 and low[1][0] == "sym":
            return (BIG_OPERATORS[sign], body, low[1][1], low[3], high)
        return (BIG_OPERATORS[sign], body, "", *(part for part in (low, high) if part is not None))

    def parse_limit(self) -> Tree:
        r"""Parse the target and the operand of \lim_{x \to 0^+}."""
        self.expect("_")
        self.expect("{")
        letter = self.parse_factor()
        if letter[0] != "sym" or not self.accept(*ARROWS):
            raise ParseError("a limit needs a letter and its target")
        negative = self.accept("-") or (self.accept("+") and False)
        point = self.parse_atom()
        if self.accept("/"):
            point = ("div", point, self.parse_factor())
        side = ""
        if self.accept("^"):
            braced = self.accept("{")
            side = self.next_token().text
            if side not in ("+", "-"):
                raise ParseError("a limit's direction must be one side")
            if braced:
                self.expect("}")
        self.expect("}")
        return ("limit", self.parse_product(), letter[1], ("neg", point) if negative else point, side)

    def parse_integrand(self) -> tuple[Tree, str]:
        r"""Parse the integrand before `dx`, and return it with the letter after the d; the dx may be above a fraction bar."""
        end = self.find_differential()
        if end is None:
            body = self.parse_factor()
            if body[0] == "div" and (top := _split_differential(body[1])) is not None:
                return ("div", top[0], body[2]), top[1]
            raise ParseError("an integral has no variable")
        row, body = self.tokens, ONE
        word = row[end].text
        if len(word) > 2:  # xdx
            self.tokens = [*row[:end], Token("word", word[:-2], False)]
        else:
            self.tokens = row[:end]
        if self.position < len(self.tokens):
            body = self.parse_sum()
        if self.position != len(self.tokens):
            raise ParseError("an integral cannot be parsed up to its differential")
        self.tokens, self.position = row, end + 1
        return body, word[-1] if len(word) > 1 else self.next_token().text.lstrip("\\")

    def find_differential(self) -> int | None:
        """Find the position of this integral's `dx`; integrals inside it are skipped."""
        depth, open_integrals = 0, 1
        for at in range(self.position, len(self.tokens)):
            token = self.tokens[at]
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            if depth < 0:
                return None
            if token.text == r"\int" and not depth:
                open_integrals += 1
                if open_integrals > MAX_INTEGRALS:
                    raise LimitExceeded(f"more than {MAX_INTEGRALS} nested integrals")
            after = self.tokens[at + 1].text.lstrip("\\") if at + 1 < len(self.tokens) else ""
            bare = token.text == "d" and (re.fullmatch("[a-z]", after) or after in GREEK_LETTERS)
            if token.kind == "word" and not depth and (bare or re.fullmatch("[a-z]?d[a-z]", token.text)):
                open_integrals -= 1
                if not open_integrals:
                    return at
        return None

    def parse_derivative(self, letter: Tree) -> Tree:
        r"""Parse the operand of \frac{d}{dx}."""
        return ("deriv", self.parse_product(), letter[1])


def _split_differential(tree: Tree) -> tuple[Tree, str] | None:
    """Split a product into the part before its last factor `dx`, and the letter; None if there is no such factor."""
    if tree[0] == "mul" and len(tree) == 3 and tree[1] == ("sym", "d") and tree[2][0] == "sym":
        return ONE, tree[2][1]
    last = _split_differential(tree[-1]) if tree[0] == "mul" else None
    if last is None or last[0] != ONE:
        return None
    rest = list(tree[1:-1])
    return (("mul", *rest) if len(rest) > 1 else rest[0]), last[1]
