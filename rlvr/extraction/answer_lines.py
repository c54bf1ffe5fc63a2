r"""Find answers declared by a line of prose: `The answer is 7`, `**Answer:** 7`, `#### 7`, or a concluding last sentence."""

from __future__ import annotations

import itertools
import re

from rlvr.extraction.boxes import get_inner_box_or_all
from rlvr.extraction.context_words import CHARS_BEFORE, is_denied, starts_new_part_or_correction
from rlvr.extraction.declaration_phrases import DENIAL, ENDING, get_declaration_patterns
from rlvr.extraction.extraction import MAX_DECLARATIONS, Extraction, deduplicate_keeping_last, require_agreement
from rlvr.extraction.retractions import is_closing_punctuation, is_same_value, parse_number, reject_retracted
from rlvr.extraction.trimming import strip_whitespace_and_emoji

_NUMERAL = re.compile(r"[-+\s$\\]*[\d.,/ ]+\s*[%a-zA-Z]{0,12}\.?")
_FINAL = re.compile(r"[\s#*_]*final\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s+\S)(?!\s*\d)|[。！？](?=\s*\S)")
_SECOND_ANSWER_MARK = re.compile(
    r"\d|\\boxed|\$|\b(?:or|maybe|zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|actually|kidding|wait|instead)\b",
    re.IGNORECASE,
)
"""Signs of a second answer in a sentence after the answer."""
_AFTERTHOUGHT = re.compile(
    r"[\s*_>#(-]*(?:wait|actually|hold\s+on|no,|scratch\s+that|correction|on\s+second\s+thought|or\b|maybe|perhaps|alternatively,?\s+(?:[$\\(*]*-?\d|(?:the|my|it)\s)"
    r"|(?:just\s+)?kidding|(?:an)?other\s+(?:\w+\s+)?answer|(?:alternative|second|backup|possible)\s+(?:\w+\s+)?answer)",
    re.IGNORECASE,
)
"""A line that withdraws the answer before it, or offers another one."""
_OTHER_SUBJECT = re.compile(
    r"\b(?:(?:for|of|than|times|twice|half|double|to\s+find|to\s+get|check|verify|confirm)\s+(?:the|this|our|my)"
    r"|wrong|incorrect|mistaken|naive)\s*$",
    re.IGNORECASE,
)
"""Words before "answer" which show that the clause is about something else, such as a bound for the answer or a wrong answer."""
_ALTERNATIVE_WORDS = re.compile(r"\b(?:alternative|alternate|another|other|second|backup|possible)\s+(?:\w+\s+)?$", re.IGNORECASE)
_CORRECTION_WORDS = re.compile(
    r"\b(?:wait|actually|correction|correcting|corrected|mistake|error|redo|recheck|recalculat\w+|wrong|incorrect)\b", re.IGNORECASE
)


def extract_hash_line(text: str) -> Extraction:
    """Extract the answer declared by the #### lines."""
    shown = [re.sub(r"^\*\*(####.*)\*\*$", r"\1", line.strip()) for line in text.splitlines()]  # a line in bold
    lines = [_strip_bold_number(line[4:].strip()) for line in shown if line.startswith("####")]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        return Extraction(None, "there is no #### line")
    numerals = [line for line in lines[:-1] if is_quantity_line(line)]  # the others are headings
    return require_agreement([*numerals, lines[-1]], "the #### line")


