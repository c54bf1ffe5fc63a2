"""Verdicts of quantity, format, span, choice, numeric and sql_rows on answers that once got the wrong one."""

from __future__ import annotations

from typing import Any

import pytest

import rlvr

OPTIONS = {"options": ["Rome", "Paris", "London", "Berlin"]}


def score(verifier: str, reference: Any, answer: str, meta: dict[str, Any] | None = None, **settings: Any) -> float | None:
    with rlvr.make_verifier(verifier, **settings) as plugin:
        return plugin.verify(rlvr.Task(rlvr.make_user_prompt("?"), reference, id="t", meta=meta or {}), answer).score


@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("25 °C", "30 °C", 0.0),
        ("100 °C", "105 °C", 0.0),
        ("25 °C", "25.4 °C", 1.0),
        ("25 °C", "298.3 K", 1.0),
        ("298.15 K", "30 °C", 1.0),
        ("100 km", "101 km", 1.0),
        ("32 °F", "0 °C", 1.0),
    ],
)
def test_a_tolerance_is_of_the_value_in_its_own_unit(reference: str, answer: str, expected: float) -> None:
    assert score("quantity", reference, answer, tolerance=0.02) == expected


def test_a_bare_power_of_ten_is_a_number() -> None:
    assert score("quantity", "10 N", "10^1 N") == 1.0
    assert score("quantity", "0.001 m", "$10^{-3}$ m") == 1.0
    assert score("quantity", "10 N", "10^2 N") == 0.0


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Der schnelle braune Fuchs springt über den faulen Hund und läuft davon.", 0.0),
        ("en", "Le renard brun saute par-dessus le chien paresseux.", 0.0),
        ("en", "Hola amigos, mañana vamos juntos.", 0.0),
        ("en", "Guten Morgen zusammen, heute rechnen wir etwas Neues.", 0.0),
        ("en", "Ciao ragazzi, oggi facciamo matematica insieme.", 0.0),
        ("de", "The quick brown fox jumps over the lazy dog.", 0.0),
        ("ru", "Давайте обчислимо суму цих чисел і різницю.", 0.0),
        ("ru", "Давайте вычислим сумму.", 1.0),
        ("en", "We compute 3+4=7 and then the result is \\(7\\).", 1.0),
        ("en", "Newton published three laws.", 1.0),
        ("en", "Paris, Rome, London, Berlin, Madrid", 1.0),
        ("de", "Wir rechnen heute.", 1.0),
        ("de", "Zuerst multiplizieren wir beide Seiten mit zwei.", 1.0),
        ("fr", "Le résultat vaut sept.", 1.0),
        ("it", "Oggi facciamo matematica insieme, ragazzi.", 1.0),
        ("es", "Primero sumamos ambos números.", 1.0),
        ("en", "Barna leker ute i hagen mens katten sover.", 0.0),
        ("en", "Dzieci bawią się w ogrodzie, a kot śpi.", 0.0),
        ("en", "Anak bermain bola setiap pagi sebelum sekolah.", 0.0),
        ("de", "Il treno parte domani mattina molto presto.", 0.0),
        ("fr", "Los niños juegan todas las tardes afuera.", 0.0),
        ("es", "Domani andremo tutti insieme alla spiaggia.", 0.0),
        ("nl", "Barna leker ute i hagen mens katten sover.", 0.0),
        ("pt", "Los niños juegan todas las tardes afuera.", 0.0),
        ("en", "qwer tzui asdf hjkl yxcv bnml poiu", 0.0),
        ("en", "xqz vbn lkj hgf dsa poi uyt rew qaz wsx edc", 0.0),
        ("en", "Regina wrote novels during the whole summer.", 1.0),
        ("en", "Multiply both sides by two, then subtract seven.", 1.0),
        ("de", "Morgen fahren alle Kinder gemeinsam zum Strand.", 1.0),
        ("fr", "Demain nous partons tous ensemble vers la plage.", 1.0),
        ("es", "Mañana iremos todos juntos hacia la playa.", 1.0),
        ("it", "Domani andremo tutti insieme alla spiaggia.", 1.0),
        ("pt", "Amanhã vamos todos juntos até a praia.", 1.0),
        ("nl", "Morgen gaan alle kinderen samen naar het strand.", 1.0),
        ("pl", "Dzieci bawią się w ogrodzie, a kot śpi.", 1.0),
        ("tr", "Yarın sabah çocuklar hep birlikte sahile gidecek.", 1.0),
    ],
)
def test_the_language_of_a_short_text(language: str, text: str, expected: float) -> None:
    assert score("format", None, text, language=language) == expected


