"""A command line with the words of other tools: the line as it is written here, to run it or to say it.

A newcomer types what inspect, lm-eval, verifiers or TRL take. Where every word means exactly a word of this command line, the line is
translated and runs (`translate_command_line`). Else one message names everything that is wrong in it, and ends with the whole line as it is
written here, so that it need not be tried out option by option (`format_usage_error`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr import hints
from rlvr.cli.settings import find_config_key, is_switch
from rlvr.cli.similar import find_similar
from rlvr.config.hub import HUB_ID_PATTERN, is_model_folder
from rlvr.errors import ConfigError
from rlvr.synonyms import BATCH_SIZE, IGNORED, SYNONYMS, translate_keywords

_CHECK = "`rlvr check KIND NAME` checks a plugin against its contract"
_EVAL = "`rlvr eval SUITE --policy POLICY` measures a policy"
_EXPORT = "`rlvr export RUN --to FORMAT` writes a run, and `rlvr export-env ENV --to FORMAT --out DIR` an environment for another trainer"
_LIST = "`rlvr list envs` lists the environments, and `rlvr list` all plugins, recipes and suites"
_NEW = "`rlvr new env NAME` writes a template of an environment, and `rlvr init` a recipe"
_PLAY = "`rlvr play ENV` is a conversation with an environment in which you are the policy"
_SAMPLE = "`rlvr eval SUITE --policy POLICY --out DIR` samples answers, verifies and stores them, and `rlvr view DIR` shows them"
_SERVE_MODEL = "a model is served by its engine, such as vLLM, and is then a policy: `rlvr eval SUITE --policy openai:URL#MODEL`"
_SHOW = "`rlvr show KIND NAME` explains a plugin, and `rlvr show config` the settings of a run"
_TRAIN = "`rlvr train RECIPE` trains, on a recipe of `rlvr list recipes` or on a data file"
_VERIFY = (
    "`rlvr verify NAME --answer ANSWER --reference REFERENCE` verifies one answer, `rlvr verify NAME --file FILE` a file of them, and "
    "`rlvr eval --rescore RUN` the answers of an evaluation again"
)
_VIEW = "`rlvr view RUN` writes runs and evaluations as one HTML file"
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("audit-verifier", "red-team", "redteam"), "`rlvr audit VERIFIER` measures the error rates of a verifier"),
    **dict.fromkeys(("bench", "benchmark", "evaluate", "eval-set", "measure"), _EVAL),
    **dict.fromkeys(("chat", "interact", "human", "step"), _PLAY),
    **dict.fromkeys(("config", "describe", "docs", "explain", "info", "settings"), _SHOW),
    **dict.fromkeys(
        ("continue", "resume"), "`rlvr train RECIPE --out DIR --resume` resumes a run; an evaluation continues with the same --out"
    ),
    **dict.fromkeys(("convert", "dump"), _EXPORT),
    **dict.fromkeys(("create", "scaffold", "template", "add"), _NEW),
    **dict.fromkeys(("dashboard", "inspect", "log", "logs", "plot", "report", "ui", "viewer"), _VIEW),
    **dict.fromkeys(("diff", "leaderboard"), "`rlvr compare DIR DIR` compares two evaluations, task by task"),
    **dict.fromkeys(("estimate", "memory", "plan"), "`rlvr doctor --plan RECIPE` estimates the memory of a run"),
    **dict.fromkeys(("eval-retry", "retry"), "`rlvr eval SUITE --policy POLICY --out DIR --retry` samples answers without a score again"),
    **dict.fromkeys(("finetune", "fit", "start", "tune"), _TRAIN),
    **dict.fromkeys(("generate", "rollout", "rollouts", "sample"), _SAMPLE),
    **dict.fromkeys(("grade", "judge", "reward", "rescore", "score"), _VERIFY),
    **dict.fromkeys(("health", "env-info", "status"), "`rlvr doctor` checks the installation"),
    **dict.fromkeys(("lint", "validate"), f"{_CHECK}, and `rlvr doctor --plan RECIPE` checks a recipe"),
    **dict.fromkeys(("ls", "env", "envs", "environments", "plugins", "search"), _LIST),
    "help": "`rlvr --help` lists the commands, and `rlvr eval --help` the options of one",
    "model": _SERVE_MODEL,
    "run": f"{_EVAL}, {_TRAIN}",
    "test": f"{_CHECK}, {_EVAL}, and `rlvr doctor` checks the installation",
    "version": "`rlvr --version` shows the version",
}
"""Commands of other tools, and what does it here."""

_OUT: dict[str, str] = dict.fromkeys(("o", "output", "output-dir", "output-path"), "--out")
_OUT_TOO: dict[str, str] = dict.fromkeys(("output-file", "log-dir", "save-dir", "save-path", "save-to"), "--out")
_API_KEY = "the key is read from the variable OPENAI_API_KEY; --sampler api_key_env=NAME names another"
_STORED = "--out DIR stores every answer"
_POLICY = "--policy"
SAME_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "verify": {
        **dict.fromkeys(("grader", "reward", "rubric", "scorer", "v"), "VERIFIER"),
        **dict.fromkeys(("data", "dataset", "f", "input-file", "jsonl", "path"), "--file"),
    },
    "eval": {
        **_OUT,
        "log-dir": "--out",
        **dict.fromkeys(("benchmark", "data", "dataset", "e", "env", "env-id", "environment", "task"), "SUITE"),
        **dict.fromkeys(("checkpoint", "m", "model", "model-name", "model-path", "pretrained"), _POLICY),
        **dict.fromkeys(("api-base", "api-base-url", "b", "base-url", "endpoint", "model-base-url", "url"), _POLICY),
        **dict.fromkeys(("model-args",), _POLICY),
        **dict.fromkeys(("reward", "scorer", "verifier"), "--set verifier="),
        **dict.fromkeys(("T", "task-arg"), "--set"),
        **dict.fromkeys(("api-key-env", "api-key-var"), "--sampler api_key_env="),
        **dict.fromkeys(("max-gen-toks", "max-completion-tokens", "max-response-tokens", "t"), "--max-new-tokens"),
        "c": "--concurrency",
        "r": "-n",
        "system-instruction": "--system",
    },
    "train": {
        **_OUT,
        "save-dir": "--out",
        **dict.fromkeys(("c", "config", "data", "dataset", "train-data", "train-file"), "RECIPE"),
        **dict.fromkeys(("base-model", "m", "model-name", "model-name-or-path", "model-path"), "--model"),
        **dict.fromkeys(("eval-data", "eval-file", "test-data", "val-data"), "--test"),
        **dict.fromkeys(("algorithm", "algo"), "algorithm="),
        **dict.fromkeys(("lora-r", "lora-rank"), "model.lora.rank="),
        "lora-alpha": "model.lora.alpha=",
        "env": "env=",
        "set": "{value}",
    },
    "export": {**_OUT, "format": "--to", "f": "--to"},
    "export-env": {**_OUT, **dict.fromkeys(("n", "limit", "num-tasks"), "--count"), "format": "--to", "target": "--to"},
    "new": _OUT,
    "play": {"i": "--index", "task-id": "--index"},
    "serve": {"p": "--port", "verifier": "VERIFIER"},
    "audit": {**_OUT, **dict.fromkeys(("data", "dataset", "file"), "--pairs")},
    "view": {**_OUT, "compare": "--against"},
}
"""Options of other tools, by command, without their dashes, that mean exactly what stands here: a line with these alone runs. An option here
(with `=`: the value follows at once), the word in capitals that is written without an option, a setting of a run, or `{value}` if the value
stands alone."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "verify": {
        **dict.fromkeys(("metric",), "VERIFIER"),
        **dict.fromkeys(("completions", "pairs"), "--file"),
        **dict.fromkeys(("out", "output-dir", "output-file", "o"), "the verdicts go to standard output, with --json one line each"),
    },
    "eval": {
        **_OUT_TOO,
        "path": "SUITE",
        **dict.fromkeys(("f", "few-shot", "fewshot", "num-fewshot", "shots"), "--set shots="),
        **dict.fromkeys(("metric", "metrics", "rubric"), "--set verifier="),
        **dict.fromkeys(("M", "model-arg", "sampler-args"), "--sampler"),
        **dict.fromkeys(("a", "env-args"), "--set"),
        **dict.fromkeys(("api-key",), _API_KEY),
        **dict.fromkeys(("log-samples", "s", "save-results", "write-out"), _STORED),
        **dict.fromkeys(
            ("fail-on-error", "no-fail-on-error"), "an answer that failed has no score; with --out DIR, --retry samples it again"
        ),
        "batch-size": "--sampler batch_size=",
        "device": "--sampler device=",
        "format": "--json is the only other format",
        "gen-kwargs": "each has an option: --temperature, --top-p, --max-new-tokens",
        "max-retries": "--sampler retries=",
        "prompt-template": "--set question=",
        "tools": "--set tools=",
        "resume": "the same command with the same --out continues an evaluation",
    },
    "train": {
        **_OUT_TOO,
        **dict.fromkeys(("dataset-name", "path"), "RECIPE"),
        **dict.fromkeys(("metric", "reward-model"), "--verifier"),
        **dict.fromkeys(("loss", "method"), "algorithm="),
        **dict.fromkeys(("resume-from", "resume-from-checkpoint"), "--resume resumes the run of --out"),
    },
    "check": {"all": "one plugin is checked at a time; --catalog checks every environment of a collection"},
    "export": _OUT_TOO,
    "export-env": {**_OUT_TOO, "tasks": "--count"},
    "new": {**_OUT_TOO, "type": "--kind", "template": "--kind"},
    "serve": dict.fromkeys(("m", "model"), _SERVE_MODEL),
    "init": {
        **dict.fromkeys(("config", "o", "out", "output", "recipe"), "FILE"),
        "env": "--data",
        "dataset": "--data",
        "overwrite": "--force",
    },
    "audit": _OUT_TOO,
    "view": _OUT_TOO,
}
"""Other such options, which need another value, or mean only something like it: a message names what stands here, or says a sentence."""
CALLS: Mapping[str, str] = {"verify": "verify", "eval": "evaluate", "train": "train"}
"""The call of the library whose keywords are options of a command; its foreign keywords are foreign options, too."""
FIRST_WORDS: Mapping[tuple[str, str], str] = {("train", "data"): "recipe", ("eval", "env"): "suite"}
"""Keywords of those calls that are the first word of the command."""
PROVIDERS = (
    *("anthropic", "azureai", "bedrock", "cloudflare", "goodfire", "google", "grok", "groq", "mistral", "ollama", "openai-api"),
    *("openrouter", "sambanova", "together", "vertex"),
)
"""How models begin that another tool asks a service for, which are no ids of the Hub."""
PLACEHOLDERS: Mapping[str, str] = {"to": "FORMAT", "out": "DIR"}
"""Words for the values of options that a command needs."""
NEEDED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "verify": (("--answer", "--reference"), ("--file",)),
    "eval": (("--policy",), ("--rescore",)),
}
"""Options that a command needs unless another one is given."""
POLICY_PATTERN = re.compile(r"(hf|vllm|openai|scripted):|.*\.py(:|$)")
"""How a policy begins that is written as it is here."""