def extract_answer_phrase(text: str) -> Extraction:
    """Extract the answer declared by lines such as "the answer is 7"."""
    said, corrected, after = _find_declared_answers(text)
    if not said and corrected:
        return Extraction(None, "too many phrases speak of an answer, and the last ones deny it", ("the first", "the last"))
    if not said:
        return Extraction(None, "no line declares an answer")
    if _AFTERTHOUGHT.match(after[:200]):
        return Extraction(None, "the text after the answer may contain another answer", (said[-1], after.strip()[:80]))
    answers = []
    for place, line in enumerate(said, 1):
        head = _SENTENCE_END.split(_strip_ending_phrase(line), maxsplit=1)
        if (
            (place == len(said) or not corrected)
            and len(head) > 1
            and _SECOND_ANSWER_MARK.search(head[1])
            and not _is_check_sentence(_clean_answer_value(head[0]), head[1])
        ):
            return Extraction(None, "the text after the answer may contain another answer", (head[0], head[1]))
        answers.append(_clean_answer_value(head[0]))
    if len(deduplicate_keeping_last(answers)) > 1:  # "the answer is found by adding" is an explanation, if another line declares the answer
        answers = [answer for answer in answers if not _is_explanation(answer)] or answers
    if corrected and len(deduplicate_keeping_last(answers)) > 1:
        return reject_retracted(Extraction(answers[-1], "in the last answer line, which corrects the earlier ones"), after)
    found = require_agreement(answers, "the answer line")
    row = after.removeprefix("\n").partition("\n")[0]
    if found.text is not None and parse_number(found.text) is not None and parse_number(row) not in (None, parse_number(found.text)):
        return Extraction(None, "the next line holds another value", (found.text, row.strip()))
    return reject_retracted(found, after)


_VALUE_START = re.compile(
    r"(?:[a-zA-Z]\s?=\s?)?[$\\(*]{0,4}-?(?!\d{1,2}[.)]\s)\d|\$|\\|\(?(?-i:[A-J])\)?(?!\w)|(?:yes|no|true|false|none)\b", re.IGNORECASE
)
"""Text that starts with a value, and not with words about it."""
_CONDITION_WORDS = re.compile(r"\b(?:if|unless|suppose|assum\w+|otherwise|had|were)\b", re.IGNORECASE)


def reject_retracted_or_replaced_answer(extraction: Extraction, text_after: str) -> Extraction:
    r"""Return the extraction unchanged, or one without an answer if the text after the box or tag retracts it or declares another answer.

    >>> reject_retracted_or_replaced_answer(Extraction("42", "in the box"), " So the answer is 43.").candidates
    ('42', '43')
    """
    if extraction.text is None or is_closing_punctuation(text_after):
        return extraction
    extraction = reject_retracted(extraction, text_after)
    if extraction.text is None:
        return extraction
    rows = extract_hash_line(text_after)
    later = [rows.text] if rows.text is not None else list(rows.candidates)
    pattern, _, start = get_declaration_patterns(text_after)
    for mark in itertools.islice(pattern.finditer(text_after, start), 50):
        before = text_after[max(0, mark.start() - CHARS_BEFORE) : mark.start()]
        if (
            _OTHER_SUBJECT.search(before[-24:])
            or is_denied(before + mark[0], "")
            or _CONDITION_WORDS.search(_SENTENCE_END.split(before.rpartition("\n")[2])[-1])
        ):
            continue
        line = _find_text_after_phrase(text_after, mark, None)[0]
        if _VALUE_START.match(line.strip("*_ ")) and not DENIAL.search(line):
            later.append(_clean_answer_value(_SENTENCE_END.split(_strip_ending_phrase(line), maxsplit=1)[0]))
    for theirs in later:
        if _VALUE_START.match(theirs) and not is_same_value(extraction.text, theirs):
            return Extraction(None, "another answer is declared after it", (extraction.text, theirs))
    return extraction


def is_quantity_line(line: str) -> bool:
    """Whether a line holds a number and at most a unit.

    >>> is_quantity_line("$1,200"), is_quantity_line("18 km"), is_quantity_line("Step 1")
    (True, True, False)
    """
    return len(line) <= 60 and _NUMERAL.fullmatch(line) is not None


_CHECK_START = re.compile(
    r"\s*\(?(?:(?:we|you|I|let's|let\s+us)\s+(?:can\s+)?(?:check|verify)|to\s+(?:check|verify)|check(?:ed\b|ing\b|:)|verification|indeed\b)",
    re.IGNORECASE,
)
_HEDGE_WORDS = re.compile(r"\b(?:or|maybe|perhaps|actually|kidding|wait|instead|not|but|however)\b", re.IGNORECASE)


def _is_check_sentence(answer: str, sentence: str) -> bool:
    """Whether a sentence after the answer only checks it, and ends with the same number."""
    last = re.findall(r"\d[\d,.]*(?:/\d+)?", sentence)
    return (
        bool(_CHECK_START.match(sentence))
        and not _HEDGE_WORDS.search(sentence)
        and bool(last)
        and is_same_value(answer, last[-1].rstrip(".,"))
    )


