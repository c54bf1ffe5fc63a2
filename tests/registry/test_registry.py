"""Names to plugins: found without importing, built with what they need, and never broken by a neighbour."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Environment, Verifier
from rlvr.contracts.plugin import CONTRACT_VERSION
from rlvr.errors import ConfigError, MissingExtra, NotFound, PluginLoadError, RlvrError
from rlvr.registry.plugins import (
    PLUGIN_KINDS,
    PluginSpec,
    build,
    build_from_config,
    get_kind,
    get_parameters,
    list_entries,
    list_entries_with_import_errors,
    load_factory,
)
from rlvr.task import Task
from tests.fixtures import worlds
from tests.fixtures.worlds import Match

SUMS = f"{worlds.__file__}:Sums"

GOOD = '''
"""A plugin package."""
from rlvr.contracts import Verifier
from rlvr.task import Verdict

class Always(Verifier):
    """Gives everybody the same score."""
    def __init__(self, *, score: float = 1.0) -> None:
        self.score = score
    def verify(self, task, answer):
        return Verdict(self.score, "always")
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a distribution with entry points, and its module, where Python looks for packages."""

    def installer(name: str, points: str, source: str | None = None, module: str = "", group: str = "rlvr.verifiers") -> None:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        if source is not None:
            (folder / f"{module}.py").write_text(source)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(folder))

    return installer


def named(kind: str, name: str, rows: Any = list_entries) -> Any:
    return next(entry for entry in rows(kind) if entry.name == name)


def test_our_own_plugins_are_listed_with_the_first_line_of_their_file() -> None:
    rows = {entry.name: entry for entry in list_entries("envs")}
    assert {"arithmetic", "countdown", "guess_number"} <= set(rows)
    assert rows["arithmetic"].source == "rlvr" and rows["arithmetic"].summary and not rows["arithmetic"].error
    assert not any(name.startswith("_") for name in rows)


