"""Parse text into a syntax tree: lists, relations, sets, units and words around the expressions of `grammar.py`.

The whole text must be parsed; otherwise parsing raises.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rlvr.verifiers._math.read.atoms import numeral, single
from rlvr.verifiers._math.read.blocks import RELATIONS, Blocks
from rlvr.verifiers._math.read.grammar import ALIASES, FUNCTIONS, GREEK, OPENERS
from rlvr.verifiers._math.read.notation import stated, without_lead
from rlvr.verifiers._math.read.quantities import JOINS, NAMING
from rlvr.verifiers._math.read.spellings import standard
from rlvr.verifiers._math.read.tokens import Token, plain, tokens
from rlvr.verifiers._math.read.tree import MAX_NODES, TooBig, Tree, Unreadable, infinite, symbols, walk
from rlvr.verifiers._math.read.units import MULTIPLES, NOT_THINGS, TURNING, is_letter_unit, is_unit
from rlvr.verifiers._math.read.words import choice, enclosed, lettered, spelled, unwrap, words

SETS = {r"\cup": "union", r"\cap": "inter", r"\setminus": "minus", r"\backslash": "minus"}
INFINITE: Tree = ("const", "oo")
_NUMBER = re.compile(r"(-?)((?:[0-9]{1,15}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4})(?:\.[0-9]{1,15})?)")
_JOINED = {"and": "inter", "und": "inter", "or": "union", "oder": "union"}
_JOINED |= {r"\land": "inter", r"\wedge": "inter", r"\lor": "union", r"\vee": "union"}
"""Set operation for a word between two inequalities in one letter."""


class Parser(Blocks):
    """Parser of the whole grammar over one list of tokens."""

    alternatives = False
    """Whether values are alternatives and not an ordered pair: `1 or 2`, `1; 2`; but x = 1; y = 2 are coordinates."""

    def top(self) -> Tree:
        """Parse the whole input, to the last token."""
        items = self.over(self.items())
        self.accept(".")
        if self.peek().kind != "eof":
            raise Unreadable(f"{self.peek().text[:30]!r} is left over")
        return items[0] if len(items) == 1 else ("either" if self.alternatives else "list", *items)

    def items(self) -> list[Tree]:
        """Parse clauses with commas, semicolons, `and` or `or` between them."""
        found = [self.clause()]
        while self.peek().kind != "eof":
            joint = self.peek().text.strip(" ,").lower()
            if self.accept(",", ";", r"\lor", r"\land", r"\vee", r"\wedge"):
                if self.joins(self.peek()):
                    self.at += 1
            elif self.joins(self.peek()):
                self.at += 1
            else:
                break
            after = self.clause()
            joined = _JOINED.get(joint)
            claims = joint.startswith("\\") and _claim(found[-1]) and _claim(after)
            if joined and (claims or (_bounds(found[-1]) and _bounds(after) and symbols(found[-1]) == symbols(after))):
                found[-1] = (joined, found[-1], after)
            else:
                found.append(after)
                self.alternatives |= joint in ("or", "oder") or (joint == ";" and after[0] not in ("rel", "sym"))
        return found

    def over(self, found: list[Tree]) -> list[Tree]:
        r"""Parse infix fractions, whose bar separates everything in a group: `{1 \\over 2}`, `{n \\choose k}`."""
        sign = self.peek().text
        if len(found) != 1 or not self.accept(r"\over", r"\choose"):
            return found
        return [("div" if sign == r"\over" else "binom", single(found[0]), single(self.sum()))]

    def starts_factor(self, token: Token) -> bool:
        """Whether a factor may start here without a times sign; not at words that end an expression: units, `and`, `mod`."""
        if token.kind == "word":
            name = token.text
            if name.lower() in MULTIPLES:
                return True
            if name == "U" and self.row[self.at - 1].text in (")", "]", r"\}"):
                return False
            if len(name) == 1:
                return not self.is_letter_unit_here(token)
            before, after = self.row[self.at - 1], self.peek(1)
            formula = (before.kind == "cmd" and before.text[1:] in GREEK) or (after.kind == "cmd" and after.text[1:] in FUNCTIONS | GREEK)
            if len(name) == 2 and is_unit(name) and formula:
                return True  # the weight in 2mg sin x, and in F - mu mg
            if name.lower() in JOINS or name.lower() in ("mod", "base", "in", "per", "am", "pm", "sq", "cu") or is_unit(name):
                return False
            return name in FUNCTIONS or name in ("sqrt", "pi", "cbrt", "oo") or (len(name) <= 3 and not self.ends_clause(self.peek(1)))
        if token.text == "(" and self.peek(1).text in ("mod", r"\mod", r"\bmod"):
            return False
        return super().starts_factor(token)

    def ends_clause(self, token: Token) -> bool:
        """Whether the clause ends at this token."""
        return token.kind == "eof" and self.row[self.at - 1].kind == "num" and self.peek().spaced

    def is_letter_unit_here(self, token: Token) -> bool:
        """Whether a token is a unit of one letter, after a numeral and a space at the end: `5 m`."""
        after = self.peek(1)
        last = after.kind == "eof" or after.text in (",", "/", "^")
        lettered = any(t.kind == "word" and len(t.text) == 1 for t in self.row[: self.at])  # in pi r^2 h it is one more letter
        number = self.at > 0 and self.row[self.at - 1].kind == "num"
        return last and token.spaced and number and not lettered and is_letter_unit(token.text)

    def clause(self) -> Tree:
        """Parse a value, or values in a chain of relations."""
        first = self.value()
        chain: list[Tree | str] = [first]
        while self.peek().kind in ("op", "cmd") and self.peek().text in RELATIONS and RELATIONS[self.peek().text] not in (":", "->"):
            relation = RELATIONS[self.take().text]
            if relation in ("<", ">") and self.accept("="):
                relation += "="
            chain += [relation, self.value()]
            if len(chain) > 15:
                raise TooBig("the chain of relations has more than 8 members")
        tree: Tree = first if len(chain) == 1 else ("rel", *chain)
        return self.modulo(tree)

    def modulo(self, tree: Tree) -> Tree:
        r"""Parse the modulus of a residue: `3 (mod 7)`, `x \\equiv 3 \\pmod 7`."""
        bracket = self.peek().text == "(" and self.peek(1).text in ("mod", r"\mod", r"\bmod")
        if bracket:
            self.at += 1
        if self.peek().text in ("mod", r"\mod", r"\bmod", r"\pmod"):
            bare = self.take().text != r"\pmod" and not bracket
            value, side = (tree[-1], tree[1]) if tree[0] == "rel" else (tree, tree)
            modulus = self.argument(whole=True)
            found: Tree = ("fun", "mod", value, modulus) if bare and value is tree else ("mod", value, modulus)
            if bracket:
                self.expect(")")
            tree = ("rel", side, "=", found) if side is not value and side[0] != "sym" and symbols(side) else found  # 2x = 6 (mod 7)
        return tree

    def value(self) -> Tree:
        """Parse sets joined by union, intersection and difference, or a ratio, or a value with a unit."""
        clock = self.clock()
        if clock is not None:
            return clock
        named = self.label()
        if named is not None:
            return named
        tree = self.with_smaller(self.measured(self.sum()))
        while self.peek().text in SETS or (self.peek().kind == "word" and self.peek().text == "U"):
            op = SETS.get(self.take().text, "union")
            tree = (op, tree, self.sum())
        if self.peek().text in (":", r"\colon") and self.peek().kind in ("op", "cmd") and not self.bars:
            parts = [tree]
            while self.accept(":", r"\colon"):
                parts.append(self.sum())
            tree = ("ratio", *parts)
        return tree

    def brackets(self, opener: str) -> Tree:
        """Parse a bracket: a group, a tuple, an interval, a set, a floor."""
        bars, self.bars = self.bars, 1 if opener in (r"\{", r"\lbrace") else 0
        close = OPENERS[opener]
        if self.accept(close):
            if opener in (r"\{", r"\lbrace"):
                self.bars = bars
                return ("set",)
            raise Unreadable("a pair of brackets is empty")
        alternatives = self.alternatives
        found = self.over(self.items())
        self.alternatives = alternatives  # those in the brackets are not those of the answer
        if opener in (r"\{", r"\lbrace") and self.accept("|", r"\mid", ":", r"\vert"):
            found = [("builder", found[0], *self.items())]
        self.bars = bars
        if opener in ("(", "["):
            token = self.take()
            if token.text not in (")", "]") or token.kind != "op":
                raise Unreadable(f"the bracket {opener!r} does not close")
            return _bracketed(opener, found, token.text)
        self.expect(close)
        if opener in (r"\{", r"\lbrace"):
            return found[0] if found[0][0] == "builder" else ("set", *found)
        if opener == r"\langle":
            return ("tuple", *found)
        if len(found) == 1:
            return ("fun", {r"\lfloor": "floor", r"\lceil": "ceil"}[opener], found[0]) if opener != "{" else found[0]
        return ("list", *found)


def _bounds(tree: Tree) -> bool:
    """Whether a tree is an inequality about one letter, or several joined."""
    return (tree[0] in ("inter", "union") or (tree[0] == "rel" and all(sign[0] in "<>" for sign in tree[2::2]))) and len(symbols(tree)) == 1


def _claim(tree: Tree) -> bool:
    r"""Whether a tree may be a formula of logic: letters with signs between them, as in `p \\land q`."""
    return tree[0] == "sym" or (tree[0] in ("inter", "union") and all(map(_claim, tree[1:])))


def _bracketed(opener: str, found: list[Tree], closer: str) -> Tree:
    plainly = (opener, closer) == ("(", ")")
    if len(found) == 1 and (plainly or (opener, closer) == ("[", "]")):
        return found[0]
    if plainly and len(found) == 2 and (found[0] == ("neg", INFINITE) or found[1] == INFINITE):
        return ("interval", found[0], found[1], opener, closer)  # a pair of numbers never has an infinite member
    if plainly or (len(found) > 2 and (opener, closer) == ("[", "]")):
        return ("tuple", *found)
    if len(found) != 2:
        raise Unreadable("an interval must have two ends")
    if any(side in ("[", "]") and infinite(end) for side, end in ((opener, found[0]), (closer, found[1]))):
        raise Unreadable("an interval must be open at infinity")
    return ("interval", found[0], found[1], opener, closer)


@lru_cache(maxsize=8192)
def parse(text: str) -> Tree:
    r"""Parse a whole answer into a tree.

    >>> parse(r"\dfrac12")
    ('div', ('num', 1, 1), ('num', 2, 1))
    """
    numbered = _NUMBER.fullmatch(text)
    if numbered:  # the most common case: a shortcut for the code below
        value = numeral(numbered[2].replace(",", ""))
        return ("neg", value) if numbered[1] else value
    if not text.isascii() and (said := enclosed(text)) is not None:
        return said
    shown = standard(unwrap(plain(text)))
    if (led := without_lead(shown)) != shown:
        shown = unwrap(led)
    if not shown:
        raise Unreadable("it is empty")
    sentence = stated(text) if text.lstrip()[0].isalpha() and ("$" in text or "\\(" in text or "\\[" in text) else None
    if sentence:
        return parse(sentence)
    letter = choice(shown)
    if letter is not None:
        return ("choice", letter)
    said = lettered(shown) or words(shown, strict=True) or spelled(text)
    if said is not None:
        return said
    try:
        tree = Parser(_named(tokens(shown))).top()
    except Unreadable:
        said = words(shown, strict=False) or _titled(shown)
        if said is None:
            raise
        return said
    nodes = len(walk(tree))
    if nodes > MAX_NODES:
        raise TooBig(f"it has {nodes} parts; at most {MAX_NODES} are allowed")
    return tree


def _titled(text: str) -> Tree | None:
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
    turned = set(re.findall("[a-z]+", title.lower())) & ((NOT_THINGS | TURNING) - NAMING)
    if at < 1 or not value or value.count("=") > 6 or turned or named is None or re.search("[<>;]", title):
        return None
    tree = parse(value)
    return ("rel", ("sym", "title"), "=", *(tree[1:] if tree[0] == "rel" else (tree,)))


def _named(row: list[Token]) -> list[Token]:
    r"""Convert text commands in math that are not words: \mathrm{e}, \operatorname{sin}, \mathbb{R}."""
    for at, token in enumerate(row):
        if token.kind == "text":
            name = ALIASES.get(token.text, token.text)
            if is_unit(name) and at and row[at - 1].text in ("}", ")", row[at - 1].text if row[at - 1].kind == "num" else ")"):
                continue
            if name in FUNCTIONS or name in GREEK:
                row[at] = Token("cmd", "\\" + name, token.spaced)
            elif re.fullmatch(r"[a-zA-Z]", name) and not (
                at and is_letter_unit(name) and (row[at - 1].kind == "num" or row[at - 1].text == "}")
            ):
                row[at] = Token("cmd", "\\" + name, token.spaced) if name in "RZNQ" else Token("word", name, token.spaced)
            elif name in ("$", r"\$", ",", ";", "."):
                row[at] = Token("op", name[-1], token.spaced)
            elif re.fullmatch(r"[\d.,]*\d", name):
                row[at] = tokens(name)[0]
    return row
