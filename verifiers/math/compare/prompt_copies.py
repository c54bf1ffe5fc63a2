r"""Detect answers copied from the question: an expression that is in the prompt, and is not the gold itself, was not evaluated.

Three conditions must all hold: the answer contains arithmetic (a bare number, a letter, a word, a list of numbers never does);
it is in the prompt, as a formula up to the order of its terms, or literally; and it is not the gold's own expression.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from rlvr.verifiers.math.compare.compare import find_assigned_name, split_assignment
from rlvr.verifiers.math.compare.scalars import CompareContext
from rlvr.verifiers.math.compare.worked_out import contains_tree, list_remaining_steps
from rlvr.verifiers.math.conventions import MathConventions
from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError, Tree, describe_tree, get_free_symbols, has_op, sort_terms
from rlvr.verifiers.math.values.cost import reset_budget
from rlvr.verifiers.math.values.rational import NotFinite

ARITHMETIC_OPS = ("add", "mul", "div", "pow", "root", "fun", "fact", "binom", "pm", "sum", "prod", "integral", "limit", "deriv")
MAX_FORMULAS = 200
MAX_PLACES = 50
"""A decimal with more places is not the other spelling of a whole number."""
_ENVIRONMENTS = "align|aligned|alignat|equation|gather|multline|eqnarray|flalign|displaymath|math"
_MATH_SPAN = re.compile(
    r"\$\$(.{1,600}?)\$\$|\$([^$]{1,600})\$|\\\((.{1,600}?)\\\)|\\\[(.{1,600}?)\\\]"
    rf"|\\begin\{{(?:{_ENVIRONMENTS})\*?\}}(.{{1,600}}?)\\end\{{(?:{_ENVIRONMENTS})\*?\}}",
    re.DOTALL,
)
_PLAIN_FORMULA = re.compile(
    r"(?:(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|\\(?:frac|sqrt|cdot|times|left|right)(?![a-zA-Z])|[-+*/^()\[\]{}\d. ×·÷−]){3,600}+"
)
"""A run of numbers, single letters, operators and brackets in the words of a question: `Expand (x+1)(x+2) - 2x`."""
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|q?quad|big|Big)(?![a-zA-Z])|\\[,;:! ]|[$~]")
_TIMES_SIGN = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|[×·∙⋅]")


def explain_prompt_copy(gold: str, answer: str, prompt: str) -> str:
    r"""Explain why an answer is only a copy from the question; "" if it is not.

    >>> explain_prompt_copy("391", r"17 \cdot 23", "What is $17 \\cdot 23$?"), explain_prompt_copy("391", "391", "Is it 391?")
    ('it is copied from the question: 17*23', '')
    """
    formulas = _collect_prompt_formulas(prompt)
    if not formulas and not _is_in_prompt(answer, prompt):
        return ""
    tree, wanted = _parse_sorted(answer), _parse_sorted(gold)
    if tree is None or wanted is None:
        return ""
    parts = tree[1::2] if tree[0] == "rel" else (tree,)
    if not any(has_op(part, *ARITHMETIC_OPS) and not find_assigned_name(part) for part in parts):  # AB = 5 is a named number
        return ""
    own = [tree, *tree[1::2]] if tree[0] == "rel" and has_op(wanted, *ARITHMETIC_OPS) else [tree]
    if wanted in own:
        return ""
    if tree in formulas or _is_in_prompt(answer, prompt):
        return f"it is copied from the question: {describe_tree(tree)}"
    return _explain_unfinished_rewriting(wanted, _take_last_side(wanted, tree), formulas)


def _take_last_side(gold: Tree, answer: Tree) -> Tree:
    r"""Take the end of a calculation that begins with the question's formula: 1024 of `2^{10} = 1024`; a name is no end of it."""
    is_calculation = answer[0] == "rel" and gold[0] != "rel" and all(sign == "=" for sign in answer[2::2])
    sides = [side for side in answer[1::2] if not find_assigned_name(side)] if is_calculation else []
    return sides[-1] if sides else answer


def _explain_unfinished_rewriting(gold: Tree, answer: Tree, formulas: frozenset[Tree]) -> str:
    """Explain which step from a formula of the question to the gold an answer has not done; "" if there is no such formula.

    A formula of the gold's value shows that the question asks for another form: what separates the two is the task. An answer that
    still holds the formula, or needs a step that the gold does not need, has not done it.
    """
    formulas = frozenset(formula for formula in formulas if formula != gold and formula[0] in ARITHMETIC_OPS)
    if not formulas:
        return ""
    done = {step.kind for step in list_remaining_steps(gold)}
    mine = {step.kind for step in list_remaining_steps(answer)}
    for formula in formulas:
        missing = ({step.kind for step in list_remaining_steps(formula)} - done) & mine
        held = contains_tree(answer, formula) and not contains_tree(gold, formula)
        if (missing or held) and _is_same_value(formula, gold):
            return f"it is not worked out: it is the question's {describe_tree(formula)} in another form"
    return ""


