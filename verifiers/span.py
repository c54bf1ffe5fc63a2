"""Verify a short answer to a question by exact match or word F1, against one or several accepted answers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex
from rlvr.verifiers._unicode import normalize_unicode

LIST_SEPARATOR = re.compile(r"\s*(?:[,;\n]|\s/\s|(?<=\w)/(?=[A-Z])|\s(?:and|&|or)\s)\s*")
FIRM_SEPARATOR = re.compile(r"[;\n/&]|\s(?:and|or)\s")
METRICS = ("exact", "f1")
HEDGE_WORDS = {"not", "no", "never", "neither", "nor", "or", "either", "maybe", "perhaps", "possibly", "unless", "except"}
"""Words that negate an answer or hedge it. With F1, an answer that adds one of them scores 0."""
NORMALIZATION_RULES: tuple[tuple[str, str, str, str], ...] = (
    (r"(?<=\d),(?=\d{3}(?!\d))", "", "a comma that groups digits", "1,000 is 1000"),
    (r"[’‘`´]", "'", "other apostrophes", "rock ’n’ roll is rock 'n' roll"),
    (r"(?<=[^\W\d])'(?=[^\W\d])", "", "an apostrophe in a word", "St. John's is St Johns, O'Neil is ONeil"),
    (r"(?<=[^\W\d])[-‐‑–—/](?=[^\W\d])", " ", "a hyphen or slash between letters", "Jean-Luc is Jean Luc"),
    (r"(?<!\d)\.(?!\d)|(?<=\d)\.(?!\d)", "", "a full stop that is no decimal point", "St. is St"),
    (r"[\"“”„«»()\[\]{}!?;:]|,|(?<!\w)'|'(?!\w)", " ", "quotes, brackets and marks of sentences", "“Hamlet” is Hamlet"),
    (r"^\s*(?:a|an)\s+(?=\S)|\b(?:the)\b", " ", "articles; a and an only at the start (vitamin A is not vitamin)", "the Alps is Alps"),
)  # fmt: skip
"""Normalization rules: pattern, replacement, description, example. Signs that carry a value stay: + - # % $ / and decimal points."""

OVERLAYS = frozenset("\u0334\u0335\u0336\u0337\u0338\u20d2\u20d3\u20e5\u20eb")
"""Combining lines through a letter, which strike it out."""


class Span(Verifier):
    """The declared answer equals one of the accepted answers, apart from case, articles, punctuation and Latin accents.

    `metric="f1"` gives the word F1 instead, as in SQuAD; both are in the components. F1 pays a part for every right word, so a policy may add
    words: a list of several answers scores 0 where it can be recognized (`Paris, Rome, London`, `Paris and London`), but `Paris London` scores
    0.67. Use exact match where that matters. Unlike SQuAD's script, signs that change a value
    are kept: `1.5` is not `15`, `C++` is not `C`, and `-5` is not `5`.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("span").verify
    >>> verify(rlvr.Task(rlvr.make_user_prompt("?"), id="t", reference=["NYC", "New York City"]), "The answer is New York City.").score
    1.0
    """

    version = "4"  # 3: fonts of LaTeX do not count; 4: a line through a letter is no accent
    examples = (
        VerifierExample("the Eiffel Tower", correct=("Eiffel Tower", "The Eiffel tower."), incorrect=("tower", "Eiffel", "")),
        VerifierExample(["NYC", "New York City"], correct=("nyc", "new york city"), incorrect=("York", "New York City or Boston")),
    )

    def __init__(self, *, extractor: str = "auto", metric: str = "exact") -> None:
        """Set where the answer is declared and which metric is the score.

        Args:
            extractor: where the answer is declared: auto, whole, boxed, tag, hash, final_line or fence.
            metric: exact (0 or 1), or f1 (the overlap of words, from 0 to 1).
        """
        extract_answer("", extractor)
        if metric not in METRICS:
            raise ConfigError(f"metric is {metric!r}; {format_suggestion(metric, METRICS)}")
        self.extractor, self.metric = extractor, metric

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the declared answer with each accepted one; the best counts."""
        golds = task.reference if isinstance(task.reference, list | tuple) else [task.reference]
        if not golds or not all(isinstance(gold, str) and gold.strip() for gold in golds):
            return Verdict(None, f"the reference {task.reference!r:.80} is neither a text nor a list of texts", fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        said = _normalize_answer(found.text)
        if self.metric == "f1" and _lists_more_than_golds(found.text, golds):
            return Verdict(0.0, f"{found.text!r:.80} lists several answers", {"exact": 0.0, "f1": 0.0})
        exact = max(float(said == _normalize_answer(gold)) for gold in golds)
        parts = {"exact": exact, "f1": 1.0 if exact else max(_compute_f1(said, _normalize_answer(gold)) for gold in golds)}
        word = "is" if exact else "is not"
        return Verdict(parts[self.metric], f"{said!r:.80} {word} {' or '.join(map(repr, golds)):.120}", parts)


def _normalize_answer(text: str) -> str:
    """Normalize a text: Unicode form, accents, case, articles and punctuation.

    >>> _normalize_answer("The St. John's, “Beyoncé”"), _normalize_answer("vitamin A"), _normalize_answer("C++")
    ('st johns beyonce', 'vitamin a', 'c++')
    """
    plain = strip_markdown_and_latex(normalize_unicode("NFKC", text))
    short = _strip_accents(plain)
    for pattern, becomes, _why, _example in NORMALIZATION_RULES:
        short = re.sub(pattern, becomes, short, flags=re.IGNORECASE)
    short = " ".join(short.casefold().split())
    return short or " ".join(plain.casefold().split())  # "The The" and "!!!" are answers too


def _strip_accents(text: str) -> str:
    """Remove the accents of Latin letters; in other scripts an accent changes the word and stays."""
    if text.isascii():
        return text
    kept: list[str] = []
    latin = False
    for sign in normalize_unicode("NFD", text):
        if not unicodedata.combining(sign):
            latin = sign.isascii() and sign.isalpha()
        elif latin and sign not in OVERLAYS:
            continue
        kept.append(sign)
    return normalize_unicode("NFC", "".join(kept))


def _lists_more_than_golds(text: str, golds: Sequence[str]) -> bool:
    """Whether an answer lists several things where each accepted answer is one: words of a list would earn a part of the F1.

    Two things with a comma between them may be one ("Paris, France"); three, or two with `and`, `;` or a slash, are a list.
    """
    text = text.strip().strip(".")
    parts = [part for part in LIST_SEPARATOR.split(text) if part.strip()]
    listed = len(parts) > 2 or (len(parts) == 2 and FIRM_SEPARATOR.search(text) is not None)
    one_of_them = any(_normalize_answer(part) == _normalize_answer(gold) for part in parts for gold in golds)
    return listed and one_of_them and not any(LIST_SEPARATOR.search(gold) for gold in golds)


def _compute_f1(said: str, gold: str) -> float:
    mine, theirs = said.split(), gold.split()
    if (HEDGE_WORDS & set(mine)) - set(theirs):
        return 0.0
    same = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * same / (len(mine) + len(theirs)) if same else 0.0


make = Span
