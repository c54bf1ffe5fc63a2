"""Evaluate a policy: sample answers to held-out tasks, verify and store each one, and compute the metrics from the stored samples.

>>> evaluate("arithmetic", "scripted:gold", tasks=100).envs["arithmetic"].mean_score.value
1.0

A killed evaluation resumes where it stopped: the same call samples the missing answers, and ends with the same metrics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr import extraction
from rlvr.config import hub
from rlvr.config.section import validate_section
from rlvr.contracts import Environment, Sampler, SamplerTraits, Verifier
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.episode import Episode
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.evaluation.episode_sources import RemoteSourceFactory
from rlvr.evaluation.object_digest import compute_model_digest, compute_object_digest
from rlvr.evaluation.plan import OBJECT_PREFIXES, EvalPlan
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.runner import EvalRunner, TokenPrice, load_time_and_token_totals
from rlvr.evaluation.samples import REPORT_FILE, SampleStore, compute_digest, wrap_write_errors, write_atomic
from rlvr.evaluation.suite import Suite, SuiteItem, load_suite
from rlvr.evaluation.summary import EnvSummary, check_selector, summarize_env
from rlvr.evaluation.votes import assign_answer_classes
from rlvr.mdp.limits import get_num_tasks
from rlvr.mdp.tokenizers import check_model_vocabulary, get_model_vocab_size, load_tokenizer
from rlvr.plugin_files import FILE_PLUGIN_PATTERN, find_plugin_file, resolve_plugin_files
from rlvr.registry.plugins import PluginSpec, build, build_from_config, check_settings, get_parameters, list_entries, load_factory
from rlvr.rollout.rollout import RolloutRequest, derive_seed
from rlvr.runs.plugin_record import compute_file_digest

FUNCTION_SAMPLER = "function"
"""The sampler of a policy that is a function in a file, path/to/file.py:function."""
NUM_DIGEST_PIECES, DIGEST_PIECE_BYTES = 64, 65536
"""Number and size in bytes of the pieces of each weights file that are hashed."""


def evaluate(
    suite: str | Path | Mapping[str, Any] | Sequence[Any] | Environment,
    policy: Any,
    *,
    tokenizer: Any = None,
    n: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    sampler: Mapping[str, Any] | None = None,
    select: str = "",
    retry: bool = False,
    price: TokenPrice | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    remote_sampling: RemoteSourceFactory | None = None,
    **item_settings: float | str | None,
) -> EvalReport:
    """Evaluate a policy on a suite (by name, by file) or on one environment (by name, as a mapping, as an object).

    Args:
        suite: the name of a suite or an environment, a YAML file, a mapping, an environment, or a list of names, mappings and environments.
        policy: the policy, such as `hf:DIR`, or `player.py:play`, a function in a file; or a sampler, a model object, or a function from
            the text of a prompt, or from `messages` and `tools`, to a turn (see `rlvr.samplers.function`).
        tokenizer: the tokenizer of a model object.
        n: answers for each task; if neither this nor the suite sets it: 1.
        temperature: 0 is greedy; if neither this nor the suite sets it: 0 for one answer per task, 1 for several.
        seed: the seed of all randomness.
        settings: of the environments; `path`, or `gsm8k.path` in a suite of several.
        concurrency: how many requests run in parallel; None is the sampler's default.
        sampler: settings of the policy's sampler, such as api_key_env or retries.
        select: how best@k chooses, one of `rlvr.evaluation.summary.SELECTORS`.
        retry: sample again where there is no score.
        price: token prices, to show the cost while it runs.
        out: the folder to write; an unfinished evaluation of the same call is resumed, and one of fewer tasks or answers is extended.
        console: where to show the progress.
        remote_sampling: samples in other processes, such as the rollout workers of `rlvr eval --cluster`; None: this process samples.
        item_settings: for every environment of the suite: tasks, split, top_p, top_k, system, max_new_tokens, max_turn_tokens, max_length,
            episode_timeout_s, call_timeout_s (see the fields of a suite item).
    """
    checked = (item_settings.keys() & SuiteItem.model_fields.keys()) - {"top_k"}  # an unknown name gets its own message
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ConfigError(f"seed is {seed!r:.60}; it must be a whole number, such as 0")
    _check_positive(n=n, concurrency=concurrency, **{name: item_settings[name] for name in checked})
    check_selector(select)
    out, sampler = Path(out) if out else None, sampler or {}
    found, ready = _resolve_suite(
        str(suite) if isinstance(suite, Path) else suite, settings, {**item_settings, "n": n, "temperature": temperature}
    )
    if remote_sampling is not None and (objects := [*ready.values()]):
        raise ConfigError(
            f"this {type(objects[0]).__name__} is an object, and other processes build an environment by its name; give a mapping"
        )
    items = [item.with_default_sampling() for item in found.items]
    given = None if isinstance(policy, str) else PolicyObject.wrap(policy, tokenizer)
    specs: dict[str, Any] = {item.name: given or parse_policy(policy, concurrency, {**item.sampler, **sampler}) for item in items}
    policy = given.label if given else resolve_plugin_files(policy)
    with ExitStack() as stack:
        environments = {item.name: stack.enter_context(_open_env(ready.get(item.name), item)) for item in items}
        _print_data_warnings(environments, console)
        labels = {name: format_verifier_label(getattr(environment, "verifier", None)) for name, environment in environments.items()}
        plan = _make_plan(found.name, policy, items, labels, seed, sampler)
        if out is not None:
            digests = {name: compute_object_digest(environment) for name, environment in ready.items()}
            plan = plan.model_copy(update={"objects": digests, **({"policy_weights": given.compute_digest()} if given else {})})
        file = stack.enter_context(SampleStore.open(out, plan, environments.values()))
        plan = file.plan
        wanted = {item.name: make_env_requests(item, environments[item.name], plan) for item in plan.envs}
        attempt = EvalRunner(
            plan, file, concurrency=concurrency, retry=retry, price=price, console=console, remote_sampling=remote_sampling
        )
        attempt.run(specs, environments, wanted)
        spent_here = (attempt.elapsed_s, attempt.output_tokens)
        return make_report(plan, file, environments, out, select=select, num_new_samples=attempt.num_samples, seconds_and_tokens=spent_here)


def _open_env(ready: Environment | None, item: SuiteItem) -> AbstractContextManager[Environment]:
    """Return an environment that is closed at the end if it was built here, and stays open if the caller gave it."""
    opened: AbstractContextManager[Environment] = nullcontext(ready) if ready is not None else build_from_config("env", item.env)
    return opened


@dataclass(frozen=True)
class PolicyObject:
    """A policy that was given as an object: its name in reports, and the sampler that answers for it."""

    label: str
    sampler: Sampler
    source: Any = None
    """The model or the function; None where the caller gave the sampler."""

    def compute_digest(self) -> str:
        """Compute a digest of the function's code, or of the model's weights; "" for a sampler."""
        if self.source is None:
            return ""
        return compute_model_digest(self.source) if hasattr(self.source, "state_dict") else compute_object_digest(self.source)

    @classmethod
    def wrap(cls, policy: Any, tokenizer: Any) -> PolicyObject:
        """Make a sampler of a model object or of a function; a sampler stays as it is."""
        if isinstance(policy, LoadedModel):
            policy, tokenizer = policy.model, policy.tokenizer if tokenizer is None else tokenizer
        if isinstance(policy, Sampler):
            return cls(f"object:{type(policy).__name__}", policy)
        if hasattr(policy, "generate") and hasattr(policy, "config"):
            if tokenizer is None:
                raise ConfigError(f"the policy is a {type(policy).__name__} object and no tokenizer is given; give tokenizer= too")
            sampler = build("sampler", "hf")
            sampler.update_from_model(policy, 0)
            sampler.tokenizer = loaded = load_tokenizer(tokenizer, model_vocab_size=get_model_vocab_size(policy))
            check_model_vocabulary(loaded, get_model_vocab_size(policy) or loaded.vocab_size)
            return cls(f"object:{type(policy).__name__}", sampler, policy)
        if callable(policy):
            name = getattr(policy, "__name__", type(policy).__name__)
            return cls(f"function:{name}", build("sampler", "function", function=policy), policy)
        raise ConfigError(
            f"the policy is a {type(policy).__name__}; give a name such as hf:DIR, a model, a sampler, or a function from a prompt to a text"
        )

    def build(self) -> AbstractContextManager[Sampler]:
        """Return the caller's sampler, as a context manager that does not close the sampler."""
        return nullcontext(self.sampler)


