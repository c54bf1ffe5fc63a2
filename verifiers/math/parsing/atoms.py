"""Parser of atoms: numerals, letters, functions, commands, and brackets."""

from __future__ import annotations

import re

from rlvr.verifiers.math.parsing.calculus import BIG_OPERATORS, CalculusParser
from rlvr.verifiers.math.parsing.grammar import (
    ABSOLUTE_BARS,
    BRACKET_PAIRS,
    CONSTANT_COMMANDS,
    FRACTION_COMMANDS,
    FUNCTION_ALIASES,
    FUNCTIONS,
    GREEK_LETTERS,
    NAMING_COMMANDS,
    NORM_BARS,
    NUMBER_SETS,
    WORD_CONSTANTS,
    is_letter_run,
)
from rlvr.verifiers.math.parsing.tokens import Token
from rlvr.verifiers.math.parsing.tree import MAX_NODES, LimitExceeded, ParseError, Tree, has_op

MAX_EXPONENT = 5_000


class AtomParser(CalculusParser):
    """Parses one atom; lists and relations inside brackets are parsed by the subclass in `parse.py`."""

    def parse_atom(self) -> Tree:
        """Parse one numeral, letter, function, command or bracket."""
        self.num_atoms += 1
        if self.num_atoms > MAX_NODES:  # the tree would have as many parts: the rest is not read
            raise LimitExceeded(f"it has more than {MAX_NODES} parts")
        token = self.next_token()
        if token.kind == "num":
            return parse_numeral(token.text)
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
            is_letter_run(name) or (len(name) == 2 < len(self.tokens) and name not in WORD_CONSTANTS)
        ):  # mg in a formula, 5 mg elsewhere
            if len(name) > 3:
                raise ParseError(f"the word {name[:30]!r} is not part of an expression")
            self.position -= 1
            self.tokens[self.position] = Token("word", name[1:], False)
            first = ("const", name[0]) if name[0] in WORD_CONSTANTS else ("sym", name[0])
            following = self.parse_letter()
            return ("mul", first, following)
        if len(name) > 1:
            raise ParseError(f"the word {name[:30]!r} is not part of an expression")
        return self.parse_subscript(name)

    def parse_letter(self) -> Tree:
        """Parse the rest of a run of letters; powers belong to its last letter."""
        return self.parse_factor()

    def parse_subscript(self, name: str) -> Tree:
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
        if token.kind in ("num", "word", "text"):
            return ("sym", f"{name}_{token.text}")
        raise ParseError("a subscript is missing")

    def parse_operand(self) -> Tree:
        """Parse the operand of a function: a bracket, or the factors that follow without a sign."""
        token = self.peek()
        if token.text in ("(", "{", "[") and token.kind == "op":
            return require_single_value(self.parse_atom())
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
        index: Tree | None = self.parse_argument() if self.accept("_") else None
        power: Tree | None = None
        if self.accept("^"):
            power = self.parse_argument(whole=True)
        if index is None and self.accept("_"):
            index = self.parse_argument()
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
            if name == "lg" or index is not None:
                tree = ("div", tree, ("fun", "ln", index or ("num", 10, 1)))
        else:
            tree = ("fun", name, arg) if index is None else _reject_index(name)
        return tree if power is None else ("pow", tree, power)

    def parse_command(self, text: str) -> Tree:
        """Parse a LaTeX command with its arguments."""
        name = text[1:]
        if text in FRACTION_COMMANDS:
            top, low = self.parse_argument(), self.parse_argument()
            if top == ("sym", "d") and low[0] == "mul" and low[1] == top and low[2][0] == "sym" and len(low) == 3:
                return self.parse_derivative(low[2])
            return ("div", top, low)
        if text in (r"\sqrt", r"\cbrt"):
            degree: Tree = ("num", 3 if text == r"\cbrt" else 2, 1)
            if self.peek().text == "[" and text == r"\sqrt":
                self.position += 1
                degree = self.parse_sum()
                self.expect("]")
            return ("root", require_single_value(self.parse_argument(whole=True)), degree)
        if text in (r"\binom", r"\dbinom", r"\tbinom"):
            top = self.parse_argument()
            return ("binom", top, self.parse_argument())
        if name in FUNCTIONS:
            return self.parse_function(name)
        if text in CONSTANT_COMMANDS:
            name = CONSTANT_COMMANDS[text]
            return ("set",) if name == "empty" else ("const", name)
        if name in GREEK_LETTERS:
            return self.parse_subscript({"varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta"}.get(name, name))
        if text == r"\$":
            return ("unit", self.parse_signed_factor(), "dollar")
        if text in BIG_OPERATORS:
            return self.parse_big_operator(text)
        if text in (r"\mathbb", r"\Bbb") and self.peek().text in NUMBER_SETS:
            return ("const", self.next_token().text)
        if text in NAMING_COMMANDS and (tree := self.parse_point_name(NAMING_COMMANDS[text])) is not None:
            return tree
        if text in (r"\bar", r"\overline"):
            under = self.parse_argument()
            if under[0] == "num" and (text == r"\bar" or len(str(under[1])) == 1):
                raise ParseError("a bar over a numeral is not a value")
            return _apply_bar(under)
        if text in (r"\hat", r"\mathbf", *NAMING_COMMANDS):
            return self.parse_argument()
        raise ParseError(f"the command {text[:30]} is not part of an answer")

    def parse_point_name(self, kind: str) -> Tree | None:
        r"""Parse letters under a sign that makes them a name, as in `\\overline{AB}`; None if there are none."""
        braced = self.peek().text == "{"
        token = self.peek(int(braced))
        lettered = token.kind in ("word", "text") and 1 < len(token.text) < 7 and token.text.isalpha()
        if not lettered or not (token.text.isupper() or kind == "segment") or (braced and self.peek(2).text != "}"):
            return None
        self.position += 3 if braced else 1
        return make_point_name(kind, token.text)

    def parse_absolute(self, sign: str) -> Tree:
        """Parse the content between two bars."""
        self.open_bars += 1
        inside = self.parse_sum()
        self.open_bars -= 1
        if not self.accept(*(NORM_BARS if sign in NORM_BARS else ABSOLUTE_BARS - NORM_BARS)):
            raise ParseError("a bar does not close")
        return ("fun", "abs", inside)

    def parse_brackets(self, opener: str) -> Tree:
        """Parse the content of a pair of brackets; implemented in the subclass that parses lists."""
        raise NotImplementedError

    def parse_environment(self, name: str) -> Tree:
        """Parse a matrix or a piecewise function; implemented in the subclass that parses lists."""
        raise NotImplementedError


def parse_numeral(text: str) -> Tree:
    """Parse a numeral: integer, decimal, repeating decimal, scientific notation.

    >>> parse_numeral("1.50")
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
    return ("dec", int(whole + places), len(places) - int(exponent))


def make_point_name(kind: str, letters: str) -> Tree:
    """Make a name of points in canonical order: the angle CBA is the angle ABC, the segment BA is AB, a vector keeps its order.

    >>> make_point_name("angle", "CBA"), make_point_name("segment", "BA"), make_point_name("vector", "BA")
    (('sym', 'angle ABC'), ('sym', 'segment AB'), ('sym', 'vector BA'))
    """
    either_way = (kind == "angle" and len(letters) == 3) or (kind in ("segment", "line", "arc") and letters.isupper() and len(letters) == 2)
    return ("sym", f"{kind} {min(letters, letters[::-1]) if either_way else letters}")


def require_single_value(tree: Tree) -> Tree:
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


__all__ = ["NUMBER_SETS", "AtomParser", "parse_numeral", "require_single_value"]