def test_listing_imports_no_plugin() -> None:
    code = (
        "import sys; from rlvr.registry.plugins import list_entries\n"
        "for kind in ('env', 'verifier', 'sandbox', 'sampler'): list_entries(kind)\n"
        "loaded = [m for m in sys.modules if m.startswith(('rlvr.envs.', 'rlvr.verifiers.', 'rlvr.sandbox.', 'rlvr.samplers.'))]\n"
        "assert not loaded and not {'torch', 'sympy', 'docker', 'transformers'} & set(sys.modules), loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("kind", ["env", "verifier", "sandbox", "sampler"])
def test_every_plugin_of_ours_loads_or_says_which_extra_it_wants(kind: str) -> None:
    for entry in list_entries(kind):
        if entry.source == "rlvr":
            try:
                assert callable(load_factory(kind, entry.name))
            except MissingExtra as error:
                assert error.package in ("vllm",)


def test_a_plugin_is_built_with_its_settings_and_its_needs() -> None:
    env = build("env", "arithmetic", levels=["1+1"], verifier={"name": "numeric"})
    assert isinstance(env, Environment) and type(env.verifier).__name__ == "Numeric"
    assert type(build("env", "arithmetic").verifier) is type(env.verifier)
    judge = Match()
    assert build("env", "arithmetic", verifier=judge).verifier is judge
    assert build("env", "arithmetic", verifier="exact").verifier is not None


@pytest.mark.parametrize(
    "kind, name, kwargs, words",
    [
        ("env", "arithmetik", {}, r"no env is called 'arithmetik'; did you mean 'arithmetic'\?.*rlvr list envs"),
        ("verifier", "zzz", {}, "no verifier is called 'zzz'; allowed: "),
        ("verfier", "exact", {}, "no kind of plugin 'verfier'; did you mean 'verifiers'"),
        ("env", "", {}, "needs a name"),
        ("env", None, {}, "needs a name, got None"),
        ("env", 7, {}, "needs a name, got 7"),
        ("env", "arithmetic", {"level": 1}, r"no setting 'level'; did you mean 'levels'"),
        ("env", "arithmetic", {"verifier": "numerical"}, "did you mean 'numeric'"),
        ("env", "arithmetic", {"verifier": {"tolerance": 1}}, "needs a 'name'"),
        ("env", "arithmetic", {"verifier": {"name": "numeric", "tolerence": 1}}, "did you mean"),
        ("env", "arithmetic", {"verifier": None}, "a name or a mapping"),
        ("env", "arithmetic", {"verifier": 3}, "a name or a mapping"),
        ("env", "nowhere.py:Thing", {}, r"no file 'nowhere\.py'"),
        ("env", "nowhere:Thing", {}, r"write path/to/file\.py:Object"),
        ("env", f"{worlds.__file__}:", {}, r"write path/to/file\.py:Object"),
        ("env", f"{worlds.__file__}:Sum", {}, "has no 'Sum'; did you mean 'Sums'"),
        ("env", f"{worlds.__file__}:TOKENS", {}, "a plugin is a class or a function"),
        ("env", SUMS, {"blow": 3}, "no setting 'blow'; did you mean 'below'"),
        ("verifier", "numeric", {"percent": "maybe"}, "percent is 'maybe'; it must be true or false"),
    ],
)
def test_a_wrong_name_or_setting_is_answered_with_the_right_one(kind: str, name: Any, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(RlvrError, match=words) as caught:
        build(kind, name, **kwargs)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "setting", "words"),
    [
        ("verifier", "numeric", "rubric", r"allowed: .*; `llm_judge` has it$"),
        ("verifier", "exact", "tolerance", r"`numeric`, `quantity` and `table` have it$"),
        ("verifier", "symbolic", "tolerance", r"conventions=\{'tolerance': .*`numeric`, `quantity` and `table` have it$"),
        ("verifier", "symbolic", "worked_out", r"write conventions=\{'worked_out': 'lenient'\}; allowed: 'strict', 'lenient', 'off'$"),
        ("verifier", "llm_judge", "judge", r"write model=.*url=.*or a function"),
        ("verifier", "llm_judge", "api_key", r"api_key_env='OPENAI_API_KEY'"),
        ("verifier", "exact", "extractors", r"did you mean 'extractor'\? Allowed: [\w, ]+$"),  # the nearest name is the answer
        ("verifier", "exact", "nothing_has_this", r"allowed: [\w, ]+$"),
        ("tool", "calculator", "sandbox", r"none are known$"),
    ],
)
def test_a_setting_of_another_plugin_of_the_kind_names_that_plugin(kind: str, name: str, setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(kind, name, **{setting: 1})


def test_plugins_with_a_setting_are_found_without_importing_them() -> None:
    code = (
        "import sys; from rlvr.registry.plugins import build\n"
        "try: build('verifier', 'exact', models=[])\n"
        "except Exception as error: assert '`learned` has it' in str(error), error\n"
        "assert 'rlvr.verifiers.learned' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(source: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(source)
        return str(path)

    return write


def test_a_file_of_the_users_is_a_plugin(file: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = file(GOOD)
    assert build("verifier", f"{path}:Always", score=0.5).verify(None, "").score == 0.5
    monkeypatch.chdir(tmp_path)
    assert load_factory("verifier", "mine.py:Always") is load_factory("verifier", f"{path}:Always")  # one file is one module
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(GOOD)
    assert load_factory("verifier", "other/mine.py:Always") is not load_factory("verifier", "mine.py:Always")


@pytest.mark.parametrize(
    "source, words",
    [
        ("1/0", "cannot be imported: ZeroDivisionError"),
        ("def (", "cannot be imported: SyntaxError"),
        ("import no_such_thing", "cannot be imported: ModuleNotFoundError: .*install it, or"),
        ("from . import beside", "cannot be imported: ImportError: .*make a package of both"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit"),
    ],
)
def test_a_broken_file_is_a_plugin_error_each_time(file: Any, source: str, words: str) -> None:
    path = file(source, f"broken_{abs(hash(source))}.py")
    for _ in range(2):
        with pytest.raises(PluginLoadError, match=words):
            build("verifier", f"{path}:Always")
    Path(path).write_text(GOOD)  # mended, it works without a restart
    assert isinstance(build("verifier", f"{path}:Always"), Verifier)


@pytest.mark.parametrize(
    ("kind", "contract"), [("env", "Environment"), ("verifier", "Verifier"), ("sandbox", "Sandbox"), ("sampler", "Sampler")]
)
def test_a_plugin_derives_from_the_class_of_its_kind(kind: str, contract: str, file: Any) -> None:
    path = file("class Stray:\n    verifier = None\n", "stray.py")
    with pytest.raises(PluginLoadError, match=f"is a Stray, not an rlvr.{contract}; derive its class from that"):
        build(kind, f"{path}:Stray")


def test_a_constructor_that_refuses_or_breaks_is_told_apart(file: Any) -> None:
    path = file(
        "from rlvr.contracts import Verifier\n"
        "class Fussy(Verifier):\n    verify = None\n    def __init__(self, *, n: int = 1):\n        raise ValueError(f'n is {n}')\n"
        "class Broken(Verifier):\n    verify = None\n    def __init__(self):\n        raise KeyError('gone')\n"
        "class Wants(Verifier):\n    verify = None\n    def __init__(self, *, a, b):\n        pass\n"
    )
    with pytest.raises(ConfigError, match=r"rejects its settings \(n=3\): n is 3"):
        build("verifier", f"{path}:Fussy", n=3)
    with pytest.raises(PluginLoadError, match="cannot be built: KeyError"):
        build("verifier", f"{path}:Broken")
    with pytest.raises(ConfigError, match="needs 'a', 'b'"):
        build("verifier", f"{path}:Wants")


def test_a_misspelled_need_is_named(file: Any) -> None:
    path = file(
        "from rlvr.contracts import Environment\nclass Env(Environment):\n    task, needs = None, {'verifer': 'numeric'}\n"
        "    def __init__(self, *, verifier):\n        pass\n"
    )
    with pytest.raises(
        ConfigError, match=r"needs 'verifier'; its `needs` has 'verifer', which its constructor does not take; write 'verifier' there"
    ):
        build("env", f"{path}:Env")


def test_what_was_built_for_a_plugin_that_refused_is_put_away(file: Any) -> None:
    path = file(
        "from rlvr.contracts import Environment, Verifier\nclosed = []\n"
        "class Judge(Verifier):\n    verify = None\n    def close(self):\n        closed.append(1)\n"
        "class Env(Environment):\n    task, needs = None, {'verifier': 'exact'}\n    def __init__(self, *, verifier, n=1):\n        raise ValueError('no')\n"
    )
    with pytest.raises(ConfigError):
        build("env", f"{path}:Env", verifier={"name": f"{path}:Judge"})
    closed = sys.modules[load_factory("env", f"{path}:Env").__module__].closed
    assert closed == [1]
    with pytest.raises(ConfigError):
        build("env", f"{path}:Env", verifier=build("verifier", f"{path}:Judge"))
    assert closed == [1]  # handed in: its owner puts it away


def test_another_package_brings_a_plugin(install: Any) -> None:
    install("nice-judges", "always = nice_judges:Always", GOOD, "nice_judges")
    entry = named("verifiers", "always")
    assert (entry.source, entry.error) == ("nice-judges", "") and "nice_judges" not in sys.modules  # metadata only
    assert named("verifier", "always", list_entries_with_import_errors).summary == "Gives everybody the same score."
    assert build("verifier", "always", score=0.25).verify(None, "").score == 0.25
    with pytest.raises(ConfigError, match="did you mean 'score'"):
        build("verifier", "always", scor=1)


@pytest.mark.parametrize(
    "source", ["raise RuntimeError('half installed')", "import sys; sys.exit(3)", "import no_such_thing", "def (", "x = 1"]
)
def test_a_broken_package_is_listed_with_its_error_and_breaks_nothing(install: Any, source: str) -> None:
    install("broken-judges", "sad = broken_judges:Sad", source, "broken_judges")
    entry = named("verifier", "sad", list_entries_with_import_errors)
    assert entry.source == "broken-judges" and "broken-judges" in entry.error and "fix or uninstall" in entry.error
    assert {"exact", "numeric"} <= {e.name for e in list_entries_with_import_errors("verifier") if not e.error}
    assert isinstance(build("verifier", "exact"), Verifier)
    with pytest.raises(PluginLoadError, match=r"'sad' of broken-judges cannot be imported"):
        build("verifier", "sad")


def test_an_entry_point_that_is_no_factory_is_told(install: Any) -> None:
    install("odd-judges", "odd = odd_judges:number", "number = 3", "odd_judges")
    assert "a plugin is a class or a function" in named("verifier", "odd", list_entries_with_import_errors).error


def test_two_packages_that_claim_one_name_are_both_named(install: Any) -> None:
    install("first-judges", "mine = first_judges:Always", GOOD, "first_judges")
    install("second-judges", "mine = second_judges:Always", GOOD, "second_judges")
    assert named("verifier", "mine").error.startswith("first-judges and second-judges both define the verifier 'mine'")
    with pytest.raises(PluginLoadError, match="first-judges and second-judges both define"):
        build("verifier", "mine")


def test_a_name_of_two_packages_is_chosen_by_the_package(install: Any) -> None:
    install("first-judges", "mine = first_judges:Always", GOOD, "first_judges")
    install("second-judges", "mine = second_judges:Always", GOOD.replace("1.0", "0.5"), "second_judges")
    assert (build("verifier", "first-judges:mine").score, build("verifier", "second-judges:mine").score) == (1.0, 0.5)
    with pytest.raises(PluginLoadError, match="write first-judges:mine or second-judges:mine, or uninstall one"):
        build("verifier", "mine")
    assert {"first-judges:mine", "second-judges:mine"} <= {entry.name for entry in list_entries("verifier")}


def test_a_package_that_claims_one_of_our_names_replaces_nothing(install: Any) -> None:
    install("first-judges", "exact = first_judges:Always", GOOD, "first_judges")
    assert type(build("verifier", "exact")).__name__ == "Exact" and type(build("verifier", "rlvr:exact")).__name__ == "Exact"
    assert type(build("verifier", "first-judges:exact")).__name__ == "Always"
    assert named("verifier", "first-judges:exact", list_entries_with_import_errors).error == ""


def test_any_plugin_may_be_named_with_its_package(install: Any) -> None:
    install("nice-judges", "always = nice_judges:Always", GOOD, "nice_judges")
    assert build("verifier", "nice-judges:always").score == 1.0
    with pytest.raises(NotFound):
        build("verifier", "other-judges:always")


def test_what_a_plugin_prints_at_import_is_not_in_the_output(install: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install("loud-judges", "loud = loud_judges:Always", "print('hello from a package')\n" + GOOD, "loud_judges")
    (tmp_path / "loud.py").write_text("print('hello from a file')\n" + GOOD)
    assert build("verifier", "loud").score == build("verifier", f"{tmp_path}/loud.py:Always").score == 1.0
    said = capsys.readouterr()
    assert said.out == "" and "hello from a package" in said.err and "hello from a file" in said.err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def thing(prompt, level):\n    return 3\n", "is the function thing, which needs 'prompt', 'level'; a plugin is a class"),
        ("class thing:\n    pass\n", "is the class thing, not an rlvr.Environment"),
    ],
)
def test_an_entry_point_that_makes_no_environment_is_refused_in_the_list(install: Any, source: str, words: str) -> None:
    install("odd-worlds", "odd = odd_worlds:thing", source, "odd_worlds", group="rlvr.envs")
    assert words in named("env", "odd", list_entries_with_import_errors).error
    with pytest.raises(PluginLoadError, match="of odd-worlds is the"):
        build("env", "odd")


def test_a_function_that_builds_an_environment_is_a_plugin(install: Any) -> None:
    source = f"from rlvr.registry.plugins import build\ndef make_it(*, below=9):\n    return build('env', {SUMS!r}, below=below)\n"
    install("good-worlds", "good = good_worlds:make_it", source, "good_worlds", group="rlvr.envs")
    assert named("env", "good", list_entries_with_import_errors).error == ""
    assert build("env", "good", below=7).below == 7


def test_a_plain_function_in_a_file_is_a_verifier_or_a_tool(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def same(answer, reference):\n    return answer == reference\n"
        "def reward(prompts, completions, **columns):\n    return [float(len(c)) for c in completions]\n"
        'def add(a: int, b: int) -> str:\n    """Add two numbers."""\n    return str(a + b)\n'
    )
    task = Task("2+2=", "4")
    assert build("verifier", f"{tmp_path}/mine.py:same").verify(task, "4").score == 1.0
    assert build("verifier", f"{tmp_path}/mine.py:reward", score_range=(0, 10)).verify(task, "12345").score == 0.5
    assert build("tool", f"{tmp_path}/mine.py:add").specs()[0].name == "add"


@pytest.mark.parametrize(
    ("stated", "words"),
    [("2", "install a newer rlvr"), ("'1'", "it must be a whole number, such as 1"), ("0", "it must be a whole number")],
)
def test_a_plugin_for_another_version_of_the_contracts_is_refused(tmp_path: Path, stated: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(GOOD.replace("    def __init__", f"    contract_version = {stated}\n    def __init__", 1))
    with pytest.raises(PluginLoadError, match=words):
        build("verifier", f"{tmp_path}/mine.py:Always")
    (tmp_path / "good.py").write_text(GOOD.replace("    def __init__", f"    contract_version = {CONTRACT_VERSION}\n    def __init__", 1))
    assert build("verifier", f"{tmp_path}/good.py:Always").score == 1.0


def test_malformed_metadata_of_one_package_hides_nobody_else(install: Any, tmp_path: Path) -> None:
    install("nice-judges", "always = nice_judges:Always", GOOD, "nice_judges")
    install("torn", "this line is no entry point")
    install("nameless", "lonely = nobody:Home")
    (tmp_path / "nameless" / "nameless-1.0.dist-info" / "METADATA").unlink()
    assert named("verifier", "always").source == "nice-judges"
    assert "cannot be imported" in named("verifier", "lonely", list_entries_with_import_errors).error
    assert isinstance(build("verifier", "always"), Verifier)


def test_a_spec_is_all_that_a_worker_needs() -> None:
    spec = PluginSpec("env", SUMS, {"below": 4})
    code = (
        "import pickle, sys; env = pickle.load(sys.stdin.buffer).build(); "
        "print(env.below, env.task('train', 7).question, env.verifier.verify(env.task('train', 7), '4').score)"
    )
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spec), capture_output=True, check=True, timeout=60).stdout
    assert out.decode().split() == ["4", "3+1=", "1.0"]


def test_a_configuration_names_a_plugin_in_three_ways() -> None:
    judge = Match()
    assert build_from_config("verifier", judge) is judge
    assert type(build_from_config("verifier", "exact")) is type(build_from_config("verifier", {"name": "exact"}))
    assert build_from_config("env", {"name": SUMS, "below": 7}).below == 7


def test_the_signature_is_the_schema() -> None:
    fields = get_parameters(load_factory("env", SUMS))
    assert list(fields) == ["below", "verifier"] and fields["below"].default == 50


def test_kinds_have_the_words_that_users_type() -> None:
    assert [get_kind(word).name for word in ("env", "envs", "sandboxes", "algorithms")] == ["env", "env", "sandbox", "algorithm"]
    assert {kind.entry_point_group for kind in PLUGIN_KINDS.values()} == {
        "rlvr.envs",
        "rlvr.verifiers",
        "rlvr.sandboxes",
        "rlvr.samplers",
        "rlvr.tools",
        "rlvr.algorithms",
    }
    with pytest.raises(NotFound):
        get_kind("policies")