def _make_plan(
    suite: str, policy: str, items: list[SuiteItem], verifier_labels: dict[str, str], seed: int, sampler: Mapping[str, Any]
) -> EvalPlan:
    """Make the plan of an evaluation; `verifier_labels` has the verifier with its version, by environment."""
    folder, match = find_local_policy_folder(policy), FILE_PLUGIN_PATTERN.fullmatch(policy)
    file = find_plugin_file(match["path"]) if match else None
    return EvalPlan(
        suite=suite,
        policy=policy,
        policy_folder=folder,
        policy_weights=_digest_weights(folder) if file is None else compute_file_digest(file)[:16],
        n=items[0].n or 1,
        temperature=items[0].temperature or 0.0,
        seed=seed,
        sampler=_select_output_affecting_settings(policy, sampler),
        envs=[item.model_copy(update={"sampler": _select_output_affecting_settings(policy, item.sampler)}) for item in items],
        verifiers=verifier_labels,
    )


def _print_data_warnings(environments: Mapping[str, Environment], console: Console | None) -> None:
    """Print warnings about data, such as columns that were guessed."""
    for note in (note for environment in environments.values() for note in environment.warnings):
        if console is not None:
            console.print(note, highlight=False, markup=False, soft_wrap=True)


def _check_positive(**values: object) -> None:
    for name, value in values.items():
        if name == "top_p" and isinstance(value, int | float) and not 0 < value <= 1:
            raise ConfigError(f"top_p is {value}; it must be above 0, and at most 1")
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")


