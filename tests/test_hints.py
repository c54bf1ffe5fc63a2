"""Every call, key, plugin and command that a hint names exists: whoever follows a hint does not get the next error."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import rlvr
from rlvr import hints
from rlvr.api import list_data_settings_for_evaluate
from rlvr.config.config import RunConfig
from rlvr.config.key_reference import iter_sections
from rlvr.config.rollout import RolloutConfig
from rlvr.config.training import TrainConfig
from rlvr.contracts.session import Session
from rlvr.envs._data import columns
from rlvr.evaluation.evaluate import evaluate as evaluate_function
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.samples import EvalSample
from rlvr.evaluation.suite import SuiteItem
from rlvr.registry.plugins import PLUGIN_KINDS, get_parameters, list_entries, load_factory
from rlvr.synonyms import SYNONYMS
from rlvr.training.update.optimization import OptimizationSettings
from tests.cli.command_lines import find_command_fault

CODE = re.compile(r"(?<![\w.`'])(rlvr|gymnasium|report|trainer)\.\w")
PLACES: Mapping[str, Any] = {"rlvr": rlvr, "report": EvalReport, "trainer": rlvr.Trainer, "env": rlvr.Environment}
WORDS_OF_CODE = {"messages", "tools", "datasets.Dataset"}
"""Words in backquotes that are no names of rlvr: the arguments of a policy, and a class of `datasets`."""


def list_plugin_settings(kind: str) -> set[str]:
    """The settings of all plugins of a kind; every environment also takes tools."""
    names = [entry.name for entry in list_entries(kind) if entry.source == "rlvr"]
    found = {key for name in names for key in get_parameters(load_factory(kind, name))}
    return found | ({"tools", "max_turns"} if kind == "env" else set())


def list_arguments(call: str) -> set[str]:
    """The keywords that a call of the library takes, with those that it takes as `**settings`."""
    if call.startswith("make_") and call != "make_vec":
        return list_plugin_settings(call.removeprefix("make_"))
    known = set(inspect.signature(getattr(rlvr, call)).parameters)
    more: Mapping[str, Any] = {
        "train": ["lora", *RunConfig.model_fields, *TrainConfig.model_fields, *RolloutConfig.model_fields],
        "evaluate": [*inspect.signature(evaluate_function).parameters, *SuiteItem.model_fields, *list_data_settings_for_evaluate()],
        "Learner": OptimizationSettings.__dataclass_fields__,
    }
    return known | set(more.get(call, ()))


def find_code(text: str) -> Iterator[str]:
    """Yield each expression of a hint that begins with `rlvr.` and the like, with its brackets to the last one."""
    for start in CODE.finditer(text):
        end, depth = start.start(), 0
        while end < len(text) and (depth or re.match(r"[\w.(\[{]", text[end])):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        yield text[start.start() : end].rstrip(".")


def resolve(node: ast.expr, here: Any = None) -> Any:
    """Return what an expression of a hint refers to, or Any where types do not say; a call gives the class of its result."""
    if isinstance(node, ast.Name):
        return here if node.id == "here" else PLACES[node.id]
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, here)
        if owner is Any:
            return Any
        if node.attr in getattr(owner, "__annotations__", {}):  # a field
            return Any
        if hasattr(owner, node.attr):
            return getattr(owner, node.attr)
        if inspect.isclass(owner) and re.search(rf"self\.{node.attr}\b[^=\n]*=", inspect.getsource(owner)):
            return Any
        raise AttributeError(f"{getattr(owner, '__name__', owner)} has no {node.attr}")
    if isinstance(node, ast.Subscript):  # of a mapping by a name that stands for any
        resolve(node.value, here)
        return Any
    if isinstance(node, ast.Call):
        target = resolve(node.func)
        if target is Any or isinstance(target, type):
            return target
        made = inspect.signature(target).return_annotation
        return resolve_annotation(made, target)
    raise AssertionError(f"a hint has an expression that this test does not read: {ast.unparse(node)}")


def resolve_annotation(text: Any, function: Any) -> Any:
    """Return the class that an annotation names; Any if it is none."""
    names = {**vars(rlvr), **{name: getattr(rlvr, name) for name in rlvr.__all__}, **getattr(inspect.unwrap(function), "__globals__", {})}
    found = names.get(text, Any) if isinstance(text, str) else text
    return found if inspect.isclass(found) else Any


def find_call_faults(node: ast.Call) -> Iterator[str]:
    """Yield what is wrong with one call: a keyword that it does not take, or a plugin or a setting that does not exist."""
    target = resolve(node.func)
    if target is Any:
        return
    name = getattr(target, "__name__", "")
    given = {word.arg for word in node.keywords if word.arg}
    taken = set(inspect.signature(target).parameters)
    taken |= list_arguments(name) if hasattr(rlvr, name) and name in {*hints.KEYWORDS, "Trainer"} - {"Trainer"} else set()
    taken |= list_arguments("train") if name == "Trainer" else set()
    taken |= list_arguments("make_env") if name == "register" else set()  # the settings to build it with
    yield from (f"{name} takes no {key}" for key in sorted(given - taken))
    if name.startswith("make_") and name != "make_vec" and node.args:
        yield from find_plugin_faults(name.removeprefix("make_"), node.args[0])
    for word in node.keywords:
        yield from find_value_faults(name, str(word.arg), word.value)


def find_plugin_faults(kind: str, value: ast.expr) -> Iterator[str]:
    """Yield the names of plugins in a text, or in a mapping of weights, that do not exist."""
    names = [value] if isinstance(value, ast.Constant) else value.keys if isinstance(value, ast.Dict) else []
    known = {entry.name for entry in list_entries(kind)}
    for name in names:
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in known:
            yield f"no {kind} {name.value}"


def find_value_faults(call: str, key: str, value: ast.expr) -> Iterator[str]:
    """Yield what does not exist in the value of a keyword: a section's key, a plugin, a setting of one, the kind of a policy."""
    sections = {path: set(kind.model_fields) for path, kind in iter_sections(RunConfig)}
    pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
    texts = {str(part.value): inner for part, inner in pairs if isinstance(part, ast.Constant)}
    if key in ("algorithm", "sampler") and (texts or isinstance(value, ast.Constant)):
        name = texts.get("name", value)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            if faults := [*find_plugin_faults(key, name)]:
                yield from faults
                return
            known = set(get_parameters(load_factory(key, str(name.value)))) | {"name"}
        else:
            known = list_plugin_settings(key)
        yield from (f"{key} has no setting {part}" for part in texts if part not in known)
    elif key == "verifier":
        yield from find_plugin_faults("verifier", value)
    elif key == "policy" and isinstance(value, ast.Constant) and value.value is not Ellipsis:
        yield from find_plugin_faults("sampler", ast.Constant(str(value.value).partition(":")[0]))
    elif key == "settings":
        keys = {f"{path}.{part}" for path, parts in sections.items() for part in parts}
        yield from (f"a run has no key {part}" for part in texts if part not in keys)
    elif key in sections and call in ("train", "Trainer"):
        for part, inner in texts.items():
            if part not in sections[key]:
                yield f"the section {key} has no key {part}"
            if isinstance(inner, ast.Dict):
                names = {str(name.value) for name in inner.keys if isinstance(name, ast.Constant)}
                yield from (f"the section {key}.{part} has no key {name}" for name in names - sections[f"{key}.{part}"])
    elif key in TrainConfig.model_fields and isinstance(value, ast.Constant) and value.value is not Ellipsis:
        TrainConfig.model_validate({key: value.value})