_BOLD_NUMBER = re.compile(r"(?:\*\*)?([-$€£]{0,2}\d[\d,]{0,30}(?:\.\d{1,30})?(?:/\d{1,20})?%?)\*\*(\s+[a-zA-Z][^*\d]*)")
_IS_IN_BOLD = re.compile(r"\*\*((?:is|are|equals)\s+)", re.IGNORECASE)
_BARE_IS = re.compile(r"^(?:(?:it|this|that)\s+)?(?:is|equals)\s+(?=[*$\\(]{0,4}-?[$]?\d)", re.IGNORECASE)
"""The verb of a sentence whose subject is the heading: `**is 42**` under `Answer`."""


def _clean_answer_value(line: str) -> str:
    """Return the value in the rest of an answer line, without full stop, emphasis and words that only end the sentence.

    >>> _clean_answer_value("**18**, as wanted."), _clean_answer_value("18입니다.")
    ('18', '18')
    """
    line = _IS_IN_BOLD.sub(r"\1**", strip_whitespace_and_emoji(line))
    line = _BARE_IS.sub("", line)
    if line.endswith("!") and is_quantity_line(line[:-1].strip("* ")):  # an exclamation mark, not a factorial
        line = line[:-1]
    match = _CONCLUSION_IS.fullmatch(line) if len(line) < 400 else None
    if match is not None and not _CONCLUSION_VETO.search(match["head"]):
        return get_inner_box_or_all(match["value"].strip("*").strip())
    return get_inner_box_or_all(_strip_ending_phrase(strip_whitespace_and_emoji(_strip_emphasis(_strip_bold_number(line.rstrip(".。"))))))


def _strip_bold_number(line: str) -> str:
    """Strip the marks of a number in bold with plain words after it, also where the first mark was before the answer line's value."""
    match = _BOLD_NUMBER.fullmatch(line.strip()) if len(line) < 200 else None
    return match[1] + match[2] if match is not None else line


def _strip_ending_phrase(line: str) -> str:
    """Strip words that may follow a value, such as "as wanted"."""
    for _ in range(2):
        match = ENDING.search(line[-40:])
        if match is None or len(match[0]) >= len(line):
            break
        line = strip_whitespace_and_emoji(_strip_emphasis(line[: len(line) - len(match[0])].rstrip(" .。")))
    return line


def _is_explanation(answer: str) -> bool:
    return len(answer.split()) > 3 and re.search(r"[\d$\\]", answer) is None and _SECOND_ANSWER_MARK.search(answer) is None


def _find_declared_answers(text: str) -> tuple[list[str], bool, str]:
    """Find the declared answers, one per declaring phrase; also whether the last one corrects the others, and the text after the last
    one. Without an answer: whether there are more phrases than were looked at.
    """
    pattern, bare, search_start = get_declaration_patterns(text)
    # from the end, and a bounded number: a text that says "the answer is not" a million times costs no more than one that says it a thousand times
    every = [*pattern.finditer(text, search_start)]
    last = every[: -2 * MAX_DECLARATIONS - 1 : -1]
    marks = [mark for mark in last if _is_declaration(text, mark)][:MAX_DECLARATIONS][::-1]
    # "to find the answer: ..." counts only if nothing says "the answer is" or "final answer", or starts a line with it
    firm = [mark for mark in marks if _is_firm_declaration(text, mark, bare)]
    marks = (firm or marks)[-100:]
    said: list[tuple[str, bool]] = []
    before = starts = end = 0
    for mark, after in itertools.zip_longest(marks, marks[1:]):
        line, own, stop = _find_text_after_phrase(text, mark, after)
        if line and not DENIAL.search(line):
            said.append((line, own))
            starts, before, end = mark.start(), end, stop
    if not said:
        return [], len(every) > len(last), ""
    kept = [line for at, (line, own) in enumerate(said) if not own or at == len(said) - 1 or is_quantity_line(line)]
    gap = " ".join([*_SENTENCE_END.split(said[-2][0])[1:], text[before:starts]]) if len(said) > 1 else ""
    gap = gap[:300] + gap[-300:] if len(gap) > 600 else gap
    corrected = bool(_CORRECTION_WORDS.search(gap)) or (
        bool(_FINAL.match(marks[-1][0])) and len(gap) > 40 and starts_new_part_or_correction(gap)
    )
    return kept, corrected, text[end : end + 800]


