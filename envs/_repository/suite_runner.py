"""Run tests of a project on several variants of its files, each in a process of its own, and report each test. Runs in the sandbox.

The process that writes the report never loads a file of the project. A child process loads them, runs the tests and sends each outcome
over a pipe; its own output goes nowhere. After a variant the files are as before: what it changed is written again, what it added is removed.
The environment must have a fixed PYTHONHASHSEED, so that tests which depend on it do not flicker.
"""

# ruff: noqa: E402 -- nothing is imported before the working folder has left the search path

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if path and path != "."]  # before any other import: the working folder is the project's
sys.dont_write_bytecode = True

import ast
import contextlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MAX_REPORT_BYTES = 24_000_000
MAX_CALLS_PER_FUNCTION, MAX_LOOKS_PER_FUNCTION = 12, 400
MAX_LITERAL_CHARACTERS = 160
BASE_TEMP = "/tmp/rlvr-tests"
Send = Callable[[dict[str, Any]], None]


def main(request_path: str) -> None:
    """Read the request, delete it, run every variant and write one line of JSON for each."""
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    os.unlink(request_path)
    os.environ.update(HOME="/tmp", LANG="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", COLUMNS="120")
    if request["packages"]:
        sys.path.append(request["packages"])
    if request["framework"] == "pytest":
        importlib.import_module("pytest")
        importlib.import_module("_pytest.assertion.rewrite")
    else:
        importlib.import_module("unittest")
    for path, text in request["extra_files"].items():
        _write(path, text.encode())
    _compile_ahead(request)
    files = dict(_read_tree())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for variant in request["variants"]:
        for path, text in variant["files"].items():
            _write(path, text.encode("utf-8", "surrogateescape"))
        report = _run_variant(request, variant)
        _restore(files)
        out.write(json.dumps(report) + "\n")
        out.flush()


def _compile_ahead(request: dict[str, Any]) -> None:
    """Compile the files that no variant changes once, and not in the process of each variant; none of them is run here."""
    tests = {os.path.abspath(path) for variant in request["variants"] for path in variant["test_files"]}
    codes: dict[tuple[str, bytes], Any] = {}
    for path in map(os.path.abspath, request["compiled"]):
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError), open(path, "rb") as file:
            data = file.read()
            codes[path, data] = compile(data, path, "exec", dont_inherit=True)
    compile_source = SourceFileLoader.source_to_code

    def get_code(loader: Any, data: Any, path: Any, **settings: Any) -> Any:
        return codes.get((str(path), bytes(data)) if isinstance(data, bytes) else ("", b"")) or compile_source(
            loader, data, path, **settings
        )

    SourceFileLoader.source_to_code = get_code  # type: ignore[assignment]
    rewriter = sys.modules.get("_pytest.assertion.rewrite")
    rewrite = getattr(rewriter, "_rewrite_test", None)
    if rewriter is None or rewrite is None:
        return
    rewritten: dict[str, Any] = {}
    for path in sorted(tests):
        with contextlib.suppress(Exception):  # the child finds the same error, and reports it
            rewritten[path] = rewrite(Path(path), None)
    rewriter._rewrite_test = lambda path, config: rewritten.get(str(path)) or rewrite(path, config)  # type: ignore[attr-defined]


# ---- the files


def _read_tree() -> Iterator[tuple[str, tuple[tuple[int, int], bytes]]]:
    for folder, _, names in os.walk("."):
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                yield path, (_look(path), file.read())