@dataclass
class UnknownOption:
    """An option that a command does not have, with its value, and what to write instead."""

    option: str
    value: str | None
    target: str = ""
    """An option, a positional word in capitals, `key=`; empty if nothing is known, or if `about` says all."""
    about: str = ""
    is_slip: bool = False
    """Whether the option here differs by a slip of the fingers alone."""
    is_exact: bool = False
    """Whether the target means exactly the same; without a target: whether the option can be left out."""


@dataclass
class ParsedCommandLine:
    """A command line that was read as far as possible: its words, the options that exist, and those that do not."""

    command: Any
    words: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """The options that exist, with their values, as they were typed."""
    wrong: list[UnknownOption] = field(default_factory=list)
    conflict: str = ""
    """What cannot be said together in any line, such as two words for one thing: a sentence."""
    doubt: str = ""
    """What one of the words may mean elsewhere, so that the line is not run unasked: a sentence."""


@dataclass
class ComposedCommandLine:
    """The words of a command line as they are written here, after the name of the command."""

    words: list[str]
    is_complete: bool
    """Whether no word stands for a missing one, and none was left out."""

    def format(self, command: str) -> str:
        """Format the line for a shell; `command` is the program with its command, such as `rlvr train`."""
        return " ".join([command, *map(quote, self.words)])


