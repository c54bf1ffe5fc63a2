"""What of an answer counts: the functions of the task, put into the original file, if they use nothing that could reach the tests.

The tests run in one process with the function that they test, so a function could make any test pass: by values that equal everything, by
changes of the test framework, by the frames of its callers. Each needs names that a correct function hardly needs. So these are allowed only
where the original function has them: two underscores, frames, `getattr` and its kin, modules of the interpreter, and new imports.
Nothing outside the functions counts, so a file has no place for code that runs when it is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from rlvr.envs._repository.mutations import find_function_node
from rlvr.python_source import parse_python_threadsafe

DENIED_BUILTINS = frozenset({
    "getattr", "setattr", "delattr", "eval", "exec", "compile", "globals", "locals", "vars", "open", "input", "breakpoint",
    "exit", "quit", "type", "dir",
})  # fmt: skip
"""Built-in functions that set and get attributes by a text, make classes, run texts, or reach the disk."""
DENIED_NAMES = frozenset({
    "sys", "os", "builtins", "bltns", "importlib", "imp", "inspect", "gc", "ctypes", "cffi", "subprocess", "posix", "threading",
    "multiprocessing", "asyncio", "atexit", "signal", "traceback", "linecache", "pytest", "unittest", "mock", "doctest", "runpy",
    "pickle", "marshal", "shutil", "pathlib", "tempfile", "socket", "faulthandler", "tracemalloc", "weakref", "pdb", "io",
    "modules", "attrgetter", "methodcaller", "make_dataclass", "new_class", "singledispatch", "update_wrapper", "wraps",
    "Formatter", "get_field", "get_type_hints", "ForwardRef", "FunctionType", "CodeType",
    "enum", "Enum", "EnumMeta", "EnumType", "IntEnum", "StrEnum", "Flag", "IntFlag", "global_enum", "ABCMeta", "namedtuple",
    "UserDict", "UserList", "UserString", "copyreg", "TypedDict", "NamedTuple", "NewType",
})  # fmt: skip
"""Modules and members of modules that reach further; as names and as attributes, also with an underscore before them."""
DENIED_PATTERN = re.compile(
    r"__|^(?:f|tb|gi|cr|ag|co|func)_(?:back|frame|code|globals|locals|builtins|next|await|yieldfrom|trace|closure|dict|consts|names)$"
)
HARMLESS_NAMES = frozenset(["__name__", "__qualname__", "__doc__", "__len__", "__contains__", "__getitem__", "__iter__", "__next__"])
"""Names with two underscores that may be used, but not defined."""
SAFE_MODULES = frozenset({
    "math", "cmath", "re", "itertools", "string", "bisect", "heapq", "decimal", "fractions", "datetime", "textwrap",
    "unicodedata", "collections", "collections.abc", "functools", "calendar", "numbers", "statistics", "random", "__future__",
})  # fmt: skip
"""Modules that a function may always import."""


class UnacceptableAnswer(Exception):
    """Why an answer scores 0 before any test runs."""


def graft_functions(original: str, buggy: str, answer: str, names: Sequence[str]) -> str:
    r"""Return the original file with the functions of the answer's file; raise UnacceptableAnswer if the answer has none that may run.

    >>> graft_functions("def f():\n    return 1\nx = 2\n", "def f():\n    return 0\nx = 2\n", "def f():\n    return 1 + 0\n", ["f"])
    'def f():\n    return 1 + 0\nx = 2\n'
    """
    answer_tree, original_tree, buggy_tree = _parse(answer), parse_python_threadsafe(original), parse_python_threadsafe(buggy)
    answer_lines = _split_lines(answer)
    text = original
    modules = frozenset(_list_imports(original_tree)) | frozenset(_list_imports(buggy_tree))
    for name in names:
        before, after = find_function_node(original_tree, name), find_function_node(answer_tree, name)
        broken = find_function_node(buggy_tree, name)
        assert before is not None and broken is not None
        if after is None:
            raise UnacceptableAnswer(f"{name} is not in the file exactly once")
        _check_names(name, after, (before, broken), modules)
        target = find_function_node(parse_python_threadsafe(text), name)
        if target is None or target.col_offset != after.col_offset or type(target) is not type(after):
            raise UnacceptableAnswer(f"{name} is not indented or defined as it was")
        if answer_lines[after.lineno - 1].encode()[: after.col_offset].strip():
            raise UnacceptableAnswer(f"{name} does not begin on a line of its own")
        new = answer_lines[after.lineno - 1 : after.end_lineno]
        lines = _split_lines(text)
        last = "" if new[-1].endswith(("\n", "\r")) else "\n"
        text = "".join([*lines[: target.lineno - 1], *new, last, *lines[target.end_lineno or target.lineno :]])
        if text.endswith("\n") and not original.endswith("\n"):
            text = text[:-1]
    if _dump_without(_parse(text), names) != _dump_without(original_tree, names):
        raise UnacceptableAnswer("the functions of the answer end in code that is not theirs")
    return text


def _parse(text: str) -> ast.Module:
    try:
        return parse_python_threadsafe(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnacceptableAnswer(f"the file is not Python: {type(error).__name__}: {error!s:.100}") from None


def _split_lines(text: str) -> list[str]:
    """Split a text where Python's parser sees the end of a line; `splitlines` splits at more characters."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def _dump_without(tree: ast.Module, names: Sequence[str]) -> str:
    """Return a text of the syntax tree in which the functions have no body and no arguments, but their decorators."""
    for name in names:
        node = find_function_node(tree, name)
        if node is None:
            return ""
        node.body, node.returns, node.args = [], None, ast.arguments([], [], None, [], [], None, [])
    try:
        return ast.dump(tree)
    except RecursionError:
        raise UnacceptableAnswer("the file is nested too deeply") from None


