"""Python source text as a syntax tree, from any thread."""

from __future__ import annotations

import ast
import threading
from typing import Literal, overload

_ATTEMPTS = 5
_lock = threading.Lock()


@overload
def parse_python_threadsafe(source: str, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parse_python_threadsafe(source: str, mode: Literal["eval"]) -> ast.Expression: ...
def parse_python_threadsafe(source: str, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Parse Python source like `ast.parse`, also while other threads parse.

    CPython 3.11 keeps the depth of the tree under construction in one place for all threads: when
    the garbage collector runs in the middle, another thread can parse in between, and the first
    then ends in a `SystemError` although its source is fine. The lock keeps calls of this function
    apart; the attempts are for other libraries that parse in their own threads.

    >>> parse_python_threadsafe("f(2)", "eval").body.func.id
    'f'
    """
    for attempt in range(_ATTEMPTS):
        try:
            with _lock:
                return ast.parse(source, mode=mode)  # type: ignore[return-value]
        except SystemError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
