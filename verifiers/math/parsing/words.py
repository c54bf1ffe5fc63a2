"""Parse answers in words, and strip the wrapping around answers: dollar signs, text commands, a final period."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlvr.verifiers.math.parsing.tree import Tree
from rlvr.verifiers.math.parsing.units import CARDINALS, NUMBER_MULTIPLES, VALUE_CHANGING_WORDS

_COMMAND = re.compile(
    r"\\(?:text|textnormal|textup|textbf|textit|textrm|textsf|texttt|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname|emph|boldsymbol)\*?\s*\{"
)
_FUNCTION_WORDS = "sin cos tan cot sec csc log ln exp sqrt pi oo inf infinity infty det max min gcd lcm"
_FUNCTION_WORDS += " and or arcsin arccos arctan tg ctg arctg arcctg mod"
_MATH_WORDS = frozenset(_FUNCTION_WORDS.split())
_SHORT_WORDS = "yes no odd even true both none all any red blue one two six ten east west dne saturday sunday monday"
_SHORT_ANSWERS = frozenset(_SHORT_WORDS.split())
_WORDY = re.compile(r"[a-zA-ZÀ-ɏ0-9 ,.'&()/:-]+")
_RUN = re.compile("[a-zA-ZÀ-ɏ]{2}")
_BREAK = re.compile(r"\s{0,4}[,;]?\s{0,4}\\\\(?=\s|\d|-|[a-zA-Z](?![a-zA-Z]))\s*")
_ESCAPED = re.compile(r"\\\\[a-zA-Z]{2}")
_GROUPED = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")


class AnswerWording(NamedTuple):
    """Several wordings of one answer: the pattern, the canonical wording, and one example, which a test runs.

    >>> AnswerWording(re.compile("dne|undefined"), "does not exist", "dne").pattern.fullmatch("dne") is not None
    True
    """

    pattern: re.Pattern[str]
    meaning: str
    example: str


_OF_WHAT = "(?:(?:the |this )?(?:series|integral|sequence) )?"
PHRASES = tuple(
    AnswerWording(re.compile(pattern), becomes, example)
    for pattern, becomes, example in (
        (
            r"(?:there (?:is|are) |(?:the |this )?(?:equation|system|inequality) has )?"
            r"no (?:real |possible )?(?:solution|root)s?(?: exists?)?|(?:the )?empty set",
            "no solution",
            "the equation has no real solution",
        ),
        (r"(?:there are )?infinitely many(?: solutions)?", "infinitely many solutions", "infinitely many"),
        (r"dne|(?:the |this )?(?:limit )?does not exist|undefined|not defined", "does not exist", "the limit does not exist"),
        (_OF_WHAT + r"(?:diverges|is divergent|divergent)", "diverges", "the series diverges"),
        (_OF_WHAT + r"(?:converges|is convergent|convergent)", "converges", "the integral converges"),
        (r"neither(?: even nor odd)?", "neither", "neither even nor odd"),
        (r"all reals?(?: numbers)?", "all real numbers", "all reals"),
    )
)
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DATE = re.compile(rf"(?:the )?(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTHS})(?:,? (\d{{4}}))?")
_AMERICAN_DATE = re.compile(rf"({_MONTHS}) (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?(?:,? (\d{{4}}))?")
_ORDINAL_WORDS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
ORDINALS = tuple(_ORDINAL_WORDS.split())
_SPOKEN_VALUES: dict[str, Tree] = {"positive infinity": ("const", "oo"), "plus infinity": ("const", "oo")}
_SPOKEN_VALUES |= {"negative infinity": ("neg", ("const", "oo")), "minus infinity": ("neg", ("const", "oo"))}
_SPOKEN_VALUES |= {"a dozen": ("num", 12, 1), "half a dozen": ("num", 6, 1)}
_SPOKEN_VALUES |= {f"{said} integers": ("const", "N" if "positive" in said else "Z") for said in ("positive", "all positive", "all")}
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)[\s:]*)?(?:[(\[]\s*([A-J])\s*[)\]][.:]?|([A-J])[.:)]?)(?P<rest>[\s~:.].*|\\.*|)", re.IGNORECASE | re.DOTALL
)

_TEXT_OF_CHOICE = re.compile(
    r"^(?:(?:option|choice)\s+([A-J]),\s+(?=[a-zA-Z]{3}|\d)|(?:(?:option|choice)\s+)?([A-J])(?:\s*[—–]\s*|\s+-\s+)(?=[a-zA-Z]{3}))",
    re.IGNORECASE,
)
"""A letter, a dash and the text of the option: `E — Hyperbola`; after the word option a comma will do: `option C, 29`."""
_DENIAL_WORDS = re.compile(
    r"\b(?:wrong|incorrect|invalid|false|unless|except|versus|vs|rejected|eliminated|excluded|ruled|is impossible|tempting|trap"
    r"|(?<!all )but|if|instead|rather|almost|nearly|perhaps|maybe|possibly|unlikely|(?:no|never|minus|else)$)\b|n't\b",
    re.IGNORECASE,
)
"""Words after the letter of a choice that deny it or make it conditional."""
_RELATION_SIGN = re.compile(
    r"[-+*/=^(]|\\(?:n?eq?|not(?:in)?|cup|cap|in|[lg]e?q?|[lg]t|to|pm|mp|sim|approx|equiv|l?or|vee|wedge|land|lnot|neg)(?![a-zA-Z])"
)
"""Signs after the letter of a choice that make it part of a formula."""


def _denies_choice(rest: str) -> bool:
    """Whether the words after the letter of a choice deny it; the option's own text may be a denial: `(B) False`."""
    return rest not in ("False", "No", "Never") and _DENIAL_WORDS.search(rest) is not None