# ---- names


def _check_names(name: str, answer: ast.AST, known: Sequence[ast.AST], modules: frozenset[str]) -> None:
    """Raise UnacceptableAnswer if a function uses a name that reaches further than the known versions of it do."""
    allowed = frozenset(word for version in known for word in _list_words(version))
    for word in _list_words(answer):
        if word not in allowed and (word.lstrip("_") in DENIED_NAMES or (DENIED_PATTERN.search(word) and word not in HARMLESS_NAMES)):
            raise UnacceptableAnswer(f"{name} uses {word!r:.60}, which the original function does not use")
    builtin = {node.id for version in known for node in ast.walk(version) if isinstance(node, ast.Name)}
    for node in ast.walk(answer):
        if isinstance(node, ast.Name) and node.id in DENIED_BUILTINS and node.id not in builtin:
            raise UnacceptableAnswer(f"{name} uses {node.id!r}, which the original function does not use")
    kinds = {kind for version in known for kind in _list_reaching_syntax(version)}
    if new := [kind for kind in _list_reaching_syntax(answer) if kind not in kinds]:
        raise UnacceptableAnswer(f"{name} has {new[0]}, which the original function does not have")
    if new := [one for one in _list_imports(answer) if one not in modules and one not in SAFE_MODULES]:
        raise UnacceptableAnswer(f"{name} imports {new[0]!r:.60}, which the file does not import")
    defined = {word for version in known for word in _list_defined_names(version)}
    for word in _list_defined_names(answer):
        if word in HARMLESS_NAMES and word not in defined:
            raise UnacceptableAnswer(f"{name} defines {word!r}, which the original function does not define")
    stored = {word for version in known for word in _list_stored_attributes(version)}
    if new := [word for word in _list_stored_attributes(answer) if word not in stored]:
        raise UnacceptableAnswer(f"{name} sets {new[0]:.60}, which the original function does not set")


def _list_words(tree: ast.AST) -> Iterator[str]:
    """Yield every name, attribute, keyword and text in a syntax tree, docstrings left out."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if id(node) in docstrings and isinstance(node, ast.Constant):
            continue
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Constant) and field == "value":
                # a text is no name: of it only two underscores count, by which `format` and others reach attributes
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                if isinstance(text, str) and "__" in text:
                    yield text
            elif isinstance(value, str):
                yield from value.split(".") if isinstance(node, ast.alias | ast.ImportFrom) else (value,)
            elif isinstance(value, list):
                yield from (one for one in value if isinstance(one, str))


def _list_reaching_syntax(tree: ast.AST) -> Iterator[str]:
    """Yield the kinds of syntax that reach attributes by names which are data: classes, whose metaclass may do anything, patterns of
    classes, and `format` of a text that is computed.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield "a class"
        elif isinstance(node, ast.MatchClass):
            yield "a pattern of a class"
        elif isinstance(node, ast.Attribute) and node.attr in ("format", "format_map") and not isinstance(node.value, ast.Constant):
            yield "the format of a text that is no literal"


def _list_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _list_defined_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def _list_stored_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield what the function changes outside of itself: attributes of anything but its own values, and global names."""
    local = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    local |= {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from (f"global {word}" for word in node.names)
        elif (
            isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and (node.value.id if isinstance(node.value, ast.Name) else "") not in local
        ):
            yield f"the attribute {node.attr}"


def check_is_neutral(original: str, buggy: str, names: Sequence[str]) -> bool:
    """Return whether the functions of the original file, put into itself, give the file, and those of the buggy one give that.

    This is what the original and the empty answer become.
    """
    try:
        return graft_functions(original, buggy, original, names) == original and graft_functions(original, buggy, buggy, names) == buggy
    except UnacceptableAnswer:
        return False