def find_faults(hint: str, call: str = "") -> list[str]:
    """List what a hint names and what does not exist; `call` is the call to which keywords outside of a call belong."""
    found: list[str] = []
    rest = hint
    for code in re.findall(r"`([^`]+)`", hint):
        if code.startswith("rlvr "):
            found += [fault] if (fault := find_command_fault(code)) else []
        elif code not in WORDS_OF_CODE and not any(hasattr(owner, code) for owner in (rlvr.Environment, Session, rlvr.Callback)):
            found.append(f"no method {code}")
        rest = rest.replace(f"`{code}`", "")
    for code in find_code(hint):
        rest = rest.replace(code, "")
        try:
            tree = ast.parse(code.replace("{kind!r}", "'env'").replace("{kind}", "env").replace("{algorithm}", "grpo"), mode="eval").body
            if code.startswith("gymnasium."):
                continue
            resolve(tree)
        except (SyntaxError, AttributeError) as error:
            found.append(f"{code}: {error}")
            continue
        for node in ast.walk(tree):
            found += find_call_faults(node) if isinstance(node, ast.Call) else []
    if call:
        for key, value in find_keywords(rest):
            if key not in list_arguments(call):
                found.append(f"{call} takes no {key}")
            found += [] if value is None else find_value_faults(call, key, value)
    return found