def _is_declaration(text: str, phrase: re.Match[str]) -> bool:
    """Whether a phrase speaks of the answer to this question, and is not denied."""
    start = phrase.start()
    return not _OTHER_SUBJECT.search(text[max(0, start - 24) : start]) and not is_denied(
        text[max(0, start - CHARS_BEFORE) : phrase.end()], ""
    )


def _find_text_after_phrase(text: str, phrase: re.Match[str], next_phrase: re.Match[str] | None) -> tuple[str, bool, int]:
    """Return the text after one phrase, whether it is on a separate line, and where it ends."""
    end = text.find("\n", phrase.end())
    end = min(end if end >= 0 else len(text), next_phrase.start() if next_phrase else len(text))
    line = _strip_emphasis(text[phrase.end() : end])
    if line.startswith("}") and "{" in text[max(0, phrase.start() - 30) : phrase.end()]:
        line = _strip_emphasis(line[1:])  # the words were in a text command
    own = False
    if not line and not (next_phrase and next_phrase.start() == end):  # the value is on a separate line
        rows = text[phrase.end() : phrase.end() + 400].splitlines(keepends=True)
        at = next((at for at, row in enumerate(rows) if _strip_emphasis(row)), None)
        if at is not None:
            own, line, end = True, _strip_emphasis(rows[at]), phrase.end() + len("".join(rows[: at + 1]))
    if re.fullmatch(r"`{3}\w*", line):  # a code block of one line
        block = re.match(r"\n*([^\n`]{1,200})\n`{3}", text[end : end + 400])
        line, end = (block[1].strip(), end + block.end()) if block else ("", end)
    if line in ("$$", "\\["):  # a displayed formula
        close = text.find("$$" if line == "$$" else "\\]", phrase.end() + 3, phrase.end() + 2000)
        line = text[phrase.end() : close + 2].strip() if close >= 0 else ""
        end = close + 2 if close >= 0 else end
    return line, own, end


def _is_firm_declaration(text: str, mark: re.Match[str], bare: re.Pattern[str]) -> bool:
    if _FINAL.match(mark[0]) or not bare.fullmatch(mark[0]):
        return True
    return _is_at_line_start(text, mark.start()) or _is_at_line_start(text, mark.start(), skip_alternative_words=True)


def _is_at_line_start(text: str, position: int, *, skip_alternative_words: bool = False) -> bool:
    """Whether only Markdown precedes a position on its line; with `skip_alternative_words`, also a word such as "another"."""
    before = ("\n" + text[:position] if position < 40 else text[position - 40 : position]).rpartition("\n")
    line = before[2]
    if skip_alternative_words:
        match = _ALTERNATIVE_WORDS.search(line)
        if match is None:
            return False
        line = line[: match.start()]
    return bool(before[1]) and not line.strip("#*_ >-")


def _strip_emphasis(line: str) -> str:
    """Strip Markdown emphasis from a line; "" if only an article is left."""
    line = line.strip().strip("*_ ")
    return "" if line.lower() in ("the", "my", "our", "so", "the final", "so the", "thus, the") else line