def translate_command_line(error: Any, arguments: Sequence[str]) -> list[str] | None:
    """Return the arguments as they are written here, if the error of Typer is about words of other tools that all mean exactly a word here;
    else None.
    """
    context = getattr(error, "ctx", None)
    if context is None or getattr(context.command, "commands", None) is not None or context.info_name not in arguments:
        return None
    line = _parse_command_line(context.command, _list_words_after(context.info_name, arguments), context)
    made = _compose_line(line)
    if not line.wrong or line.conflict or line.doubt or not made.is_complete or not all(one.is_exact for one in line.wrong):
        return None
    return [*arguments[: list(arguments).index(context.info_name) + 1], *made.words]


def format_usage_error(error: Any, arguments: Sequence[str]) -> str:
    """Describe an error of Typer in the arguments: what is wrong, and the line as it should be."""
    context = getattr(error, "ctx", None)
    said = str(error.format_message()).rstrip(".")
    if context is None:
        name = next((word for word in arguments if not word.startswith("-")), "")
        return f"{said}; see `{f'rlvr {name}'.strip()} --help`"
    path, see = context.command_path, f"see `{context.command_path} --help`"
    commands = getattr(context.command, "commands", None)
    if commands is not None:
        name = next((word for word in arguments if word not in commands and f"'{word}'" in said and not word.startswith("-")), "")
        return _describe_command(name, commands) if name else _describe_option_of_group(error, context, said, arguments)
    line = _parse_command_line(context.command, _list_words_after(context.info_name, arguments), context)
    if line.wrong:
        return _describe_wrong_options(line, path)
    if type(error).__name__ == "MissingParameter":
        missing = error.param
        positional = _list_arguments(line.command)
        if [one.name for one in positional[:2]] == ["kind", "name"] and line.words and line.words[0] not in hints.PLUGIN_WORDS:
            missing = positional[0]  # the name alone was given
        about = str(missing.help or "").strip().rstrip(".")
        return f"`{path}` lacks {_name_parameter(missing)}{f' ({about})' if about else ''}; write `{_compose_line(line).format(path)}`"
    if said.startswith("Got unexpected extra argument"):
        taken = [_get_metavar(one) for one in _list_arguments(context.command)]
        extra = ", ".join(map(repr, line.words[len(taken) :]))
        return f"`{path}` takes {' and '.join(taken) or 'no word'} without an option, and got {extra} too; write `{_compose_line(line).format(path)}`"
    return f"{said}; {see}"