def find_keywords(text: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each `key=value` of a hint, outside of brackets; None for a value that is left out."""
    while match := re.search(r"\b(\w+)=", text):
        text = text[match.end() :]
        end, depth = 0, 0
        quoted = False
        while end < len(text) and (depth or quoted or text[end] not in ",; "):
            quoted ^= text[end] == "'"
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        yield match.group(1), ast.parse(text[:end], mode="eval").body if end else None
        text = text[end:]


KEYWORD_HINTS = [(call, name, hint) for call, table in hints.KEYWORDS.items() for name, hint in table.items()]
NAME_HINTS = [*hints.NAMES.items(), *hints.NAME_PATTERNS, *hints.TOPICS]


@pytest.mark.parametrize(("name", "hint"), NAME_HINTS, ids=[name for name, _ in NAME_HINTS])
def test_a_hint_for_a_name_names_what_exists(name: str, hint: str) -> None:
    assert find_faults(hint) == []


HINTED = (
    *(rlvr.Environment, rlvr.ExecutionResult, rlvr.Learner, rlvr.Rollout, rlvr.Run, rlvr.Sampler, rlvr.Sandbox, rlvr.Trainer),
    *(rlvr.Verdict, rlvr.Verifier, EvalReport, EvalSample),
)
"""The classes that explain attributes of other libraries."""


@pytest.mark.parametrize("hinted", HINTED, ids=lambda hinted: hinted.__name__)
def test_a_hint_for_an_attribute_names_what_exists(hinted: Any) -> None:
    assert hinted._hints and issubclass(hinted, hints.Hinted)
    assert [name for name in (*hinted._hints, *hinted._synonyms) if hasattr(hinted, name)] == []
    assert not hinted._hints.keys() & hinted._synonyms.keys()
    for same in hinted._synonyms.values():
        assert (
            same.startswith(("mdp.", "environment.", "policy.", "verifier."))
            or resolve(ast.Attribute(ast.Name("here"), same), here=hinted) is not None
        ), same
    assert {name: faults for name, hint in hinted._hints.items() if (faults := find_faults(hint))} == {}
    for hint in hinted._hints.values():
        for attribute in re.findall(r"(?:write |, | or )\.(\w+)", hint):
            assert resolve(ast.Attribute(ast.Name("here"), attribute), here=hinted) is not None, hint


@pytest.mark.parametrize("call", hints.KEYWORDS)
def test_a_hint_for_a_keyword_names_what_exists(call: str) -> None:
    found = {name: faults for name, hint in hints.KEYWORDS[call].items() if (faults := find_faults(hint, call))}
    assert found == {}


@pytest.mark.parametrize(
    ("hint", "call"),
    [
        ("write rlvr.make_verfier('exact')", ""),
        ("write rlvr.make_verifier('exat')", ""),
        ("a mix: rlvr.make_verifier({'symbolic': 0.8, 'from': 0.2})", ""),
        ("rlvr.evaluate(env, policy=..., retries=True)", ""),
        ("rlvr.Rollout(env, tokenizer, sampler).samples(tasks, n=8)", ""),
        ("rlvr.Rollout(env, tokenizer, sampler).sample(tasks, k=8)", ""),
        ("rlvr.verify(verifier, answer, reference).reward", ""),
        ("report.comparison(other)", ""),
        ("trainer.halt(reason)", ""),
        ("rlvr.make_env(rows, tool=[function])", ""),
        ("subclass rlvr.Environment with `new_sesion`", ""),
        ("or `rlvr comparison DIR DIR`", ""),
        ("or `rlvr compare DIR`", ""),
        ("or `rlvr eval quick --polcy hf:DIR`", ""),
        ("step=, the number of steps", "train"),
        ("log={'save_evry': 50}", "train"),
        ("model={'path': folder, 'lora': {'rnk': 16}}", "train"),
        ("algorithm={'name': 'grpo', 'betta': ...}", "train"),
        ("sampler={'name': 'vlm'}", "train"),
        ("mixed_precision='bf32'", "train"),
        ("settings={'train.step': 10}", "train"),
        ("steps=", "evaluate"),
        ("policy='opnai:URL#MODEL'", "evaluate"),
        ("sampler={'batch': 8}", "evaluate"),
        ("the same call with out=DIR and retries=True", "evaluate"),
        ("wal_s=5", "Limits"),
        ("urls=, the endpoint", "make_verifier"),
    ],
)
def test_a_hint_that_is_wrong_is_found(hint: str, call: str) -> None:
    if hint.startswith("mixed_precision"):
        with pytest.raises(ValueError, match="bf16"):
            find_faults(hint, call)
    else:
        assert find_faults(hint, call)


def test_no_table_has_a_name_that_exists() -> None:
    """A hint for a name that a call takes would be a wrong track, or refuse what works."""
    assert [name for name in hints.NAMES if name in rlvr.__all__] == []
    plain = [name for name in hints.KEYWORDS if not name.startswith("make_")]
    assert [(call, name) for call in plain for name in hints.KEYWORDS[call] if name in list_arguments(call)] == []
    both = {*hints.KEYWORDS["train"], *hints.KEYWORDS["evaluate"]}  # these are looked up where a caller does not name the call
    assert [name for name in both if name in list_arguments("evaluate")] == []
    assert hints.KEYWORDS["evaluate"].keys() & SYNONYMS["evaluate"].keys() == set()
    assert {*hints.KEYWORDS, *hints.SAME_KEYWORDS} <= set(rlvr.__all__)


def test_the_keys_of_a_run_exist() -> None:
    keys = {f"{path}.{key}".strip(".") for path, kind in iter_sections(RunConfig) for key in kind.model_fields}
    free = {"algorithm": list_plugin_settings("algorithm"), "rollout.sampler": list_plugin_settings("sampler")}
    free["frozen_models"] = {"reference"}
    for word in hints.CONFIG_KEYS:
        key = hints.translate_config_key(word).partition("=")[0]
        section, _, name = key.rpartition(".")
        assert key in keys or name in free.get(section, ()), (word, key)


def test_the_plugins_exist() -> None:
    names = {entry.name for kind in PLUGIN_KINDS for entry in list_entries(kind)}
    assert {word: plugin for word, plugin in hints.PLUGINS.items() if plugin not in names or word in names} == {}
    assert hints.translate_plugin_name("model_graded_qa", rlvr.list("verifier")) == "llm_judge"
    assert set(hints.PLUGIN_WORDS.values()) == set(PLUGIN_KINDS)


def test_the_columns_are_those_of_the_environment_of_data() -> None:
    for name in ("QUESTION_COLUMNS", "REFERENCE_COLUMNS", "SOLUTION_COLUMNS"):
        assert getattr(hints, name) == getattr(columns, name), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda api: api.Task("2+2=", solution="4", info={}),
            "'solution'; write reference=, the right answer; info: write meta=; the call is rlvr.Task(",
        ),
        (lambda api: api.Limits(memory_limit=3), "write memory_mb=; the call is rlvr.Limits("),
        (
            lambda api: api.Rollout("arithmetic", policy="hf", group_size=5),
            "write sampler=; group_size: the number of answers is given with the call: rlvr.Rollout(",
        ),
    ],
)
def test_a_call_with_foreign_keywords_gets_one_message_with_all_of_them(call: Any, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        call(rlvr)


@pytest.mark.parametrize(
    ("kind", "name", "known", "words"),
    [
        ("env", "system_prompt", ["system"], "write system="),
        ("env", "system_prompt", ["path"], ""),
        ("env", "max_tokens", [], "rlvr.evaluate(env, policy, temperature=0.7, max_new_tokens=512)"),
        ("sandbox", "timeout", [], ".run(code, timeout=5)"),
        ("algorithm", "clip_range", ["epsilon"], "write epsilon="),
        ("tool", "limit", ["size"], ""),
    ],
)
def test_the_setting_of_a_plugin_is_one_that_the_plugin_has(kind: str, name: str, known: list[str], words: str) -> None:
    said = hints.explain_plugin_setting(kind, name, known)
    assert words in said and bool(words) == bool(said)


def test_one_keyword_has_another_answer_in_each_call() -> None:
    assert hints.explain_keyword("batch_size", "train") == hints.explain_keyword("batch_size", "Trainer") != ""
    assert hints.explain_keyword("best_of", "evaluate").startswith("write n=, ")
    assert hints.explain_keyword("best_of", "verify") == ""
    assert hints.explain_keyword("lr") == "write learning_rate=" and hints.explain_keyword("metric").startswith("the report has")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from rlvr import SFTTrainer", r"rlvr has no 'SFTTrainer'; write rlvr\.train\("),
        ("from rlvr import Task, Group", r"rlvr has no 'Group'; a group is a list of episodes"),
        ("from rlvr.scorer import match", r"rlvr has no module 'scorer': .*; a scorer is a function"),
        ("import rlvr.trainers", r"rlvr has no module 'trainers': its public names are in rlvr itself; "),
    ],
)
def test_an_import_of_a_name_that_is_not_here_says_the_right_call(line: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        exec(line, {})
    assert not hasattr(rlvr, line.split()[-1])


def test_modules_are_imported_by_every_form() -> None:
    """A module is no name of `rlvr` until it is imported; `from` must find it all the same."""
    code = "from rlvr import hints, task\nimport rlvr.turns as turns\nfrom rlvr.evaluation import votes\nassert hints and task and turns and votes"
    subprocess.run([sys.executable, "-c", code], check=True)
