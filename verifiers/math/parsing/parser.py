"""Parse the text of an answer into a syntax tree.

`parse_answer` cleans the text (`tokens.py`, `spelling_rules.py`, `notation.py`), tries whole answers in words (`words.py`), and parses
everything else with `AnswerParser`. The whole text must be parsed; otherwise parsing raises `ParseError`: nothing is skipped.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from rlvr.verifiers._scientific import is_scientific_notation
from rlvr.verifiers.math.parsing.notation import extract_stated_formula, strip_leading_words
from rlvr.verifiers.math.parsing.spelling_rules import standardize_notation
from rlvr.verifiers.math.parsing.tokens import MAX_DEPTH, Token, normalize_characters, tokenize
from rlvr.verifiers.math.parsing.tree import (
    MAX_NODES,
    LimitExceeded,
    ParseError,
    Tree,
    get_free_symbols,
    get_infinity_sign,
    has_op,
    list_nodes,
)
from rlvr.verifiers.math.parsing.units import (
    NON_UNIT_WORDS,
    NUMBER_MULTIPLES,
    VALUE_CHANGING_WORDS,
    is_letter_unit,
    is_unit,
    parse_unit_label,
)
from rlvr.verifiers.math.parsing.words import (
    parse_choice,
    parse_circled_numbers,
    parse_numeral_with_letter_digits,
    parse_spelled_word,
    parse_words,
    strip_math_delimiters,
)
from rlvr.verifiers.math.values.rational import to_rational

ONE: Tree = ("num", 1, 1)
END_TOKEN = Token("eof", "", True)
_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch ln log lg exp gcd lcm "
    "max min det tg ctg cotg arctg arcctg cosec asin acos atan asinh acosh atanh arsinh arcosh artanh "
    "arcsinh arccosh arctanh Re Im arg sgn floor ceil abs erf Gamma cis"
)
FUNCTIONS = frozenset(_FUNCTIONS.split())
FUNCTION_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "operatorname": ""}
FUNCTION_ALIASES |= {
    "tg": "tan",
    "ctg": "cot",
    "cotg": "cot",
    "arctg": "arctan",
    "arcctg": "arccot",
    "cosec": "csc",
}  # as written in Europe
FUNCTION_ALIASES |= {f"ar{c}{name}h": f"a{name}h" for c in ("", "c") for name in ("sin", "cos", "tan")}
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
    "varphi chi psi omega Delta Theta Lambda Xi Sigma Phi Psi Omega Pi ell hbar"
)
GREEK_LETTERS = frozenset(_GREEK.split())
CONSTANT_COMMANDS = {
    r"\pi": "pi",
    r"\infty": "oo",
    r"\imath": "i",
    r"\emptyset": "empty",
    r"\varnothing": "empty",
    r"\R": "R",
    r"\Z": "Z",
    r"\N": "N",
}
CONSTANT_COMMANDS |= {dots: "dots" for dots in (r"\ldots", r"\cdots", r"\dots")}
CONSTANT_COMMANDS |= {r"\Q": "Q", r"\C": "C", r"\degree": "deg"}
WORD_CONSTANTS = {"pi": "pi", "oo": "oo", "inf": "oo", "infinity": "oo", "infty": "oo", "i": "i", "e": "e"}
NUMBER_SETS = frozenset("RZNQC")
FRACTION_COMMANDS = frozenset((r"\frac", r"\dfrac", r"\tfrac", r"\cfrac", r"\nicefrac", r"\sfrac"))
TIMES_SIGNS = frozenset((r"\cdot", r"\times", "*", r"\ast"))
SUFFIX_MARKS = frozenset(("!", "^", "**", "%", r"\%", "$", r"\$", r"\degree", "'", "_"))
"""The suffixes that belong to an atom."""
BRACKET_PAIRS = {
    "(": ")",
    "[": "]",
    r"\{": r"\}",
    "{": "}",
    r"\langle": r"\rangle",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
    r"\lbrace": r"\rbrace",
}
NAMING_COMMANDS = {
    r"\overrightarrow": "vector",
    r"\vec": "vector",
    r"\overline": "segment",
    r"\overleftrightarrow": "line",
    r"\widehat": "arc",
    r"\overparen": "arc",
    r"\angle": "angle",
}
"""Commands that turn the letters after them into a name, with the kind of the named object."""
NORM_BARS = frozenset((r"\|", r"\Vert", r"\lVert", r"\rVert"))
ABSOLUTE_BARS = NORM_BARS | {"|", r"\vert", r"\lvert", r"\rvert"}
BIG_OPERATORS = {r"\sum": "sum", r"\prod": "prod", r"\int": "integral", r"\lim": "limit"}
ARROWS = (r"\to", r"\rightarrow", r"\longrightarrow")
MAX_INTEGRALS = 8
MAX_EXPONENT = 5_000
CONJUNCTIONS = frozenset(("and", "or", "und", "oder"))
_NAMING_WORDS = "a the of in for is by below above under off at with without from between"
NAMING_WORDS = frozenset(_NAMING_WORDS.split())
"""Words that are not allowed in a counted thing, but may be in the name of a value: `the distance from A = 5`."""
RELATION_SIGNS = {
    "=": "=",
    "==": "=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
    "!=": "!=",
    r"\le": "<=",
    r"\leq": "<=",
    r"\leqslant": "<=",
}
RELATION_SIGNS |= {r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\ne": "!=", r"\neq": "!=", r"\lt": "<", r"\gt": ">", r"\in": "in"}
RELATION_SIGNS |= {r"\equiv": "=", r"\approx": "~", r"\colon": ":", r"\implies": "->", r"\mapsto": "->"}
ALIGNED_ENVIRONMENTS = frozenset(("aligned", "align", "gathered", "gather", "split", "alignedat", "equation"))
MATRIX_ENVIRONMENTS = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))
SET_OPERATORS = {r"\cup": "union", r"\cap": "inter", r"\setminus": "minus", r"\backslash": "minus"}
INFINITE: Tree = ("const", "oo")
_NUMBER = re.compile(r"(-?)((?:[0-9]{1,15}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4})(?:\.[0-9]{1,15})?)")
_JOINING_WORDS = {"and": "inter", "und": "inter", "or": "union", "oder": "union"}
_JOINING_WORDS |= {r"\land": "inter", r"\wedge": "inter", r"\lor": "union", r"\vee": "union"}
"""Set operation for a word between two inequalities in one letter."""


@lru_cache(maxsize=8192)
def parse_answer(text: str) -> Tree:
    r"""Parse a whole answer into a tree.

    >>> parse_answer(r"\dfrac12")
    ('div', ('num', 1, 1), ('num', 2, 1))
    """
    numbered = _NUMBER.fullmatch(text)
    if numbered:  # the most common case: a shortcut for the code below
        value = _parse_numeral(numbered[2].replace(",", ""))
        return ("neg", value) if numbered[1] else value
    if not text.isascii() and (said := parse_circled_numbers(text)) is not None:
        return said
    shown = rewrite_for_parser(text)
    if not shown:
        raise ParseError("it is empty")
    sentence = extract_stated_formula(text) if text.lstrip()[0].isalpha() and ("$" in text or "\\(" in text or "\\[" in text) else None
    if sentence:
        return parse_answer(sentence)
    letter = parse_choice(shown)
    if letter is not None:
        return ("choice", letter)
    said = parse_numeral_with_letter_digits(shown) or parse_words(shown, only_if_unambiguous=True) or parse_spelled_word(text)
    if said is not None:
        return said
    try:
        tree = AnswerParser(_convert_text_commands(tokenize(shown))).parse_all()
    except ParseError:
        said = parse_words(shown, only_if_unambiguous=False) or _parse_labelled_value(shown)
        if said is None:
            raise
        return said
    nodes = len(list_nodes(tree))
    if nodes > MAX_NODES:
        raise LimitExceeded(f"it has {nodes} parts; at most {MAX_NODES} are allowed")
    return tree


def rewrite_for_parser(text: str) -> str:
    r"""Rewrite a text in the notation that the parser reads: one spelling for each thing, without dollar signs and leading words.

    >>> rewrite_for_parser(r"The answer is $3{,}5\%$.")
    '3.5\\%'
    """
    shown = standardize_notation(strip_math_delimiters(normalize_characters(text)))
    return strip_math_delimiters(led) if (led := strip_leading_words(shown)) != shown else shown


class AnswerParser:
    """Recursive-descent parser of one answer: a list of tokens, the current position, and the rules that advance it.

    The rules stand in the order of the grammar: an answer is a list of clauses, a clause a chain of values, a value an expression
    with its unit, an expression a sum of products of factors, a factor an atom with its powers and suffixes. Depth is counted.
    """

    has_alternatives = False
    """Whether values are alternatives and not an ordered pair: `1 or 2`, `1; 2`; but x = 1; y = 2 are coordinates."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.open_bars = 0
        self.num_atoms = 0
        self.argument_depth = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return the current token, or an end token."""
        at = self.position + ahead
        return self.tokens[at] if at < len(self.tokens) else END_TOKEN

    def next_token(self) -> Token:
        """Return the current token and advance."""
        token = self.peek()
        self.position += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Consume one of these signs, if it is next; return whether it was."""
        token = self.peek()
        if token.kind in ("op", "cmd") and token.text in texts:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Consume this sign; raises if it is not next."""
        if not self.accept(text):
            raise ParseError(f"{text!r} is missing before {self.peek().text or 'the end'!r}")

    # Answers: lists, clauses and chains of relations

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
                claims or (_is_inequality(found[-1]) and _is_inequality(after) and get_free_symbols(found[-1]) == get_free_symbols(after))
            ):
                found[-1] = (joined, found[-1], after)
            else:
                found.append(after)
                self.has_alternatives |= joint in ("or", "oder") or (joint == ";" and after[0] not in ("rel", "sym"))
        return found

    def parse_infix_fraction(self, terms: list[Tree]) -> list[Tree]:
        r"""Parse infix fractions, whose bar separates everything in a group: `{1 \\over 2}`, `{n \\choose k}`."""
        sign = self.peek().text
        if len(terms) != 1 or not self.accept(r"\over", r"\choose"):
            return terms
        return [("div" if sign == r"\over" else "binom", _require_single_value(terms[0]), _require_single_value(self.parse_sum()))]

    def is_conjunction(self, token: Token) -> bool:
        """Whether a token is the word `and` or `or`."""
        return token.kind in ("word", "text") and token.text.strip(" ,").lower() in CONJUNCTIONS

    def parse_clause(self) -> Tree:
        """Parse a value, or values in a chain of relations."""
        first = self.parse_set_ratio_or_value()
        chain: list[Tree | str] = [first]
        while (
            self.peek().kind in ("op", "cmd") and self.peek().text in RELATION_SIGNS and RELATION_SIGNS[self.peek().text] not in (":", "->")
        ):
            relation = RELATION_SIGNS[self.next_token().text]
            if relation in ("<", ">") and self.accept("="):
                relation += "="
            chain += [relation, self.parse_set_ratio_or_value()]
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
            if tree[0] == "rel" and any(sign not in ("=", "~") for sign in tree[2::2]):
                raise ParseError("a modulus needs an equation before it")  # x < 3 (mod 7)
            value, side = (tree[-1], tree[1]) if tree[0] == "rel" else (tree, tree)
            modulus = self.parse_command_argument(whole_numeral=True)
            found: Tree = ("fun", "mod", value, modulus) if bare and value is tree else ("mod", value, modulus)
            if bracket:
                self.expect(")")
            tree = (
                ("rel", side, "=", found) if side is not value and side[0] != "sym" and get_free_symbols(side) else found
            )  # 2x = 6 (mod 7)
        return tree

    def parse_set_ratio_or_value(self) -> Tree:
        """Parse sets joined by union, intersection and difference, or a ratio, or a value with a unit."""
        clock = self.parse_clock()
        if clock is not None:
            return clock
        named = self.parse_label_before_equals()
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

    # Names, clock times and units around a value

    def parse_label_before_equals(self) -> Tree | None:
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
                power = self.parse_command_argument(whole_numeral=True)
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
            return self.parse_base_words(tree, label)
        label = label.strip()
        first, _, rest = label.partition(" ")
        times = NUMBER_MULTIPLES.get(first.lower()) or NUMBER_MULTIPLES.get(first.lower().removesuffix("s"))
        if times:
            tree, label = _apply_multiple(tree, times), rest
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

    def parse_base_words(self, tree: Tree, label: str) -> Tree:
        """Parse a base after a numeral: `52 base 8`, `52 in base 8`."""
        words = label.lower().split()
        if not words or words[-1] != "base":
            self.next_token()
        base = self.next_token()
        if tree[0] != "num" or tree[2] != 1 or not base.text.isdigit() or len(base.text) > 2 or not 2 <= int(base.text) <= 36:
            raise ParseError("the base must be a known one")
        return ("base", str(tree[1]), int(base.text))

    def is_letter_unit_here(self, token: Token) -> bool:
        """Whether a token is a unit of one letter, after a numeral and a space at the end: `5 m`."""
        after = self.peek(1)
        last = after.kind == "eof" or after.text in (",", "/", "^")
        lettered = any(t.kind == "word" and len(t.text) == 1 for t in self.tokens[: self.position])  # in pi r^2 h it is one more letter
        number = self.position > 0 and self.tokens[self.position - 1].kind == "num"
        return last and token.has_space_before and number and not lettered and is_letter_unit(token.text)

    # Expressions: sums, products, factors and powers

    def parse_sum(self) -> Tree:
        r"""Parse a sum: a + b - c \\pm d."""
        self.depth += 1
        if self.depth > 2 * MAX_DEPTH:
            raise LimitExceeded(f"it is nested more than {2 * MAX_DEPTH} deep")
        terms: list[Tree] = [self.parse_product()]
        while True:
            sign = self.peek()
            if sign.kind == "op" and sign.text == "+":
                self.position += 1
                terms.append(self.parse_product())
            elif sign.kind == "op" and sign.text == "-":
                self.position += 1
                terms.append(("neg", self.parse_product()))
            elif sign.text in (r"\pm", r"\mp"):
                self.position += 1
                left = terms[0] if len(terms) == 1 else ("add", *terms)
                terms = [("pm", left, self.parse_product(), "±" if sign.text == r"\pm" else "∓")]
            else:
                break
        self.depth -= 1
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def parse_product(self) -> Tree:
        """Parse a product: signs, then factors with a times sign, a division or nothing between them."""
        negative, pm = False, ""
        while self.peek().text in ("-", "+", r"\pm", r"\mp") and self.peek().kind in ("op", "cmd"):
            sign = self.next_token().text
            negative ^= sign == "-"
            if sign.startswith("\\"):
                if pm:
                    raise ParseError("two plus-minus signs follow each other")
                pm = "±" if sign == r"\pm" else "∓"
        tree = self.parse_factor()
        while True:
            token = self.peek()
            if token.text in TIMES_SIGNS and token.kind in ("op", "cmd"):
                self.position += 1
                tree = _multiply(tree, self.parse_signed_factor())
            elif token.text in ("/", r"\div") and token.kind in ("op", "cmd"):
                self.position += 1
                tree = ("div", tree, self.parse_signed_factor())
            elif self.is_factor_start(token):
                tree = self.parse_adjacent(tree)
            else:
                break
        tree = ("neg", tree) if negative else tree
        return ("pm", ("num", 0, 1), tree, pm) if pm else tree

    def parse_signed_factor(self) -> Tree:
        """Parse a factor that may have a sign, as in 2 * -3."""
        negative = False
        while self.accept("-"):
            negative = not negative
        return ("neg", self.parse_factor()) if negative else self.parse_factor()

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
        if token.kind in ("begin", "num"):  # a numeral is rejected later, with a reason, unless it makes a mixed number
            return True
        if token.kind == "cmd":
            name = token.text[1:]
            known = (
                name in FUNCTIONS
                or name in GREEK_LETTERS
                or token.text in CONSTANT_COMMANDS
                or token.text in FRACTION_COMMANDS
                or token.text in BRACKET_PAIRS
            )
            return known or token.text in (
                r"\sqrt",
                r"\cbrt",
                r"\binom",
                r"\dbinom",
                r"\tbinom",
                r"\sum",
                r"\prod",
                r"\int",
                r"\lim",
                r"\lvert",
                *NAMING_COMMANDS,
            )
        return token.kind == "op" and (token.text in ("(", "[", "{") or (token.text == "|" and not self.open_bars))

    def is_clause_end(self, token: Token) -> bool:
        """Whether the clause ends at this token."""
        return token.kind == "eof" and self.tokens[self.position - 1].kind == "num" and self.peek().has_space_before

    def parse_adjacent(self, left: Tree) -> Tree:
        """Parse the factor next to another one: a product, or a mixed number; two adjacent numerals are an error."""
        token, before = self.peek(), self.tokens[self.position - 1]
        whole = left[0] == "num" and left[2] == 1 and before.kind == "num"
        if token.text == "{" and self.peek(1).kind == "num" and self.peek(2).text == "}" and before.kind == "num":
            raise ParseError(f"the numeral {self.peek(1).text[:20]} is next to another one without a sign between them")
        if token.text in FRACTION_COMMANDS and whole:
            part = self.parse_factor()
            if part[0] in ("unit", "percent") and (mixed := _make_mixed_number(left, part[1])) is not None:
                return (part[0], mixed, *part[2:])
            mixed = _make_mixed_number(left, part)
            return _multiply(left, part) if mixed is None else mixed
        if token.kind == "num":
            over = self.peek(1)
            if whole and token.has_space_before and over.kind == "op" and over.text == "/" and self.peek(2).kind == "num":
                top, _, low = self.next_token(), self.next_token(), self.next_token()
                if top.text.isdigit() and low.text.isdigit() and 0 < int(top.text) < int(low.text) and self.peek().text not in ("^", "!"):
                    return ("num", left[1] * int(low.text) + int(top.text), int(low.text))
            if left[0] in ("const", "fact") or (left[0] == "mul" and left[-1][0] in ("const", "fact")):
                return _multiply(left, self.parse_factor())
            raise ParseError(f"the numeral {token.text[:20]} is next to something without a sign between them")
        if token.kind == "word" and token.text.lower() in NUMBER_MULTIPLES:
            self.position += 1
            return _apply_multiple(left, NUMBER_MULTIPLES[token.text.lower()])
        last = left[-1] if left[0] == "mul" else left
        if last[0] == "sym" and [self.peek(k).text for k in range(3)] == ["(", "0", ")"]:  # an initial value, not a product with zero
            self.position += 3
            started: Tree = ("sym", f"{last[1]}(0)")
            return (*left[:-1], started) if left[0] == "mul" else started
        return _multiply(left, self.parse_factor())

    def parse_factor(self) -> Tree:
        """Parse an atom with its powers, factorials and suffixes."""
        self.depth += 1
        if self.depth > 2 * MAX_DEPTH:
            raise LimitExceeded(f"it is nested more than {2 * MAX_DEPTH} deep")
        tree = self.parse_atom()
        while self.peek().text in SUFFIX_MARKS:
            if self.accept("!"):
                tree = ("fact", tree)
            elif self.accept("^", "**"):
                tree = self.parse_power(tree)
            elif self.accept("%", r"\%"):
                tree = ("percent", tree)
            elif self.peek().text in ("$", r"\$") and self.peek(1).kind == "eof":
                self.position += 1
                tree = ("unit", tree, "dollar")
            elif self.accept(r"\degree"):
                tree = ("unit", tree, "degree")
            elif self.peek().text == "'" and tree[0] == "sym":
                self.position += 1
                tree = ("sym", f"{tree[1]}'")
            elif self.accept("_"):
                digits, base = self.parse_numeral_in_base(tree)
                tree = ("base", digits, base) if base != 10 or "." in digits else ("num", int(digits), 1)
            else:
                break
        self.depth -= 1
        return tree

    def parse_power(self, base: Tree) -> Tree:
        """Parse what follows ^: a degree sign, or an exponent."""
        braced = self.peek().text == "{" and self.peek(1).text == r"\circ" and self.peek(2).text == "}"
        if braced or self.peek().text == r"\circ":
            self.position += 3 if braced else 1
            scale = {"F": "fahrenheit", "C": "celsius"}.get(self.peek().text.strip())
            self.position += scale is not None
            return ("unit", base, scale or "degree")
        if self.peek().kind == "op" and self.peek().text in ("-", "+"):
            return ("pow", base, self.parse_signed_factor() if self.peek().text == "-" else self.parse_plus_signed_exponent())
        exponent = self.parse_command_argument(whole_numeral=True)
        while self.peek().text in ("^", "**") and self.tokens[self.position - 1].text != "}":
            self.position += 1
            exponent = self.parse_power(exponent)
        if base[0] == "sym" and re.fullmatch(r"C_\d?[nmN]", base[1]):
            return ("binom", ("mul", ("num", int(base[1][2:-1] or 1), 1), ("sym", base[1][-1])), exponent)
        if base[0] == "sym" and re.fullmatch(r"[CAP]_\d{1,9}", base[1]) and exponent[0] == "num" and exponent[2] == 1:
            return _make_combination(base[1][0], int(base[1][2:]), exponent) or ("pow", base, exponent)
        return ("pow", base, exponent)

    def parse_plus_signed_exponent(self) -> Tree:
        """Parse an exponent with a plus before it."""
        self.expect("+")
        return self.parse_factor()

    def parse_numeral_in_base(self, tree: Tree) -> tuple[str, int]:
        """Parse the digits before an underscore, and the base after it."""
        before = self.tokens[self.position - 2]
        digits = before.text
        if digits == ")" and tree[0] == "num":
            digits = self.tokens[self.position - 3].text
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", digits):
            raise ParseError("a subscript is not allowed here")
        if self.peek().kind == "text" or (self.peek().text == "{" and self.peek(1).kind == "text"):
            braced = self.accept("{")
            word = self.next_token().text.strip().lower()
            if braced:
                self.expect("}")
            base = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16}.get(
                word
            )
            base = int(word) if word.isdigit() and len(word) < 3 else base
        else:
            inner = self.parse_command_argument(whole_numeral=True)
            base = inner[1] if inner[0] == "num" else None
        if base is None or not 2 <= base <= 36 or any(int(d) >= base for d in digits if d != "."):
            raise ParseError(f"{digits[:40]} is not a numeral in that base")
        return digits.lstrip("0") or "0", base

    def parse_command_argument(self, *, whole_numeral: bool = False) -> Tree:
        """Parse the argument of a LaTeX command: a group in braces, or one token (one digit, unless `whole_numeral`)."""
        self.argument_depth += 1
        if self.argument_depth > MAX_DEPTH:
            raise LimitExceeded(f"it has commands nested more than {MAX_DEPTH} deep")
        tree = self.parse_argument_without_depth_limit(whole_numeral)
        self.argument_depth -= 1
        return tree

    def parse_argument_without_depth_limit(self, whole_numeral: bool) -> Tree:
        """Parse an argument, without a limit on the nesting depth."""
        token = self.peek()
        if token.text == "{" and token.kind == "op":
            return self.parse_atom()
        if token.kind == "num" and not whole_numeral and len(token.text) > 1:
            if not token.text.isdigit():
                raise ParseError("a decimal where one digit is expected")
            self.tokens[self.position] = Token("num", token.text[1:], False)
            return ("num", int(token.text[0]), 1)
        if token.kind == "word" and len(token.text) > 1 and token.text not in WORD_CONSTANTS:
            self.tokens[self.position] = Token("word", token.text[1:], False)
            return ("sym", token.text[0])
        return self.parse_atom()

    # Atoms: numerals, letters, functions and commands

    def parse_atom(self) -> Tree:
        """Parse one numeral, letter, function, command or bracket."""
        self.num_atoms += 1
        if self.num_atoms > MAX_NODES:  # the tree would have as many parts: the rest is not read
            raise LimitExceeded(f"it has more than {MAX_NODES} parts")
        token = self.next_token()
        if token.kind == "num":
            return _parse_numeral(token.text)
        if token.kind == "word":
            return self.parse_word(token)
        if token.kind == "begin":
            return self.parse_environment(token.text)
        if token.kind == "text" and token.text in ("euro", "pound", "rupee", "yen"):
            return ("unit", self.parse_factor(), "gbp" if token.text == "pound" else token.text)
        if token.kind == "op" and token.text == "$":
            return ("unit", self.parse_signed_factor(), "dollar")
        if token.text in BRACKET_PAIRS and token.kind in ("op", "cmd"):
            return self.parse_brackets(token.text)
        if token.text in ABSOLUTE_BARS and token.kind in ("op", "cmd"):
            return self.parse_absolute(token.text)
        if token.kind == "cmd":
            return self.parse_command(token.text)
        raise ParseError(f"{token.text[:30]!r} is found where a value is expected" if token.text else "it ends where a value is expected")

    def parse_word(self, token: Token) -> Tree:
        """Parse a run of letters: a function, a constant, or a product of letters."""
        name = token.text
        if name in FUNCTIONS:
            return self.parse_function(name)
        if name == "sqrt":
            return ("root", self.parse_operand(), ("num", 2, 1))
        if name == "cbrt":
            return ("root", self.parse_operand(), ("num", 3, 1))
        if name in WORD_CONSTANTS or name.lower() in ("infinity",):
            return ("const", WORD_CONSTANTS[name if name in WORD_CONSTANTS else "infinity"])
        if len(name) > 1 and (
            _is_product_of_letters(name) or (len(name) == 2 < len(self.tokens) and name not in WORD_CONSTANTS)
        ):  # mg in a formula, 5 mg elsewhere
            if len(name) > 3:
                raise ParseError(f"the word {name[:30]!r} is not part of an expression")
            self.position -= 1
            self.tokens[self.position] = Token("word", name[1:], False)
            first = ("const", name[0]) if name[0] in WORD_CONSTANTS else ("sym", name[0])
            following = self.parse_factor()
            return ("mul", first, following)
        if len(name) > 1:
            raise ParseError(f"the word {name[:30]!r} is not part of an expression")
        return self.parse_letter_with_index(name)

    def parse_letter_with_index(self, name: str) -> Tree:
        """Parse a letter, perhaps with an index: x_1, x_{max}."""
        if not self.accept("_"):
            return ("sym", name)
        token = self.next_token()
        if token.text == "{" and token.kind == "op":
            inner: list[str] = []
            while self.peek().text != "}" or self.peek().kind == "text":
                if self.peek().kind == "eof" or len(inner) > 8:
                    raise ParseError("a subscript does not close")
                inner.append(self.next_token().text)
            self.expect("}")
            return ("sym", f"{name}_{''.join(inner)}")
        if token.kind == "word" and len(token.text) == 2 and token.text not in WORD_CONSTANTS:  # m_ec is m_e times c
            self.position -= 1
            self.tokens[self.position] = Token("word", token.text[1], False)
            return ("sym", f"{name}_{token.text[0]}")
        if token.kind in ("num", "word", "text"):
            return ("sym", f"{name}_{token.text}")
        raise ParseError("a subscript is missing")

    def parse_operand(self) -> Tree:
        """Parse the operand of a function: a bracket, or the factors that follow without a sign."""
        token = self.peek()
        if token.text in ("(", "{", "[") and token.kind == "op":
            return _require_single_value(self.parse_atom())
        if token.text in ABSOLUTE_BARS:
            return self.parse_atom()
        tree = self.parse_factor()
        while self.is_factor_start(self.peek()) and not self.is_function(self.peek()) and self.peek().text not in ("(", "[", "{"):
            if self.peek().kind == "num":
                break
            tree = self.parse_adjacent(tree)
        return tree

    def is_function(self, token: Token) -> bool:
        """Whether the token names a function."""
        return token.text.lstrip("\\") in FUNCTIONS

    def parse_function(self, name: str) -> Tree:
        """Parse a named function with its index, its power and its operand."""
        name = FUNCTION_ALIASES.get(name, name)
        index: Tree | None = self.parse_command_argument() if self.accept("_") else None
        power: Tree | None = None
        if self.accept("^"):
            power = self.parse_command_argument(whole_numeral=True)
        if index is None and self.accept("_"):
            index = self.parse_command_argument()
        if name in ("gcd", "lcm", "max", "min"):
            if self.peek().text == "=" and index is None:
                return ("sym", name)  # the maximum as a name
            inside = self.parse_atom()
            inner = inside[1:] if inside[0] in ("tuple", "set", "list") else (inside,)
            return ("fun", name, *inner)
        arg = self.parse_operand()
        if power == ("neg", ("num", 1, 1)) and name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
            name, power = ("a" if name[-1] == "h" else "arc") + name, None
        if name == "exp":
            tree: Tree = ("pow", ("const", "e"), arg)
        elif name == "cis":
            tree = ("add", ("fun", "cos", arg), ("mul", ("const", "i"), ("fun", "sin", arg)))
        elif name in ("log", "ln", "lg"):
            tree = ("fun", "ln", arg)
            if name == "lg" or index not in (None, ("const", "e")):
                tree = ("div", tree, ("fun", "ln", index or ("num", 10, 1)))
        else:
            tree = ("fun", name, arg) if index is None else _reject_index(name)
        return tree if power is None else ("pow", tree, power)

    def parse_command(self, text: str) -> Tree:
        """Parse a LaTeX command with its arguments."""
        name = text[1:]
        if text in FRACTION_COMMANDS:
            top, low = self.parse_command_argument(), self.parse_command_argument()
            if top == ("sym", "d") and low[0] == "mul" and low[1] == top and low[2][0] == "sym" and len(low) == 3:
                return self.parse_derivative_operand(low[2])
            return ("div", top, low)
        if text in (r"\sqrt", r"\cbrt"):
            degree: Tree = ("num", 3 if text == r"\cbrt" else 2, 1)
            if self.peek().text == "[" and text == r"\sqrt":
                self.position += 1
                degree = self.parse_sum()
                self.expect("]")
            return ("root", _require_single_value(self.parse_command_argument(whole_numeral=True)), degree)
        if text in (r"\binom", r"\dbinom", r"\tbinom"):
            top = self.parse_command_argument()
            return ("binom", top, self.parse_command_argument())
        if name in FUNCTIONS:
            return self.parse_function(name)
        if text in CONSTANT_COMMANDS:
            name = CONSTANT_COMMANDS[text]
            return ("set",) if name == "empty" else ("const", name)
        if name in GREEK_LETTERS:
            return self.parse_letter_with_index({"varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta"}.get(name, name))
        if text == r"\$":
            return ("unit", self.parse_signed_factor(), "dollar")
        if text in BIG_OPERATORS:
            return self.parse_big_operator(text)
        if text in (r"\mathbb", r"\Bbb") and self.peek().text in NUMBER_SETS:
            return ("const", self.next_token().text)
        if text in NAMING_COMMANDS and (tree := self.parse_marked_points(NAMING_COMMANDS[text])) is not None:
            return tree
        if text in (r"\bar", r"\overline"):
            under = self.parse_command_argument()
            if under[0] == "num" and (text == r"\bar" or len(str(under[1])) == 1):
                raise ParseError("a bar over a numeral is not a value")
            return _apply_bar(under)
        if text in (r"\hat", r"\mathbf", *NAMING_COMMANDS):
            return self.parse_command_argument()
        raise ParseError(f"the command {text[:30]} is not part of an answer")

    def parse_marked_points(self, kind: str) -> Tree | None:
        r"""Parse letters under a sign that makes them a name, as in `\\overline{AB}`; None if there are none."""
        braced = self.peek().text == "{"
        token = self.peek(int(braced))
        lettered = token.kind in ("word", "text") and 1 < len(token.text) < 7 and token.text.isalpha()
        if not lettered or not (token.text.isupper() or kind == "segment") or (braced and self.peek(2).text != "}"):
            return None
        self.position += 3 if braced else 1
        return make_canonical_point_name(kind, token.text)

    def parse_absolute(self, sign: str) -> Tree:
        """Parse the content between two bars."""
        self.open_bars += 1
        inside = self.parse_sum()
        self.open_bars -= 1
        if not self.accept(*(NORM_BARS if sign in NORM_BARS else ABSOLUTE_BARS - NORM_BARS)):
            raise ParseError("a bar does not close")
        return ("fun", "abs", inside)

    # Sums, products, integrals, limits and derivatives

    def parse_big_operator(self, sign: str) -> Tree:
        """Parse a sum, a product, an integral or a limit."""
        if sign == r"\lim":
            return self.parse_limit()
        low = self.parse_command_argument(whole_numeral=True) if self.accept("_") else None
        high = self.parse_command_argument(whole_numeral=True) if self.accept("^") else None
        if low is None and self.accept("_"):
            low = self.parse_command_argument(whole_numeral=True)
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

    def parse_derivative_operand(self, variable: Tree) -> Tree:
        r"""Parse the operand of \frac{d}{dx}, and return its derivative by the variable."""
        return ("deriv", self.parse_product(), variable[1])

    # Brackets and environments

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

    def parse_environment(self, name: str) -> Tree:
        """Parse a matrix, a determinant, or a piecewise function."""
        if name in ALIGNED_ENVIRONMENTS:
            return self.parse_aligned(name)
        rows: list[list[Tree]] = [[]]
        while self.peek().kind != "end":
            if self.peek().kind == "eof" or len(rows) > 40:
                raise ParseError(f"the {name[:20]} does not end")
            if self.accept("&"):
                continue
            if self.accept(r"\\", r"\cr"):
                rows.append([])
                continue
            if self.accept(r"\hline"):
                continue
            rows[-1].append(self.parse_piecewise_cell() if name == "cases" else self.parse_clause())
            if name == "cases":
                self.accept(",", ";", ".")
        if self.next_token().text != name:
            raise ParseError(f"the {name[:20]} ends as something else")
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("the rows have different lengths")
        if len(rows[0]) == 1 and (name == "cases" or all(row[0][0] == "rel" for row in rows)):  # a system
            return ("list", *(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
        if name == "cases":
            return ("cases", *(("tuple", *row) for row in rows))
        matrix: Tree = ("matrix", tuple(tuple(row) for row in rows))
        if name in ("vmatrix", "Vmatrix"):
            return ("fun", "det", matrix)
        if name not in MATRIX_ENVIRONMENTS:
            raise ParseError(f"the environment {name[:20]} is not part of an answer")
        return matrix

    def parse_aligned(self, name: str) -> Tree:
        """Parse an aligned environment: each line is a clause, or continues the chain of the line before."""
        end = next((at for at in range(self.position, len(self.tokens)) if self.tokens[at].kind == "end"), None)
        if end is None or self.tokens[end].text != name:
            raise ParseError(f"the {name[:20]} does not end")
        lines: list[Token] = []
        for at in range(self.position, end):
            token, after = self.tokens[at], next((t for t in self.tokens[at + 1 : end] if t.text != "&"), self.tokens[end])
            if token.text == r"\\" and token.kind == "cmd":
                if after.kind != "end" and after.text not in RELATION_SIGNS and lines and lines[-1].text != ",":
                    lines.append(Token("op", ",", False))
            elif token.text != "&":
                lines.append(token)
        self.position = end + 1
        return type(self)(lines).parse_all()

    def parse_piecewise_cell(self) -> Tree:
        """Parse a cell of a piecewise function; `if` and `otherwise` are keywords in it."""
        while self.peek().kind in ("text", "word") and self.peek().text.strip(" ,").lower() in ("if", "for", "when", "where"):
            self.position += 1
        token = self.peek()
        if token.kind in ("text", "word") and token.text.strip(" ,.").lower() in ("otherwise", "else"):
            self.position += 1
            return ("text", "otherwise")
        return self.parse_clause()


def _make_combination(letter: str, num_items: int, num_taken: Tree) -> Tree | None:
    """Convert the notation `C_{10}^3` of binomials and `A_5^2` of arrangements; None for the square of a letter with an index."""
    whole: Tree = ("num", num_items, 1)
    if letter == "C":
        return ("binom", whole, num_taken)
    return ("div", ("fact", whole), ("fact", ("num", num_items - num_taken[1], 1))) if num_items > 2 and num_taken[1] <= num_items else None


def _make_mixed_number(whole: Tree, fraction: Tree) -> Tree | None:
    """Make one number of an integer and a proper fraction next to it; None if they are not a mixed number.

    It is a numeral of its own and not a sum: `3 + 1/2` still has to be added.
    """
    if fraction[0] != "div" or not fraction[1][0] == fraction[2][0] == "num" or not 0 < fraction[1][1] < fraction[2][1]:
        return None
    top, low = fraction[1][1], fraction[2][1]
    return ("num", whole[1] * low + top, low) if fraction[1][2] == fraction[2][2] == 1 else None


def _apply_multiple(tree: Tree, times: int) -> Tree:
    """Apply a word such as million to the value before it: with a numeral it is one numeral, 3 million is not 3 * 1000000."""
    if tree[0] in ("neg", "unit"):
        return (tree[0], _apply_multiple(tree[1], times), *tree[2:])
    if tree[0] not in ("num", "dec") and not _is_broken_number(tree):  # 100/4 dozen is still to be divided
        return _multiply(tree, ("num", times, 1))
    value = to_rational(("mul", tree, ("num", times, 1)))
    return _multiply(tree, ("num", times, 1)) if value is None else ("num", value.numerator, value.denominator)


def _is_broken_number(tree: Tree) -> bool:
    """Whether a tree is a fraction of whole numbers in lowest terms, and not a whole number."""
    if tree[0] != "div" or not tree[1][0] == tree[2][0] == "num" or not tree[2][1]:
        return False
    value = to_rational(tree)
    return value is not None and value.denominator != 1 and value.denominator == tree[2][1]


def _multiply(left: Tree, right: Tree) -> Tree:
    return ("mul", *(left[1:] if left[0] == "mul" else (left,)), right)


def _is_product_of_letters(word: str) -> bool:
    """Whether a run of letters is read as separate letters."""
    return word not in WORD_CONSTANTS and word not in FUNCTIONS and not is_unit(word)


def _split_differential(tree: Tree) -> tuple[Tree, str] | None:
    """Split a product into the part before its last factor `dx`, and the letter; None if there is no such factor."""
    if tree[0] == "mul" and len(tree) == 3 and tree[1] == ("sym", "d") and tree[2][0] == "sym":
        return ONE, tree[2][1]
    last = _split_differential(tree[-1]) if tree[0] == "mul" else None
    if last is None or last[0] != ONE:
        return None
    rest = list(tree[1:-1])
    return (("mul", *rest) if len(rest) > 1 else rest[0]), last[1]


def _parse_numeral(text: str) -> Tree:
    """Parse a numeral: integer, decimal, repeating decimal, scientific notation.

    >>> _parse_numeral("1.50")
    ('dec', 150, 2)
    """
    if "~" in text:
        head, _, cycle = text.partition("~")
        whole, _, fixed = head.partition(".")
        over = 10 ** len(fixed) * (10 ** len(cycle) - 1)
        top = int((whole or "0") + fixed + cycle) - int((whole or "0") + fixed)
        return ("num", top, over)
    if text.isdigit():
        return ("num", int(text), 1)
    match = re.fullmatch(r"(\d*)(?:\.(\d+))?(?:[eE]([-+]?\d+))?", text)
    if match is None or not (match[1] or match[2]):
        raise ParseError(f"{text[:30]!r} is not a numeral")
    whole, places, exponent = match[1] or "0", match[2] or "", match[3]
    if len(whole) > 1 and whole[0] == "0" and not places:
        whole = whole.lstrip("0") or "0"
    if exponent is None:
        return ("dec", int(whole + places), len(places)) if places else ("num", int(whole), 1)
    if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        raise LimitExceeded(f"the exponent {exponent[:12]} is over {MAX_EXPONENT}")
    if not is_scientific_notation(Fraction(int(whole + places), 10 ** len(places)), int(exponent)):
        mantissa: Tree = ("dec", int(whole + places), len(places)) if places else ("num", int(whole), 1)
        return ("mul", mantissa, ("pow", ("num", 10, 1), ("num", int(exponent), 1)))
    return ("dec", int(whole + places), len(places) - int(exponent))


def make_canonical_point_name(kind: str, letters: str) -> Tree:
    """Make a name of points in canonical order: the angle CBA is the angle ABC, the segment BA is AB, a vector keeps its order.

    >>> make_canonical_point_name("angle", "CBA"), make_canonical_point_name("segment", "BA"), make_canonical_point_name("vector", "BA")
    (('sym', 'angle ABC'), ('sym', 'segment AB'), ('sym', 'vector BA'))
    """
    either_way = (kind == "angle" and len(letters) == 3) or (kind in ("segment", "line", "arc") and letters.isupper() and len(letters) == 2)
    return ("sym", f"{kind} {min(letters, letters[::-1]) if either_way else letters}")


def _require_single_value(tree: Tree) -> Tree:
    """Return the content of a bracket if it is one value; raises otherwise."""
    if tree[0] in ("tuple", "list", "set", "interval"):
        raise ParseError("several values where one is expected")
    return tree


def _apply_bar(tree: Tree) -> Tree:
    """Apply a bar over a value: the conjugate of a number, a separate letter, no effect over a name like AB."""
    if tree[0] == "sym":
        return ("sym", f"{tree[1]}_bar")
    if tree == ("const", "i"):
        return ("neg", tree)
    if tree[0] in ("add", "neg", "div", "mul", "pow") and has_op(tree, "num", "dec", "const"):
        return (tree[0], *(_apply_bar(arg) for arg in tree[1:]))
    return tree


def _reject_index(name: str) -> Tree:
    raise ParseError(f"{name} cannot have an index")


def _is_inequality(tree: Tree) -> bool:
    """Whether a tree is an inequality about one letter, or several joined."""
    return (tree[0] in ("inter", "union") or (tree[0] == "rel" and all(sign[0] in "<>" for sign in tree[2::2]))) and len(
        get_free_symbols(tree)
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
    if any(side in ("[", "]") and get_infinity_sign(end) for side, end in ((opener, found[0]), (closer, found[1]))):
        raise ParseError("an interval must be open at infinity")
    return ("interval", found[0], found[1], opener, closer)


def _parse_labelled_value(text: str) -> Tree | None:
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
