r"""Classify the words around a declaration: denials, alternatives (a second answer), and words that lead to a later result.

Each row of a table is a pattern with one example that a test runs. Patterns look at a short window of the text, so the cost is linear
in the number of boxes.
"""

from __future__ import annotations

import re

CHARS_BEFORE, CHARS_AFTER = 80, 80
"""How many characters before and after a box are read for a denial."""

_ANSWER_VERB = r"(?:answer|say|write|put|conclude|claim|think|guess|box|give|report|state)"
_WRONG_WORD = r"(?:wrong|incorrect|mistaken|false|invalid|erroneous)"
_LINKING_WORDS = r"(?:\s+(?:that|with|be|equal|equals|to|is|was|it|its|the|of|an?|final|answer|value|result|simply|just|as))*"

DENIAL_PATTERNS_BEFORE = (
    (r"(?:\b(?:not|never|cannot|neither|nor)|n't)", r"The answer is not \boxed{7}"),
    (r"\banything\s+(?:but|except|other\s+than)", r"It is anything but \boxed{7}"),
    (r"\brul(?:e|ed|es|ing)\s+out", r"We can rule out \boxed{7}"),
    (rf"\b{_WRONG_WORD}ly(?:\s+(?:wrote|said|got|answered|claimed|gave):?)?", r"He incorrectly wrote: the answer is \boxed{7}"),
    (rf"(?:\b(?:not|never)|n't)\s+(?:{_ANSWER_VERB}|saying|claiming|suggesting)", r"I am not saying that it is \boxed{7}"),
    (r"(?:\b(?:not|never)|n't)\s+(?:the\s+case|true|right|correct|so)\s+that", r"It isn't true that the final answer is \boxed{7}"),
    (r"\b(?:nobody|no\s+one)\s+(?:says?|said|thinks?|believes?|claims?|claimed)", r"Nobody believes that it is \boxed{7}"),
    (
        rf"\b(?:mistake|error|misconception)\s+(?:is|was|would\s+be)\s+(?:to\s+(?:{_ANSWER_VERB}|get)|that)",
        r"A common mistake is to say that the answer is \boxed{7}",
    ),
    (
        rf"\b(?:{_WRONG_WORD}|tempting|naive|a\s+mistake|an\s+error)\s+to\s+(?:{_ANSWER_VERB}|get|use)",
        r"It would be wrong to answer \boxed{7}.",
    ),
    (
        r"\b(?:rather\s+than|instead\s+of|as\s+opposed\s+to|unlike|contrary\s+to|different\s+from|other\s+than)",
        r"It is 8 rather than \boxed{7}",
    ),
    (
        r"\b(?:one|some|someone|somebody|you|they|many|people|students?|others)(?:\s+\w+){0,1}?"
        r"\s+(?:might|may|could|would|will|often)\s+(?:\w+\s+)?(?:think|say|guess|answer|claim|believe|expect)",
        r"One might answer \boxed{7}",
    ),
    (
        r"\b(?:student|someone|somebody|friend|colleague|classmate|people)(?:\s+\w+){0,3}?\s+(?:wrote|said|got|answered|claimed|guessed|gave)",
        r"A student of mine once wrote \boxed{7}",
    ),
    (
        rf"\b(?:{_WRONG_WORD}|naive|tempting|rejected)\s+(?:answer|result|value|solution|guess|option|choice|response|conclusion|root)"
        r"(?:\s+(?:here|would))?",
        r"A common wrong answer is \boxed{7}",
    ),
    (rf"\b(?:{_WRONG_WORD}|untrue|unlikely|impossible)\s+that", r"It is wrong that the answer is \boxed{7}"),
    (r"\bimpossible\s+to\s+(?:get|obtain|reach|have)", r"It is impossible to obtain \boxed{7}"),
    (r"(?:^|[\s$])~~", r"~~\boxed{7}~~"),
    (r"\\(?:[bx]?cancel|sout)\{", r"$\cancel{\boxed{7}}$"),
    (r"<!--", r"<!-- \boxed{7} -->"),
    (r"<(?:del|strike)>|\S\s{0,8}<s>", r"Not so: <s>\boxed{7}</s>"),  # a text may begin with the token <s>
    (r"(?:^|\n)\s{0,8}%", r"% \boxed{7}"),
    (r"\b(?:doubt|deny|disagree)", r"I doubt that the answer is \boxed{7}"),
    (
        r"\b(?:suppose|assume|imagine|pretend)(?:,?\s+(?:for\s+(?:a\s+|the\s+sake\s+of\s+)?(?:contradiction|argument)|on\s+the\s+contrary),?)?",
        r"Assume for contradiction that the answer is \boxed{7}",
    ),
    (
        r"\b(?:some|many|most|people|they|others|students)(?:\s+people)?\s+(?:say|think|believe|claim|argue|answer|get)",
        r"Some say the answer is \boxed{7}",
    ),
    (r"\bbetween\s+\S{1,20}\s+and", r"The answer lies between 3 and \boxed{7}"),
    (r"\b(?:hardly|scarcely)\s+(?:be|equal)", r"It can hardly be \boxed{7}"),
    (r"\b(?:minus|plus)", r"The result is minus \boxed{7}"),
    (r"\b(?:jamás|nunca)(?:\s+(?:es|sería|será|puede\s+ser))?", r"La respuesta jamás sería \boxed{7}"),
    (r"\bhad\s+(?:the|it|we|there)\b[^.!?\n]*\bwould", r"Had the question been about odd numbers, it would be \boxed{7}"),
    (rf"\b(?:refuses?|refused|declines?|declined|hesitates?|hesitated)\s+to\s+{_ANSWER_VERB}", r"I refuse to say \boxed{7}"),
    (
        r"\b(?:(?:half|double|twice|triple|thrice)(?:\s+of)?|(?:a\s+(?:third|quarter|multiple|factor|divisor)|(?:the\s+)?(?:square|cube)(?:\s+root)?"
        r"|negative|negation|opposite|reciprocal|inverse|complement|factorial)\s+of)",
        r"Half of \boxed{7}",
    ),
    (r"\b(?:more|less|fewer|greater|larger|smaller|higher|lower|bigger)\s+than", r"One more than \boxed{7}"),
    (
        r"\b(?:everything|all|every\s+number|any\s+number|anyone|everyone)\s+(?:except|but|besides|other\s+than)",
        r"Everything except \boxed{7}",
    ),
    (r"\b(?:almost|nearly|not\s+quite|just\s+(?:under|over|below|above|short\s+of))", r"It is almost \boxed{7}"),
    (r"\bno\s+(?:es|son|sea|fue|era|sería|(?:puede|podría|debe)\s+ser)", r"La respuesta no es \boxed{7}"),
    (r"\b(?:nicht|kein(?:esfalls|eswegs))", r"Die Antwort ist nicht \boxed{7}"),
    (
        r"\b(?:n(?:'|’|e\s+)(?:est|vaut|sont|serait|était)\s+pas|ne\s+(?:peut|pourrait|saurait)\s+(?:pas\s+)?être)",
        r"La réponse n'est pas \boxed{7}",
    ),
    (r"\bnon\s+(?:è|sono|sarà|sarebbe|(?:può|potrebbe)\s+essere)", r"La risposta non è \boxed{7}"),
    (r"\bnão\s+(?:é|são|será|seria|(?:pode|poderia)\s+ser)", r"A resposta não é \boxed{7}"),
    (r"\bне(?:\s+(?:равен|равно|является|(?:может|могло)\s+быть))?", r"Ответ не \boxed{7}"),
    (r"(?:不是|不为|不為|不等于|不等於|并非|並非|不应为|不(?:可|能)?能?是|未必是|不会是|不會是)", r"答案不可能是 \boxed{7}"),
)
r"""Words that deny the box after them: (pattern of lower case, example). A pattern with `|` outside of brackets does not begin with `\b`."""