def make_report(
    plan: EvalPlan,
    sample_store: SampleStore,
    environments: Mapping[str, Environment],
    out: Path | None,
    *,
    select: str = "",
    num_new_samples: int = 0,
    seconds_and_tokens: tuple[float, int] = (0.0, 0),
) -> EvalReport:
    """Make the report on the stored samples; with a folder, write `report.json` too."""
    seconds, tokens = load_time_and_token_totals(out) if out else seconds_and_tokens
    report = EvalReport(
        plan.suite,
        out,
        plan,
        _summarize_envs(plan, sample_store, environments, select),
        seconds,
        tokens,
        num_new_samples,
        sample_store.incomplete_line_bytes,
        [sample for _, sample in sorted(sample_store.samples.items())],
    )
    _write_report(report)
    return report


def _summarize_envs(
    plan: EvalPlan, sample_store: SampleStore, environments: Mapping[str, Environment], select: str = ""
) -> dict[str, EnvSummary]:
    """Compute the metrics of every environment from the available samples."""
    found = {}
    for item in plan.envs:
        environment, n = environments[item.name], plan.get_samples_per_task(item)
        groups: dict[int, list[Any]] = {}
        for key in sorted(key for key in sample_store.samples if key[0] == item.name):
            groups.setdefault(key[1], []).append(sample_store.samples[key])
        tasks_of = [environment.task(item.split, index) for index in groups]
        with ThreadPoolExecutor(8, thread_name_prefix="vote") as pool:
            cast = pool.map(partial(assign_answer_classes, environment.verifier), tasks_of, groups.values())
            votes = dict(zip(groups, cast, strict=True))
        tasks = count_available_tasks(environment, item.split, item.tasks)
        found[item.name] = summarize_env(item.name, groups, n=n, tasks=tasks, votes=votes, select=select)
    return found


def _write_report(report: EvalReport) -> None:
    """Write `report.json`: the metrics, without anything that differs when the evaluation is repeated."""
    if report.run_folder is not None:
        envs = {name: env.to_report_dict() for name, env in report.envs.items()}
        data = {"suite": report.suite, "policy": report.plan.policy, "envs": envs}
        with wrap_write_errors(report.run_folder):
            write_atomic(report.run_folder / REPORT_FILE, json.dumps(data, indent=2) + "\n")