def _is_same_value(tree: Tree, other: Tree) -> bool:
    """Whether two expressions have one value, as far as expansion and sample points tell."""
    value = split_assignment(other)[1]
    if get_free_symbols(tree) != get_free_symbols(value):
        return False
    reset_budget()
    try:
        return CompareContext(MathConventions()).is_same_value(tree, value)
    except (LimitExceeded, NotFinite):
        return False


@lru_cache(maxsize=8192)
def _parse_sorted(text: str) -> Tree | None:
    """Parse a text and sort the terms of its tree; None if it cannot be parsed."""
    try:
        tree = parse_answer(text)
        return sort_terms(_write_briefly(tree) if has_op(tree, "dec", "mul") else tree)
    except (ParseError, LimitExceeded, NotFinite):
        return None


def _write_briefly(tree: Tree) -> Tree:
    """Write 3.0 as 3, and `r r` as a power: the same formula in another spelling."""
    tree = tuple(_write_briefly(arg) if isinstance(arg, tuple) and arg and isinstance(arg[0], str) else arg for arg in tree)
    if tree[0] == "dec" and tree[2] > 0 and tree[1] % 10 ** min(tree[2], MAX_PLACES) == 0 and tree[2] <= MAX_PLACES:
        return ("num", tree[1] // 10 ** tree[2], 1)
    if tree[0] == "mul" and len(set(tree[1:])) < len(tree) - 1:
        letters = Counter(factor for factor in tree[1:] if factor[0] == "sym")
        powers = [letter if count == 1 else ("pow", letter, ("num", count, 1)) for letter, count in letters.items()]
        factors = [*(factor for factor in tree[1:] if factor[0] != "sym"), *powers]
        return ("mul", *factors) if len(factors) > 1 else factors[0]
    return tree


def list_math_spans(prompt: str) -> list[str]:
    r"""List the texts between math delimiters, and the lines of environments.

    >>> list_math_spans(r"Take $x$ and \begin{align*} (x+1)^2 &= y \\ z \end{align*}.")
    ['x', '(x+1)^2 = y', 'z']
    """
    spans = list[str]()
    for match in _MATH_SPAN.finditer(prompt):
        span = next(part for part in match.groups() if part)
        spans += [line.strip() for line in span.replace("&", "").split(r"\\")] if match.lastindex == 5 else [span]
    return [span for span in spans if span][:MAX_FORMULAS]


def _list_plain_formulas(prompt: str) -> list[str]:
    """List what looks like a formula with an operation in the words of a question that has no delimiters."""
    found = (match[0].strip(" .") for match in _PLAIN_FORMULA.finditer("" if _MATH_SPAN.search(prompt) else prompt))
    return [text for text in found if len(text) > 2 and re.search(r"[-+*/^×·÷−(\\]", text)]


@lru_cache(maxsize=1024)
def _collect_prompt_formulas(prompt: str) -> frozenset[Tree]:
    """Collect the formulas of a question, with the sides of equations and the members of lists."""
    spans = [*list_math_spans(prompt), *_list_plain_formulas(prompt)][:MAX_FORMULAS]
    todo = [tree for span in spans if (tree := _parse_sorted(span.strip().rstrip("?.,;:!= \n"))) is not None]
    for tree in todo:  # which grows in the loop
        if tree[0] in ("rel", "list", "tuple", "set"):
            todo.extend(arg for arg in tree[1:] if isinstance(arg, tuple))
    return frozenset(todo)


def _is_in_prompt(answer: str, prompt: str) -> bool:
    """Whether the answer's text is in the prompt literally, and not as a part of something longer."""
    part, whole = strip_layout(answer), strip_layout(prompt)
    at = whole.find(part)
    while part and at >= 0:
        before, after = whole[at - 1 : at] if at else " ", whole[at + len(part) : at + len(part) + 1]
        joined = (before.isalnum() and part[0].isalnum()) or before in (".", "\\", "^", "_")
        if not joined and not (after.isalnum() and part[-1].isalnum()) and after not in ("^", "_", "!"):
            return True
        at = whole.find(part, at + 1)
    return False


@lru_cache(maxsize=1024)
def strip_layout(text: str) -> str:
    r"""Strip layout commands, dollar signs and needless spaces from a text.

    >>> strip_layout(r"$\dfrac12 \cdot x$")
    '\\frac12*x'
    """
    text = _TIMES_SIGN.sub("*", text.strip().strip("$").rstrip(".")).replace("\u2212", "-")
    text = _LAYOUT.sub("", re.sub(r"\\[dt]frac", r"\\frac", " ".join(text.split())))
    return re.sub(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])", "", text).replace("{,}", ",")