_CONNECTIVE = (
    r"(?:therefore|thus|so|hence|then|finally|consequently|accordingly"
    r"|in\s+conclusion|as\s+a\s+result|we\s+conclude\s+that|it\s+follows\s+that)"
)
_MARKED_UP_VALUE = r"(?:\$[^$\n]{1,300}\$|\\\((?:(?!\\\)).){1,300}\\\)|\*\*[^*\n]{1,200}\*{0,2})"
_PLAIN_NUMERAL = r"-?[$]?\d[\d,]{0,30}(?:\.\d{1,30})?(?:[:/]\d{1,20}){0,3}%?"
_UNIT_WORDS = r"(?:\s[a-z][a-z' ]{0,60})?"
_CONCLUSION_IS = re.compile(
    rf"(?P<lead>(?:{_CONNECTIVE},?\s+)*)(?P<head>the\s+[a-z](?:[^$*\n]|\$[^$\n]{{1,60}}\$){{1,160}}?)"
    rf"\s+(?:is|are|equals|is\s+equal\s+to|must\s+be|would\s+be|will\s+be)[\s:]{{0,6}}(?P<value>(?:\*?\*?{_MARKED_UP_VALUE}\*?\*?|{_PLAIN_NUMERAL}){_UNIT_WORDS})[.!]?",
    re.IGNORECASE,
)
"""A sentence that names a quantity and its value: "Thus, the area is $12$ square units."."""
_CONCLUSION_VETO = re.compile(
    r"\b(?:not|no|n't|wrong|incorrect|bound|estimate\w*|approximat\w+|guess\w*|if|either|or|may|might|maybe|perhaps|first|second|third|other"
    r"|another|alternative|naive|assum\w+|suppose\w*|complement|opposite|reciprocal|but|while|whereas)\b"
    r"|\b(?:is|are)\s+[$*\d\\(]|\b(?:is|are)\b[^,]*\band\b",
    re.IGNORECASE,
)


_CONCLUSION_WITH_VALUE = re.compile(
    rf"(?:{_CONNECTIVE},?\s+)+(?P<head>[a-z][a-z' ,]{{0,120}}?\b(?:is|are|was|were|has|have|had|makes?|made|gets?|got|costs?|earns?|pays?"
    rf"|paid|spends?|spent|needs?|takes?|took|sells?|sold|equals?|travels?)\s+)?(?P<value>{_MARKED_UP_VALUE})(?P<rest>[a-z' ]{{0,80}})[.!]?",
    re.IGNORECASE,
)
"""A sentence that concludes, with one value marked up: "So Tom has **10 apples** left."."""
_CONCLUSION_WITH_NAME = re.compile(
    r"(?P<head>[^*$\n]{1,200}\b(?:is|are|was|were|be|on|to|by|called|named))\s+(?:(?:an?|the)\s+)?"
    r"\*\*(?P<value>[^\W\d_]+(?: [^\W\d_]+){0,2})\*\*\.?",
    re.IGNORECASE,
)
"""A last sentence that ends in the only words in bold of the text: "It falls on a **Saturday**."."""
_BOLD_ROW = re.compile(
    r"\*\*(?:(?:the\s+)?(?:final\s+|grand\s+|overall\s+)?(?:total|result|sum|value|count|conclusion)(?:\s+[a-z]{1,20}){0,2}\s*[:=]\s*)?"
    r"(?P<value>[$\\(]{0,2}(?:[a-z]\s?=\s?)?-?[$]?[\d.,/]{1,30}\s?[%a-z]{0,12}[$\\)]{0,2}|\(?(?-i:[A-J])\)?)\.?\*\*\.?",
    re.IGNORECASE,
)
"""A row that holds one value in bold, perhaps with a name of the result."""


_LAST_CLAUSE = re.compile(r",\s+((?:so|thus|hence|therefore)\b,?\s[^;]{1,200})$", re.IGNORECASE)
"""The conclusion of a sentence that begins with its reason: `N = 113 (mod 1000), so the remainder is **113**.`"""
_RESULT_HEADING = re.compile(
    r"\s*(?:#{1,6}\s*|\*\*)(?:the\s+)?(?:final\s+)?(?:result|solution|conclusion|total|value)s?\s*:?(?:\*\*)?:?\s*", re.IGNORECASE
)
_STATED_FIRST = re.compile(
    rf"(?:{_CONNECTIVE},?\s+)?(?P<value>{_MARKED_UP_VALUE}|-?[$]?\d[\d,]*(?:\.\d+)?%?)\s+is\s+(?:the|my|our)\s+(?:final\s+|correct\s+)?answer[.!]?",
    re.IGNORECASE,
)
"""A sentence with the value before the noun: `So, 70 is the final answer.`"""
_CONCLUSION_WITH_CALCULATION = re.compile(
    rf"(?:{_CONNECTIVE},?\s+)+(?P<head>[^*\n]{{1,200}}=\s*)\*\*(?P<value>-?[$]?\d[\d,]*(?:\.\d+)?%?)\*\*(?P<rest>[a-z' ]{{0,80}})[.!]?",
    re.IGNORECASE,
)
"""A sentence whose calculation ends in the only text in bold: `So she makes 9 * $2 = **$18** every day.`"""


