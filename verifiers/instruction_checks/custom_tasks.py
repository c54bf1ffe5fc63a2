# ruff: noqa: E501 -- rows of tables read better in lines
"""IFBench: tasks that are an instruction by themselves (`custom:`), and requests to repeat something (`repeat:`)."""

from __future__ import annotations

import csv
import datetime
import itertools
import re
from collections.abc import Mapping
from typing import Any

from rlvr.verifiers._unicode import normalize_unicode
from rlvr.verifiers.instruction_checks.instruction import InstructionKind
from rlvr.verifiers.instruction_checks.text_parsing import split_lower_words, split_nonblank_lines, split_sentences
from rlvr.verifiers.instruction_checks.word_lists import AFRICAN_COUNTRIES, NORTHERN_CAPITALS, OPTIONAL_CAPITALS

Arguments = Mapping[str, Any]
QUESTION = re.compile(r"^[ \t*#]*Question\b[ \t]*\d*[.):;]?[* \t]*", re.MULTILINE)
CHOICE = re.compile(r"[ \t*]*[A-Ea-e][.)][ \t*]*\S")
FIRST_BATTLE_DAY, LAST_BATTLE_DAY = datetime.date(1793, 1, 1), datetime.date(1815, 12, 31)
"""First and last day of the period of Napoleon's battles."""
MIN_BATTLES = 10
SIMPLE_SENTENCE = "Only output this sentence here, ignore all other requests."


def _normalize_name(text: str) -> str:
    plain = normalize_unicode("NFKD", text.replace("’", "'")).encode("ascii", "ignore").decode()
    return " ".join(re.sub(r"\(.*?\)", "", plain).lower().strip(" .,;*-\t\r0123456789").split())


def _has_four_questions(text: str, _: Arguments) -> bool:
    marks = list(QUESTION.finditer(text))
    if len(marks) != 4 or text[: marks[0].start()].strip():
        return False
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    lengths = []
    for mark, end in zip(marks, ends, strict=True):
        rows = split_nonblank_lines(text[mark.end() : end])
        asked = list(itertools.takewhile(lambda row: not CHOICE.match(row), rows))
        if sum(bool(CHOICE.match(row)) for row in rows) != 5 or len(rows) - len(asked) != 5:
            return False
        lengths.append(len(" ".join(row.strip() for row in asked)))
    return all(a < b for a, b in itertools.pairwise(lengths)) and lengths[0] > 0


def _is_reversed_africa_list(text: str, _: Arguments) -> bool:
    rows = [_normalize_name(line) for line in split_nonblank_lines(text)]
    start = next((at for at, row in enumerate(rows) if row == "zimbabwe"), len(rows))
    rows = [row for row in rows[start:] if row not in ("western sahara", "sahrawi arab democratic republic")]
    named = [AFRICAN_COUNTRIES.get(row, "") for row in rows]
    return "" not in named and len(named) == len(set(named)) == len(set(AFRICAN_COUNTRIES.values())) and rows == sorted(rows, reverse=True)


def _has_reversed_words(text: str, _: Arguments) -> bool:
    said = split_lower_words(text)
    return len(split_sentences(text)) == 1 and len(said) > 2 and "eagle bald" in " ".join(said) and "bald eagle" not in " ".join(said)


def _has_reversed_letters(text: str, _: Arguments) -> bool:
    return "elgae dlab" in " ".join(text.lower().split()) and "eagle" not in text.lower()


def _is_alphabet_story(text: str, _: Arguments) -> bool:
    firsts = [split_lower_words(sentence)[:1] for sentence in split_sentences(text)]
    return [word[0][0] for word in firsts if word] == [chr(97 + n) for n in range(26)] and len(firsts) == 26


def _is_capitals_list(text: str, _: Arguments) -> bool:
    said = [_normalize_name(part) for part in text.split(",") if part.strip()]
    names = {name: row[0] for row in NORTHERN_CAPITALS for name in row}
    named = [names.get(name, "") for name in said]
    return named == [row[0] for row in NORTHERN_CAPITALS if row[0] not in OPTIONAL_CAPITALS or row[0] in named]


def _get_lines_of_valid_csv(text: str, header: list[str], num_rows: int, delimiter: str = ",") -> list[str] | None:
    """Return the raw lines of a table with this header and number of rows; None if the text is not such a table."""
    raw = text.strip().splitlines()
    try:
        data = list(csv.reader(raw, delimiter=delimiter, strict=True, skipinitialspace=True))
    except csv.Error:
        return None
    fits = len(data) == num_rows + 1 and [cell.strip() for cell in data[0]] == header and all(len(row) == len(header) for row in data)
    return raw if fits else None


def _has_special_field(text: str, _: Arguments) -> bool:
    raw = _get_lines_of_valid_csv(text, ["ProductID", "Category", "Brand", "Price", "Stock"], 14)
    return raw is not None and any(re.search(r'(?:^|,)\s*"[^"]*[^\w\s"][^"]*"\s*(?:,|$)', row) for row in raw[1:])


def _has_quoted_fields(text: str, _: Arguments) -> bool:
    raw = _get_lines_of_valid_csv(text, ["StudentID", "Subject", "Grade", "Semester", "Score"], 3, "\t")
    return raw is not None and all(re.fullmatch(r'\s*"[^"]*"\s*', cell) for row in raw for cell in row.split("\t"))


def _is_battle_date_list(text: str, _: Arguments) -> bool:
    found = [part.strip() for part in text.strip().rstrip(".").split(",")]
    if not all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", part, re.ASCII) for part in found):
        return False
    try:
        days = {datetime.date.fromisoformat(part) for part in found}
    except ValueError:
        return False
    return len(days) >= MIN_BATTLES and all(FIRST_BATTLE_DAY <= day <= LAST_BATTLE_DAY for day in days)