# ---- commands ---------------------------------------------------------------------------------------------------------


def _explain_foreign_command(name: str) -> str:
    """Return the rlvr command that does what this command of another tool does, or "".

    >>> _explain_foreign_command("list-verifiers")
    '`rlvr list verifiers` lists them'
    """
    word = name.lower().replace("_", "-")
    if found := COMMANDS.get(word):
        return found
    if (match := re.fullmatch(r"(?:list|ls)-?(\w+)|(\w+)-list", word)) and (kind := match[1] or match[2]) in LISTED:
        return f"`rlvr list {LISTED[kind]}` lists them"
    if (match := re.fullmatch(r"(?:new|create|init|add)-(\w+)", word)) and (kind := hints.PLUGIN_WORDS.get(match[1], "")) in NEW_KINDS:
        return f"`rlvr new {kind} NAME` writes a template"
    if word in _list_algorithm_names():
        return f"an algorithm is a setting of a run: `rlvr train env=ENV algorithm={word.replace('-', '_')} --model DIR`, or with data or a recipe"
    return ""


LISTED = {
    **{word: f"{kind}es" if kind == "sandbox" else f"{kind}s" for word, kind in hints.PLUGIN_WORDS.items()},
    **{word: plural for plural in ("recipes", "suites") for word in (plural, plural[:-1])},
    **dict.fromkeys(("benchmark", "benchmarks", "tasks", "task"), "envs"),
}
"""What `rlvr list` lists, by the words for it."""
NEW_KINDS = ("env", "verifier", "tool", "sampler", "algorithm")


def _list_algorithm_names() -> set[str]:
    from rlvr.registry.plugins import list_entries

    return {word for entry in list_entries("algorithm") for word in (entry.name, entry.name.replace("_", "-"))}


def _describe_command(name: str, commands: Iterable[str]) -> str:
    hint = _explain_foreign_command(name) or (f"did you mean {near!r}?" if (near := find_similar(name, commands)) else "")
    return f"there is no command {name!r}; {hint}{' ' if hint.endswith('?') else '; ' if hint else ''}see `rlvr --help`"


def _describe_option_of_group(error: Any, context: Any, said: str, arguments: Sequence[str]) -> str:
    option, path = getattr(error, "option_name", ""), context.command_path
    if not option:
        return f"{said}; see `{path} --help`"
    near = find_similar(option.lstrip("-"), {name.lstrip("-") for name in _list_options(context.command)})
    commands = [word for word in arguments if option in _list_options(context.command.commands.get(word, context.command))]
    hint = f" did you mean '--{near}'?" if near else f" it stands after the command: `{path} {commands[0]} {option}`;" if commands else ""
    return f"`{path}` has no option {option!r};{hint} see `{path} --help`"


# ---- options ----------------------------------------------------------------------------------------------------------