_ONLY_SENTENCE = re.compile(
    r"(?P<head>[^\W\d_][^*\n.!?]{0,160}?[\s:])\*\*(?P<value>[$\\]{0,2}-?\d[^*\n]{0,60}|[$].{1,60}[$])\*\*(?P<rest>[a-z' ]{0,80})[.!]?",
    re.IGNORECASE,
)
"""A text of one sentence with one value in bold: `Each month she pays **$255**.`"""
_BOUND_WORDS = re.compile(
    r"\b(?:at\s+(?:least|most)|(?:more|less|fewer|greater|larger|smaller|other|rather)\s+than|about|around|nearly|almost|roughly|under|over|up\s+to"
    r"|try|tried|check|compare|consider|given|instead|previous\w*|earlier|initial\w*|start\w*|began|begin\w*|originally|step)\b",
    re.IGNORECASE,
)
"""Words of a bound, or of a value on the way, in a sentence that ends in a value."""
_BOLD_SPAN = re.compile(r"\*\*([^*\n]{1,300})\*\*")
_BOLD_VALUE = re.compile(r"\$[^$]{1,280}\$|\\\(.{1,280}\\\)|[$]?[-+]?[$]?[\d(\[{\\π√∞][^*]{0,120}|[a-z]\s?=\s?\S[^*]{0,120}", re.IGNORECASE)
"""What stands in bold because it is a value, and not a heading or a word that is stressed."""
_SENTENCE_WITH_VALUE_LAST = re.compile(
    r"(?P<head>[^*\n]{0,240}?(?:[^\W\d_]|[:=,])\s{0,3})\*\*(?P<value>[^*\n]{1,300}?)\.?\*\*(?P<rest>[a-z ]{0,40})[.!]?", re.IGNORECASE
)
"""A last sentence that ends in a value in bold: `The midpoint is **(-1, 6)**.`"""


def extract_conclusion(text: str) -> Extraction:
    r"""Extract the answer from a concluding last sentence: "Therefore, the probability is $\frac12$." names a quantity and its value.

    >>> extract_conclusion("Two of six. Thus, the probability is $1/3$.").text
    '$1/3$'
    """
    last = text.strip().rpartition("\n")[2].strip()
    bold = _find_final_bold_value(text)
    if bold:
        return Extraction(bold, "in the conclusion")
    if len(last) > 400:
        return Extraction(None, "the last line is too long for a conclusion")
    last = _IS_IN_BOLD.sub(r"\1**", last)
    sentence = strip_whitespace_and_emoji(_SENTENCE_END.split(last)[-1])
    stated = _STATED_FIRST.fullmatch(sentence)
    if stated is not None:
        return Extraction(get_inner_box_or_all(stated["value"].strip("*").strip()), "in the conclusion")
    only = _ONLY_SENTENCE.fullmatch(text.strip()) if text.count("**") == 2 else None
    if only is not None and not (
        _CONCLUSION_VETO.search(f"{only['head']} {only['rest']}")
        or _HEDGE_WORDS.search(only["head"])
        or re.search(r"\band\b", only["rest"])
        or is_denied(only["head"], only["rest"])
    ):
        return Extraction(get_inner_box_or_all(only["value"].strip()), "in the conclusion")
    clause = _LAST_CLAUSE.search(sentence)
    if clause is not None and not _CONCLUSION_VETO.search(sentence[: clause.start()]):
        sentence = clause[1]
    worked = _CONCLUSION_WITH_CALCULATION.fullmatch(sentence) if text.count("**") == 2 else None
    if worked is not None and not _HEDGE_WORDS.search(worked["head"]):
        return Extraction(worked["value"].strip(), "in the conclusion")
    tells = _CONCLUSION_WITH_VALUE.fullmatch(sentence if not sentence.startswith("**") else _keep_only_number_bold(sentence))
    if tells is not None and re.search(r"\d", tells["value"]) and not _CONCLUSION_VETO.search(f"{tells['head'] or ''} {tells['rest']}"):
        return Extraction(get_inner_box_or_all(tells["value"].strip("*").strip()), "in the conclusion")
    names = _CONCLUSION_WITH_NAME.fullmatch(sentence) if sentence.endswith(("*", "*.")) and text.count("**") == 2 else None
    if names is not None and not _CONCLUSION_VETO.search(names["head"]) and not _CONCLUSION_DENIAL.search(names["head"]):
        return Extraction(names["value"], "in the conclusion")
    value = _find_bold_value_at_end(text, last)
    if value:
        return Extraction(get_inner_box_or_all(value), "in the conclusion")
    match = _CONCLUSION_IS.fullmatch(sentence)
    heading = text.strip().rpartition("\n")[0].rstrip().rpartition("\n")[2]
    alone = sentence == strip_whitespace_and_emoji(text) or (
        clause is None and sentence == last and _RESULT_HEADING.fullmatch(heading) is not None
    )
    if match is None or not (match["lead"] or alone) or _CONCLUSION_VETO.search(match["head"]):
        return Extraction(None, "the last sentence is not a conclusion")
    return Extraction(get_inner_box_or_all(match["value"].strip("*").strip()), "in the conclusion")