def _look(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_size, found.st_mtime_ns


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def _restore(files: dict[str, tuple[tuple[int, int], bytes]]) -> None:
    """Write again what was changed, and remove what was added."""
    for folder, inner, names in os.walk(".", topdown=False):
        for name in (*names, *inner):
            path = os.path.join(folder, name)
            if path not in files and not any(known.startswith(path + "/") for known in files if name in inner):
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if name in inner and not os.path.islink(path) else os.unlink(path)
    for path, (seen, data) in files.items():
        try:
            if _look(path) == seen and not os.path.islink(path):
                continue
        except OSError:
            pass
        with contextlib.suppress(OSError):
            if os.path.islink(path):
                os.unlink(path)
            _write(path, data)
            files[path] = (_look(path), data)


# ---- one variant


def _run_variant(request: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """Run a variant in a child process, and collect what it sends."""
    shutil.rmtree(BASE_TEMP, ignore_errors=True)
    receiving, sending = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            os.close(receiving)
            _silence()
            resource.setrlimit(resource.RLIMIT_CPU, (int(variant["cpu_s"]) + 1, int(variant["cpu_s"]) + 2))
            memory = int(request["memory_mb"]) << 20
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            _run_tests(request, variant, _make_sender(sending))
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    data, ended = _receive(receiving, began + float(variant["wall_s"]))
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(receiving)
    report: dict[str, Any] = {"tests": {}, "order": [], "errors": {}, "calls": [], "functions": {}, "recorded": {}, "seconds": {}}
    for line in data.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            for key, value in record.items():
                if isinstance(report.get(key), dict) and isinstance(value, dict):
                    report[key].update(value)
                else:
                    report[key] = value
    code = os.waitstatus_to_exitcode(status)
    report["timed_out"] = not ended or (code in (-signal.SIGXCPU, -signal.SIGKILL) and not report.get("end"))
    report["exit"] = code
    report["wall"] = round(time.monotonic() - began, 3)
    return report


def _receive(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Read until the child closes the pipe, or the deadline; returns the bytes, and whether it ended by itself."""
    parts: list[bytes] = []
    size = 0
    while size < MAX_REPORT_BYTES and (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            data = os.read(descriptor, 1 << 16)
            if not data:
                return b"".join(parts), True
            parts.append(data)
            size += len(data)
            if data.endswith(b'"end": true}\n'):  # processes that it left hold the pipe open
                return b"".join(parts), True
    return b"".join(parts), False


def _silence() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


def _make_sender(descriptor: int) -> Send:
    def send(record: dict[str, Any]) -> None:
        data = memoryview(json.dumps(record).encode() + b"\n")
        while data:
            data = data[os.write(descriptor, data) :]

    return send


def _run_tests(request: dict[str, Any], variant: dict[str, Any], send: Send) -> None:
    root = os.getcwd()
    sys.path[:0] = [os.path.normpath(os.path.join(root, path)) for path in request["paths"]]
    tracer = _Tracer(root, set(request["traced"]), request["recorded"]) if variant["trace"] else None
    reporter = _Reporter(send, variant, tracer)
    if request["framework"] == "pytest":
        _run_pytest(root, variant, reporter)
    else:
        _run_unittest(root, variant, reporter)
    if tracer:
        send({"functions": tracer.functions, "recorded": tracer.calls})
    send({"calls": [_call(*one) for one in variant["calls"]]})
    send({"end": True})


class _Reporter:
    """What the tests of a variant do, for both frameworks; also a plugin of pytest."""

    def __init__(self, send: Send, variant: dict[str, Any], tracer: _Tracer | None) -> None:
        self.send, self.tracer = send, tracer
        self.wanted: list[str] | None = variant["tests"]
        self.stops: bool = variant["stop"]
        self.canaries = set(variant.get("canaries", ()))
        self.session: Any = None
        self.failed = False
        self._outcomes: dict[str, tuple[str, str]] = {}
        self._seconds: dict[str, float] = {}

    def begin(self, test: str) -> None:
        random.seed(0)
        if self.tracer:
            self.tracer.start(test)

    def end(self, test: str, outcome: str, message: str, seconds: float) -> None:
        if self.tracer:
            self.tracer.stop()
        self.failed = self.failed or (outcome == "failed" and test not in self.canaries)
        self.send({"tests": {test: [outcome, message]}, "seconds": {test: round(seconds, 4)}})

    # ---- hooks of pytest

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.send({"errors": {report.nodeid: _shorten(report.longreprtext.strip().rpartition("\n")[2])}})

    def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
        self.session = session
        if self.wanted is not None:
            places = {test: place for place, test in enumerate(self.wanted)}
            items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcomes[nodeid], self._seconds[nodeid] = ("passed", ""), 0.0
        self.begin(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else str(report.longrepr)
            self._outcomes[report.nodeid] = ("failed", _shorten(message))
        elif (report.skipped or hasattr(report, "wasxfail")) and self._outcomes[report.nodeid][0] == "passed":
            self._outcomes[report.nodeid] = ("skipped", "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.end(nodeid, *self._outcomes.pop(nodeid), self._seconds[nodeid])
        if self.failed and self.stops:
            self.session.shouldstop = "a test failed"


def _run_pytest(root: str, variant: dict[str, Any], reporter: _Reporter) -> None:
    import pytest

    with open("/tmp/rlvr-pytest.ini", "w", encoding="ascii") as file:
        file.write("[pytest]\n")
    options = [
        "-q",
        "-c",
        "/tmp/rlvr-pytest.ini",
        f"--rootdir={root}",
        f"--basetemp={BASE_TEMP}",
        "--continue-on-collection-errors",
        "--tb=line",
        "-o",
        "cache_dir=/tmp/rlvr-pytest-cache",
    ]
    for plugin in ("faulthandler", "pastebin"):
        options += ["-p", f"no:{plugin}"]
    status = pytest.main([*options, *variant["test_files"]], plugins=[reporter])
    if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        reporter.send({"errors": {variant["test_files"][0]: f"pytest ended with {status!r}"}})


def _run_unittest(root: str, variant: dict[str, Any], reporter: _Reporter) -> None:
    found: dict[str, Any] = {}
    for path in variant["test_files"]:
        try:
            found.update(_load_unittests(root, path))
        except BaseException as error:
            reporter.send({"errors": {path: _shorten(f"{type(error).__name__}: {error}")}})
    import unittest

    for name in found if reporter.wanted is None else [test for test in reporter.wanted if test in found]:
        result = unittest.TestResult()
        began = time.monotonic()
        reporter.begin(name)
        unittest.TestSuite([found[name]]).run(result)
        wrong = [text for _, text in (*result.errors, *result.failures)]
        left_out = result.skipped or result.expectedFailures or result.unexpectedSuccesses or not result.testsRun
        message = _shorten(wrong[0].strip().rpartition("\n")[2]) if wrong else ""
        reporter.end(name, "failed" if wrong else "skipped" if left_out else "passed", message, time.monotonic() - began)
        if reporter.failed and reporter.stops:
            return


def _load_unittests(root: str, path: str) -> Iterator[tuple[str, Any]]:
    import unittest

    folder, name = os.path.split(path.removesuffix(".py"))
    while folder and os.path.isfile(os.path.join(root, folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    if (place := os.path.normpath(os.path.join(root, folder))) not in sys.path:
        sys.path.insert(0, place)
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, unittest.TestSuite):
            waiting[:0] = list(one)
        else:
            yield f"{path}::{type(one).__name__}::{one._testMethodName}", one


def _shorten(text: str) -> str:
    return " ".join(text.replace(os.getcwd() + "/", "").split())[:400]


# ---- what the tests call


class _Tracer:
    """Which functions of the project each test calls, and some calls whose arguments are plain data."""

    def __init__(self, root: str, traced: set[str], recorded: list[str]) -> None:
        self.root, self.traced = root + "/", traced
        self.left = dict.fromkeys(recorded, MAX_LOOKS_PER_FUNCTION)
        self.functions: dict[str, list[str]] = {}
        self.calls: dict[str, list[str]] = {}
        self._known: dict[Any, str] = {}
        self._seen: set[str] = set()

    def start(self, test: str) -> None:
        self._test, self._seen = test, set()
        sys.setprofile(self._profile)

    def stop(self) -> None:
        sys.setprofile(None)
        self.functions[self._test] = sorted(self._seen)

    def _profile(self, frame: Any, event: str, value: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        key = self._known.get(code)
        if key is None:
            path = code.co_filename.removeprefix(self.root) if code.co_filename.startswith(self.root) else ""
            key = self._known[code] = f"{path}:{code.co_firstlineno}" if path in self.traced else ""
        if key:
            self._seen.add(key)
            if self.left.get(key):
                self.left[key] -= 1
                known = self.calls.setdefault(key, [])
                if (text := _describe_call(frame)) and text not in known and len(known) < MAX_CALLS_PER_FUNCTION:
                    known.append(text)


def _describe_call(frame: Any) -> str:
    """Return the arguments of a call as the text of a pair (positional, by name), or '' if they are not plain data."""
    code = frame.f_code
    names = code.co_varnames
    where = frame.f_locals
    num_args, num_named = code.co_argcount, code.co_kwonlyargcount
    place = num_args + num_named
    args = [where.get(name, ...) for name in names[:num_args]]
    named = {name: where.get(name, ...) for name in names[num_args:place]}
    if code.co_flags & 0x04:
        args += where.get(names[place], ())
        place += 1
    if code.co_flags & 0x08:
        named.update(where.get(names[place], {}))
    if not _is_plain(args) or not _is_plain(named):
        return ""
    text = repr((tuple(args), named))
    return text if len(text) <= MAX_LITERAL_CHARACTERS else ""


def _is_plain(value: Any, depth: int = 4) -> bool:
    kind = type(value)
    if kind is float:
        return bool(value == value and abs(value) != float("inf"))
    if kind is int:
        return bool(abs(value) < 10**40)
    if value is None or kind in (bool, str, bytes):
        return True
    if depth and kind in (list, tuple, set):
        return len(value) <= 60 and all(_is_plain(one, depth - 1) for one in value)
    return bool(depth) and kind is dict and len(value) <= 60 and all(_is_plain(one, depth - 1) for pair in value.items() for one in pair)


def _call(module: str, function: str, arguments: str) -> str:
    """Call a function; returns the text of a plain value, '!' and the name of an exception, or ''."""
    try:
        args, named = ast.literal_eval(arguments)
        value = getattr(importlib.import_module(module), function)(*args, **named)
    except Exception as error:
        return f"!{type(error).__name__}"
    text = repr(value) if _is_plain(value) else ""
    return text if len(text) <= 2 * MAX_LITERAL_CHARACTERS else ""


if __name__ == "__main__":
    main(sys.argv[1])