def _parse_command_line(command: Any, words: Sequence[str], context: Any = None) -> ParsedCommandLine:
    """Read the words of a command line as far as they can be read, and find what to write for the options that do not exist."""
    line, known = ParsedCommandLine(command), _list_options(command)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            line.words += rest
            break
        if not re.match(r"-\D", word):
            line.words.append(word)
            continue
        name, equals, inline = word.partition("=")
        if not equals and not word.startswith("--") and len(word) > 2 and word not in known:
            name, equals, inline = word[:2], "=", word[2:]  # -n5
        parameter, value = known.get(name), inline if equals else rest[0] if rest else ""
        if command.name == "eval" and (meant := _find_other_meaning(name, value, words)):
            line.wrong.append(meant)
            rest = rest if equals else rest[1:]
        elif parameter is not None:
            line.options.append(word)
            if not getattr(parameter, "is_flag", False) and parameter is not HELP and not equals and rest:
                line.options.append(rest.pop(0))
        else:
            made = _explain_option(command, name, context)
            is_flag = getattr(known.get(made.target), "is_flag", False) or re.search(r"=\w", made.target) is not None
            is_key = command.name == "train" and made.target.endswith("=") and is_switch(made.target[:-1])
            if equals:
                made.value = inline
            elif rest and not re.match(r"-\D", rest[0]) and (not (is_flag or is_key) or rest[0].lower() in ("true", "false")):
                made.value = rest.pop(0)
            elif is_key:
                made.value = "true"
            made.is_exact = made.is_exact and ((made.value is None) == is_flag or not made.target)
            line.wrong.append(made)
    if command.name == "train":
        _convert_batch_size(line)
    line.conflict = line.conflict or _find_conflict(line)
    line.doubt = _find_doubt(line) if command.name == "eval" else ""
    return line


HELP = object()
"""Stands for the parameter of --help, which Typer adds itself."""


def _list_options(command: Any) -> dict[str, Any]:
    """List the options of a command: the parameter of each."""
    found = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}
    return {**found, "--help": HELP, "-h": HELP}


def _list_arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _get_metavar(parameter: Any) -> str:
    """Return the word that stands for an argument in the help: `[FILE]` is FILE."""
    return str(parameter.metavar or parameter.name.upper()).strip("[].{}")


def _name_parameter(parameter: Any) -> str:
    return parameter.opts[0] if parameter.param_type_name == "option" else _get_metavar(parameter)


def _find_other_meaning(option: str, value: str, words: Sequence[str]) -> UnknownOption | None:
    """Find an option of `rlvr eval` that means something else in another tool, where the line shows that this is meant."""
    if option == "--tasks" and value and not re.fullmatch(r"[+-]?\d+", value):  # lm-eval: the names of tasks
        return UnknownOption(f"{option} {value}", value, "SUITE", "--tasks is the number of tasks", is_exact="," not in value)
    if option == "-n" and {"-r", "--rollouts-per-example"} & {*words}:  # verifiers: the number of tasks, beside that of answers
        return UnknownOption(f"{option} {value}", value, "--tasks", "-n is the number of answers for each task", is_exact=True)
    return None


def _explain_option(command: Any, option: str, context: Any) -> UnknownOption:
    """Find what to write for an option that a command does not have."""
    word = option.lstrip("-").replace("_", "-")
    known: dict[str, str] = {}
    for name in _list_options(command):
        known.setdefault(name.lstrip("-"), name)
    made = UnknownOption(option, None)
    arguments = {one.name: _get_metavar(one) for one in _list_arguments(command)}
    if word in known and len(word) > 1:
        made.target, made.is_slip, made.is_exact = known[word], True, True
    elif target := SAME_OPTIONS.get(command.name, {}).get(word, ""):
        made.target, made.is_exact = target, True
    elif target := OPTIONS.get(command.name, {}).get(word, ""):
        made.target, made.about = (target, "") if _is_target(target, arguments.values()) else ("", target)
    elif word in arguments:
        made.target, made.is_exact = arguments[word], True
    elif (kind := hints.PLUGIN_WORDS.get(word, "")) and {"kind", "name"} <= arguments.keys():
        made.target, made.is_exact = f"{kind} NAME", True
    elif context is not None and context.parent is not None and option in _list_options(context.parent.command):
        made.about = f"it stands before the command: `rlvr {option} {command.name} ...`"
    elif word.replace("-", "_") in (IGNORED["train"] if command.name == "train" else ()):
        made.about, made.is_exact = "it is so in any case; leave it out", True
    elif (target := _find_same_keyword(command, word.replace("-", "_"), known, arguments)) != "":
        made.target, made.is_exact = target, True
    elif (translated := _find_keyword_target(command, word.replace("-", "_"), known, arguments)) is not None:
        made.target, made.about = translated
    elif near := find_similar(word, known):
        made.target, made.is_slip = known[near], True
    return made


def _is_target(text: str, arguments: Iterable[str]) -> bool:
    return text in (*arguments, "{value}") or bool(re.fullmatch(r"-[\w-]+( \w+=)?|[\w.]+=", text))


