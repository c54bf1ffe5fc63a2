"""Split text into tokens: Unicode is converted or rejected, LaTeX spacing is dropped, numerals have their own grammar.

The tokenizer is one pass with limits, so that no text can make it slow.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError

MAX_LENGTH = 6_000
MAX_DIGITS = 1_000
MAX_TOKENS = 2_000
MAX_DEPTH = 40


class Token(NamedTuple):
    """One token; `kind` is num, word, text, cmd, begin, end, or op.

    >>> tokenize("2x")[0]
    Token(kind='num', text='2', has_space_before=False)
    """

    kind: str
    text: str
    has_space_before: bool
    """Whether white space precedes the token."""


_UNICODE_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ",
    "∞": r"\infty ", "√": r"\sqrt ", "∛": r"\cbrt ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "ø": r"\emptyset ",
    "°": r"^\circ ", "º": r"^\circ ", "≡": r"\equiv ", "≈": r"\approx ", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "ℝ": r"\R ",
    "ℤ": r"\Z ", "ℕ": r"\N ", "ℚ": r"\Q ", "ℂ": r"\C ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "∖": r"\setminus ", "∑": r"\sum ", "∫": r"\int ", "→": r"\to ", "¢": r"\text{cents}", "…": r"\ldots ", "⁄": "/",
    "∴": r"\therefore ", "⇒": r"\Rightarrow ",
    "∨": r"\text{or}", "∧": r"\text{and}", "∠": r"\angle ", "△": "", "€": r"\text{euro}", "£": r"\text{pound}",
    "₹": r"\text{rupee}", "¥": r"\text{yen}", "µ": r"\mu ",
}  # fmt: skip
_CHINESE_UNITS = {
    "平方厘米": "cm^2", "平方米": "m^2", "平方千米": "km^2", "立方厘米": "cm^3", "立方米": "m^3", "千米": "km", "公里": "km", "米": "m",
    "分米": "dm", "厘米": "cm", "毫米": "mm", "千克": "kg", "公斤": "kg", "克": "g", "吨": "tonnes", "升": "liters", "毫升": "ml",
    "小时": "hours", "分钟": "minutes", "秒": "seconds", "天": "days", "周": "weeks", "个月": "months", "年": "years", "岁": "years",
    "美元": "dollars", "欧元": "euros", "元": "yuan", "度": "degrees", "人": "people",
    **dict.fromkeys("个只本块支张次条颗名辆件种", "units"),
}  # fmt: skip
"""Units in Chinese; measure words for counted things become `units`."""
_CHINESE_UNIT = re.compile(r"(?<=[\d}{$ ])\s*(" + "|".join(sorted(_CHINESE_UNITS, key=len, reverse=True)) + r")(?=[\s}$.。]|$)")
_GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_UNICODE_SIGNS |= {sign: rf"\{name} " for sign, name in zip("αβγδεζηθκλμνξπρστφχψω", _GREEK.split(), strict=True)}
_GREEK = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_UNICODE_SIGNS |= {sign: rf"\{name} " for sign, name in zip("ΓΔΘΛΞΠΣΦΨΩ", _GREEK.split(), strict=True)}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉ₙ]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_VULGAR = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")


def normalize_characters(text: str) -> str:
    r"""Convert a text to ASCII and Latin letters; raises for a misleading character (a foreign digit, a hidden mark).

    >>> normalize_characters("½×2²")
    '\\frac{1}{2}\\times 2^{2}'
    """
    if _check_length(text).isascii():
        if _CONTROL.search(text):
            raise ParseError("it contains a control character")
        return text
    text = _CHINESE_UNIT.sub(lambda m: f" {_CHINESE_UNITS[m[1]]}", text.strip("\u200b\u2060\ufeff "))
    text = _RAISED_RUN.sub(lambda m: "^{" + m[0].translate(_RAISED) + "}", text)
    text = _LOWERED_RUN.sub(lambda m: "_{" + m[0].translate(_LOWERED) + "}", text)
    text = _VULGAR.sub(lambda m: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
    enclosed = next((char for char in text if unicodedata.category(char) in ("No", "Nl")), None)  # a circled digit, a Roman numeral
    if enclosed is not None:
        raise ParseError(f"the character U+{ord(enclosed):04X} ({unicodedata.name(enclosed, 'unnamed')}) is not part of an answer")
    out = []
    for char in unicodedata.normalize("NFKC", "".join(_UNICODE_SIGNS.get(c, c) for c in text)):
        sign = _UNICODE_SIGNS.get(char, char)
        deceives = not sign.isascii() and not "À" <= sign <= "ɏ"
        if deceives or _CONTROL.match(char):
            raise ParseError(f"the character U+{ord(char):04X} ({unicodedata.name(char, 'unnamed')}) is not part of an answer")
        out.append(sign)
    return _check_length("".join(out))


def _check_length(text: str) -> str:
    """Return the text; raises if it is too long."""
    if len(text) > MAX_LENGTH:
        raise LimitExceeded(f"it is {len(text)} characters long; at most {MAX_LENGTH} are allowed")
    return text


_TEXT = r"text(?:normal|up|bf|it|rm|sf|tt)?|mbox|hbox|math(?:rm|bf|it|sf|tt|cal|bb)|operatorname|emph|boldsymbol"
_SCAN = re.compile(
    r"""
    (?P<num>(?:(?!0,\d)\d{1,3}(?:(?:,\s*\\!\s*|\s*\{\s*,\s*\}\s*|\\,|\\!,|,\\,)\d{3})+(?!\d)|[1-9]\d{0,2}(?:,\d{3})+(?![,\d])|\d+)
        (?:\.\d*\\overline\s*\{\d+\}|\.\d+|\.(?=\s*$))?(?:[eE][-+]?\d+(?![\d.]))?
        |\.\d*\\overline\s*\{\d+\}|\.\d+(?:[eE][-+]?\d+(?![\d.]))?)
  | (?P<word>[a-zA-ZÀ-ɏ]+)
  | (?P<op>\*\*|<=|>=|!=|==|<|>|[-+*/^_=(){}\[\]|,;:!%&'".$?\#@])
  | (?P<space>\s+|~|\\[,;:!>\s]|\\(?:quad|qquad|enspace|thinspace|hfill|displaystyle|textstyle|limits|nolimits|rm|bf|it
        |left\s*\.|right\s*\.|left|right|middle|bigl|bigr|Bigl|Bigr|biggl|biggr|big|Big|bigg|Bigg|triangle)(?![a-zA-Z])|\\math(?:rm|bf|it)\s+(?=[a-zA-Z]))
  | (?P<text>\\(?:TEXT)\*?\s*\{)
  | (?P<begin>\\begin\s*\{(?P<env>[a-zA-Z]+)\*?\}(?:\{[lcr|\s]*\})?)
  | (?P<end>\\end\s*\{(?P<eenv>[a-zA-Z]+)\*?\})
  | (?P<cmd>\\[a-zA-Z]+|\\.)
    """.replace("TEXT", _TEXT),
    re.VERBOSE | re.DOTALL,
)
_LISTED_NUMBERS = re.compile(r"\d{1,3}(?:,[1-9]\d\d)+")
_IGNORED_DELIMITERS = frozenset((r"\(", r"\)", r"\[", r"\]"))


def tokenize(text: str) -> list[Token]:
    r"""Split a text with normalized characters into tokens.

    >>> [t.text for t in tokenize(r"\left(1,\!000\right)")]
    ['(', '1000', ')']
    """
    found: list[Token] = []
    at, spaced, depth = 0, False, 0
    dollars = text.count("$") - text.count(r"\$")
    while at < len(text):
        match = _SCAN.match(text, at)
        if match is None or match.end() == at:
            raise ParseError(f"{text[at : at + 12]!r} cannot be read")
        kind, word, at = match.lastgroup or "", match[0], match.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "text":
            word, at = _read_braced(text, at)
        elif kind == "num":
            if depth and _LISTED_NUMBERS.fullmatch(word):  # (1,234) is a pair, (1,000) is a number
                word = word.partition(",")[0]
                at = match.start() + len(word)
            word = _clean_numeral(word)
        elif kind in ("begin", "end"):
            word = match["env"] or match["eenv"]
        elif (word == "$" and dollars % 2 == 0) or word in _IGNORED_DELIMITERS:
            continue
        if kind != "text":
            depth += (word in ("(", "[", "{", r"\{") or kind == "begin") - (word in (")", "]", "}", r"\}") or kind == "end")
        if word == "!=" and not spaced and found and (found[-1].kind in ("num", "word") or found[-1].text in (")", "]", "}")):
            found.append(Token("op", "!", False))  # 5!=120 is a factorial, 5 != 120 is not
            word = "="
        found.append(Token(kind, word, spaced))
        spaced = False
        if depth > MAX_DEPTH or len(found) > MAX_TOKENS:
            raise LimitExceeded(f"it is nested more than {MAX_DEPTH} deep or has more than {MAX_TOKENS} tokens")
    return found


def _clean_numeral(word: str) -> str:
    digits = sum(c.isdigit() for c in word)
    if digits > MAX_DIGITS:
        raise LimitExceeded(f"it contains a numeral of {digits} digits; at most {MAX_DIGITS} are allowed")
    if "overline" in word:
        head, _, tail = word.replace(r"\overline", "~").partition("~")
        return re.sub(r"[^\d.]", "", head) + "~" + re.sub(r"\D", "", tail)
    return re.sub(r"[^\d.eE+-]", "", word).rstrip(".")


def _read_braced(text: str, position: int) -> tuple[str, int]:
    """Read the content up to the closing brace, and return it with the position after it."""
    depth, start = 1, position
    while position < len(text):
        if text[position] == "\\":
            position += 1
        else:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
        if not depth:
            return re.sub(r"\\(?:[,;:! ]|q?quad)|~", " ", text[start : position - 1]).strip(), position
    raise ParseError("a brace does not close")