def strip_math_delimiters(text: str) -> str:
    r"""Strip what only wraps the text: math delimiters, Markdown marks, a text command, outer braces, and a final period.

    >>> strip_math_delimiters(r"$\text{(C)}.$")
    '(C)'
    """
    text = text.strip()
    if "\\\\" in text and "\\begin" not in text:
        text = text if _ESCAPED.search(text) else _BREAK.sub(", ", text.removesuffix("\\\\"))
        text = text.replace("\\\\", "\\")
    for _ in range(6):
        if text[:1].isalnum() and (text[-1].isalnum() or text[-1] in ")]}%"):
            break  # nothing is wrapped around it
        before = text
        text = re.sub(r"(?<!\\)\\$", "", text.strip().strip("\u200b"))
        if len(text) > 1 and text[-1] == "," and text[-2] != "\\":
            text = text[:-1].rstrip()
        if len(text) > 1 and text[-1] == "." and not text.endswith(".."):
            text = text[:-1].rstrip()
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ("<answer>", "</answer>")):
            inside = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inside:
                text = inside
                break
        match = _COMMAND.match(text)
        if match and text.endswith("}") and _is_brace_closed_at_end(text, match.end()):
            text = text[match.end() : -1]
        if (
            text[:1] == "{"
            and text[-1] == "}"
            and _is_brace_closed_at_end(text, 1)
            and not any(sign in text for sign in ("|", ":", r"\mid"))
        ):
            text = text[1:-1]  # braces that TeX does not show; a set with a condition may have lost its backslashes
        text = re.sub(r"^(?:=|\\(?:approx|displaystyle|textstyle|large|Large|LARGE|huge|Huge|bf|bold)(?![a-zA-Z]))\s*", "", text)
        text = re.sub(r"^(?:\\[,;:! ]|~)+|(?:\\[,;:!]|~)+$", "", text)
        if text == before:
            break
    return text.replace(" ", "") if " " in text and _GROUPED.fullmatch(text) else text