def _find_same_keyword(command: Any, word: str, known: Mapping[str, str], arguments: Mapping[str, str]) -> str:
    """Find the option, or the key of a run, for a keyword of the library, also in a word of another one that means exactly the same; or ""."""
    call = CALLS.get(command.name, "")
    own = SYNONYMS.get(call, {}).get(word, word)
    if own == word and command.name != "train":  # a keyword that is no option here
        return ""
    target = known.get(own.replace("_", "-"), "") or arguments.get(FIRST_WORDS.get((command.name, own), own), "")
    if target or command.name != "train":
        return target
    from rlvr.config.config import find_key_of_keyword

    key = find_key_of_keyword(word)
    return "" if key in ("", "model.lora") else f"{key}=[{{value}}]" if key in LIST_KEYS else f"{key}="


def _convert_batch_size(line: ParsedCommandLine) -> None:
    """Turn the completions of a batch on a device, as TRL counts them, into the prompts of a step, where the line has the size of a group."""
    words = {one.option.lstrip("-").replace("-", "_"): one for one in line.wrong}
    given = {word: words[word] for word in (BATCH_SIZE, "gradient_accumulation_steps") if word in words and BATCH_SIZE in words}
    group = next((one.value for one in line.wrong if one.target == "rollout.num_generations="), "")
    if not given or not all((value or "").isdecimal() for value in (group, *(one.value for one in given.values()))):
        return
    sizes = {word: int(one.value or "") for word, one in given.items()}
    try:
        made = translate_keywords("train", {**sizes, "num_generations": int(group or "")})
    except ConfigError as error:
        line.conflict = str(error)
        return
    first, *others = given.values()
    first.target, first.is_exact = f"rollout.prompts_per_step={made['prompts_per_step']}", True
    for one in others:
        one.target, one.about, one.is_exact = "", "it is counted in the batch of a device", True


def _find_conflict(line: ParsedCommandLine) -> str:
    """Say which two words of a line set the same thing; or ""."""
    command, known, typed = line.command, _list_options(line.command), dict[Any, str]()
    for option in line.options:
        if (name := option.partition("=")[0]) in known:
            typed.setdefault(getattr(known[name], "name", name), name)
    typed |= {_get_key_of_override(text): text for text in line.words if "=" in text}
    if command.name in FIRST_METAVARS and line.words and line.words[0] not in FIRST_METAVARS.values() and "=" not in line.words[0]:
        typed[FIRST_METAVARS[command.name]] = line.words[0]
    for one in line.wrong:
        if not one.target or " " in one.target or one.target in ("{value}", "--set"):  # may stand several times
            continue
        what = getattr(known.get(one.target), "name", one.target.partition("=")[0])
        if what in typed and not (one.target == _POLICY and typed[what] in [other.option for other in line.wrong]):
            return f"{typed[what]} and {one.option} mean the same; give one of them"
        typed[what] = one.option
    data = [one.option for one in line.wrong if one.option.lstrip("-").replace("_", "-") in DATA_OPTIONS]
    if command.name == "train" and data and "env" in typed:
        return f"{data[0]} and {typed['env']} both say where the questions come from; give one of them"
    return ""


def _get_key_of_override(text: str) -> str:
    from rlvr.config.config import find_key_of_keyword

    key = text.partition("=")[0]
    return find_key_of_keyword(key) or key


FIRST_METAVARS: Mapping[str, str] = {"train": "RECIPE", "eval": "SUITE"}
"""The first words of those commands."""
DATA_OPTIONS = ("data", "dataset", "train-data", "train-dataset", "train-file")
"""Options of other tools for the questions to train on."""


def _find_doubt(line: ParsedCommandLine) -> str:
    """Say which word of `rlvr eval` may mean something else in the tool that the other words are from; or ""."""
    foreign = [one for one in line.wrong if one.is_exact and not one.is_slip]
    has_tasks = {"--tasks", "--limit"} & {*line.options} or any(one.target == "--tasks" for one in foreign)
    if foreign and not has_tasks and any(re.match(r"-n", option) for option in line.options):
        return "-n is the number of answers for each task, and --tasks the number of tasks"
    models = [one for one in foreign if one.target == _POLICY]
    if models and not _names_policy(models):
        return "--policy is hf:DIR for a folder or an id of the Hub, and openai:URL#MODEL for a model that is served"
    return ""


def _names_policy(options: Sequence[UnknownOption]) -> bool:
    """Whether the model that other tools name is certainly this policy here: a folder, an id of the Hub, or a model at an address."""
    if any((one.option.lstrip("-").replace("_", "-")) == "model-args" and "," in (one.value or "") for one in options):
        return False
    policy = _convert_foreign_model_options(options)
    kind, _, place = policy.partition(":")
    if kind != "hf":
        return not place.endswith("#MODEL")
    return is_model_folder(place) or (HUB_ID_PATTERN.fullmatch(place) is not None and place.partition("/")[0] not in PROVIDERS)


