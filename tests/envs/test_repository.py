"""Tasks from a Python project: what is built, what is dropped, what is stored, and what the verdicts are."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "README.md": "# Tiny\n",
    "tiny/__init__.py": '"""Tiny."""\n',
    "tiny/numbers.py": '''"""Numbers."""


def clamp(value, low, high):
    """Return the value, not below low and not above high."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def share(total, count):
    """Return the largest equal parts of a total, and what is left."""
    if count == 0:
        raise ValueError("no parts")
    part = total // count
    return [part] * count, total - part * count


class Stack:
    """A stack with a limit."""

    def __init__(self, limit=3):
        self.limit = limit
        self.items = []

    def push(self, item):
        """Add an item; raise OverflowError if the stack is full."""
        if len(self.items) >= self.limit:
            raise OverflowError("full")
        self.items.append(item)
        return len(self.items)

    def pop(self, default=None):
        """Remove the last item and return it, or the default."""
        if not self.items:
            return default
        return self.items.pop()


def untested(value):
    """Return one more."""
    return value + 1
''',
    "tests/__init__.py": "",
    "tests/test_numbers.py": """import unittest

from tiny.numbers import Stack, clamp, share


class NumbersTest(unittest.TestCase):
    def test_clamp(self):
        self.assertEqual([clamp(n, 2, 5) for n in range(8)], [2, 2, 2, 3, 4, 5, 5, 5])

    def test_share(self):
        self.assertEqual([share(7, 3), share(6, 2)], [([2, 2, 2], 1), ([3, 3], 0)])
        self.assertRaises(ValueError, share, 1, 0)

    def test_stack(self):
        stack = Stack(2)
        self.assertEqual([stack.push("a"), stack.push("b")], [1, 2])
        self.assertRaises(OverflowError, stack.push, "c")
        self.assertEqual([stack.pop(), stack.pop(), stack.pop(7)], ["b", "a", 7])
""",
}


def write_project(folder: Path, changed: dict[str, str] | None = None) -> Path:
    """Write a small project with tests, with some files changed."""
    root = folder / "tiny_project"
    for path, text in (FILES | (changed or {})).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root
