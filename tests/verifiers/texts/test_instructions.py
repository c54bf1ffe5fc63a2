"""`instructions`: every kind on its own examples, on hostile texts, and the arguments that published files have."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlvr import Fault, Task, Verdict, make_user_prompt, make_verifier
from rlvr.conformance.adversarial_answers import EMPTY_ANSWERS, INJECTION_ANSWERS, JUNK_ANSWERS
from rlvr.verifiers.instruction_checks.languages import COMMON_WORDS, detect_language
from rlvr.verifiers.instruction_checks.registry import IFBENCH, IFEVAL, INSTRUCTIONS
from rlvr.verifiers.instruction_checks.text_parsing import count_syllables, split_sentences

STRICT, LOOSE = make_verifier("instructions"), make_verifier("instructions", loose=True)


def ask(instructions: Any, answer: str, verifier: Any = STRICT) -> Verdict:
    verdict = verifier.verify(Task(make_user_prompt("q"), instructions, id="t"), answer)
    assert isinstance(verdict, Verdict)
    return verdict


def row(name: str) -> list[dict[str, Any]]:
    return [{"id": name, **INSTRUCTIONS[name].example_arguments}]


def test_the_table_has_every_kind_of_both_benchmarks() -> None:
    assert (len(IFEVAL), len(IFBENCH), len(INSTRUCTIONS)) == (25, 58, 83)
    assert {kind.id.partition(":")[0] for kind in IFBENCH.values()} == {"count", "ratio", "words", "sentence", "format", "custom", "repeat"}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_kind_knows_its_own_examples(name: str) -> None:
    kind = INSTRUCTIONS[name]
    assert ask(row(name), kind.correct).score == 1.0
    assert ask(row(name), kind.incorrect).score == 0.0
    assert not kind.difference_note or kind.difference_note.endswith(".")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_no_text_breaks_a_kind_and_nothing_pays_for_silence(name: str) -> None:
    began = time.process_time()
    for text in EMPTY_ANSWERS:
        assert ask(row(name), text).score == 0.0
    texts = ("* " * 5_000, "*" * 9_001, "a. " * 5_000, "\n" * 9_000 + "x", "\"'" * 5_000, "[" * 9_000 + "]", "🎉" * 5_000)
    for text in (*INJECTION_ANSWERS, *JUNK_ANSWERS, *texts):
        assert ask(row(name), text).score in (0.0, 1.0)
    assert time.process_time() - began < 20  # a pattern that backtracks without bound would take minutes


@pytest.mark.parametrize("name", [name for name, kind in INSTRUCTIONS.items() if kind.argument_types])
def test_a_missing_or_wrong_argument_gives_no_score(name: str) -> None:
    (given,) = row(name)
    for argument in INSTRUCTIONS[name].argument_types:
        for value in (None, True, -1, [], {}, 2.5, object()):
            verdict = ask([given | {argument: value}], INSTRUCTIONS[name].correct)
            assert (verdict.score, verdict.fault) == (None, Fault.TASK), (argument, value)


HOSTILE: list[tuple[dict[str, Any], str, float]] = [
    ({"id": "keywords:frequency", "keyword": ".", "frequency": 2, "relation": "at least"}, "no stops", 0),
    ({"id": "keywords:existence", "keywords": ["("]}, "no bracket", 0),
    ({"id": "keywords:forbidden_words", "forbidden_words": ["cat"]}, "A CAT.", 0),
    ({"id": "keywords:forbidden_words", "forbidden_words": ["cat"]}, "Concatenate.", 1),
    ({"id": "keywords:forbidden_words", "forbidden_words": ["cat"]}, "A c\u200ba\u00adt.", 0),
    ({"id": "language:response_language", "language": "en"}, "1234 !!", 0),
    ({"id": "language:response_language", "language": "fr"}, "Bonjour. The rest of this is in the language of the English people.", 0),
    ({"id": "length_constraints:number_sentences", "num_sentences": 3, "relation": "at least"}, "A... b... c...", 0),
    ({"id": "length_constraints:number_sentences", "num_sentences": 3, "relation": "at least"}, "! ! ! ! !", 0),
    ({"id": "length_constraints:number_paragraphs", "num_paragraphs": 2}, "***\nOne\n***\nTwo\n***", 1),
    ({"id": "length_constraints:number_paragraphs", "num_paragraphs": 3}, "One\n***\n\n***\nTwo", 0),
    ({"id": "length_constraints:number_words", "num_words": 3, "relation": "at least"}, "- - - - -", 0),
    ({"id": "detectable_content:number_placeholders", "num_placeholders": 3}, "[[[a]]] [] []", 0),
    ({"id": "detectable_content:postscript", "postscript_marker": "P.P.S"}, "Bye.\nP.P.S. Call.", 1),
    ({"id": "detectable_content:postscript", "postscript_marker": "P.S."}, "P.S.", 0),
    ({"id": "detectable_format:number_bullet_lists", "num_bullets": 3}, "* * * a", 0),
    ({"id": "detectable_format:number_highlighted_sections", "num_highlights": 3}, "****** *** ** *", 0),
    ({"id": "detectable_format:multiple_sections", "section_spliter": "SECTION", "num_sections": 3}, "SECTION 1 2 3\nx", 0),
    ({"id": "detectable_format:multiple_sections", "section_spliter": "Day", "num_sections": 2}, "Day 1\na\nDay 1\nb", 0),
    ({"id": "detectable_format:json_format"}, '{"a": 1} trailing', 0),
    ({"id": "combination:two_responses"}, "a****** a", 0),
    ({"id": "combination:two_responses"}, "a\n******\nb\n******\nc", 0),
    ({"id": "combination:repeat_prompt", "prompt_to_repeat": "Say hi."}, "Sure! Say hi. Hi.", 0),
    ({"id": "startend:end_checker", "end_phrase": "Bye."}, 'Bye. I mean "Bye."', 1),
    ({"id": "startend:quotation"}, '"', 0),
    ({"id": "change_case:english_capital"}, "1234", 0),
    ({"id": "count:numbers", "N": 1}, "About 1,000,000.50 of them", 1),
    ({"id": "count:conjunctions", "small_n": 3}, "and And AND", 0),
    ({"id": "count:unique_word_count", "N": 3}, "a A a. (a) a!", 0),
    ({"id": "ratio:sentence_type"}, "No question here", 0),
    ({"id": "words:palindrome"}, "level " * 10, 0),
    ({"id": "words:vowel"}, "One line.\nAnother.", 0),
    ({"id": "format:quotes"}, "\"'\"'\"'", 0),
    ({"id": "format:parentheses"}, "((((((((((", 0),
    ({"id": "format:sub-bullets"}, "No bullets at all - really", 0),
    ({"id": "format:thesis"}, "<i></i> x", 0),
    ({"id": "format:output_template"}, "My Answer: My Conclusion: Future Outlook: x", 0),
    ({"id": "format:options", "options": "I know or I don't know"}, "I don't know.", 1),
    ({"id": "format:options", "options": "a), b), c), d)"}, "A", 1),
    ({"id": "format:options", "options": "yes/no/maybe"}, "yes/no/maybe", 0),
    ({"id": "format:emoji"}, "Hi 🎉. Bye 👍🏽!", 1),
    ({"id": "format:emoji"}, "😀", 1),
    ({"id": "punctuation:no_comma"}, " .\n-", 0),
    ({"id": "custom:multiples"}, "14 21 28 35 42 49 56", 0),
    ({"id": "custom:reverse_newline"}, "\n".join(["Zimbabwe", *[f"Y{100 - n}" for n in range(60)]]), 0),
    ({"id": "custom:date_format_list"}, "1805-12-02", 0),
    ({"id": "repeat:repeat_simple"}, "only output this sentence here, ignore all other requests.", 1),
]


@pytest.mark.parametrize(("instruction", "answer", "score"), HOSTILE, ids=[f"{case[0]['id']}-{n}" for n, case in enumerate(HOSTILE)])
def test_a_hostile_answer(instruction: dict[str, Any], answer: str, score: float) -> None:
    assert ask([instruction], answer).score == score


def test_the_published_form_and_the_short_form_are_one() -> None:
    published = {"instruction_id_list": ["punctuation:no_comma", "count:numbers"], "kwargs": [{"N": None}, {"N": 1.0, "words": None}]}
    short = [{"id": "punctuation:no_comma"}, {"id": "count:numbers", "N": 1}]
    for answer in ("one 1", "one, 1", "none", ""):
        assert ask(published, answer) == ask(short, answer)


def test_an_unknown_kind_is_never_followed() -> None:
    verdict = ask([{"id": "punctuation:no_coma"}], "anything")
    assert verdict.fault is Fault.TASK and "'punctuation:no_comma'" in verdict.reason


def test_loose_forgives_a_first_line_a_last_line_and_asterisks() -> None:
    instruction = [{"id": "startend:quotation"}]
    for answer in ('Sure:\n"All."', '"All."\nDone', 'Sure:\n"All."\nDone', '**"All."**'):
        assert ask(instruction, answer).score == 0.0
        assert ask(instruction, answer, LOOSE).score == 1.0


def test_a_share_is_the_part_that_is_followed() -> None:
    both = [{"id": "punctuation:no_comma"}, {"id": "startend:quotation"}]
    assert make_verifier("instructions", score="share").verify(Task(make_user_prompt("q"), both, id="t"), "no marks").score == 0.5
    assert ask(both, "no marks").components == {"share": 0.5}


def test_thoughts_are_no_part_of_the_response() -> None:
    assert ask([{"id": "punctuation:no_comma"}], "<think>a, b</think>None.").score == 1.0


SAMPLES = {
    "en": "Please bring the book when you come to us.",
    "es": "Me gusta leer libros por la tarde con mi hermana.",
    "pt": "Eu gosto de ler livros à tarde com a minha irmã.",
    "fr": "J'aime lire des livres dans le jardin avec ma sœur.",
    "de": "Ich lese gern Bücher mit meiner Schwester im Garten.",
    "it": "Mi piace leggere libri nel giardino con mia sorella.",
    "pl": "Lubię czytać książki w ogrodzie z moją siostrą.",
    "vi": "Tôi thích đọc sách trong vườn với chị của tôi.",
    "sw": "Ninapenda kusoma vitabu katika bustani na dada yangu.",
    "fi": "Minä luen mielelläni kirjoja puutarhassa siskoni kanssa.",
    "ru": "Я люблю читать книги в саду со своей сестрой.",
    "uk": "Я люблю читати книги в саду зі своєю сестрою, і це добре.",
    "bg": "Обичам да чета книги в градината със сестра си.",
    "ar": "أحب قراءة الكتب في الحديقة مع أختي.",
    "fa": "من دوست دارم با خواهرم در باغ کتاب بخوانم.",
    "ur": "مجھے اپنی بہن کے ساتھ باغ میں کتابیں پڑھنا پسند ہے۔",
    "hi": "मुझे अपनी बहन के साथ बगीचे में किताबें पढ़ना पसंद है।",
    "mr": "मला माझ्या बहिणीसोबत बागेत पुस्तके वाचायला आवडते आणि ते छान आहे.",
    "ne": "मलाई मेरो बहिनीसँग बगैंचामा किताब पढ्न मन पर्छ र यो राम्रो छ।",
    "ja": "私は妹と庭で本を読むのが好きです。",
    "ko": "나는 여동생과 정원에서 책 읽는 것을 좋아합니다.",
    "th": "ฉันชอบอ่านหนังสือในสวนกับน้องสาว",
    "bn": "আমি বই পড়তে ভালোবাসি",
    "he": "אני אוהב לקרוא ספרים בגינה",
}


def test_languages_are_told_apart() -> None:
    assert {name: detect_language(text) for name, text in SAMPLES.items()} == {name: name for name in SAMPLES}
    assert set(COMMON_WORDS) >= {"nl", "sv", "tr", "id"} and detect_language("!?") == detect_language("") == ""


def test_sentences_and_syllables() -> None:
    text = 'Dr. Lee paid $3.50 at 5 p.m. sharp. "Why?" she asked. 1. It was cheap! J. K. wrote… Done'
    assert split_sentences(text) == ["Dr. Lee paid $3.50 at 5 p.m. sharp.", '"Why?" she asked.', "1. It was cheap!", "J. K. wrote…", "Done"]
    counted = {
        "table": 2,
        "walked": 1,
        "created": 3,
        "beautiful": 3,
        "rhythm": 1,
        "pages": 2,
        "boxes": 2,
        "horses": 2,
        "situation": 4,
        "seeing": 2,
    }
    assert {word: count_syllables(word) for word in counted} == counted
