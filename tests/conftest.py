"""What the tests share: the sandboxes, and the rule that a test that was not run is said aloud."""

from __future__ import annotations

import contextlib
import gc
import getpass
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from rlvr.contracts import Sandbox
from rlvr.errors import RlvrError
from rlvr.runs.folder_owner import create_owned_folder, remove_orphaned_folders
from tests.fixtures import browser

# with more threads, sums of the same rows in batches of other sizes differ in the last digits, and tests compare them
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # the width of the terminal in which the tests run is not that of what they read
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell ignores Ctrl-C in its background jobs, and all that they start inherits it; runs under test must hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Temporary files of a session, also of programs that it starts and kills, lie in one folder, which is removed at the end.

    The folder of a session that was killed is removed by the next one. Folders of `tmp_path` and compiled kernels stay where they were.
    """
    if hasattr(config, "workerinput"):
        return  # a process of xdist has inherited it
    outer, before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", outer)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{outer}/torchinductor_{getpass.getuser()}")
    remove_orphaned_folders("rlvr-tests-")
    home = create_owned_folder("rlvr-tests-")
    home.chmod(0o1777)  # as the outer one: sandboxes are other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(home)

    def removed() -> None:
        shutil.rmtree(home, ignore_errors=True)
        tempfile.tempdir = outer
        os.environ.pop("TMPDIR")
        os.environ.update({} if before is None else {"TMPDIR": before})

    config.add_cleanup(removed)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start two workers on each processor for the quick tests, which wait half of their time, and three on two for the slow ones."""
    count = len(os.sched_getaffinity(0))
    return count * 2 if str(config.option.markexpr).startswith("not") else count + count // 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each worker begin with another part of the test modules: what one has compiled, with its assertions, the others find.

    There is no garbage before all tests are collected, and a seventh of the time went into looking for it.
    """
    if session.config.pluginmanager.has_plugin("dsession"):
        return  # its workers collect
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is None or [Path(path).name for path in session.config.args] != ["tests"]:
        return
    modules = sorted(Path(__file__).parent.rglob("test_*.py"))
    first = len(modules) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in modules[first:] + modules[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # its collection says what is wrong with it
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


_frozen_modules = 0


@pytest.fixture(autouse=True)
def _keep_collections_short() -> None:
    """Leave imported modules, and what else is there with them, out of the collections of garbage, which every run of a trainer asks for:
    they took a third of its time.
    """
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + 400:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@lru_cache(maxsize=1)
def no_docker() -> str:
    """Why the tests marked `docker` cannot run here; empty when they can."""
    from rlvr.sandbox.docker import DockerSandbox

    return "; ".join(f"{what}; {how}" for what, how in DockerSandbox.find_problems())


@lru_cache(maxsize=1)
def no_vllm() -> str:
    """Why the tests marked `vllm` cannot run here; empty when they can."""
    from rlvr.samplers._vllm_version import check_vllm_version, get_installed_version

    try:
        check_vllm_version(get_installed_version())
    except RlvrError as error:
        return str(error)
    return ""


def no_chromium() -> str:
    """Why the tests marked `chromium` cannot run here; empty when they can."""
    return "" if browser.program() else f"none of {', '.join(browser.PROGRAMS)} is installed"


@lru_cache(maxsize=1)
def no_bubblewrap() -> str:
    """Why the tests marked `bubblewrap` cannot run here; empty when they can."""
    from rlvr.sandbox.bubblewrap import BubblewrapSandbox

    return "; ".join(f"{what}; {how}" for what, how in BubblewrapSandbox.find_problems())


@dataclass
class Engine:
    """Something big that some tests need: they carry its mark, and RLVR_REQUIRE_... makes its absence a failure."""

    title: str
    lacking: Callable[[], str]


ENGINES = {
    "docker": Engine("Docker Engine", no_docker),
    "bubblewrap": Engine("bubblewrap", no_bubblewrap),
    "vllm": Engine("vLLM", no_vllm),
    "chromium": Engine("Chromium", no_chromium),
}


def required(mark: str) -> str:
    return f"RLVR_REQUIRE_{mark.upper()}"


def read_listed_tests(mark: str) -> tuple[str, ...]:
    """Return the starts of the ids of the tests that slow.txt or release.txt lists."""
    lines = (Path(__file__).with_name(f"{mark}.txt")).read_text("utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def stands_alone(item: pytest.Item) -> bool:
    """Whether a test shares no fixture of its file, so that any worker may run it."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  (pytest has no public name for it)
    return all(found[-1].scope in ("function", "session") for found in fixtures.values())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = {mark: read_listed_tests(mark) for mark in ("slow", "release")}
    needing: dict[str, list[pytest.Item]] = {mark: [] for mark in ENGINES}
    for item in items:
        for mark, starts in listed.items():
            if item.nodeid.startswith(starts):
                item.add_marker(mark)
        marks = {mark.name for mark in item.iter_markers()}
        if "vllm" in marks:  # two engines at once need more memory than a small machine has
            item.add_marker(pytest.mark.xdist_group("vllm"))
        elif "xdist_group" not in marks and not ("slow" in marks and stands_alone(item)):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
        for mark in needing.keys() & marks:
            needing[mark].append(item)
    for mark, engine in ENGINES.items():
        if needing[mark] and os.environ.get(required(mark)) != "1" and engine.lacking():
            for item in needing[mark]:
                item.add_marker(pytest.mark.skip(reason=f"no {engine.title}"))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, engine in ENGINES.items():
        if item.get_closest_marker(mark) and engine.lacking():
            pytest.fail(f"this test needs {engine.title}, and {required(mark)}=1 is set: {engine.lacking()}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for mark, engine in ENGINES.items():
        if count := sum(f"no {engine.title}" in reason for reason in skipped):
            terminalreporter.section(f"NOT RUN: no {engine.title}", red=True, bold=True)
            terminalreporter.line(f"{count} tests marked {mark} were not run: {engine.lacking()}", red=True)
            terminalreporter.line(f"Set {required(mark)}=1 to make this a failure.", red=True)
    told = [
        str(value) for report in terminalreporter.stats.get("passed", []) for key, value in report.user_properties if key == "documented"
    ]
    if told:
        terminalreporter.section("documentation")
        for line in told:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def process_unchanged() -> Iterator[None]:
    """A test that leaves this process with another limit, or with classes that transformers and accelerate change, would break later ones.

    A run that starts a cluster of its own asks Ray for a token, for the rest of its process: taken back here. So are plugins that a test
    registered.
    """
    before, ray_auth_mode = resource.getrlimit(resource.RLIMIT_CPU), os.environ.get("RAY_AUTH_MODE")
    known = dict(plugins._registered) if (plugins := sys.modules.get("rlvr.registry.plugins")) else {}
    yield
    if plugins := sys.modules.get("rlvr.registry.plugins"):
        for key in plugins._registered.keys() - known.keys():
            del plugins._registered[key]
    if ray_auth_mode is None:
        os.environ.pop("RAY_AUTH_MODE", None)
    assert resource.getrlimit(resource.RLIMIT_CPU) == before
    if transformers := sys.modules.get("transformers.modeling_utils"):
        assert transformers.PreTrainedModel.tie_weights.__name__ == "tie_weights"
    if torch := sys.modules.get("torch"):
        assert torch.nn.Module.register_parameter.__name__ == "register_parameter"


@pytest.fixture(scope="session")
def docker_sandbox() -> Iterator[Sandbox]:
    """The docker sandbox, one for all tests."""
    from rlvr.registry.plugins import build

    with build("sandbox", "docker") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def bubblewrap_sandbox() -> Iterator[Sandbox]:
    """The bubblewrap sandbox, one for all tests."""
    from rlvr.registry.plugins import build

    with build("sandbox", "bubblewrap") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def process_sandbox() -> Iterator[Sandbox]:
    """The process sandbox, for tests of what needs no engine."""
    from rlvr.registry.plugins import build

    with build("sandbox", "process", trusted=True) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the clients of a Python that has torch and transformers loaded: `rlvr`, and `program` for any other."""
    from tests.fixtures.preloaded import start_server

    with start_server(tmp_path_factory.mktemp("preloaded")) as folder:
        yield folder