def parse_policy(policy: str, concurrency: int | None = None, sampler: Mapping[str, Any] | None = None) -> PluginSpec:
    """Parse `--policy` into a sampler and its settings, overridden by `sampler`. The sampler is not built yet."""
    if FILE_PLUGIN_PATTERN.fullmatch(policy):
        check_settings("sampler", FUNCTION_SAMPLER, get_parameters(load_factory("sampler", FUNCTION_SAMPLER)), sampler or {})
        limits = {"concurrency": concurrency} if concurrency else {}
        return PluginSpec("sampler", FUNCTION_SAMPLER, {"function": policy, **limits, **(sampler or {})})
    name, colon, rest = policy.partition(":")
    names = [entry.name for entry in list_entries("sampler")]
    if not colon or not rest or name not in names:  # checked without importing the samplers, which is slow
        if policy and (Path(policy) / "config.yaml").is_file():
            raise NotFound(f"the policy {policy!r} is {hub.RUN_WITHOUT_MODEL}")
        if policy and Path(policy).is_dir():
            raise NotFound(f"the policy {policy!r} is a folder; for the model in it write hf:{policy}, or vllm:{policy}")
        if name in names:
            form = (
                getattr(load_factory("sampler", name), "traits", SamplerTraits()).cli_syntax or "another sampler; see `rlvr list samplers`"
            )
            raise NotFound(f"the policy {policy!r} names a sampler, and not what it samples from; write {form}")
        if policy.startswith("openai/"):
            raise NotFound(f"the policy {policy!r} is a model of an endpoint; write openai:URL#{policy.removeprefix('openai/')}")
        raise NotFound(f"the policy {policy!r} is not SAMPLER:WHAT, such as hf:DIR or scripted:gold; {format_suggestion(name, names)}")
    factory: Any = load_factory("sampler", name)
    if not getattr(factory, "traits", SamplerTraits()).cli_syntax:
        raise ConfigError(f"the sampler {name!r} cannot be named as a policy; choose another with `rlvr list samplers`")
    limits = {"concurrency": concurrency} if concurrency and "concurrency" in get_parameters(factory) else {}
    check_settings("sampler", name, get_parameters(factory), sampler or {})
    return PluginSpec("sampler", name, {**limits, **factory.settings_from_cli(rest), **(sampler or {})})


