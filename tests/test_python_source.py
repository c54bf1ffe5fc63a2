"""Python source is parsed right while other threads parse."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlvr.python_source import parse_python_threadsafe

SOURCE = Path(ast.__file__).read_text("utf-8")


class Slow:
    """An object in a cycle whose finalizer runs Python, so that a collection lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(20_000):
            pass


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(200)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_collections_in_the_middle_of_a_tree_disturb_no_thread() -> None:
    def parsed(_: int) -> str:
        Slow()
        return ast.dump(parse_python_threadsafe(SOURCE))

    right = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(parsed, range(40))) == {right}