DENIAL_PATTERNS_AFTER = (
    (r"\?\s*no\b", r"\boxed{7}? No."),
    (
        rf"(?:is|was|are|would\s+be)\s+(?:{_WRONG_WORD}|impossible|extraneous|rejected|excluded|ruled\s+out"
        r"|not\s+(?:the|correct|right|true|possible|valid|my)\b)",
        r"\boxed{7} is wrong",
    ),
    (r"(?:can't|cannot|can\s+not|could\s+not|couldn't)\s+be\b", r"\boxed{7} can't be right"),
    (r"(?:does\s+not|doesn't|fails\s+to)\s+(?:satisfy|work|fit|hold|solve)", r"\boxed{7} does not satisfy the equation"),
    (r"\?\s*I\s+(?:do\s+not|don't)\s+think", r"\boxed{7}? I don't think so"),
    (
        r",?\s*but\s+(?:I|my|our|we)\b[^.!?\n]{0,40}\b(?:gives?|get|got|find|found|says?)\b",
        r"The key says \boxed{7}, but my calculation gives 8",
    ),
    (
        rf",?\s*but\s+(?:(?:he|she|they|that|this|it)\s+(?:is|are|was|were)|(?:he|she|that|it)'s)\s+(?:{_WRONG_WORD})\b",
        r"My friend says \boxed{7}, but he is mistaken",
    ),
    (r"(?:では(?:ない|ありません)|じゃ(?:ない|ありません)|でない)", r"答えは \boxed{7} ではありません"),
    (r"(?:이|가)\s?(?:아니|아닙)", r"정답은 \boxed{7}이 아닙니다"),
    (r"(?:no\s+es|ist\s+(?:falsch|nicht)|est\s+(?:faux|fausse)|неверно|не\s+подходит|是错|是錯|不对|不對)", r"\boxed{7} ist falsch"),
    (r"isn't\s+(?:the|correct|right|true)", r"\boxed{7} isn't right"),
    (r"(?:(?:just|only)\s+)?(?:kidding|joking)\b", r"\boxed{7} Just kidding."),
    (r"(?:wrong|incorrect)\s?[.!]", r"\boxed{7}. Wrong!"),  # not "false", which is an option of many questions
    (r"(?:and|but|then)\s+(?:I\s+|we\s+)?(?:then\s+)?(?:rejected|dismissed|discarded)\b", r"I considered \boxed{7} and rejected it."),
    (
        r"(?:is|was)\s+(?:only\s+|just\s+|merely\s+)?(?:my|a|an|the|our)\s+(?:first|initial|rough|preliminary|earlier|previous|old|naive)\s+"
        r"(?:\w+\s+)?(?:try|guess|attempt|approximation|estimate|thought|draft|idea)\b",
        r"\boxed{7} was my first try, the final one is 8.",
    ),
    (
        r"(?:is|was|has\s+been|got)\s+(?:\w+\s+)?(?:refuted|disproved|disproven|withdrawn|retracted|discarded|dismissed)\b",
        r"\boxed{7} was refuted above, therefore 8.",
    ),
    (
        r"(?:is|was|would\s+be|shows?)\s+(?:only\s+|just\s+)?(?:the|an?)\s+(?:required\s+)?(?:format|placeholder|template)\b",
        r"For example \boxed{7} would be the format.",
    ),
    (
        r"\(?(?:if|when|for)\b[^.\n]{1,40}?[,;)]\s{0,3}(?:and\s+|or\s+|but\s+)?[$\\(*]{0,4}-?\d[\d.,/]*[$)*]{0,3}\s+(?:otherwise|else|if|when|for)\b",
        r"\boxed{7} (if n is even), 8 otherwise",
    ),
    (
        r"\(?(?:if|when|for)\b[^.\n]{1,40}?[,;)]\s{0,3}(?:and\s+|or\s+|but\s+)?(?:otherwise|else)\s+(?:it\s+is\s+|is\s+)?[$\\(*]{0,4}-?\d",
        r"\boxed{7} if n is odd, otherwise 8",
    ),
    (
        r"(?:is|was|would\s+be)\s+what\s+(?:a|an|the|one|you|they|we|some)\b[^.!?\n]{0,60}\bbut\b",
        r"\boxed{7} is what a naive approach gives, but the truth is 8",
    ),
    (
        rf"[,;(—–-]?\s*(?:but\s+|and\s+)?(?:which|that|this|it)(?:\s+(?:is|was|would\s+be)|'s)\s+(?:{_WRONG_WORD}|a\s+(?:common\s+)?(?:mistake|trap|error)"
        r"|not\s+(?:correct|right|true|the\s+(?:right|correct|final|answer)))",
        r"\boxed{7}, which is wrong",
    ),
)
"""Words that deny the box before them: (pattern, example)."""