def _find_keyword_target(command: Any, word: str, known: Mapping[str, str], arguments: Mapping[str, str]) -> tuple[str, str] | None:
    """Find the option, or the key of a run, for a keyword of the library or of another one; with a comment."""
    if command.name == "train" and (key := find_config_key(word)):
        return (key if "=" in key else f"{key}=[{{value}}]" if key in LIST_KEYS else f"{key}=", "")
    call = CALLS.get(command.name, "")
    hint = hints.KEYWORDS.get(call, {}).get(word, "")
    key = SYNONYMS.get(call, {}).get(word, "") or (match[1] if (match := re.match(r"(\w+)=", hint)) else "")
    target = known.get(key.replace("_", "-"), "") or arguments.get(FIRST_WORDS.get((command.name, key), key), "")
    if not target and command.name == "train" and find_config_key(key):
        target = f"{find_config_key(key)}="
    return (target, hint.partition(", ")[2].partition("; ")[0]) if target else None


LIST_KEYS = ("log.report_to", "model.lora.target_modules")
"""Keys of a run whose value is a list."""


def _describe_wrong_options(line: ParsedCommandLine, path: str) -> str:
    """Describe all options of a line that do not exist, and write the line as it should be."""
    is_solved = all(one.target or one.about for one in line.wrong) and any(one.target for one in line.wrong)
    right = _compose_line(line).format(path) if is_solved and not line.conflict else ""
    reason = line.conflict or line.doubt
    if len(line.wrong) == 1:
        (one,) = line.wrong
        said = (
            f" did you mean '{one.target}'?"
            if one.is_slip
            else f" here it is {told};"
            if one.target and (told := _describe(one, line))
            else ""
        )
        said = f" {one.about};" if one.about and not one.target else said
        return f"`{path}` has no option '{one.option}';{said} {f'write `{right}`' if right else f'see `{path} --help`'}{f'; {reason}' if reason else ''}"
    width = max(len(one.option) for one in line.wrong)
    rows = [f"  {one.option:{width}}  {_describe(one, line) or 'nothing like it'}" for one in line.wrong]
    names = [f"'{one.option}'" for one in line.wrong]
    lacking = f"`{path}` has no options {', '.join(names[:-1])} and {names[-1]}; here they are:"
    rows += [f"  {reason}"] if reason else []
    return "\n".join([lacking, *rows, f"write: {right}" if right else f"see `{path} --help`"])


def _describe(one: UnknownOption, line: ParsedCommandLine) -> str:
    """Say in a few words what to write for an option."""
    word = one.option.lstrip("-").replace("_", "-")
    if one.target in [_get_metavar(argument) for argument in _list_arguments(line.command)]:
        said = f"{one.target}, written without an option"
    elif one.target == _POLICY:
        said = "a part of --policy openai:URL#MODEL" if _is_url(word) else "--policy, such as hf:DIR, vllm:DIR or openai:URL#MODEL"
    elif one.target.endswith(" NAME"):
        said = f"{one.target.removesuffix(' NAME')} and NAME, written without an option"
    elif one.target.startswith("-") and not one.target.endswith("="):
        said = one.target
    elif one.target:
        said = " ".join(_write_target(one))
    else:
        return one.about
    return f"{said} ({one.about})" if one.about else said


def _is_url(word: str) -> bool:
    return "url" in word or word in ("api-base", "b", "endpoint")


def _write_target(one: UnknownOption) -> list[str]:
    """Write the words of an option here with the value that was given."""
    value = "..." if one.value is None else one.value
    if "{value}" in one.target:
        return [one.target.replace("[{value}]", "[]") if value == "none" else one.target.replace("{value}", value)]
    if one.target.endswith("="):
        *option, key = one.target.split(" ")
        return [*option, f"{key}{value}"]
    if "=" in one.target:  # a setting with its value, such as train.mixed_precision=bf16
        return [one.target]
    return [one.target, value]


# ---- the line as it should be -----------------------------------------------------------------------------------------