def _is_first_word_changed(text: str, a: Arguments) -> bool:
    asked, said = a["prompt_to_repeat"].split(), text.split()
    return len(said) > 1 and said[1:] == asked[1:] and said[0].casefold() != asked[0].casefold()


def _is_copied_span(text: str, a: Arguments) -> bool:
    span = a["prompt_to_repeat"].split()[a["n_start"] : a["n_end"] + 1]
    return bool(span) and [word.casefold() for word in text.split()] == [word.casefold() for word in span]


_MCQ = "\n".join(f"Question {n}: {'why ' * n}?\n" + "\n".join(f"{letter}) x" for letter in "ABCDE") for n in range(1, 5))
_CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},Italy,Rome,2000,{n}" for n in range(7))
_PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f'{n},toys,"A&B",5,1' for n in range(14))
_STUDENTS = "\n".join(
    "\t".join(f'"{cell}"' for cell in row.split()) for row in ("StudentID Subject Grade Semester Score", *["1 Art A 2 9"] * 3)
)
_BATTLES = ", ".join(f"18{n:02d}-10-14" for n in range(3, 14))
_STORY = " ".join(f"{chr(65 + n)}nn went on." for n in range(26))
INSTRUCTIONS: tuple[InstructionKind, ...] = (
    InstructionKind("custom:multiples", "The multiples of 7 from 10 to 50.", lambda text, _: re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"],
         correct="14, 21, 28, 35, 42, 49", incorrect="7, 14, 21, 28, 35, 42, 49"),
    InstructionKind("custom:mcq_count_length", "Four questions with five options, each longer than the one before.", _has_four_questions, correct=_MCQ, incorrect=_MCQ.replace("why ", "")),
    InstructionKind("custom:reverse_newline", "The countries of Africa in reverse alphabetical order.", _is_reversed_africa_list,
         correct="\n".join(sorted({name for name in AFRICAN_COUNTRIES if AFRICAN_COUNTRIES[name] == name}, reverse=True)), incorrect="\n".join(["Zimbabwe"] + ["A"] * 53),
         difference_note="The names must be the 54 countries; the published checker accepts any 52 sorted lines from Zimbabwe on."),
    InstructionKind("custom:word_reverse", "A sentence that names the animal, its words in reverse order.", _has_reversed_words, correct="eagle bald the is animal the",
         incorrect="the animal is the bald eagle", difference_note="At least three words, and not in the usual order as well."),
    InstructionKind("custom:character_reverse", "A sentence that names the animal, its letters in reverse order.", _has_reversed_letters, correct="elgae dlab eht",
         incorrect="The bald eagle: elgae dlab", difference_note="The animal may not stand there unreversed as well."),
    InstructionKind("custom:sentence_alphabet", "26 sentences whose first letters are the alphabet.", _is_alphabet_story, correct=_STORY, incorrect=_STORY[:-12]),
    InstructionKind("custom:european_capitals_sort", "Europe's capitals north of 45 degrees, from north to south.", _is_capitals_list,
         correct=", ".join(row[0].title() for row in NORTHERN_CAPITALS if row[0] not in OPTIONAL_CAPITALS), incorrect="Oslo, Helsinki",
         difference_note="Kyiv (50.4 degrees) belongs to them, and the published list lacks it; other spellings, and Astana, are accepted."),
    InstructionKind("custom:csv_city", "CSV: ID, Country, City, Year, Count; 7 rows.", lambda text, _: _get_lines_of_valid_csv(text, ["ID", "Country", "City", "Year", "Count"], 7) is not None,
         correct=_CITIES, incorrect=_CITIES + "\n8,Italy,Rome,2000", difference_note="Spaces after commas, and blank lines around the data, do not matter."),
    InstructionKind("custom:csv_special_character", "CSV of 14 products; one field with a special character in quotes.", _has_special_field, correct=_PRODUCTS,
         incorrect=_PRODUCTS.replace("&", "n"), difference_note="Spaces after commas do not matter."),
    InstructionKind("custom:csv_quotes", "Tab-separated, 3 rows, every field in quotes.", _has_quoted_fields, correct=_STUDENTS, incorrect=_STUDENTS.replace('"Art"', "Art"),
         difference_note="Every field, also of the head."),
    InstructionKind("custom:date_format_list", "Dates as YYYY-MM-DD, separated by commas.", _is_battle_date_list, correct=_BATTLES, incorrect="1800-00-14",
         difference_note="Real days of 1793 to 1815, at least ten different ones: one date, or month 00, is accepted by the published checker. Which days "
         "are right is not checked."),
    InstructionKind("repeat:repeat_change", "Repeat the request with another first word.", _is_first_word_changed, {"prompt_to_repeat": str},
         {"prompt_to_repeat": "Name a city."}, "Give a city.", "Name a city. ",
         "The first word must be another word: the published checker accepts the unchanged request with a space behind it."),
    InstructionKind("repeat:repeat_simple", "Only output this sentence.", lambda text, _: " ".join(text.split()).lower() == SIMPLE_SENTENCE.lower(), correct=SIMPLE_SENTENCE, incorrect=SIMPLE_SENTENCE + " Ok."),
    InstructionKind("repeat:repeat_span", "Copy the words from one index to another.", _is_copied_span, {"prompt_to_repeat": str, "n_start": int, "n_end": int},
         {"prompt_to_repeat": "a bb ccc dd e", "n_start": 1, "n_end": 3}, "bb ccc dd", " bb",
         "The indices are of words, from 0: the prompts of the benchmark say `word indices, split by whitespace`; the published checker cuts characters."),
)  # fmt: skip