_WORD_PATTERNS = [pattern.removeprefix(r"\b") for pattern, _ in DENIAL_PATTERNS_BEFORE if pattern.startswith(r"\b")]
_OTHER_PATTERNS = [pattern for pattern, _ in DENIAL_PATTERNS_BEFORE if not pattern.startswith(r"\b")]
# one `\b` before all words, and no IGNORECASE: both let `re` reject a position by its first character, three times as fast together
_DENIAL_BEFORE = re.compile(rf"(?:\b(?:{'|'.join(_WORD_PATTERNS)})|{'|'.join(_OTHER_PATTERNS)}){_LINKING_WORDS}[:=$\s\\(\[*]*$")
_DENIAL_AFTER = re.compile(rf"[\s$.,)*\]\\]*(?:{'|'.join(pattern for pattern, _ in DENIAL_PATTERNS_AFTER)})", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_DENIAL_WORDS = frozenset(
    _WORD.findall(
        """
        almost answered anything besides between but cannot claimed contrary could declined declines decline deny different disagree double
        doubt erroneous erroneously error everyone except false falsely gave got guessed had half hardly hesitate hesitated hesitates imagine
        impossible incorrect incorrectly instead invalid invalidly just many may might minus misconception mistake mistaken mistakenly most
        naive nearly neither never no nobody nor not often opposed others people plus pretend quite refuse refused refuses rejected rule ruled
        rules ruling said scarcely some students suppose assume tempting than they thrice triple twice unlike unlikely untrue will would wrong
        wrongly wrote
        third quarter multiple factor divisor square cube root negative negation opposite reciprocal inverse complement factorial
        nicht keinesfalls keineswegs jamás nunca pas être non não не
        """
    )
)
_DENIAL_SIGNS = ("n't", "~~", "cancel{", "sout{", "<!--", "<s>", "<del>", "<strike>", "%", "不", "非", "未")
"""Prefilter: every text that `_DENIAL_BEFORE` matches has one of these words or signs."""
_SENTENCE_ENDS = (". ", ".\n", "! ", "!\n", "? ", "?\n")
"""Prefilter: no match of `_DENIAL_BEFORE` crosses one of these, so only the last sentence is searched."""


def is_denied(before: str, after: str) -> bool:
    r"""Whether the words around a box say that it is not the answer.

    >>> is_denied("It would be wrong to answer ", ". I answer 8."), is_denied("So the answer is ", ".")
    (True, False)
    """
    low = before.casefold()
    if _may_deny(low):
        last = low[max(0, *map(low.rfind, _SENTENCE_ENDS)) :]
        if _may_deny(last) and _DENIAL_BEFORE.search(last):
            return True
    return bool(after.strip(" $.)*\n")) and _DENIAL_AFTER.match(after) is not None


def _may_deny(text: str) -> bool:
    return not _DENIAL_WORDS.isdisjoint(_WORD.findall(text)) or any(map(text.__contains__, _DENIAL_SIGNS))


_ANSWER_NOUN = r"(?:answer|solution|guess|choice|option|candidate|result|value|possibility|response)"

ALTERNATIVE_PATTERNS = (
    (
        r"\b(?:or|alternatively|alternative|either|otherwise|unless|maybe|perhaps|possibly|if)\b",
        r"\boxed{7}. Maybe we should say \boxed{8}",
    ),
    (r"\b(?:could|might|may)\s+(?:also\s+)?be\b", r"\boxed{7} comes out of one count. It might be \boxed{8}"),
    (r"\balso\s+(?:say|possible|valid|correct|acceptable|works?|accept|an?\b)", r"\boxed{7}. The following is also correct: \boxed{8}"),
    (rf"\b(?:an)?other\s+(?:\w+\s+)?{_ANSWER_NOUN}", r"\boxed{7} comes out of one count. Another answer is \boxed{8}"),
    (
        rf"\b(?:first|second|third|fourth|last|next|possible|backup)\s+(?:possible\s+)?{_ANSWER_NOUN}",
        r"\boxed{7} comes out of one count. My second guess is \boxed{8}",
    ),
    (rf"\b(?:{_ANSWER_NOUN}|case|attempt)\s*\#?\(?(?:\d+|[b-h])\b", r"Option A: \boxed{7}. Now comes option B: \boxed{8}"),
    (
        r"\b(?:method|approach|interpretation|reading|scenario|version)\s*\#?\(?(?:\d+|[b-h]|one|two|three)\b",
        r"Method 1 gives \boxed{7}. Method 2 gives \boxed{8}",
    ),
    (
        r"(?:\A|\})[\s$.,)*]{0,8}(?:for|when|where|with|without|under)\b[^\n]{1,100}\n\s{0,8}(?:[-*•]|\d+[.)])\s",
        "- \\boxed{7} for small readings\n- \\boxed{8}",
    ),
    (r"或|还是|または|あるいは|또는|\b(?:oder|ou|или|oppure)\b", r"\boxed{7}。或者也许是 \boxed{8}"),
    (r"(?:^|[^\d\s\\])\s{0,3}%\s|\\iffalse|<!--", r"\boxed{7} is it. % so we get \boxed{8}"),
)
"""Words that make the next box an alternative instead of a later result: (pattern, example)."""

LATER_RESULT_PATTERNS = (
    (
        r"\b(?:so|thus|hence|therefore|then|finally|consequently|now|gives?|yields?|implies|means|becomes)\b",
        r"\boxed{7}. So \boxed{8}",
    ),
    (r"\b(?:total|altogether|in\s+all|requested|required|desired|correct(?:ed|ing|ion)?)\b", r"\boxed{7}. Total: \boxed{8}"),
    (r"\b(?:mistake|error|wrong|incorrect|redo|wait|actually)\b", r"\boxed{7}. Wait, \boxed{8}"),
    (r"\b(?:part|step)\b|(?:^|[\s*(])\(?[b-h]\)", "Part (a): \\boxed{7}\n\nPart (b): \\boxed{8}"),
    (r"因此|所以|从而|最后|最终|故|于是|すると|よって|したがって|따라서|그러므로", r"\boxed{7}。因此 \boxed{8}"),
    (r"\b(?:donc|ainsi|daher|somit|folglich|entonces|luego|quindi|portanto|logo|поэтому|значит|итого)\b", r"\boxed{7}. Donc \boxed{8}"),
)
"""Words that lead from one box to a later result, so that the later one counts: (pattern, example)."""

_ALTERNATIVE = re.compile("|".join(pattern for pattern, _ in ALTERNATIVE_PATTERNS), re.IGNORECASE)
_LATER_RESULT = re.compile("|".join(pattern for pattern, _ in LATER_RESULT_PATTERNS), re.IGNORECASE)
_MARKUP = re.compile(r"\\[a-zA-Z]+")
_CONTENT_WORD = re.compile(r"\b(?!(?:the|an|is|are|was|be|it|its|that|this|my|our|final|answer|value|result)\b)[^\W\d_]{2,}", re.IGNORECASE)
"""A word with meaning: not one of those that may precede any answer."""
_CJK_CHAR = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_PART_LABEL = re.compile(r"\n[\s*#>-]{0,8}\(?[b-h]\)")
_CLAUSE_END = re.compile(r"[.!?;:]\**(?:\s|$)|\n|[。！？；：]")
_SENTENCE_END = re.compile(r"[.!?]\**\s|[。！？]|\n\s{0,80}\n")


def starts_new_part_or_correction(text_between: str) -> bool:
    r"""Whether the text between two boxes separates them: a new part, a correction or a later result, and no alternative.

    >>> starts_new_part_or_correction(". I made a mistake. Let me redo it. ")
    True
    >>> starts_new_part_or_correction(" or "), starts_new_part_or_correction(". Maybe it is ")
    (False, False)
    """
    if len(text_between) > 2000:
        text_between = text_between[:1000] + " \n " + text_between[-1000:]
    if _PART_LABEL.search(text_between):
        return True
    words = _count_words(text_between)
    if not words:
        return False
    edges = _get_sentence_after_box(text_between), _get_sentence_before_box(text_between)
    if any(_ALTERNATIVE.search(edge) for edge in edges):
        return False
    if _CLAUSE_END.search(text_between) is None:
        return re.search(r"\b(?:then|so|thus|hence|therefore|which\s+gives)\b", text_between, re.IGNORECASE) is not None
    return words >= 3 or _LATER_RESULT.search(text_between) is not None


def _count_words(text: str) -> int:
    plain = _MARKUP.sub(" ", text)
    return len(_CONTENT_WORD.findall(plain)) + len(_CJK_CHAR.findall(plain)) // 2


def _get_sentence_after_box(text_between: str) -> str:
    """Return the sentence that follows the first of two boxes: the rest of its own sentence, or the next one if nothing is left of it."""
    for stop in _SENTENCE_END.finditer(text_between):
        if _count_words(text_between[: stop.start()]):
            return text_between[: stop.start()][:200]
    return text_between[:200]


def _get_sentence_before_box(text_between: str) -> str:
    """Return the sentence that leads to the second of two boxes: the text after the last full stop that is followed by a word."""
    tail = text_between[-200:]
    for stop in reversed(list(_SENTENCE_END.finditer(tail))):
        if _count_words(tail[stop.end() :]):
            return tail[stop.end() :]
    return tail