@pytest.mark.parametrize("answer", ["Paris, London, Rome", "Paris and London", "Paris / London", "London; Paris"])
def test_a_list_of_answers_has_no_f1(answer: str) -> None:
    assert score("span", "Paris", answer, metric="f1") == 0.0


@pytest.mark.parametrize(
    ("gold", "answer"), [("Paris", "Paris, France"), ("Rock and Roll", "rock and roll"), ("red, white and blue", "red, white, blue")]
)
def test_one_answer_with_a_separator_keeps_its_f1(gold: str, answer: str) -> None:
    assert (score("span", gold, answer, metric="f1") or 0) > 0.6


def test_an_apostrophe_in_a_name_does_not_count() -> None:
    assert score("span", "O'Neil", "ONeil") == 1.0


@pytest.mark.parametrize(
    "answer", ["The answer is B? No, it is C.", "The answer is B. Hmm, London then.", "Answer: B\nWait, (C) is right."]
)
def test_a_choice_that_is_corrected_does_not_count(answer: str) -> None:
    assert score("choice", "Paris", answer, OPTIONS) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "The answer is B. London is no option for France.",
        "The answer is B. No other city fits.",
        "Final answer: B. Better check: B is right.",
    ],
)
def test_words_after_a_choice_that_do_not_correct_it(answer: str) -> None:
    assert score("choice", "Paris", answer, OPTIONS) == 1.0


@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("24", "48/2", 0.0),
        ("24", "#### 24/1", 0.0),
        ("0.5", "1/2", 1.0),
        ("24", "48/2 = 24", 1.0),
        ("0", "0/5", 1.0),
        ("25", "250e-1", 0.0),
        ("140", "14E1", 1.0),
        ("0.25", "25e-2", 1.0),
        ("3000", "3e3", 1.0),
    ],
)
def test_a_division_that_comes_out_even_is_left_to_do(reference: str, answer: str, expected: float) -> None:
    assert score("numeric", reference, answer) == expected


def test_numeric_says_what_it_reads() -> None:
    with rlvr.make_verifier("numeric") as plugin:
        reason = plugin.verify(rlvr.Task(rlvr.make_user_prompt("?"), "1250", id="t"), "1250 km").reason
    assert reason == (
        "'1250 km' is not one number; numeric reads one numeral without a unit (digits, a sign, a point, 1e3, 1/3); "
        "symbolic reads units, LaTeX and words"
    )


DATABASE = "create table t(n); insert into t values (1), (2), (3)"
OTHER = "create table t(n); insert into t values (7), (8), (9)"


def test_a_query_that_does_not_read_the_tables_scores_zero() -> None:
    reference = {"query": "select count(*) from t", "databases": [DATABASE, OTHER]}
    assert score("sql_rows", reference, "SELECT 3") == 0.0
    assert score("sql_rows", reference, "SELECT count(n) FROM t") == 1.0
    assert score("sql_rows", {**reference, "databases": [DATABASE]}, "SELECT 3") == 0.0


def test_a_reference_that_does_not_read_the_tables_gives_no_score() -> None:
    assert score("sql_rows", {"query": "select 1", "databases": [DATABASE, OTHER]}, "SELECT 1") is None