def _compose_line(line: ParsedCommandLine) -> ComposedCommandLine:
    """Compose a command line as it should be: words, settings, options; words in capitals stand for what is missing."""
    command, is_complete = line.command, True
    arguments = {_get_metavar(one): one for one in _list_arguments(command)}
    known, options, settings, named = _list_options(command), list(line.options), list[str](), dict[str, str]()
    model = [one for one in line.wrong if one.target == _POLICY]
    for one in line.wrong:
        if one.target in arguments:
            is_complete = is_complete and bool(one.value)
            if one.value or one.target != "RECIPE":
                named[one.target] = one.value or one.target
        elif one.target.endswith(" NAME"):
            named |= {"KIND": one.target.removesuffix(" NAME"), "NAME": one.value or "NAME"}
        elif one.target == _POLICY:
            options += ["--policy", _convert_foreign_model_options(model)] if one is model[0] and "--policy" not in options else []
        elif one.target.startswith("-"):
            given = getattr(known.get(one.target), "opts", [])
            added = [one.target] if getattr(known.get(one.target), "is_flag", False) else _write_target(one)
            options += [] if {*given} & {*options} and not one.target.endswith("=") else added
        elif one.target:
            settings += _write_target(one)
    words = [word for word in line.words if word not in named]  # RECIPE, copied from an earlier message
    if {"KIND", "NAME"} <= arguments.keys() and len(words) == 1 and words[0] not in hints.PLUGIN_WORDS:
        is_complete = is_complete and "KIND" in named
        named["KIND"] = named.get("KIND", "KIND")
    if command.name == "eval" and len(words) > 1 and POLICY_PATTERN.match(words[0]):  # in the other order
        words[:2] = words[1::-1]
    front: list[str] = []
    for metavar, argument in arguments.items():
        if argument.nargs == -1:
            front, words = [*front, *([named[metavar]] if metavar in named else []), *words], []
        elif metavar in named:
            front.append(named[metavar])
        elif words:
            front.append(words.pop(0))
        elif command.name == "train" and metavar == "RECIPE":
            if not any(re.match(r"env(\.name)?=", text) for text in settings):
                is_complete = False  # an example, as a word in capitals would not run
                front.append("env=arithmetic" if "--model" in options else "quickstart")
        elif argument.required or metavar == "NAME" or (command.name == "eval" and "--rescore" not in options):
            front.append(metavar)
            is_complete = is_complete and not argument.required and command.name != "eval"
    for parameter in command.params:
        if parameter.required and parameter.param_type_name == "option" and not {*parameter.opts} & {*options}:
            options += [parameter.opts[0], PLACEHOLDERS.get(parameter.name, parameter.name.upper())]
            is_complete = False
    needed, instead = NEEDED.get(command.name, ((), ()))
    for name in needed:
        if not {name, *instead} & {*options}:
            options += [name, words.pop(0) if words else name.lstrip("-").upper()]
            is_complete = False
    return ComposedCommandLine([*front, *settings, *options], is_complete and not words)


def quote(word: str) -> str:
    """Quote a word for a shell, if it needs quotes; `...` stands for any value."""
    return word if re.fullmatch(r"[\w@%+=:,./#-]+", word) and not word.startswith("#") else shlex.quote(word)


def _convert_foreign_model_options(options: Iterable[UnknownOption]) -> str:
    """Write the policy for a model, and perhaps the address of its server, as inspect, verifiers and lm-eval take them.

    >>> _convert_foreign_model_options([UnknownOption("--model", "openai/m"), UnknownOption("--base-url", "http://localhost:9/v1")])
    'openai:http://localhost:9/v1#m'
    >>> _convert_foreign_model_options([UnknownOption("--model", "hf"), UnknownOption("--model_args", "pretrained=models/a,dtype=float32")])
    'hf:models/a'
    """
    model, url, args = "", "", dict[str, str]()
    for one in options:
        word, value = one.option.lstrip("-").replace("_", "-"), one.value or ""
        if word == "model-args":
            args = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
        elif _is_url(word):
            url = value
        else:
            model = value
    url = (url or args.get("base_url", "")).removesuffix("/").removesuffix("/chat/completions").removesuffix("/completions")
    provider, slash, name = model.partition("/")
    if is_model_folder(Path(model) / "checkpoints" / "last") and not is_model_folder(model):  # the folder of a run
        model = str(Path(model) / "checkpoints" / "last")
    if url:
        served = args.get("model") or (name if slash and provider.startswith("openai") else model) or "MODEL"
        return f"openai:{url}#{served}"
    if folder := args.get("pretrained", ""):
        return f"{'vllm' if model == 'vllm' else 'hf'}:{folder}"
    if POLICY_PATTERN.match(model):
        return model
    if slash and provider == "openai":
        return f"openai:https://api.openai.com/v1#{name}"
    if slash and provider in ("hf", "vllm") and name:
        return f"{provider}:{name}"
    return f"hf:{model or 'DIR'}"


def _list_words_after(command: str, arguments: Sequence[str]) -> list[str]:
    """List the words of a line after the name of the command."""
    return list(arguments)[arguments.index(command) + 1 :] if command in arguments else []