def _is_brace_closed_at_end(text: str, start: int) -> bool:
    """Whether the brace opened before `at` closes only at the very end."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place == len(text) - 1
    return False


def parse_choice(text: str) -> str | None:
    """Parse a multiple-choice answer and return its letter as a capital: `(C)`, `C.`, `(C) 12`, `option_name c`; None for other texts."""
    if len(text) > 300:
        return None
    shown = " ".join((_COMMAND.sub("", text).replace("}", "") if _COMMAND.search(text) else text).split())
    match = _CHOICE.fullmatch(_TEXT_OF_CHOICE.sub(lambda found: f"{found[1] or found[2]}: ", shown, count=1))
    if match is None:
        return None
    shown = match[0]
    bracketed, bare = match[1], match[2]
    letter, rest = (bracketed or bare), match["rest"].strip(" .:~")
    if bare and not rest and not bare.isupper() and len(shown) == 1:
        return None
    if rest:
        marked = bracketed or (shown[:2] in (f"{bare}.", f"{bare}:", f"{bare})") and bare and bare.isupper())
        other = re.match(r"[A-Z][\w{}]*\s*=", rest) or re.search(
            r"[(\[]\s*[A-Ja-j]\s*[)\]]|\b(?:or|and|not)\b|\bno,|\b[A-J][.:)]|\b[B-HJ]$", rest
        )
        if not marked or other or _denies_choice(rest) or not re.match(r"[\w$\\(\[-]", rest) or rest[0] in "^_":
            return None
        if bracketed and (not bracketed.isupper() or _RELATION_SIGN.match(rest)):
            return None
    return letter.upper() if letter.isupper() or bracketed or rest == "" else None


def parse_numeral_with_letter_digits(text: str) -> Tree | None:
    r"""Parse a numeral with letters for digits, in a base above ten: `FF_{16}`; one letter alone is a letter with an index.

    >>> parse_numeral_with_letter_digits("1A_{16}")
    ('base', '1A', 16)
    """
    match = re.fullmatch(r"\(?([0-9A-Za-z]{2,64})\)?\s*_\s*(?:\{\s*(\d\d)\s*\}|(\d\d))", text)
    if match is None or match[1].isdigit():
        return None
    base = int(match[2] or match[3])
    if not 11 <= base <= 36 or any(int(digit, 36) >= base for digit in match[1]):
        return None
    return ("base", match[1].upper().lstrip("0") or "0", base)


def parse_words(text: str, *, only_if_unambiguous: bool) -> Tree | None:
    """Read a text as words: with `only_if_unambiguous` only if it can be nothing else, otherwise any plain words; None if it is not
    words.
    """
    if len(text) > 200:
        return None
    shown = _COMMAND.sub(" ", text).replace("}", " ") if _COMMAND.search(text) else text
    shown = " ".join(shown.replace("\\&", "&").replace('"', "").replace("\\ ", " ").split()).strip(" .,!")
    if not _WORDY.fullmatch(shown) or not _RUN.search(shown):
        return None
    if shown.startswith(("-", "/", ":", ")", "&")):
        return None
    runs = re.findall(r"[a-zA-ZÀ-ɏ]+", shown)
    low = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", shown.lower())
    if low in _SPOKEN_VALUES:
        return _SPOKEN_VALUES[low]
    number = parse_number_words(low)
    if number is not None:
        return ("num", number, 1)
    said = next((saying.meaning for saying in PHRASES if saying.pattern.fullmatch(low)), "") or parse_date(low)
    if said:
        return ("text", said)
    if only_if_unambiguous:
        if any(c.isdigit() for c in shown) or any(run.lower() in _MATH_WORDS for run in runs):
            return None
        if not re.fullmatch(r"[a-zA-ZÀ-ɏ ,.'&-]+", shown) or ("," in shown and runs[0].lower() not in ("yes", "no", "true", "false")):
            return None
        if len(runs) == 1 and not (
            len(shown) > 3 or low in _SHORT_ANSWERS or (shown[0].isupper() and (shown[1:].islower() or shown.isupper()))
        ):
            return None
        if all(len(run) == 1 for run in runs):
            return None
    return ("text", low)


def parse_number_words(text: str) -> int | None:
    """Parse an integer in words; None for anything else.

    >>> parse_number_words("twenty-one"), parse_number_words("three hundred and five"), parse_number_words("five two")
    (21, 305, None)
    >>> parse_number_words("three dozen"), parse_number_words("dozen three")
    (36, None)
    """
    if (dozens := re.fullmatch(r"(.+)[ -]dozens?", text)) is not None:
        number = parse_number_words(dozens[1]) if "dozen" not in dozens[1] else None
        return number and number * NUMBER_MULTIPLES["dozen"]
    total, group, last = 0, 0, ""
    words = re.split(r"[ -]+", text)
    if not words or words[0] not in CARDINALS or len(words) > 12:
        return None
    for word in words:
        value = CARDINALS.get(word)
        if value is not None:
            fits = group % 100 == 0 if value >= 10 or not value else group % 10 == 0 and group % 100 not in range(10, 20)
            if not fits or (last in CARDINALS and not CARDINALS[last] >= 20) or last == "zero":
                return None
            group += value
        elif word == "hundred" and 0 < group < 10:
            group *= 100
        elif (
            word in ("thousand", "million", "billion", "trillion")
            and group > 0
            and (not total or total % (NUMBER_MULTIPLES[word] * 1000) == 0)
        ):
            total, group = total + group * NUMBER_MULTIPLES[word], 0
        elif word != "and" or last not in NUMBER_MULTIPLES:
            return None
        last = word
    return None if last == "and" else total + group


def parse_date(text: str) -> str:
    """Parse a date and return it in one standard wording; "" for anything else.

    >>> parse_date("14 march"), parse_date("march 14th, 2020"), parse_date("march past")
    ('march 14', 'march 14 2020', '')
    """
    if match := _DATE.fullmatch(text):
        month, day, year = match[2], match[1], match[3]
    elif match := _AMERICAN_DATE.fullmatch(text):
        month, day, year = match[1], match[2], match[3]
    else:
        return ""
    return " ".join([month, str(int(day)), *([year] if year else [])])


def parse_spelled_word(text: str) -> Tree | None:
    r"""Parse two or three letters in a text command as a word: `\text{ba}`; a bare `ba` is a product.

    >>> parse_spelled_word(r"$\text{ba}$")
    ('text', 'ba')
    """
    match = re.fullmatch(r"\$?\\(?:text(?:bf|it|rm)?|mbox)\s*\{\s*([a-zA-Z]{2,3})\s*\}\$?", text.strip())
    return ("text", match[1].lower()) if match and match[1].lower() not in _MATH_WORDS else None


_SUBJECTS = "function graph series integral sequence answer number result statement triangle matrix system relation limit product sum"
_SUBJECTS += " value integer expression polynomial curve conic equation shape figure quadrilateral polygon set parity claim proposition"
_SUBJECTS += " lines planes vectors events variables solution day winner color colour"
_SUBJECT = f"(?:given |whole |resulting |final |original |above |correct )?(?:{'|'.join(_SUBJECTS.split())})"
_STATEMENT = re.compile(rf"(?:it|(?:the|this|that) {_SUBJECT}) (?:is|are) (?=[a-z])")
"""A statement about the subject of the question; one about another subject, such as its derivative, is another answer."""


_CONGRUENCE_THEOREM = re.compile(
    r"(?:by )?(?:the )?(sss|sas|asa|aas|hl|rhs|aa)(?: (congruence|similarity))?(?: (?:criterion|postulate|theorem|rule|condition))?"
)
"""A theorem about triangles: `by SAS congruence`."""


def is_same_wording(gold: str, answer: str) -> bool:
    """Whether two texts in words are equal: articles and marks are ignored, and names joined by `and` match in any order.

    >>> is_same_wording("alice and bob", "bob, alice"), is_same_wording("an even number", "odd number")
    (True, False)
    """
    theorem, mine = _CONGRUENCE_THEOREM.fullmatch(gold), _CONGRUENCE_THEOREM.fullmatch(answer)
    if theorem and mine:
        return theorem[1] == mine[1] and (theorem[2] == mine[2] or not theorem[2])
    wanted, given = _split_names(gold), _split_names(answer)
    if " and " in gold and len(wanted) == len(given) > 1:
        return sorted(wanted) == sorted(given)
    return wanted == given


def _split_names(text: str) -> list[str]:
    bare = re.sub(r"[()-]", " ", re.sub(r"^all (?!but|except|of)", "", text)).replace("right angled", "right")
    stated = _STATEMENT.match(bare)
    if stated and not VALUE_CHANGING_WORDS & set(stated[0].split()):  # the function is even
        bare = bare[stated.end() :]
    named = (" ".join(w for w in part.split() if w not in ("the", "a", "an")) for part in re.split(r",| and ", f" {bare} "))
    return [part for part in named if part]


def parse_circled_numbers(text: str) -> Tree | None:
    """Parse circled numbers as names of statements, in any order; None for anything else.

    >>> parse_circled_numbers("②①") == parse_circled_numbers("①, ②")
    True
    """
    bare = re.sub(r"[\s,;、，$]|\\(?:text|mathrm|,|;|quad)|[{}]", "", text[:200])
    return ("text", "statements " + "".join(sorted(set(bare)))) if re.fullmatch("[①-⑳]{1,20}", bare) and len(text) <= 200 else None
