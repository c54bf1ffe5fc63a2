r"""Read an answer in the words of its question: a value that follows the question's own formula, and named values in the question's order.

`5 \star 1 = 47` is 47 where the question asks for `5 \star 1`, although nobody but the question knows that operation. `b = 2, m = 1` is
(1, 2) where the question asks for `(m, b)`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

from rlvr.verifiers.math.compare.prompt_copies import list_math_spans, strip_layout
from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError
from rlvr.verifiers.math.values.rational import NotFinite, to_rational

_EQUALS = re.compile(r"(?<![<>=!:\\])(?:=|\\equiv(?![a-zA-Z])|≡)(?!=)")
_NAMES = re.compile(r"\(\s*(\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\s*,\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?)+)\s*\)")
_NAMED_VALUE = re.compile(r"\s*\$?\s*(\\?[a-zA-Z]+(?:_\{?\w+\}?)?)\s*=\s*([^=<>]+?)\s*\$?\s*")
_NAMES_AT_START = re.compile(r"\s*\$?\s*" + _NAMES.pattern + r"\s*=\s*\((.+)\)\s*\$?\s*", re.DOTALL)
_REQUEST = re.compile(
    r"\b(?:what\s+(?:is|are)|what's|compute|evaluate|find|calculate|determine|simplify|values?\s+of|remainder\s+(?:of|when))"
    r"(?:\s+(?:the|value|values|of|sum|product|exact|numerical|remainder|when|if))*[\s:]*(?:\$|\\\(|\\\[|\\begin\{\w+\*?\})*\s*$",
    re.IGNORECASE,
)
_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|qquad|quad)(?![a-zA-Z])|\\ ")
_LABEL = re.compile(r"\(?([A-J])\)?\.?")
_LABELLED = re.compile(r"\(?([A-J])[).:]+\s*(\S.{0,79})", re.DOTALL)
_OPTION = re.compile(r"\(([A-J])\)\s*([^()\n]{1,80}?)\s*(?=\([A-J]\)|\n|$)")
_BETWEEN = re.compile(r"[,;]|\\(?:text|mathrm)\s*\{\s*and\s*\}|\band\b")


def take_value_after_formula(answer: str, prompt: str) -> str:
    r"""Take what follows the question's own formula in an answer `formula = value`; "" if no formula of the question stands there.

    >>> take_value_after_formula(r"5 \star 1 = 47", r"If $a \star b = a + b$ ..., what is $5 \star 1$?")
    '47'
    >>> take_value_after_formula("x = 5", "What is $y$, if $x = 5$?")
    ''
    """
    parts = _EQUALS.split(answer.strip().strip("$"))
    if len(parts) != 2 or not prompt:
        return ""
    formula, value = strip_layout(parts[0]), parts[1].strip()
    if len(formula) < 3 or not value or not re.search(r"[^\w\s]", formula):  # a name alone is read by the grammar
        return ""
    return value if formula in _list_asked_formulas(prompt) and not _is_false_sum(parts[0], value) else ""


def order_named_values(gold: str, answer: str, prompt: str) -> str:
    """Write values with names as the tuple that the question asks for: `b = 2, m = 1` for `(m, b)`; "" if it does not ask so, or the gold
    is no tuple.

    >>> order_named_values("(1, 2)", "b = 2, m = 1", "Find the pair $(m,b)$."), order_named_values("(1, 2)", "(b, m) = (2, 1)", "Enter $(m,b)$.")
    ('(1,2)', '(1,2)')
    >>> order_named_values("(1, 2)", "b = 2, m = 1", "Find both numbers."), order_named_values("y=2, x=1", "y=2, x=1", "A point $(x,y)$ is ...")
    ('', '')
    """
    asked = {frozenset(names): names for names in _list_asked_tuples(prompt)}
    if not asked or not _is_tuple(gold):
        return ""
    if (tupled := _NAMES_AT_START.fullmatch(answer)) is not None:
        names, values = _split_names(tupled[1]), _split_at_commas(tupled[2])
    else:
        named = [_NAMED_VALUE.fullmatch(part) for part in _BETWEEN.split(answer)]
        if len(named) < 2 or not all(named):
            return ""
        names, values = tuple(part[1] for part in named if part), [part[2] for part in named if part]
    order = asked.get(frozenset(names))
    if order is None or len(set(names)) != len(names) or len(values) != len(names):
        return ""
    return f"({','.join(values[names.index(name)].strip() for name in order)})"


def explain_mislabelled_option(gold: str, answer: str, prompt: str) -> str:
    """Explain why the words behind the label of a choice are those of another option of the question; "" if they are not.

    >>> question = "Which is it? (A) Line (B) Plane (C) Sphere"
    >>> explain_mislabelled_option("(B)", "(B) Sphere", question), explain_mislabelled_option("(B)", "(B) Plane", question)
    ('it names the option B with the words of the option C', '')
    """
    named = _LABELLED.fullmatch(_strip_text_commands(answer))
    if named is None or _LABEL.fullmatch(_strip_text_commands(gold)) is None:
        return ""
    options = {label: _normalize_option(words) for label, words in _OPTION.findall(_strip_text_commands(prompt))}
    said = _normalize_option(named[2])
    other = next((label for label, words in options.items() if words == said), "") if said and said != options.get(named[1]) else ""
    return f"it names the option {named[1]} with the words of the option {other}" if other else ""


def _strip_text_commands(text: str) -> str:
    return _TEXT_COMMAND.sub("", text).replace("}", "").replace("{", "").replace("$", "").strip()


def _normalize_option(words: str) -> str:
    return " ".join(words.casefold().strip(" .,;:\\").split())


@lru_cache(maxsize=1024)
def _list_asked_formulas(prompt: str) -> frozenset[str]:
    """List the formulas whose value a prompt asks for, without layout: those right behind words such as `compute` or `what is`."""
    spans = (span.strip() for span in list_math_spans(prompt))
    asked = (span for span in dict.fromkeys(spans) if any(_REQUEST.search(before) for before in prompt.split(span)[:-1]))
    return frozenset(strip_layout(span.rstrip("?.,;:! \n")) for span in asked)


@lru_cache(maxsize=4096)
def _is_tuple(gold: str) -> bool:
    with suppress(ParseError, LimitExceeded):
        return bool(parse_answer(gold)[0] == "tuple")
    return False


def _is_false_sum(left: str, right: str) -> bool:
    """Whether both sides are numbers, and not the same; what cannot be read or computed is not known to be false."""
    with suppress(ParseError, LimitExceeded, NotFinite):
        values = [to_rational(parse_answer(side)) for side in (left, right)]
        return None not in values and values[0] != values[1]
    return False


@lru_cache(maxsize=1024)
def _list_asked_tuples(prompt: str) -> tuple[tuple[str, ...], ...]:
    """List the tuples of letters in a prompt that stand alone in a formula, `$(m,b)$`; a point such as `$(a,b)$` on a curve may be one."""
    spans = (span.strip().strip(".,;:") for span in list_math_spans(prompt))
    found = dict.fromkeys(_split_names(match[1]) for span in spans if (match := _NAMES.fullmatch(span)) is not None)
    return tuple(found) if len({frozenset(names) for names in found}) == len(found) else ()  # (x, y) and (y, x): the order is not known


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _split_at_commas(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts
