r"""Find the value that the last sentence of a text states: `It will take her 5 days.`, `So the range is $[0, 3]$.`

This is the last resort for a text that declares its answer in no other way. Only the last sentence is read. It must be complete, state one
value, and have no word of doubt, of a bound, of a condition, of denial, or of another subject such as the number of a step.
"""

from __future__ import annotations

import re

from rlvr.extraction.boxes import get_inner_box_or_all
from rlvr.extraction.context_words import is_denied
from rlvr.extraction.extraction import Extraction

NOTHING = Extraction(None, "the last sentence states no single value")
MAX_LINE_CHARS = 400

_SENTENCE_BREAK = re.compile(r"(?<!\bi\.e)(?<!\be\.g)[.!?](?=\s+\S)|[。！？](?=\s*\S)")
VETO_WORDS = (
    ("a denial", r"not|no|nor|neither|never|cannot|wrong\w*|incorrect\w*|mistak\w*|false|doubt\w*|fail\w*|far|too|missing|instead|rather"),
    ("a choice or a contrast", r"or|either|but|however|although|while|whereas|wait|actually|in\s+fact|another|alternativ\w*"),
    ("a guess", r"guess\w*|maybe|perhaps|probably|possib\w+|(?-i:may)|might|could|would|seems?|appears?"),
    ("a condition", r"if|unless|whether|provided|assum\w*|suppos\w*|let|given"),
    (
        "a bound or an approximation",
        r"approximat\w*|estimat\w*|about|around|nearly|almost|roughly|close|some|bound\w*|at\s+(?:least|most)|up\s+to|under|over|between"
        r"|(?:more|less|fewer|greater|larger|smaller|higher|lower|other)\s+than|more$",
    ),
    (
        "a claim of others, or the writer",
        r"(?:say|claim|believe|state|think|suggest|report)s?|said|claimed|believed|stated|thought|according|I|me|my|asked|naive",
    ),
    (
        "a value on the way",
        r"first|(?<!per\s)second|third|next|previous\w*|earlier|initial\w*|start(?:s|ed)?|beg[aiu]ns?|originally|try|tried|check\w*|verif\w*|compare\w*"
        r"|consider\w*|find|we\s+need|wants?|divid\w*|multipl[iy]\w*|subtract\w*|substitut\w*|note|remember|recall|hint",
    ),
    ("another value than the answer", r"negative|half|twice|double|triple|reciprocal|opposite|inverse|complement|factor|multiple"),
    (
        "the number of something",
        r"(?:step|problem|question|exercise|example|case|equation|theorem|part|method|line|page|figure|chapter|option)\s+\(?\d",
    ),
    ("words to a judge", r"verifier|grader|score\w*|reward\w*"),
)
"""Words after which a sentence states no answer: (what they show, pattern)."""
_VETO = re.compile(
    rf"\?|n't\b|n’t\b|[~⁓≈∼\u0335-\u0338]|^each\b|^the\s+(?:question|problem)\b|\b(?:{'|'.join(pattern for _, pattern in VETO_WORDS)})\b",
    re.IGNORECASE,
)
_NUMBER_WORD = re.compile(
    r"\b(?:zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|dozen|hundred|thousand)\b",
    re.IGNORECASE,
)
_HIDDEN = re.compile(
    r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]|[a-zA-Z][\u0370-\u03ff\u0400-\u04ff]|[\u0370-\u03ff\u0400-\u04ff][a-zA-Z]{2}"
)
"""Characters that cannot be seen, and letters of two alphabets in one word, which may hide a word of denial."""
_CLAUSE = re.compile(
    r"(?:[,;]\s*(?:(?:and\s+)?(?:so|thus|hence|therefore)\b(?:\s+that)?|which\s+(?:gives|is|means)|giving|we\s+get)|;|(?<=[a-zA-Z]):(?=\s)|\bi\.e\.|→|⇒|\\(?:to|Rightarrow|implies)\b)"
    r"[,\s]*",
    re.IGNORECASE,
)
"""What begins the conclusion of a sentence."""
_FORMULA = re.compile(r"\$([^$\n]{1,300})\$|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]")
_NUMERAL = re.compile(
    r"(?<![\w.,/^_√(\[{·×*+|=<>:-])(?P<sign>[-−+]?)(?P<currency>[$€£]?)(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<fraction>\.\d+|/\d+|:\d\d)?"
    r"(?P<unit>\s?[%°](?:\s?[CF]\b)?|\s(?!(?:of|in|at|on|to|for|from|by|more|less|left|and|is|are|was|were|per|each|every|with|after|before|when|than|as|the|an?)\b)"
    r"[a-zA-Z]+[²³]?)?(?!\s?[a-zA-Z]+\s?/)(?![²³\w/^_√π(!·×*+=|<>)\]}∞-])"
)
"""A numeral that is no part of a formula, with a word after it that may be its unit."""
_VERB = re.compile(
    r"(?:^|.*\s)(?:is|are|was|were|equals?|becomes?|be)(?:\s+(?:just|exactly|only|therefore|then|thus|now|equal\s+to))?:?\s+", re.IGNORECASE
)
_STATES = re.compile(
    r"^(?:so|thus|hence|therefore|then|total|sum|result)\b|\b(?:is|are|was|were|be|has|have|had|takes?|took|gets?|got|makes?|made|costs?|earns?|earned|pays?|paid"
    r"|spends?|spent|saves?|saved|receives?|received|eats?|ate|buys?|bought|sells?|sold|reads?|uses?|used|walks?|walked|travels?|runs?|ran|weighs?|lasts?"
    r"|scores?|wins?|won|lives?|drives?|drove|drinks?|consumes?|consumed|grows?|grew|contains?|holds?|leaves?|remains?|remained|equals?|by|of|for|on|at|with|in|to)\s",
    re.IGNORECASE,
)
"""Words after which a number is stated, and not only named: `The number 42 is even` states nothing."""
_VALUE_START = re.compile(r"[-−+]?[$€£]?[\d(\[{√π∞⅓¼½¾⅔⅚]|[a-zA-Z]\w?\s?[=<>≤≥∈]|\\(?:frac|sqrt|left|pi|begin)")
_PLAIN_VALUE = re.compile(r"(?P<value>[-−+]?[$€£]?[\d,./:]*\d\s?[%°]?)(?P<words>(?:\s[a-zA-Z']+[²³]?)*)")
_NAME = re.compile(r"(?:^|.*[\s,:])(?P<name>[a-zA-Zα-ωΑ-Ω]['′]?[\d₀-₉]{0,4}(?:\([a-z]\))?)\s*$")

_RELATION = re.compile(r"(?P<head>.*)(?P<sign>[=∈])\s*(?P<value>[^=∈]+)")
_WHOLE_LINE = re.compile(r"\*\*(?P<bold>[^*\n]{1,80})\*\*|(?P<formula>\$\$?[^$\n]{1,200}\$\$?|\\\[.{1,200}\\\])")


def extract_last_sentence(text: str) -> Extraction:
    """Extract the one value that the last sentence states.

    >>> extract_last_sentence("She reads 20 pages a day. It will take her 5 days.").text
    '5 days'
    >>> extract_last_sentence("So it is 5 or 6.").text is None
    True
    """
    line = text.strip().rpartition("\n")[2].strip()
    if alone := _find_value_alone(text.strip(), line):
        return Extraction(get_inner_box_or_all(alone), "in the last line")
    if not line or len(line) > MAX_LINE_CHARS or not ("=" in line or line.endswith((".", "!", "。", "**", "$", ")", "]"))):
        return NOTHING  # cut off, perhaps
    sentence = _SENTENCE_BREAK.split(line.replace("**", ""))[-1].strip().rstrip(".!。 ")
    if _VETO.search(_FORMULA.sub(" ", sentence)) or _HIDDEN.search(line) or len(sentence.split()) < 2:
        return NOTHING
    clause = _CLAUSE.split(sentence)[-1].strip()
    if _NUMBER_WORD.search(_FORMULA.sub(" ", sentence)):
        return NOTHING
    value = _find_stated_value(clause)
    before = sentence[: sentence.rfind(value)] if value else ""
    if not value or is_denied(before, sentence[len(before) + len(value) :]) or re.match(r"\(?[A-J]\)", sentence):
        return NOTHING
    head = " ".join(before.split()[:2]).casefold()
    if (
        head
        and head
        in " ".join(text.strip()[: -len(line)].replace("**", "").split() + line.replace("**", "").split(sentence)[0].split()).casefold()
    ):
        return NOTHING  # the same is said before, perhaps with another value
    return Extraction(get_inner_box_or_all(value), "in the last sentence")


def _find_value_alone(text: str, last_line: str) -> str:
    """Find the value that is a last paragraph of its own, all in bold or one formula; "" if the text has another one like it."""
    match = _WHOLE_LINE.fullmatch(last_line)
    before = text[: -len(last_line)]
    if (
        match is None
        or not before.endswith("\n\n")
        or before.rstrip().endswith("?")
        or _VETO.search(before.rstrip().rpartition("\n")[2][-80:])
    ):
        return ""
    others = [line for line in before.splitlines() if _WHOLE_LINE.fullmatch(line.strip())]
    if match["bold"] is not None:
        return "" if others or "**" in before or _VETO.search(match["bold"]) else match["bold"].rstrip(".")
    return "" if others or "=" in match["formula"] else match["formula"]


def _find_stated_value(clause: str) -> str:
    formulas = list(_FORMULA.finditer(clause))
    prose = _FORMULA.sub(" ", clause)
    if formulas:
        return formulas[0][0] if len(formulas) == 1 and not re.search(r"\d", prose) else ""
    numerals = list(_NUMERAL.finditer(clause))
    if len(numerals) == 1 and len(re.findall(r"\d+(?:[.,:/]\d+)*", clause)) == 1 and not re.search(r"[=√π^<>≤≥∈]", clause):
        is_stated = numerals[0].start() == 0 or _STATES.search(clause[: numerals[0].start()]) is not None
        return _trim_words(numerals[0][0].strip()) if is_stated else ""
    verb = _VERB.match(clause)
    if verb is not None and _VALUE_START.match(clause[verb.end() :]):
        return _trim_words(clause[verb.end() :])
    relation = _RELATION.fullmatch(clause)
    if (
        relation is None
        or not _VALUE_START.match(relation["value"])
        or re.search(r",|\band\b", re.sub(r"\([^()]*\)", "", relation["head"]))
    ):
        return ""
    name = _NAME.match(relation["head"]) if not re.search(r"[=∈]", relation["head"]) else None
    return _trim_words(f"{name['name']} {relation['sign']} {relation['value']}" if name is not None else relation["value"])


def _trim_words(value: str) -> str:
    """Keep at most one word after a numeral: a unit."""
    match = _PLAIN_VALUE.fullmatch(value)
    words = match["words"].split() if match is not None else []
    return (
        value
        if match is None or len(words) <= 1
        else f"{match['value'].strip()} {words[0]}"
        if "%" not in match["value"]
        else match["value"]
    )
