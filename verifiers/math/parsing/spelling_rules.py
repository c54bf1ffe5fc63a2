r"""A table of rewrite rules for alternative spellings: pattern, replacement, reason, and one example, which a test runs.

The rules work on the text before tokenizing. Each rule is one regular expression with bounded repeats; it is only
tried if one of its trigger substrings is in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from rlvr.verifiers.math.parsing.units import CARDINALS
from rlvr.verifiers.math.parsing.words import parse_number_words

Change = str | Callable[[re.Match[str]], str]


class SpellingRule(NamedTuple):
    r"""One rewrite rule for a spelling.

    >>> SpellingRule("colon", ("{:}",), re.compile(r"(?<=\d)\{:\}(?=\d)"), ":", "a colon set without space", ("3{:}45", "3:45")).apply("3{:}45")
    '3:45'
    """

    name: str
    triggers: tuple[str, ...]
    """Prefilter: one of these substrings is in every text that the rule changes."""
    pattern: re.Pattern[str]
    replacement: Change
    reason: str
    example: tuple[str, str]

    def apply(self, text: str) -> str:
        """Apply the rule to a text."""
        return self.pattern.sub(self.replacement, text) if any(sign in text for sign in self.triggers) else text


_DOTS = r"(?:\.\.\.|\\[lc]?dots(?![a-zA-Z]))"
_TEXT = r"\\(?:text|mathrm|textbf|mbox)"
_UNIT = _TEXT + r"\s*\{\s*([a-zA-Z]{1,12}(?:\^\{?\d\}?)?)\s*\}(\s*\^\s*\{?\s*\d\s*\}?)?"
_FOR_ALL = (
    r"(?:\\q?quad|\\[ ,;])?\s{0,4}(?:\\text\s*\{\s*,?\s*|,\s*)for\s+(?:all|any|every|some|each)"
    r"(?:\s+(?:real|fixed|arbitrary|numbers?|constants?)){0,3}\s*\}?\s*\$?[a-zA-Z]?"
)
_REALS = r"\\(?:mathbb\s*\{?\s*R\s*\}?|R(?![a-zA-Z]))"
_PRIME = r"(?:'|\^\s*\{?\s*\\prime\s*\}?)"
_N = r"\{?\s*(\d{1,6})\s*\}?"
_SCRIPT = r"(?:^|(?<=[=(+*/ -]))(?:\{\s*\})?[_^]\s*"
_MONEY = {"US": r"\$", "USD": r"\$", "EUR": r"\text{euro}", "GBP": r"\text{pound}", "INR": r"\text{rupee}", "JPY": r"\text{yen}"}
_LARGE = {"k": "thousand", "K": "thousand", "M": "million", "B": "billion"}
_INTEGER_DOMAIN = re.compile(
    r"(?:(?:where|with|for) )?(?:(?:any |every |all |some |each |an )?integers? (?:values of )?(\w)|(\w) (?:is )?(?:an |any )?integer)"
)


_SIZES = r"\tiny \script \foot \small \normal \large \Large \LARGE \huge \Huge \bfs \itshape"


def _mark_cycle(match: re.Match[str]) -> str:
    return rf"{match[1]}\overline{{{re.sub(r'[^0-9]', '', match[2])}}}"


def _exclude_values(match: re.Match[str]) -> str:
    left_out = re.sub(r"\s*,?\s*(?:\\text\s*\{\s*and\s*\}|\band\b)\s*", ",", match[1])
    left_out = re.sub(r"^\s*[a-z]\s*=\s*|[$.\s]+$|^\s+", "", left_out)
    return rf"\mathbb{{R}}\setminus\{{{left_out}\}}" if not re.search(r"(?<!\\)[a-zA-Z]{2}", left_out) else match[0]


def _drop_real_domain(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    return "" if re.search(rf"\(\s*{match[1]}\s*\)\s*=|[<>]|\\[gl]e|\\ne(?![a-z])", before) else match[0]


def _add_integer_domain(match: re.Match[str]) -> str:
    said = _INTEGER_DOMAIN.fullmatch(" ".join(re.sub(r"\\text\s*\{|[{}$,.]", " ", match[1]).split()))
    return rf", {said[1] or said[2]} \in \mathbb{{Z}}" if said else match[0]


def _make_cases(match: re.Match[str]) -> str:
    name, body = match[1], match[2]
    return rf"\begin{{cases}}{body}\end{{cases}}" if name == "array" else rf"\begin{{{name}}}{body}\end{{{name}}}"


def _keep_digits(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0])


def _make_base_index(match: re.Match[str]) -> str:
    return "_{" + next(group for group in match.groups() if group) + "}"


_PART = re.compile(r"(?:\\text(?:bf)?\s*\{\s*)?(?:\*\*)?\(?(?<![a-zA-Z])([a-h])\)(?:\*\*)?\s*[:.=]?\s*\}?")
_NUMBERED_PART = re.compile(r"(?:(?<=[\s,;$*])|^)([1-9])[.)](?:\*\*)?\s+")
_PART_END = re.compile(r"(?:\band\b|\\text\{\s*and\s*\}|\\q?quad|\\[,;: ])\s*$")
_BETWEEN_PARTS = " ,;$\n"
_NUMBERED_LIST = r"^[*$\s]{0,4}1[.)](?:\*\*)?\s.{1,2000}$"


def _make_tuple_of_parts(match: re.Match[str]) -> str:
    lettered = match.re.pattern != _NUMBERED_LIST
    labels = list((_PART if lettered else _NUMBERED_PART).finditer(match[0]))
    if len(labels) < 2 or match[0][: labels[0].start()].strip(_BETWEEN_PARTS if lettered else " *$\n"):
        return match[0]
    ends = [*(label.start() for label in labels[1:]), len(match[0])]
    parts = [match[0][label.end() : end].strip(_BETWEEN_PARTS) for label, end in zip(labels, ends, strict=True)]
    parts = [_PART_END.sub("", part).strip(_BETWEEN_PARTS) for part in parts]
    ordered = "".join(label[1] for label in labels) == ("abcdefgh" if lettered else "123456789")[: len(labels)]
    values = all(re.match(r"[-\d\\a-zA-Z({\[]", part) for part in parts)
    return f"({', '.join(parts)})" if ordered and values else match[0]


def _drop_reason(match: re.Match[str]) -> str:
    words = "yes|no|not|never|but|however|although|unless|true|false|or|only|except|provided|assuming|sometimes|whenever|partly|iff"
    turned = re.search(rf"\b(?:{words})\b|n't|^\W*(?:if|when|for|in case)\b", match[2], re.IGNORECASE)
    return match[0] if turned else rf"\text{{{match[1]}}}"


def _make_half_line(match: re.Match[str]) -> str:
    closed = match[1] not in "<>"
    if match[1] == "<" or match[1].startswith(r"\l"):
        return rf"(-\infty, 0{']' if closed else ')'}"
    return rf"{'[' if closed else '('}0, \infty)"


def _drop_repetition(match: re.Match[str]) -> str:
    return match[1] if parse_number_words(match[2].lower()) == int(match[1]) else match[0]


def _make_rule(
    name: str, triggers: str, pattern: str, replacement: Change, reason: str, before: str, after: str, flags: int = 0
) -> SpellingRule:
    return SpellingRule(name, tuple(triggers.split()), re.compile(pattern, flags), replacement, reason, (before, after))


SPELLING_RULES: tuple[SpellingRule, ...] = (
    _make_rule("whole", "text", r"[\s,]{0,9}\\text\s*\{[\s,]{0,9}((?:where|with|for|any|integers?)[\s}].{0,60})$", _add_integer_domain,
         "words say that a letter runs over the whole numbers", r"2k\text{ for any integer }k", r"2k, k \in \mathbb{Z}"),
    _make_rule("transposed", r"\top \inter T", r"\^\s*\{?\s*(?:\\top|\\(?:math(?:sf|rm|bf|tt)|text)\s*\{?\s*T\s*\}?|\\intercal)\s*\}?", "^T",
         "three ways to write the transpose", r"A^\top", "A^T"),
    _make_rule("brace", r"\left", r"\\left\s*\\(?:\{|lbrace)\s*\\begin\s*\{(array|aligned|gathered|split|cases)\}(?:\s*\{[lcr|\s]{1,9}\})?"
         r"(.{1,600}?)\\end\s*\{\1\}\s*\\right\s*(?:\.|$)", _make_cases, "a brace that only opens is a case distinction or a system",
         r"\left\{\begin{array}{l}x\end{array}\right.", r"\begin{cases}x\end{cases}", re.DOTALL),
    _make_rule("minutes", "circ",
         r"(\d{1,4})\s*\^\s*\{?\s*\\circ\s*\}?\s*(\d{1,2})\s*" + _PRIME + r"(?:\s*(\d{1,2})\s*(?:" + _PRIME + '|"){1,2})?(?!\\d)',
         lambda m: rf"({m[1]}+{m[2]}/60+{m[3] or 0}/3600)^\circ", "degrees with minutes and seconds", r"30^\circ 15'",
         r"(30+15/60+0/3600)^\circ"),
    _make_rule("positive", r"\mathbb",
         r"\\mathbb\s*\{?\s*(?:N\s*\}?\s*\^\s*\{?\s*\*|[NZ]\s*\}?\s*(?:\^\s*\{?\s*\+|_\s*\{?\s*(?:\+|>\s*0)))\s*\}?", r"\\N ",
         "the positive whole numbers", r"\mathbb{Z}^+", r"\N "),
    _make_rule("element", r"\in", r"^\s*([a-zA-Z])\s*\\in\s*\\\{([^{},;:|\\]{1,40})\\\}\s*$", r"\1 = \2", "in a set of one value is equal to it",
         r"x \in \{3\}", "x = 3"),
    _make_rule("negative", "minus negative", r"^\s*(?:(?:minus|negative)\s+|\\text\s*\{\s*(?:minus|negative)\s*\}\s*)(?=\d)", "-",
         "a sign in words", "minus 7", "-7", re.IGNORECASE),
    _make_rule("ampersand", r"\&", r"(\d\s{0,2}(?:\\[,; ]|~)?\s{0,2}\\text\s*\{\s*[A-Za-z]{1,20})\\&(?=[A-Za-z])", r"\1and",
         "an ampersand within the name of what is counted", r"7 \text{ M\&Ms}", r"7 \text{ MandMs}"),
    _make_rule("colour", "color", r"\\(?:text)?color(?:box)?\s*\{[a-zA-Z0-9!,. ]{1,30}\}", "", "a colour has no meaning", r"\color{red}{5}",
         "{5}"),
    _make_rule("size", _SIZES, r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![a-zA-Z])",
         "", "a size has no meaning", r"\large 5", " 5"),
    _make_rule("space", "space", r"\\(?:hspace|vspace)\*?\s*\{[^{}]{0,60}\}", " ", "space in points or inches", r"5\hspace{2pt}cm", "5 cm"),
    _make_rule("frame", r"\under \ensure \strut \check \black \square \Box",
         r"\\(?:underline|underbrace|ensuremath|strut|checkmark|blacksquare|square|Box)(?![a-zA-Z])", "",
         "a frame or a mark around the answer", r"\underline{5}\checkmark", "{5}"),
    _make_rule("boxed", r"\boxed \fbox \bm \pmb \bold \math",
         r"\\(?:boxed|fbox|(?:bm|pmb|boldsymbol|math(?:bf|it|rm))(?=\s*\{[^{}]{0,200}\\[a-zA-Z]))\s*(?=\{)", "",
         "a box in the box, or a font over a formula", r"\mathbf{\frac12}", r"{\frac12}"),
    _make_rule("bold", r"\bm \pmb", r"\\(?:bm|pmb)\s*(?=\{)", r"\\mathbf", "one command for a bold letter", r"\bm{v}", r"\mathbf{v}"),
    _make_rule("row gap", "\\\\", r"\\\\\s*\[\s*-?[\d.]{1,6}\s*(?:pt|em|ex|mm|cm|in)\s*\]", r"\\\\ ", "space between rows", "a\\\\[2pt]b",
         "a\\\\ b"),
    _make_rule("quad", "quad", r"\\(q?quad)(?=[a-zA-Z])", r"\\\1 ", "a space that a letter follows", r"5\quadm", r"5\quad m"),
    _make_rule("dotted cycle", r"\bar \dot", r"(\d{0,20}\.\d{0,20})\\(?:bar|dot)\s*(\{?\d{1,20}\}?(?:\d{0,20}\\dot\s*\{?\d\}?)?)", _mark_cycle,
         "dots or a bar over what repeats", r"0.\dot{1}4\dot{2}", r"0.\overline{142}"),
    _make_rule("shown cycle", "... dots", r"(?<![\d.])(\d{0,20}\.\d{0,12}?)(\d{1,6}?)\2{2,20}" + _DOTS, _mark_cycle,
         "a repeating decimal, three times and dots", "0.333...", r"0.\overline{3}"),
    _make_rule("bracketed cycle", "(", r"(?<![\d.])(\d{1,20}\.\d{0,12})\((\d{1,12})\)(?=\s*[%$]?\s*$)", _mark_cycle, "the same in brackets", "0.(3)",
         r"0.\overline{3}"),
    _make_rule("going on", "... dots", r"(\.\d{3,60})" + _DOTS, r"\1", "a decimal that continues", "3.14159...", "3.14159"),
    _make_rule("chosen", "C", _SCRIPT + _N + r"\s*C\s*_?\s*" + _N, r"\\binom{\1}{\2}", "binomials with the numbers around a C", "{}^{5}C_{2}",
         r"\binom{5}{2}"),
    _make_rule("arranged", "P", _SCRIPT + _N + r"\s*P\s*_?\s*" + _N, r"\\frac{\1!}{(\1-\2)!}", "arrangements likewise", "_5P_2",
         r"\frac{5!}{(5-2)!}"),
    _make_rule("power of ten", "10", r"(?<=[\d)])\s*[xX]\s*(?=10\s*(?:\^|\*\*))", r"\\times ", "x for times before a power of ten", "3x10^8",
         r"3\times 10^8"),
    _make_rule("to", "to", r"^\s*(\d{1,9})\s*(?:\\text\s*\{\s*to\s*\}|\sto\s)\s*(\d{1,9})\s*$", r"\1:\2", "a ratio in words", "2 to 3", "2:3"),
    _make_rule("mapping", "mapsto", r"^\s*([a-zA-Z])\s*:\s*([a-z])\s*\\mapsto(?![a-zA-Z])", r"\1(\2)=", "a function by its arrow",
         r"f: x\mapsto 2x", "f(x)= 2x"),
    _make_rule("split words", "text", r"\\text\s*\{\s*([a-zA-Z ]{1,30}?)\s+(and|or)\s*\}(?=\s*\d)", r"\\text{\1}\\text{ \2 }",
         "a unit and a joint in one text", r"5\text{ cm or }6", r"5\text{cm}\text{ or }6"),
    _make_rule("unit vector", "hat vec math bm bold",
         r"\\(?:hat|vec|mathbf|boldsymbol|bm)\s*\{\s*\\?(?:hat\{|mathbf\{)?\s*([ijk])(?:math)?\s*\}?\s*\}", r" \\ell_{v\1}",
         "the unit vectors", r"2\hat{i}", r"2 \ell_{vi}"),
    _make_rule("positive reals", r"\mathbb", r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\^\s*\{?\s*\+\s*\}?|_\s*\{?\s*(?:\+|>\s*0)\s*\}?)", r"(0,\\infty)",
         "the positive real numbers", r"\mathbb{R}^+", r"(0,\infty)"),
    _make_rule("bare unit vector", "hat vec math bm", r"\\(?:hat|vec|mathbf|bm)\s*([ijk])(?![a-zA-Z])", r" \\ell_{v\1}",
         "the same without braces", r"\vec i", r" \ell_{vi}"),
    _make_rule("decimal comma", "{,}", r"(?<![\d},.])(\d{1,9})\{,\}(\d{1,2}|\d{4,9})(?![\d.]|\{,\})", r"\1.\2",
         "a comma set as a decimal point", "2{,}75", "2.75"),
    _make_rule("decimal point", "{.}", r"(?<=\d)\{\.\}(?=\d)", ".", "a point in braces", "0{.}15", "0.15"),
    _make_rule("complex", "mathbb", r"\\mathbb\s*\{?\s*C\s*\}?", r"\\C ", "the field of complex numbers", r"\mathbb{C}", r"\C "),
    _make_rule("remainder", "R remainder", r"^\s*(.{1,60}?)\s*(?:\\text\s*\{\s*(?:R|remainder)\s*\}|(?<=\d)\s+R|remainder)\s*(-?\d{1,9})\s*$",
         r"\1 + \2 R_{est}", "a quotient with its remainder", "7 R 2", "7 + 2 R_{est}"),
    _make_rule("square", "sq. cu.", r"\b(sq|cu)\.", r"\1", "an abbreviation with a point", "5 sq. ft", "5 sq ft"),
    _make_rule("named base", "base", rf"\bbase[\s-]+({'|'.join(CARDINALS)})\b", lambda match: f"base {CARDINALS[match[1].lower()]}",
         "a number word for a base", "52 in base eight", "52 in base 8", re.IGNORECASE),
    _make_rule("base in words", "base", r"(?<=[\dA-F])(\$?)\s*(?:\\text\s*\{\s*)?\(\s*(?:in\s+)?base[\s-]+\$?(\d{1,2})\$?\s*\)\s*\}?", r"_{\2}\1",
         "a base behind the numeral", "101 (base 2)", "101_{2}"),
    _make_rule("base below", "base", r"_\s*\{\s*(?:\\(?:text|mathrm)\s*\{\s*base[\s~]*(?:\}\s*(\d{1,2})|(\d{1,2})\s*\})|base\s*(\d{1,2}))\s*\}"
         r"|_\s*\\(?:text|mathrm)\s*\{\s*base[\s~]*(\d{1,2})\s*\}", _make_base_index, "the word base in the index", r"52_{\text{base }8}",
         "52_{8}"),
    _make_rule("letters as digits", "text mathrm", r"\\(?:text|mathrm)\s*\{([0-9A-F]{1,12})\}(?=_\{?1[1-6])", r"\1", "a numeral with letters",
         r"\text{B2}_{16}", "B2_{16}"),
    _make_rule("unit over unit", "frac", r"\\[dt]?frac\s*\{\s*" + _UNIT + r"\s*\}\s*\{\s*" + _UNIT + r"\s*\}",
         lambda m: rf"\text{{{m[1]}{m[2] or ''}}}/\text{{{m[3]}{m[4] or ''}}}".replace(" ", ""), "a unit with a fraction bar",
         r"\frac{\text{m}}{\text{s}^2}", r"\text{m}/\text{s^2}"),
    _make_rule("set without backslash", "{", r"^\s*\{(\s*[a-zA-Z]\s*(?:\\in\s*\\[a-zA-Z]{1,9}(?:\{[A-Z]\})?\s*)?(?:\||:|\\mid).{1,200})\}\s*$",
         r"\\{\1\\}", "braces that were meant to be seen", "{x | x > 2}", r"\{x | x > 2\}"),
    _make_rule("all but", "all",
         r"^(?:\\text\s*\{)?\s*all\s+real(?:s|\s+numbers)\s+(?:except|but|excluding|other\s+than)(?:\s+for)?\s*\}?([-\s\w\\{}/,=.$]{1,80})$",
         _exclude_values, "all real numbers but some", "all real numbers except 2", r"\mathbb{R}\setminus\{2\}"),
    _make_rule("choose", "C", r"^\s*(\d{1,6})\s*C\s*(\d{1,6})\s*$", r"\\binom{\1}{\2}", "binomials on a calculator", "5C2", r"\binom{5}{2}"),
    _make_rule("for all", "for", _FOR_ALL + r"(?:\s*\\in\s*" + _REALS + r")?\s*\}?[\s$.]*$", "", "a formula holds for all of a letter",
         r"2x\text{ for all real }x", "2x"),
    _make_rule("over the reals", r"\in", r"\s*,\s*([a-zA-Z])\s*\\in\s*" + _REALS + r"[\s$.]*$", _drop_real_domain,
         "a function with the default domain, all reals", r"f(x)=2x, x\in\mathbb{R}", "f(x)=2x"),
    _make_rule("all that", "ll", r"^\\text\s*\{\s*[Aa]ll(?:\s+real)?(?:\s+numbers)?\s*\}\s*(?=[a-zA-Z]\s*(?:\\(?:[gl]e|ne)|[<>]))", "",
         "all x with a condition", r"\text{all }x>2", "x>2"),
    _make_rule("therefore", r"\there \because \implies ightarrow", r"^\s*\\(?:therefore|because|implies|(?:Long)?[rR]ightarrow)(?![a-zA-Z])\s*",
         "", "an arrow before the answer", r"\Rightarrow x=5", "x=5"),
    _make_rule("implied", r"\implies \Rightarrow \Longrightarrow",
         r"^.{1,300}=.{0,300}\\(?:implies|(?:Long)?Rightarrow)(?![a-zA-Z])\s*(?=[^=]{1,60}=)", "",
         "the last of equations that follow from each other", r"2x = 6 \implies x = 3", "x = 3", re.DOTALL),
    _make_rule("currency", "US EUR GBP INR JPY", r"(?:\\text\s*\{\s*)?\b(USD|EUR|GBP|INR|JPY|US(?=\\?\$))\s*\}?\s*\\?\$?\s*(?=\d)",
         lambda m: _MONEY[m[1]], "a currency by its code", "USD 5", r"\$5"),
    _make_rule("large money", "$", r"(\$\s*\d[\d.,]{0,15})\s*([kKMB])(?=\s*[.$]?\s*$)", lambda m: rf"{m[1]} {_LARGE[m[2]]}",
         "thousands by a letter, of money only", r"\$70k", r"\$70 thousand"),
    _make_rule("per cent", "cent", r"\bper\s+cent\b", "percent", "two words for one", "5 per cent", "5 percent"),
    _make_rule("sign in a text", "%}", r"\\(?:text|mathrm|textbf|mathbf)\s*\{\s*\\?%\}", r"\\%", "a percent sign set as a text",
         r"5\text{\%}", r"5\%"),
    _make_rule("rupees", "Rs", r"(?:\\text\s*\{\s*)?\bRs\.?\s*\}?\s*(?=\d)", r"\\text{rupee}", "rupees before the amount", "Rs. 5",
         r"\text{rupee}5"),
    _make_rule("ordinal", "st nd rd th", r"^\s*(\d{1,6})\s*\^?\{?(?:\\(?:text|mathrm)\s*\{)?\s*(?:st|nd|rd|th)\s*\}?\}?(?:\s+place)?\s*$", r"\1",
         "a number as an ordinal", r"12^{\text{th}}", "12"),
    _make_rule("colon", "{:}", r"(?<=\d)\{:\}(?=\d)", ":", "a colon set without space", "3{:}45", "3:45"),
    _make_rule("domain in brackets", r"\in", r"(?:\\[ ,;:]|\\q?quad|\s){0,8}\(\s*([a-zA-Z])\s*\\in\s*([^()]{1,30})\)(?=[\s.$]*$)",
         r", \1 \\in \2", "where a letter runs, in brackets", r"2k (k\in\mathbb{Z})", r"2k, k \in \mathbb{Z}"),
    _make_rule("domain in words", r"\in",
         r"\\text\s*\{\s{0,4},?\s{0,4}(?:where|with|for(?: any| all| some| every)?)\s*\}\s*(?=[a-zA-Z]\s*\\in)", ", ",
         "the same behind words", r"2k\text{ where }k\in Z", r"2k, k\in Z"),
    _make_rule("condition in words", r"\g \l \n > <",
         r"(?<!&)(?<!& )\\text\s*\{\s{0,4},?\s{0,4}(?:where|with|for|when|if)(?: all| any| every| each)?\s*\}\s*\$?(?=[a-zA-Z]\s*(?:\\(?:[gl]e|neq?)|[<>]))",
         ", ", "a condition on a letter behind words", r"2^n\text{ for }n\ge1", r"2^n, n\ge1"),
    _make_rule("approximation in brackets", "approx",
         r"\s*(?:\\text\s*\{\s*)?\(\s*(?:approximately|approx\.?|about|\\approx)\s*(-?\d{1,12}(?:\.\d{1,12})?)\s*\)\s*\}?\s*$", r"\\approx \1",
         "a decimal beside the exact value", r"\sqrt{10}\text{ (approximately 3.16)}", r"\sqrt{10}\approx 3.16"),
    _make_rule("parts", "a)", r"^.{0,12}?\(?a\).{1,2000}$", _make_tuple_of_parts, "the answers to lettered parts, in order",
         r"(a) 5, (b) 12", "(5, 12)", re.DOTALL),
    _make_rule("numbered parts", "2. 2)", _NUMBERED_LIST, _make_tuple_of_parts, "the answers to numbered parts, in order",
         "1. 5 2. 12", "(5, 12)", re.DOTALL),
    _make_rule("thousands", "~ \\; \\: \\", r"(?<![\d.,])[1-9]\d{0,2}(?:\s?(?:\\[;: ]|~)\s?\d{3}){1,5}(?![\d.,]\d|\d)", _keep_digits,
         "thousands set apart by a space", r"10\;080", "10080"),
    _make_rule("half line", "R", r"\\(?:mathbb\s*\{?\s*R\s*\}?|R(?![a-zA-Z]))\s*_\s*\{?\s*(\\[lg]e(?:q|qslant)?(?![a-z])|[<>])\s*0\s*\}?",
         _make_half_line, "the real numbers on one side of zero", r"\mathbb{R}_{\le 0}", r"(-\infty, 0]"),
    _make_rule("small o", r"^o ^{o} ^\t ^{\t ^\m ^{\m",
         r"(?<=[\d}])\s*\^\s*(?:\{\s*o\s*\}|o(?![a-zA-Z])|\{?\s*\\(?:text|mathrm)\s*\{\s*o\s*\}\s*\}?)", r"^\\circ",
         "a small o for a degree sign", "145^{o}", r"145^\circ"),
    _make_rule("empty text", "text mathrm mbox", r"\\(?:text|mathrm|mbox)\s*\{\s*\}", " ", "a text command with nothing in it", r"2 \text{ }\Omega",
         r"2  \Omega"),
    _make_rule("assignment", ":=", r":=", "=", "an equation as a definition", "x:=7", "x=7"),
    _make_rule("measure of an angle", r"\angle", r"\bm\s*(?=\\angle)", "", "the measure of an angle is written like the angle", r"m\angle A=30",
         r"\angle A=30"),
    _make_rule("figure in words", "angle", r"(?:\\text\s*\{\s*)?(?<![\\a-zA-Z])(triangle|angle)\s*\}?\s*(?=[A-Z]{3}(?![a-zA-Z]))", r"\\\1 ",
         "a figure by its word", r"\text{triangle } ABC", r"\triangle ABC"),
    _make_rule("yes or no", "es o ue se", r"^\s*(?:\\text\s*\{)?\s*(yes|no|true|false)\s*[,;.:]\s+(.{1,80})$", _drop_reason,
         "a reason behind yes or no", r"\text{Yes, it is}", r"\text{Yes}", re.IGNORECASE),
    _make_rule("said twice", "(", r"^\s*(\d{1,9})\s*\(\s*([a-z][a-z -]{2,60})\s*\)\s*$", _drop_repetition, "a number, and the same in words",
         "12 (twelve)", "12", re.IGNORECASE),
)  # fmt: skip


_RULES_BY_TRIGGER: dict[str, list[int]] = {}
for _place, _spelling in enumerate(SPELLING_RULES):
    for _sign in _spelling.triggers:
        _RULES_BY_TRIGGER.setdefault(_sign, []).append(_place)


def _convert_outward_brackets(text: str) -> str:
    """Convert square brackets that are turned outward: `]a, b[` is the open interval (a, b).

    >>> _convert_outward_brackets("]0, 1]")
    '(0, 1]'
    """
    places = [at for at, sign in enumerate(text) if sign in "[]"]
    pairs = list(zip(places[::2], places[1::2], strict=False))
    if len(places) % 2 or not 1 <= len(pairs) <= 6 or all(text[a] == "[" and text[b] == "]" for a, b in pairs):
        return text
    if any(len(re.findall("[,;]", text[a:b])) != 1 for a, b in pairs):
        return text
    signs = list(text)
    for a, b in pairs:
        signs[a] = "(" if text[a] == "]" else "["
        signs[b] = ")" if text[b] == "[" else "]"
    return "".join(signs)


def standardize_notation(text: str) -> str:
    r"""Rewrite a text in the notation that the grammar parses.

    >>> standardize_notation(r"\color{blue}{0.\dot{3}}"), standardize_notation("]0, 1]")
    ('{0.\\overline{3}}', '(0, 1]')
    """
    if "  " in text or "\n" in text or "\t" in text:
        text = " ".join(text.split())  # long runs of spaces make regular expressions slow
    at = 0
    while at < len(SPELLING_RULES):
        tried = sorted({row for sign in _RULES_BY_TRIGGER if sign in text for row in _RULES_BY_TRIGGER[sign] if row >= at})
        for row in tried:
            changed = SPELLING_RULES[row].pattern.sub(SPELLING_RULES[row].replacement, text)
            if changed != text:  # the change may add a sign of a later row
                text, at = changed, row + 1
                break
        else:
            break
    return _convert_outward_brackets(text) if ("[" in text or "]" in text) and r"\sqrt" not in text else text
