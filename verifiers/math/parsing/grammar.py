"""Parser of expressions, from sums down to single letters. `parse.py` has lists, relations and words.

Recursive descent with a counted depth. Anything unknown raises `ParseError`; nothing is skipped.
"""

from __future__ import annotations

import re

from rlvr.verifiers.math.parsing.tokens import MAX_DEPTH, Token
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError, Tree
from rlvr.verifiers.math.parsing.units import NUMBER_MULTIPLES, is_unit

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


class ExpressionParser:
    """Recursive-descent parser over a list of tokens: the current position and the rules that advance it."""

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
        """Whether a factor may start here without a times sign."""
        if token.kind in ("word", "begin"):
            return True
        if token.kind == "num":
            return True  # rejected below, with a reason, unless it makes a mixed number
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
                    return ("add", left, ("div", ("num", int(top.text), 1), ("num", int(low.text), 1)))
            if left[0] in ("const", "fact") or (left[0] == "mul" and left[-1][0] in ("const", "fact")):
                return _multiply(left, self.parse_factor())
            raise ParseError(f"the numeral {token.text[:20]} is next to something without a sign between them")
        if token.kind == "word" and token.text.lower() in NUMBER_MULTIPLES:
            self.position += 1
            return _multiply(left, ("num", NUMBER_MULTIPLES[token.text.lower()], 1))
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
            return ("pow", base, self.parse_signed_factor() if self.peek().text == "-" else self.parse_factor_after_plus())
        exponent = self.parse_argument(whole=True)
        while self.peek().text in ("^", "**") and self.tokens[self.position - 1].text != "}":
            self.position += 1
            exponent = self.parse_power(exponent)
        if base[0] == "sym" and re.fullmatch(r"C_\d?[nmN]", base[1]):
            return ("binom", ("mul", ("num", int(base[1][2:-1] or 1), 1), ("sym", base[1][-1])), exponent)
        if base[0] == "sym" and re.fullmatch(r"[CAP]_\d{1,9}", base[1]) and exponent[0] == "num" and exponent[2] == 1:
            return _make_combination(base[1][0], int(base[1][2:]), exponent) or ("pow", base, exponent)
        return ("pow", base, exponent)

    def parse_factor_after_plus(self) -> Tree:
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
            inner = self.parse_argument(whole=True)
            base = inner[1] if inner[0] == "num" else None
        if base is None or not 2 <= base <= 36 or any(int(d) >= base for d in digits if d != "."):
            raise ParseError(f"{digits[:40]} is not a numeral in that base")
        return digits.lstrip("0") or "0", base

    def parse_argument(self, *, whole: bool = False) -> Tree:
        """Parse the argument of a command: a group in braces, or one token (one digit, unless `whole`)."""
        self.argument_depth += 1
        if self.argument_depth > MAX_DEPTH:
            raise LimitExceeded(f"it has commands nested more than {MAX_DEPTH} deep")
        tree = self.parse_single_argument(whole)
        self.argument_depth -= 1
        return tree

    def parse_single_argument(self, whole: bool) -> Tree:
        """Parse an argument, without a limit on the nesting depth."""
        token = self.peek()
        if token.text == "{" and token.kind == "op":
            return self.parse_atom()
        if token.kind == "num" and not whole and len(token.text) > 1:
            if not token.text.isdigit():
                raise ParseError("a decimal where one digit is expected")
            self.tokens[self.position] = Token("num", token.text[1:], False)
            return ("num", int(token.text[0]), 1)
        if token.kind == "word" and len(token.text) > 1 and token.text not in WORD_CONSTANTS:
            self.tokens[self.position] = Token("word", token.text[1:], False)
            return ("sym", token.text[0])
        return self.parse_atom()

    def parse_group(self, tree: Tree) -> Tree:
        """Return the content of a pair of grouping brackets."""
        return tree

    def parse_atom(self) -> Tree:
        """Parse one atom; implemented in `num_atoms.py`."""
        raise NotImplementedError


def _make_combination(letter: str, size: int, taken: Tree) -> Tree | None:
    """Convert the notation `C_{10}^3` of binomials and `A_5^2` of arrangements; None for the square of a letter with an index."""
    whole: Tree = ("num", size, 1)
    if letter == "C":
        return ("binom", whole, taken)
    return ("div", ("fact", whole), ("fact", ("num", size - taken[1], 1))) if size > 2 and taken[1] <= size else None


def _make_mixed_number(whole: Tree, part: Tree) -> Tree | None:
    """Make the sum of an integer and a proper fraction next to it; None if they are not a mixed number."""
    proper = part[0] == "div" and part[1][0] == part[2][0] == "num" and 0 < part[1][1] < part[2][1]
    return ("add", whole, part) if proper else None


def _multiply(left: Tree, right: Tree) -> Tree:
    return ("mul", *(left[1:] if left[0] == "mul" else (left,)), right)


def is_letter_run(word: str) -> bool:
    """Whether a run of letters is read as separate letters."""
    return word not in WORD_CONSTANTS and word not in FUNCTIONS and not is_unit(word)
