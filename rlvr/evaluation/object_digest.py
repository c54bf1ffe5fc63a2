"""Digests of what an evaluation gets as an object: a function, a class, a plugin, a model. Its name alone does not tell that it has changed.

A digest covers the code of functions and classes, and of those of the same module that they call; defaults, and what a closure holds; and the
settings of plugins. It leaves out what changes by itself, such as a list in a closure. Bytecode differs between versions of Python, so a digest
begins with the version.
"""

from __future__ import annotations

import dis
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from rlvr.contracts.plugin import Plugin
from rlvr.registry.plugins import get_parameters

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}:"
MAX_DEPTH = 12
VALUES_PER_TENSOR = 256
PLAIN = (bool, int, float, complex, str, bytes, Fraction, os.PathLike)


def compute_object_digest(value: Any) -> str:
    """Compute the digest of a function, a class or a plugin; "" if it cannot be described.

    >>> compute_object_digest(partial(int, base=2)) == compute_object_digest(partial(int, base=2))
    True
    >>> compute_object_digest(partial(int, base=2)) == compute_object_digest(partial(int, base=8))
    False
    """
    found: dict[int, Any] = {}
    try:
        texts, done = [_describe(value, MAX_DEPTH, found)], 0
        while done < len(found):
            texts.append(_describe_definition([*found.values()][done], found))
            done += 1
    except Exception:  # an object of a user may refuse to be looked at, which is no reason not to measure it
        return ""
    return VERSION + _hash("\n".join(texts))


def compute_model_digest(model: Any) -> str:
    """Compute the digest of some weights of each tensor of a model object."""
    found = []
    for name, tensor in model.state_dict().items():
        if not hasattr(tensor, "detach"):  # a module may store other things there
            continue
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // VALUES_PER_TENSOR)][:VALUES_PER_TENSOR].float().cpu().tolist()
        found.append(f"{name} {tuple(tensor.shape)} {some}")
    return _hash("\n".join(found))


def is_changed(old: str, new: str) -> bool:
    """Whether two digests tell that an object has changed; those of two versions of Python cannot.

    >>> is_changed("3.11:a", "3.11:b"), is_changed("3.11:a", "3.12:b"), is_changed("", "3.11:b")
    (True, False, False)
    """
    return bool(old and new) and old != new and old.rpartition(":")[0] == new.rpartition(":")[0]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def _describe(value: Any, depth: int, found: dict[int, Any]) -> str:
    """Describe a value as a text that is the same in every process, as far as it can be told. Functions, classes and plugins are put into
    `found`, by their id, and are described once each, by `_describe_definition`.
    """
    if value is None or isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, FunctionType | type | Plugin):
        found.setdefault(id(value), value)
        return f"#{[*found].index(id(value))}"
    if depth == 0:
        return "..."
    again = partial(_describe, depth=depth - 1, found=found)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(again, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(again, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{again(key)}: {again(held)}' for key, held in value.items()))}}}"
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {again(value.co_consts)}"
    if isinstance(value, MethodType):
        return f"{again(value.__func__)} of {again(value.__self__)}"
    if isinstance(value, partial):
        return f"{again(value.func)} with {again(value.args)} {again(value.keywords)}"
    if isinstance(value, staticmethod | classmethod):
        return again(value.__func__)
    if isinstance(value, property):
        return again((value.fget, value.fset))
    return again(type(value))


def _describe_definition(value: Any, found: dict[int, Any]) -> str:
    """Describe a function, a class or a plugin."""
    again = partial(_describe, depth=MAX_DEPTH, found=found)
    if isinstance(value, FunctionType):
        return " ".join(map(again, _iter_function_parts(value))) if _is_of_user(value) else f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__} " + " ".join(map(again, _iter_class_parts(value)))
    return f"{again(type(value))} {again(_get_settings(value))}"


def _iter_function_parts(function: FunctionType) -> Iterator[Any]:
    yield from (function.__code__, _keep_unchanging(function.__defaults__ or ()), dict(function.__kwdefaults__ or {}))
    assigned = {one.argval for one in dis.get_instructions(function.__code__) if one.opname == "STORE_DEREF"}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield from _keep_unchanging(() if name in assigned else (cell.cell_contents,))
        except ValueError:  # it is not filled yet
            continue
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        if isinstance(found, FunctionType | type) and found.__module__ == function.__module__:
            yield found


def _iter_class_parts(cls: type) -> Iterator[Any]:
    if _is_of_user(cls):
        yield from (base for base in cls.__bases__ if base is not object)
        for name, held in sorted(vars(cls).items()):
            if isinstance(held, FunctionType | staticmethod | classmethod | property) or (
                not name.startswith("__") and _keep_unchanging((held,))
            ):
                yield (name, held)


def _keep_unchanging(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out what a program may change in place, such as a list that counts calls."""
    return tuple(value for value in values if not isinstance(value, list | dict | set | bytearray))


def _get_settings(plugin: Plugin) -> dict[str, Any]:
    """Return the settings of a plugin: the attributes named as its constructor's arguments; of one of rlvr all that are public."""
    held = vars(plugin) if hasattr(plugin, "__dict__") else {}
    names = get_parameters(type(plugin)).keys() if _is_of_user(type(plugin)) else {name for name in held if not name.startswith("_")}
    return {name: held[name] for name in names if name in held}


def _is_of_user(definition: Any) -> bool:
    """Whether a function or a class is neither of rlvr, nor of Python, nor of an installed package."""
    module = str(definition.__module__)
    if module == "__main__":  # a script or a notebook, even where its file is the program that runs it
        return True
    file = str(getattr(sys.modules.get(module), "__file__", "") or "")
    return (top := module.partition(".")[0]) not in ("rlvr", "builtins") and top not in sys.stdlib_module_names and "-packages" not in file