def _select_output_affecting_settings(policy: str, sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Select the sampler settings that affect the samples, which belong to the plan; API keys are not among them."""
    if policy.startswith(OBJECT_PREFIXES):
        return dict(sampler)
    factory: Any = load_factory("sampler", _get_policy_sampler_name(policy))
    return {name: value for name, value in sampler.items() if name not in factory.traits.non_semantic_settings}


def _get_policy_sampler_name(policy: str) -> str:
    """Return the name of the sampler of a policy that was given by name.

    >>> _get_policy_sampler_name("scripted:gold"), _get_policy_sampler_name("player.py:play")
    ('scripted', 'function')
    """
    return FUNCTION_SAMPLER if FILE_PLUGIN_PATTERN.fullmatch(policy) else policy.partition(":")[0]


def find_local_policy_folder(policy: str) -> str:
    """Find the resolved folder of a policy's model, or of the Hub's copy; "" if there is none."""
    if policy.startswith(OBJECT_PREFIXES) or FILE_PLUGIN_PATTERN.fullmatch(policy):
        return ""
    name, _, rest = policy.partition(":")
    factory: Any = load_factory("sampler", name)
    if not factory.traits.cli_syntax.endswith(":DIR"):
        return ""
    return str(hub.resolve_model_folder(rest).resolve()) if hub.HUB_ID_PATTERN.fullmatch(rest) or Path(rest).is_dir() else ""


def _digest_weights(folder: str) -> str:
    """Hash the weights in a folder, reading only pieces of each file, so that large files are fast; "" if there are no weights."""
    if not folder:
        return ""
    pieces = []
    with suppress(OSError):  # a file that cannot be read is reported when the model is loaded
        for path in sorted(path for path in Path(folder).iterdir() if path.suffix in (".safetensors", ".bin")):
            size = path.stat().st_size
            with path.open("rb") as file:
                for at in range(0, size, max(size // NUM_DIGEST_PIECES, DIGEST_PIECE_BYTES)):
                    file.seek(at)
                    pieces.append((path.name, size, hashlib.blake2b(file.read(DIGEST_PIECE_BYTES)).hexdigest()))
    return compute_digest(pieces) if pieces else ""


def format_verifier_label(verifier: Verifier | None) -> str:
    """Format a verifier with its version, its inner verifiers, and the version of the extractors: runs with the same label are verified the
    same way.

    >>> format_verifier_label(build("verifier", "numeric"))
    'Numeric ...'
    """
    return f"{_format_versions(verifier)}, extractors {extraction.VERSION}"


def _format_versions(verifier: Verifier | None) -> str:
    if not isinstance(verifier, Verifier):
        raise ConfigError(
            f"the environment's verifier is {verifier!r:.80}; it must be an rlvr.Verifier: rlvr.make_env(MyEnv, verifier='exact') gives a class one"
        )
    inner = [value for held in vars(verifier).values() for value in (held.values() if isinstance(held, dict) else [held])]
    labels = [_format_versions(value) for value in inner if isinstance(value, Verifier)]
    return f"{type(verifier).__name__} {verifier.version}" + (f" ({', '.join(labels)})" if labels else "")


def make_eval_requests(environment: Environment, split: str, max_tasks: int, n: int, seed: int) -> list[RolloutRequest]:
    """Make the rollout requests of an evaluation on one environment."""
    return [
        RolloutRequest(
            environment.task(split, index), f"{split}:{index}", derive_seed(seed, "eval", split, index, k), {"split": split, "index": index}
        )
        for index in range(count_available_tasks(environment, split, max_tasks))
        for k in range(n)
    ]


def count_available_tasks(environment: Environment, split: str, max_tasks: int) -> int:
    """Count how many of the requested tasks a split has; an empty split is an error."""
    if split not in environment.splits:
        only = f"; choose it with split={environment.splits[0]!r}, or --split {environment.splits[0]} in a shell"
        raise ConfigError(f"split is {split!r}; {format_suggestion(split, environment.splits)}{only}")
    size = get_num_tasks(environment, split)
    if size == 0:
        raise ConfigError(f"{type(environment).__name__} has no task in its split {split!r}; check its path and its filters")
    return max_tasks if size is None else min(max_tasks, size)


def make_env_requests(item: SuiteItem, environment: Environment, plan: EvalPlan) -> list[RolloutRequest]:
    """Make the rollout requests of one suite item, each with everything its stored row needs."""
    n = plan.get_samples_per_task(item)
    asked = make_eval_requests(environment, item.split, item.tasks, n, plan.seed)
    found = [
        (
            divmod(place, n),
            replace(request, meta={"env": item.name, **request.meta, "sample": place % n, "prompt": list(request.task.prompt)}),
        )
        for place, request in enumerate(replace(one, task=item.apply_system_prompt(one.task)) for one in asked)
    ]
    return [request for _, request in sorted(found, key=lambda pair: plan.find_extension_stage(item.name, *pair[0]))]


def compute_mean_reward(episodes: Sequence[Episode]) -> float | None:
    """Compute the mean reward of the episodes that have a score; None if none has."""
    scores = [episode.reward for episode in episodes if episode.is_scored]
    return sum(scores) / len(scores) if scores else None


def find_only_split(environment: Environment) -> str:
    """Find the split of an environment that has no other, and no `test`; "" if there is a choice."""
    return environment.splits[0] if "test" not in environment.splits and len(environment.splits) == 1 else ""


def _resolve_suite(
    suite: str | Mapping[str, Any] | Sequence[Any] | Environment,
    settings: Mapping[str, Any] | None,
    item_settings: Mapping[str, float | str | None],
) -> tuple[Suite, dict[str, Environment]]:
    """Resolve the suite; the second value has the environments that were given as objects, by the name of their item."""
    if isinstance(suite, Sequence) and not isinstance(suite, str | Environment):
        rows: list[Any] = [{"env": entry} if isinstance(entry, Environment) else entry for entry in suite]
        built = {
            place: row["env"] for place, row in enumerate(rows) if isinstance(row, Mapping) and isinstance(row.get("env"), Environment)
        }
        labels = [environment.label or type(environment).__name__ for environment in built.values()]
        objects: dict[str, Environment] = {}
        for place, environment in built.items():
            name = environment.label or type(environment).__name__
            name = rows[place].get("name") or (f"{name}_{place + 1}" if labels.count(name) > 1 else name)
            split = {"split": only} if (only := find_only_split(environment)) else {}
            rows[place] = {**split, **rows[place], "name": name, "env": {"name": name}}
            objects[name] = environment
        for key in settings or {}:
            owner = key.rpartition(".")[0]
            if owner in objects or (not owner and len(rows) == len(objects) == 1):
                raise ConfigError(f"the setting {key} has no effect: this environment is already built; build it with the setting")
        return load_suite(rows, settings, **item_settings), objects
    if isinstance(suite, str):
        return load_suite(suite, settings, **item_settings), {}
    if isinstance(suite, Environment) and settings:
        raise ConfigError(f"settings {dict(settings)} have no effect: this {type(suite).__name__} is already built; build it with them")
    env = (
        {"name": suite.label or type(suite).__name__}
        if isinstance(suite, Environment)
        else resolve_plugin_files({**suite, **(settings or {})})
    )
    item = validate_section(
        SuiteItem, {"env": env, **{key: value for key, value in item_settings.items() if value is not None}}, "this evaluation"
    )
    return Suite(item.name, (item,)), {item.name: suite} if isinstance(suite, Environment) else {}
