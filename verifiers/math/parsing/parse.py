"""Parse text into a syntax tree: lists, relations, sets, units and words around the expressions of `grammar.py`.

The whole text must be parsed; otherwise parsing raises.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rlvr.verifiers.math.parsing.atoms import parse_numeral, require_single_value
from rlvr.verifiers.math.parsing.blocks import RELATION_SIGNS, BlockParser
from rlvr.verifiers.math.parsing.grammar import BRACKET_PAIRS, FUNCTION_ALIASES, FUNCTIONS, GREEK_LETTERS
from rlvr.verifiers.math.parsing.notation import extract_stated_formula, strip_lead
from rlvr.verifiers.math.parsing.quantities import CONJUNCTIONS, NAMING_WORDS
from rlvr.verifiers.math.parsing.spelling_rules import standardize
from rlvr.verifiers.math.parsing.tokens import Token, normalize_characters, tokenize
from rlvr.verifiers.math.parsing.tree import MAX_NODES, LimitExceeded, ParseError, Tree, free_symbols, infinity_sign, list_nodes
from rlvr.verifiers.math.parsing.units import NON_UNIT_WORDS, NUMBER_MULTIPLES, VALUE_CHANGING_WORDS, is_letter_unit, is_unit
from rlvr.verifiers.math.parsing.words import (
    parse_choice,
    parse_circled_numbers,
    parse_lettered_numeral,
    parse_spelled_word,
    parse_words,
    strip_wrapping,
)

SET_OPERATORS = {r"\cup": "union", r"\cap": "inter", r"\setminus": "minus", r"\backslash": "minus"}
INFINITE: Tree = ("const", "oo")
_NUMBER = re.compile(r"(-?)((?:[0-9]{1,15}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4})(?:\.[0-9]{1,15})?)")
_JOINING_WORDS = {"and": "inter", "und": "inter", "or": "union", "oder": "union"}
_JOINING_WORDS |= {r"\land": "inter", r"\wedge": "inter", r"\lor": "union", r"\vee": "union"}
"""Set operation for a word between two inequalities in one letter."""


class AnswerParser(BlockParser):
    """Parser of the whole grammar over one list of tokens."""

    has_alternatives = False
    """Whether values are alternatives and not an ordered pair: `1 or 2`, `1; 2`; but x = 1; y = 2 are coordinates."""

    def parse_all(self) -> Tree:
        """Parse the whole input, to the last token."""
        items = self.parse_infix_fraction(self.parse_items())
        self.accept(".")
        if self.peek().kind != "eof":
            raise ParseError(f"{self.peek().text[:30]!r} is left over")
        return items[0] if len(items) == 1 else ("either" if self.has_alternatives else "list", *items)

    def parse_items(self) -> list[Tree]:
        """Parse clauses with commas, semicolons, `and` or `or` between them."""
        found = [self.parse_clause()]
        while self.peek().kind != "eof":
            joint = self.peek().text.strip(" ,").lower()
            if self.accept(",", ";", r"\lor", r"\land", r"\vee", r"\wedge"):
                if self.is_conjunction(self.peek()):
                    self.position += 1
            elif self.is_conjunction(self.peek()):
                self.position += 1
            else:
                break
            after = self.parse_clause()
            joined = _JOINING_WORDS.get(joint)
            claims = joint.startswith("\\") and _is_logic_formula(found[-1]) and _is_logic_formula(after)
            if joined and (
                claims or (_is_inequality(found[-1]) and _is_inequality(after) and free_symbols(found[-1]) == free_symbols(after))
            ):
                found[-1] = (joined, found[-1], after)
            else:
                found.append(after)
                self.has_alternatives |= joint in ("or", "oder") or (joint == ";" and after[0] not in ("rel", "sym"))
        return found

    def parse_infix_fraction(self, found: list[Tree]) -> list[Tree]:
        r"""Parse infix fractions, whose bar separates everything in a group: `{1 \\over 2}`, `{n \\choose k}`."""
        sign = self.peek().text
        if len(found) != 1 or not self.accept(r"\over", r"\choose"):
            return found
        return [("div" if sign == r"\over" else "binom", require_single_value(found[0]), require_single_value(self.parse_sum()))]

    def is_factor_start(self, token: Token) -> bool:
        """Whether a factor may start here without a times sign; not at words that end an expression: units, `and`, `mod`."""
        if token.kind == "word":
            name = token.text
            if name.lower() in NUMBER_MULTIPLES:
                return True
            if name == "U" and self.tokens[self.position - 1].text in (")", "]", r"\}"):
                return False
            if len(name) == 1:
                return not self.is_letter_unit_here(token)
            before, after = self.tokens[self.position - 1], self.peek(1)
            formula = (before.kind == "cmd" and before.text[1:] in GREEK_LETTERS) or (
                after.kind == "cmd" and after.text[1:] in FUNCTIONS | GREEK_LETTERS
            )
            if len(name) == 2 and is_unit(name) and formula:
                return True  # the weight in 2mg sin x, and in F - mu mg
            if name.lower() in CONJUNCTIONS or name.lower() in ("mod", "base", "in", "per", "am", "pm", "sq", "cu") or is_unit(name):
                return False
            return name in FUNCTIONS or name in ("sqrt", "pi", "cbrt", "oo") or (len(name) <= 3 and not self.is_clause_end(self.peek(1)))
        if token.text == "(" and self.peek(1).text in ("mod", r"\mod", r"\bmod"):
            return False
        return super().is_factor_start(token)

    def is_clause_end(self, token: Token) -> bool:
        """Whether the clause ends at this token."""
        return token.kind == "eof" and self.tokens[self.position - 1].kind == "num" and self.peek().has_space_before

    def is_letter_unit_here(self, token: Token) -> bool:
        """Whether a token is a unit of one letter, after a numeral and a space at the end: `5 m`."""
        after = self.peek(1)
        last = after.kind == "eof" or after.text in (",", "/", "^")
        lettered = any(t.kind == "word" and len(t.text) == 1 for t in self.tokens[: self.position])  # in pi r^2 h it is one more letter
        number = self.position > 0 and self.tokens[self.position - 1].kind == "num"
        return last and token.has_space_before and number and not lettered and is_letter_unit(token.text)

    def parse_clause(self) -> Tree:
        """Parse a value, or values in a chain of relations."""
        first = self.parse_value()
        chain: list[Tree | str] = [first]
        while (
            self.peek().kind in ("op", "cmd") and self.peek().text in RELATION_SIGNS and RELATION_SIGNS[self.peek().text] not in (":", "->")
        ):
            relation = RELATION_SIGNS[self.next_token().text]
            if relation in ("<", ">") and self.accept("="):
                relation += "="
            chain += [relation, self.parse_value()]
            if len(chain) > 15:
                raise LimitExceeded("the chain of relations has more than 8 members")
        tree: Tree = first if len(chain) == 1 else ("rel", *chain)
        return self.parse_modulo(tree)

    def parse_modulo(self, tree: Tree) -> Tree:
        r"""Parse the modulus of a residue: `3 (mod 7)`, `x \\equiv 3 \\pmod 7`."""
        bracket = self.peek().text == "(" and self.peek(1).text in ("mod", r"\mod", r"\bmod")
        if bracket:
            self.position += 1
        if self.peek().text in ("mod", r"\mod", r"\bmod", r"\pmod"):
            bare = self.next_token().text != r"\pmod" and not bracket
            value, side = (tree[-1], tree[1]) if tree[0] == "rel" else (tree, tree)
            modulus = self.parse_argument(whole=True)
            found: Tree = ("fun", "mod", value, modulus) if bare and value is tree else ("mod", value, modulus)
            if bracket:
                self.expect(")")
            tree = ("rel", side, "=", found) if side is not value and side[0] != "sym" and free_symbols(side) else found  # 2x = 6 (mod 7)
        return tree

    def parse_value(self) -> Tree:
        """Parse sets joined by union, intersection and difference, or a ratio, or a value with a unit."""
        clock = self.parse_clock()
        if clock is not None:
            return clock
        named = self.parse_label()
        if named is not None:
            return named
        tree = self.parse_smaller_unit(self.parse_unit(self.parse_sum()))
        while self.peek().text in SET_OPERATORS or (self.peek().kind == "word" and self.peek().text == "U"):
            op = SET_OPERATORS.get(self.next_token().text, "union")
            tree = (op, tree, self.parse_sum())
        if self.peek().text in (":", r"\colon") and self.peek().kind in ("op", "cmd") and not self.open_bars:
            parts = [tree]
            while self.accept(":", r"\colon"):
                parts.append(self.parse_sum())
            tree = ("ratio", *parts)
        return tree

    def parse_brackets(self, opener: str) -> Tree:
        """Parse a bracket: a group, a tuple, an interval, a set, a floor."""
        bars, self.open_bars = self.open_bars, 1 if opener in (r"\{", r"\lbrace") else 0
        close = BRACKET_PAIRS[opener]
        if self.accept(close):
            if opener in (r"\{", r"\lbrace"):
                self.open_bars = bars
                return ("set",)
            raise ParseError("a pair of brackets is empty")
        alternatives = self.has_alternatives
        found = self.parse_infix_fraction(self.parse_items())
        self.has_alternatives = alternatives  # those in the brackets are not those of the answer
        if opener in (r"\{", r"\lbrace") and self.accept("|", r"\mid", ":", r"\vert"):
            found = [("builder", found[0], *self.parse_items())]
        self.open_bars = bars
        if opener in ("(", "["):
            token = self.next_token()
            if token.text not in (")", "]") or token.kind != "op":
                raise ParseError(f"the bracket {opener!r} does not close")
            return _make_bracketed(opener, found, token.text)
        self.expect(close)
        if opener in (r"\{", r"\lbrace"):
            return found[0] if found[0][0] == "builder" else ("set", *found)
        if opener == r"\langle":
            return ("tuple", *found)
        if len(found) == 1:
            return ("fun", {r"\lfloor": "floor", r"\lceil": "ceil"}[opener], found[0]) if opener != "{" else found[0]
        return ("list", *found)


def _is_inequality(tree: Tree) -> bool:
    """Whether a tree is an inequality about one letter, or several joined."""
    return (tree[0] in ("inter", "union") or (tree[0] == "rel" and all(sign[0] in "<>" for sign in tree[2::2]))) and len(
        free_symbols(tree)
    ) == 1


def _is_logic_formula(tree: Tree) -> bool:
    r"""Whether a tree may be a formula of logic: letters with signs between them, as in `p \\land q`."""
    return tree[0] == "sym" or (tree[0] in ("inter", "union") and all(map(_is_logic_formula, tree[1:])))


def _make_bracketed(opener: str, found: list[Tree], closer: str) -> Tree:
    plainly = (opener, closer) == ("(", ")")
    if len(found) == 1 and (plainly or (opener, closer) == ("[", "]")):
        return found[0]
    if plainly and len(found) == 2 and (found[0] == ("neg", INFINITE) or found[1] == INFINITE):
        return ("interval", found[0], found[1], opener, closer)  # a pair of numbers never has an infinite member
    if plainly or (len(found) > 2 and (opener, closer) == ("[", "]")):
        return ("tuple", *found)
    if len(found) != 2:
        raise ParseError("an interval must have two ends")
    if any(side in ("[", "]") and infinity_sign(end) for side, end in ((opener, found[0]), (closer, found[1]))):
        raise ParseError("an interval must be open at infinity")
    return ("interval", found[0], found[1], opener, closer)


@lru_cache(maxsize=8192)
def parse_answer(text: str) -> Tree:
    r"""Parse a whole answer into a tree.

    >>> parse_answer(r"\dfrac12")
    ('div', ('num', 1, 1), ('num', 2, 1))
    """
    numbered = _NUMBER.fullmatch(text)
    if numbered:  # the most common case: a shortcut for the code below
        value = parse_numeral(numbered[2].replace(",", ""))
        return ("neg", value) if numbered[1] else value
    if not text.isascii() and (said := parse_circled_numbers(text)) is not None:
        return said
    shown = standardize(strip_wrapping(normalize_characters(text)))
    if (led := strip_lead(shown)) != shown:
        shown = strip_wrapping(led)
    if not shown:
        raise ParseError("it is empty")
    sentence = extract_stated_formula(text) if text.lstrip()[0].isalpha() and ("$" in text or "\\(" in text or "\\[" in text) else None
    if sentence:
        return parse_answer(sentence)
    letter = parse_choice(shown)
    if letter is not None:
        return ("choice", letter)
    said = parse_lettered_numeral(shown) or parse_words(shown, strict=True) or parse_spelled_word(text)
    if said is not None:
        return said
    try:
        tree = AnswerParser(_convert_text_commands(tokenize(shown))).parse_all()
    except ParseError:
        said = parse_words(shown, strict=False) or _parse_titled(shown)
        if said is None:
            raise
        return said
    nodes = len(list_nodes(tree))
    if nodes > MAX_NODES:
        raise LimitExceeded(f"it has {nodes} parts; at most {MAX_NODES} are allowed")
    return tree


def _parse_titled(text: str) -> Tree | None:
    r"""Parse a value with a label that is not an expression: `P(\text{red}) = 7/12`, `[ABC] = 6`; None if the label is not a name."""
    depth, at = 0, -1
    for place, sign in enumerate(text[:120]):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "=" and not depth:
            at = place
            break
    title, value = text[:at].strip(), text[at + 1 :].strip()
    bare = re.sub(r"_\w|_?\{[^{}]*\}|\([^()]*\)|\[[^\[\]]*\]", " ", re.sub(r"\\[a-zA-Z]+\{", "{", title))
    named = re.fullmatch(r"[a-zA-Z ]{0,40}", re.sub(r"\\[a-zA-Z]+|'", " ", bare))
    turned = set(re.findall("[a-z]+", title.lower())) & ((NON_UNIT_WORDS | VALUE_CHANGING_WORDS) - NAMING_WORDS)
    if at < 1 or not value or value.count("=") > 6 or turned or named is None or re.search("[<>;]", title):
        return None
    tree = parse_answer(value)
    return ("rel", ("sym", "title"), "=", *(tree[1:] if tree[0] == "rel" else (tree,)))


def _convert_text_commands(row: list[Token]) -> list[Token]:
    r"""Convert text commands in math that are not words: \mathrm{e}, \operatorname{sin}, \mathbb{R}."""
    for at, token in enumerate(row):
        if token.kind == "text":
            name = FUNCTION_ALIASES.get(token.text, token.text)
            if is_unit(name) and at and row[at - 1].text in ("}", ")", row[at - 1].text if row[at - 1].kind == "num" else ")"):
                continue
            if name in FUNCTIONS or name in GREEK_LETTERS:
                row[at] = Token("cmd", "\\" + name, token.has_space_before)
            elif re.fullmatch(r"[a-zA-Z]", name) and not (
                at and is_letter_unit(name) and (row[at - 1].kind == "num" or row[at - 1].text == "}")
            ):
                row[at] = (
                    Token("cmd", "\\" + name, token.has_space_before) if name in "RZNQ" else Token("word", name, token.has_space_before)
                )
            elif name in ("$", r"\$", ",", ";", "."):
                row[at] = Token("op", name[-1], token.has_space_before)
            elif re.fullmatch(r"[\d.,]*\d", name):
                row[at] = tokenize(name)[0]
    return row
