"""Bugs in the text of a function, and the functions of an answer that are taken over."""

from __future__ import annotations

import pytest

from rlvr.envs._repository.answers import UnacceptableAnswer, graft_functions
from rlvr.envs._repository.mutations import build_mutants
from rlvr.envs._repository.project import find_functions


def list_mutated_lines(body: str) -> set[str]:
    text = "def f(a, b, *c):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    [function] = find_functions("a.py", text.encode())
    return {"\n".join(line.strip() for line in one.text.splitlines()[1:]) for one in build_mutants(text, function, "0")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return a < b", "return a <= b"),
        ("return a is not None", "return a is None"),
        ("return a not  in c", "return a in c"),
        ("return (a) == (b)", "return (a) != (b)"),
        ("return a + b", "return a - b"),
        ("return a and b", "return a or b"),
        ("return not a", "return a"),
        ("return -a", "return a"),
        ("return a[3]", "return a[2]"),
        ("return f(a, b)", "return f(b, a)"),
        ("return min(a, b)", "return max(a, b)"),
        ("return a.startswith('x')", "return a.endswith('x')"),
        ("return g(a, key=True)", "return g(a, key=False)"),
        ("a += 1\nreturn a", "a -= 1\nreturn a"),
        ("a += 1\nreturn a", "return a"),
        ("if a:\n    return b\nreturn c", "if not a:\nreturn b\nreturn c"),
        ("if a:\n    return b\nreturn c", "return c"),
        ("return 'ä' + a.lower()", "return 'ä' + a.upper()"),
    ],
)
def test_a_bug_is_one_small_change_of_the_text(before: str, after: str) -> None:
    assert after in list_mutated_lines(before)


@pytest.mark.parametrize("body", ["'''It returns 1.'''\nreturn a", "return f'{a + 1}'", "return a  # a < b", "pass"])
def test_docstrings_comments_and_formatted_texts_stay(body: str) -> None:
    assert list_mutated_lines(body) == set()


ORIGINAL = (
    "import os\n\n\nclass A:\n    @property\n    def f(self):\n        return 1\n\n    def g(self):\n        return getattr(self, 'x')\n"
)
BUGGY = ORIGINAL.replace("return 1", "return 2")


def graft(answer: str, name: str = "A.f") -> str:
    return graft_functions(ORIGINAL, BUGGY, answer, [name])


def test_only_the_function_is_taken_over() -> None:
    assert graft(BUGGY.replace("return 2", "x = [1]\n        return x[0]").replace("class A", "class A(dict)")) == ORIGINAL.replace(
        "return 1", "x = [1]\n        return x[0]"
    )
    assert graft(ORIGINAL.replace("@property", "@cached")) == ORIGINAL


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return getattr(self, 'x')", "uses 'getattr'"),
        ("return self.__class__", "uses '__class__'"),
        ("return '{0.__class__}'.format(self)", "uses '{0.__class__}'"),
        ("return os.getcwd()", "uses 'os'"),
        ("import json\n        return 1", "imports 'json'"),
        ("from . import other\n        return 1", "imports '.'"),
        ("A.g = 1", "sets the attribute g"),
        ("global A\n        A = 1", "sets global A"),
        ("def __len__(): return 1", "defines '__len__'"),
        ("return (yield).gi_frame", "uses 'gi_frame'"),
        ("return 1; x = 2\n    y = 3", ""),
        ("return 1\n\n    import sys", ""),
    ],
)
def test_what_could_reach_the_tests_is_refused(body: str, told: str) -> None:
    answer = BUGGY.replace("return 2", body)
    if told:
        with pytest.raises(UnacceptableAnswer, match=told.replace("{", r"\{")):
            graft(answer)
    else:  # what stands after the function is not taken over
        assert "y = 3" not in graft(answer) and "import sys" not in graft(answer)


@pytest.mark.parametrize(
    "body",
    [
        "self.cache = 1\n        return len(self.cache.__doc__)",
        "import re\n        return re.sub('a', 'b', self.x)",
        "return [x for x in self]",
    ],
)
def test_what_a_correct_function_needs_is_accepted(body: str) -> None:
    assert body in graft(BUGGY.replace("return 2", body))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "x = 1",
        BUGGY + BUGGY.partition("\n\n\n")[2],
        BUGGY.replace("    def f", "        def f").replace("        return 2", "            return 2"),
    ],
    ids=["nothing", "another file", "twice", "indented otherwise"],
)
def test_a_file_without_the_one_function_is_refused(answer: str) -> None:
    with pytest.raises(UnacceptableAnswer):
        graft(answer)


def test_names_that_the_original_function_uses_stay_allowed() -> None:
    assert "getattr(self, 'y')" in graft(BUGGY.replace("getattr(self, 'x')", "getattr(self, 'y')"), "A.g")