def _keep_only_number_bold(sentence: str) -> str:
    """Rewrite a sentence that is all in bold so that only its number is; any other sentence is returned unchanged."""
    bare = sentence.rstrip(".").strip("*").rstrip(".")
    numbers = re.findall(r"(?<![\w$.,/-])[$]?-?\d[\d.,/]*\$?(?![\w$/])", bare)
    marked = bare.replace(numbers[0], f"**{numbers[0].rstrip(',.')}**") if len(numbers) == 1 and bare.count(numbers[0]) == 1 else ""
    return marked if "*" not in bare and marked else sentence


def _find_final_bold_value(text: str) -> str:
    """Find the value of a last row in bold that stands alone; "" if another row is in bold or the text before it denies the value."""
    before, _, last = text.strip().rpartition("\n")
    match = _BOLD_ROW.fullmatch(last.strip()) if 4 < len(last) < 100 and before.rstrip(" ").endswith("\n") else None
    if match is None or any(_BOLD_ROW.fullmatch(row.strip()) for row in before.splitlines() if 4 < len(row) < 100 and "**" in row):
        return ""
    said = before.rstrip("\n -*_").rpartition("\n")[2][-200:]
    letter = match["value"].strip("()")
    if letter.isalpha():  # the words about the other options deny them
        return "" if re.search(rf"\b{letter}\b", said) or said.endswith("?") or _HEDGE_WORDS.search(said) else match["value"]
    return "" if said.endswith("?") or _HEDGE_WORDS.search(said) or _CONCLUSION_DENIAL.search(said) else match["value"]


def _find_bold_value_at_end(text: str, last_line: str) -> str:
    """Find the value in bold with which the last sentence ends; "" if another value of the text is in bold, or if the sentence has doubts."""
    match = _SENTENCE_WITH_VALUE_LAST.fullmatch(_SENTENCE_END.split(last_line)[-1].strip())
    if match is None or not _BOLD_VALUE.fullmatch(match["value"].strip()):
        return ""
    values = [span for span in _BOLD_SPAN.findall(text) if _BOLD_VALUE.fullmatch(span.strip())]
    around = f"{match['head']} {match['rest']}"
    doubtful = any(words.search(around) for words in (_CONCLUSION_VETO, _CONCLUSION_DENIAL, _HEDGE_WORDS, _BOUND_WORDS))
    return "" if len(values) != 1 or doubtful or is_denied(match["head"], match["rest"]) else match["value"].strip()


_CONCLUSION_DENIAL = re.compile(r"n't\b|\b(?:wrong|incorrect|mistaken?|cannot|if|either|guess\w*|false)\b", re.IGNORECASE)
