"""The words of TRL, verifiers, inspect and lm-eval that are taken from Python as they are, because they mean exactly a word of this library:
keywords, the names of functions, the names of a few plugins. None of them is listed, completed or used in the documentation.

What means something else, or needs another value, is not here: `rlvr.hints` says how it is written. The command line and recipes with flat
keys take the same words, and say how they were read.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from rlvr.errors import ConfigError
from rlvr.hints import ANSWER_COLUMNS, PLUGIN_WORDS, VERIFIER_WORDS, shorten_traceback, write_settings_as_keywords

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_VERIFIER = dict.fromkeys(VERIFIER_WORDS, "verifier")
_LENGTH: dict[str, str] = dict.fromkeys(("max_completion_length", "max_tokens"), "max_new_tokens")
_CLIPPED_AND_REGULARIZED = {"kl_coef": "beta", "clip_range": "epsilon", "ent_coef": "entropy_coef"}
REFERENCE_WORDS = ("target", "gold", "ground_truth", "solution", "label", "expected", "tests")
"""Keywords for the reference in calls of other libraries."""
SYNONYMS: Mapping[str, Mapping[str, str]] = {
    "train": {
        **_VERIFIER,
        **_LENGTH,
        **_CLIPPED_AND_REGULARIZED,
        "algo": "algorithm",
        "batch_size": "prompts_per_step",
        "callback": "callbacks",
        "dataset": "data",
        "environment": "env",
        "group_size": "num_generations",
        "lr": "learning_rate",
        "lr_scheduler_type": "lr_scheduler",
        "max_steps": "steps",
        "model_name_or_path": "model",
        **dict.fromkeys(("num_return_sequences", "num_samples_per_prompt", "rollouts_per_example"), "num_generations"),
        **dict.fromkeys(("num_steps", "total_steps"), "steps"),
        "output_dir": "out",
        "peft_config": "lora",
        "processing_class": "tokenizer",
        "resume_from_checkpoint": "resume",
        "save_steps": "save_every",
        "task": "env",
        "train_batch_size": "prompts_per_step",
        "train_dataset": "data",
    },
    "evaluate": {
        **_VERIFIER,
        **_LENGTH,
        "data": "env",
        "dataset": "env",
        "environment": "env",
        "environments": "env",
        "envs": "env",
        "epochs": "n",
        **dict.fromkeys(("limit", "max_examples", "max_samples", "n_eval_episodes", "num_examples", "num_problems", "num_tasks"), "tasks"),
        **dict.fromkeys(("num_generations", "num_return_sequences", "repeats", "rollouts_per_example"), "n"),
        **dict.fromkeys(("max_connections", "max_workers", "num_workers"), "concurrency"),
        **dict.fromkeys(("log_dir", "output_dir", "output_path"), "out"),
        "model": "policy",
        "time_limit": "episode_timeout_s",
        "system_message": "system",
        "system_prompt": "system",
        "task": "env",
    },
    "generate": {
        **_LENGTH,
        "max_length": "max_new_tokens",
        "messages": "prompts",
        "model": "policy",
        "num_return_sequences": "n",
        "num_samples": "n",
        "prompt": "prompts",
        "system_message": "system",
        "system_prompt": "system",
    },
    "Task": {
        **dict.fromkeys(("question", "problem", "input"), "prompt"),
        **dict.fromkeys(("answer", "target", "label", "gold", "ground_truth"), "reference"),
        **dict.fromkeys(("metadata", "extra_info"), "meta"),
    },
    "verify": {**_VERIFIER, **dict.fromkeys(ANSWER_COLUMNS, "answer"), **dict.fromkeys(REFERENCE_WORDS, "reference"), "question": "prompt"},
    "Learner": {**_LENGTH, "algo": "algorithm", "lr": "learning_rate", "max_steps": "total_steps", "policy": "model"},
    "Limits": dict.fromkeys(("time_limit", "timeout", "timeout_s"), "wall_s"),
    "Rollout": {**_LENGTH, "env": "environment"},
    "Verdict": {
        **dict.fromkeys(("reward", "value"), "score"),
        **dict.fromkeys(("explanation", "feedback", "message", "rationale"), "reason"),
        **dict.fromkeys(("details", "metadata"), "detail"),
    },
    "make": {**_LENGTH, "max_episode_steps": "max_turns"},
    "register": {"max_episode_steps": "max_turns", "id": "name", "entry_point": "plugin", "cls": "plugin"},
    "make_algorithm": _CLIPPED_AND_REGULARIZED,
    "make_verifier": {"reward_weights": "weights"},
    "Environment.to_dataset": dict.fromkeys(("limit", "num_examples", "num_samples", "num_tasks", "size"), "n"),
    "make_env": {
        **_VERIFIER,
        **dict.fromkeys(("eval_dataset", "test_dataset"), "test"),
        **dict.fromkeys(("few_shot", "num_fewshot"), "shots"),
        **dict.fromkeys(("input", "input_column", "prompt_column", "question_column"), "question"),
        **dict.fromkeys(("answer_column", "reference_column", "target_column"), "reference"),
        **dict.fromkeys(("system_message", "system_prompt"), "system"),
        "target": "reference",
    },
}
"""Calls, with the words that they take and the word of this library."""
_MAKERS = {word: kind for word, kind in PLUGIN_WORDS.items() if not word.endswith("s")} | dict.fromkeys(VERIFIER_WORDS, "verifier")
IGNORED: Mapping[str, frozenset[str]] = {
    "train": frozenset({"logging_steps", "verbose"}),
    "evaluate": frozenset({"log_samples", "verbosity", "write_out"}),
}
"""Keywords of other libraries for what a call does in any case: every step and every sample is logged, and progress is shown."""
NEUTRAL: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "train": {
        "bf16": (False,),
        "fp16": (False,),
        "gradient_accumulation_steps": (1,),
        "remove_unused_columns": (False,),
        "use_vllm": (False,),
    }
}
"""Values of such keywords that change nothing here either; other values are explained."""
FUNCTIONS: Mapping[str, str] = {
    **{f"{verb}_{word}": f"make_{kind}" for verb in ("build", "create", "get", "load", "make") for word, kind in _MAKERS.items()},
    **dict.fromkeys(
        ("GymEnv", "GymnasiumEnv", "as_gym", "gym", "gym_env", "make_gym", "make_gym_env", "make_gymnasium", "to_gym", "to_gymnasium"),
        "make",
    ),
    **dict.fromkeys(("load_eval", "load_report", "load_results", "read_eval_log", "read_log"), "load_evaluation"),
    **dict.fromkeys(("check_answer", "grade", "verify_answer"), "verify"),
    **dict.fromkeys(("exec_code", "execute", "execute_code", "run_program", "run_python"), "run_code"),
    **dict.fromkeys(("HFModel", "HFPolicy", "HuggingFacePolicy", "TransformersPolicy", "load_policy"), "load_model"),
    **dict.fromkeys(("SingleTurnEnv", "ToolEnv", "load", "load_benchmark", "load_task"), "make_env"),
    **dict.fromkeys(("as_reward_fn", "as_reward_func", "as_reward_function", "to_reward_func"), "make_verifier"),
    "MultiTurnEnv": "Environment",
    "Sample": "Task",
    "eval": "evaluate",
    "verify_batch": "verify_many",
}
"""Functions of other libraries, and the function of this one that takes the same arguments and returns the same."""
VERIFIER_DECORATORS = ("reward", "reward_fn", "reward_func", "reward_function", "verifier")
"""Names under which other libraries decorate a function that scores; as a call they are `make_verifier`."""
LISTS: Mapping[str, str] = {f"list_{word}": kind for word, kind in PLUGIN_WORDS.items() if word.endswith("s")} | {"list_tasks": "env"}
"""Functions of other libraries that list plugins, and the kind that `rlvr.list` gets."""
GYMNASIUM = ("ActionWrapper", "Env", "ObservationWrapper", "RewardWrapper", "Wrapper")
"""Classes of gymnasium, for its environments that `rlvr.make` returns."""
REGISTRATIONS: Mapping[str, str] = {f"register_{word}": kind for word, kind in _MAKERS.items()}
"""Functions of other libraries that register a plugin, and its kind for `rlvr.register`."""
BATCH_SIZE = "per_device_train_batch_size"
"""The word of transformers for the completions of a batch on a device, whose value is converted, too."""
LORA_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("use_lora", "use_peft"), ""),
    **{"lora_alpha": "alpha", "lora_r": "rank", "lora_rank": "rank", "lora_target_modules": "target_modules"},
}
"""Keywords of an adapter, and what they are in `lora`; "": whether there is one."""
DEFAULT_NUM_GENERATIONS = 8
"""The completions of a prompt in TRL and in a recipe, if nothing else is said; a test compares them, as this module imports no configuration."""
ENVS: Mapping[str, str] = {"math": "competition_math"}
"""Names of environments elsewhere, and the same environment here."""
VERIFIERS: Mapping[str, str] = {"code": "unit_tests", "exact_match": "exact", "math": "symbolic", "math_verify": "symbolic"}
"""Names of verifiers elsewhere, and the same verifier here."""


_DECORATED = set[str]()
"""The names of functions that `decorate_verifier` registered, which a later one replaces."""


def decorate_verifier(verifier: Any = None, /, *, name: str | None = None, **settings: Any) -> Any:
    """Make a verifier of a function, a name or a class, as `make_verifier` does; with `name` it is registered, too. Without a verifier:
    return a decorator.

    >>> @decorate_verifier(name="one_word")
    ... def one_word(answer: str, reference: str) -> float:
    ...     return float(" " not in answer)
    >>> one_word("four", "4").score
    1.0
    """
    import rlvr

    is_new_name = isinstance(verifier, str) and re.fullmatch(r"[A-Za-z_]\w*", verifier) and verifier not in VERIFIERS
    if is_new_name and name is None and verifier not in rlvr.list("verifier"):  # of the function that is decorated
        return functools.partial(decorate_verifier, name=verifier, **settings)
    if verifier is None:
        return functools.partial(decorate_verifier, name=name, **settings)
    made = rlvr.make_verifier(verifier, **settings)
    own = getattr(verifier, "__name__", "") if inspect.isfunction(verifier) else ""
    if (
        name is None
        and re.fullmatch(r"[A-Za-z_]\w*", own)
        and own not in VERIFIERS
        and (own in _DECORATED or own not in rlvr.list("verifier"))
    ):
        name = own  # as `scorer` does in inspect; the name of a plugin stays its own
        _DECORATED.add(own)
    if name is not None:
        rlvr.register(name, verifier, kind="verifier", **settings)
    return made


def make_rubric(funcs: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """Make the verifier that pays the weighted sum of functions.

    >>> make_rubric([lambda completion, answer: completion == answer, lambda completion: 1.0], [1.0, 0.25])("4", "4").score
    1.25
    """
    import rlvr

    functions = [*funcs] if isinstance(funcs, Sequence) and not isinstance(funcs, str) else [funcs]
    weights = [1.0] * len(functions) if weights is None else weights
    if len(weights) != len(functions):
        raise ConfigError(f"there are {len(functions)} funcs and {len(weights)} weights; give a weight for each function")
    return rlvr.make_verifier(_describe_sum(functions, weights))


def evaluate_policy(model: Any, env: Any, n_eval_episodes: int = 10, **settings: Any) -> tuple[float, float]:
    """Return the mean and the standard deviation of the scores of a policy, as stable-baselines3 does."""
    import rlvr

    samples = rlvr.evaluate(env, policy=model, tasks=n_eval_episodes, **settings).samples
    scores = [sample.score for sample in samples if sample.score is not None]
    if len(scores) < len(samples):
        raise rlvr.RlvrError(
            f"{len(samples) - len(scores)} of {len(samples)} answers have no score; rlvr.evaluate returns a report of them"
        )
    return statistics.fmean(scores), statistics.pstdev(scores)


def score_answer(*given: Any, **settings: Any) -> float | None:
    """Return the score of an answer alone; the arguments are those of `rlvr.verify`.

    >>> score_answer("it is 4", target="4", scorer="numeric")
    1.0
    """
    import rlvr

    return rlvr.verify(*given, **settings).score


def play_episodes(env: Any, policy: Any = None, *, seed: int = 0, **settings: Any) -> Any:
    """Return the sample of one episode, the first task of the split `test` or of the one that is given: its messages, score and reason. With
    a number of episodes, `n` or another word for it: a list, of so many tasks.

    >>> play_episodes("arithmetic", "scripted:gold").reward, len(play_episodes("arithmetic", "scripted:gold", n=3))
    (1.0, 3)
    """
    import rlvr

    policy = settings.pop("model", None) if policy is None else policy
    if policy is None:
        raise ConfigError(
            "no policy is given; write rlvr.rollout(env, policy), such as 'hf:DIR', a model, or a function from a prompt to a text"
        )
    words = [word for word in ("n", "tasks", "episodes", "n_episodes", "num_episodes", "num_rollouts") if word in settings]
    if len(words) > 1:
        raise ConfigError(
            f"{words[0]} and {words[1]} are both a number of episodes here; rlvr.evaluate(env, policy, tasks=4, n=2) has both"
        )
    count = settings.pop(words[0]) if words else 1
    samples = rlvr.evaluate(env, policy, tasks=count, n=1, seed=seed, **settings).samples
    return samples if words else samples[0]


def load_rows(source: Any, *given: Any, **settings: Any) -> Any:
    """Load a `datasets.Dataset`: of a file, its rows; of anything else what `datasets.load_dataset` returns."""
    import datasets

    kinds = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
    if isinstance(source, str | Path) and (kind := kinds.get(Path(source).suffix)) and Path(source).is_file():
        return datasets.load_dataset(kind, data_files=str(source), split=settings.pop("split", "train"), **settings)
    return datasets.load_dataset(str(source), *given, **settings)


def compare_reports(first: Any, second: Any, *, force: bool = False) -> Any:
    """Compare two reports of `rlvr.evaluate`, or the folders of evaluations, as `report.compare` does."""
    import rlvr

    return (rlvr.load_evaluation(first) if isinstance(first, str | Path) else first).compare(second, force=force)


class TrainerArguments(dict[str, Any]):
    """The settings of a run as TRL groups them: keywords of `rlvr.train`, that may be read as attributes.

    >>> TrainerArguments(max_steps=5).max_steps
    5
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"these settings have no {name!r}, only {', '.join(self) or 'none'}", name=name, obj=None)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


@functools.cache
def make_trainer_class(algorithm: str) -> Any:
    """Make the trainer that takes the arguments of TRL's, in their order, and is a `rlvr.Trainer`."""
    import rlvr

    class TrlTrainer(rlvr.Trainer):
        def __init__(
            self,
            model: Any = None,
            reward_funcs: Any = None,
            args: Mapping[str, Any] | None = None,
            train_dataset: Any = None,
            eval_dataset: Any = None,
            processing_class: Any = None,
            **settings: Any,
        ) -> None:
            given = {"model": model, "reward_funcs": reward_funcs, "data": train_dataset, "processing_class": processing_class}
            given = {**(args or {}), **{name: value for name, value in given.items() if value is not None}}
            given |= {name: value for name, value in settings.items() if value is not None}
            if eval_dataset is not None:  # held-out tasks belong to the environment
                given["env"] = rlvr.make_env(given.pop("data"), verifier=given.pop("reward_funcs"), test=eval_dataset)
            self._settings = {"algorithm": algorithm, **given}
            out = next((given[word] for word in ("output_dir", "out") if word in given), None)
            self._is_made = False
            if out is None or not (Path(out) / "config.yaml").is_file():  # else `train` is told whether the run is continued
                self._make()

        def _make(self, **more: Any) -> None:
            super().__init__(**{**self._settings, **more})
            self._is_made = True

        def train(self, resume_from_checkpoint: Any = None) -> Any:
            if self._is_made and resume_from_checkpoint:
                raise ConfigError(
                    f"a trainer is made for one run; make a new one: {type(self).__name__}(...).train(resume_from_checkpoint=True)"
                )
            if not self._is_made:
                self._make(**({} if resume_from_checkpoint is None else {"resume": bool(resume_from_checkpoint)}))
            report = self.fit()
            self.release_folder()  # trainers of TRL are not closed
            return report

        def save_model(self, folder: str | Path) -> None:
            """Write the model, and with LoRA the adapter alone, as trainers of TRL do."""
            if self.config.model.lora is not None:
                self.save_adapter(folder)
            else:
                super().save_model(folder)

        @property
        def state(self) -> Any:
            """The numbers of the run, as transformers keeps them."""
            return SimpleNamespace(global_step=self.num_completed_steps, log_history=self.log_history)

    TrlTrainer.__name__ = TrlTrainer.__qualname__ = f"{algorithm.upper()}Trainer"
    return TrlTrainer


def _find_plugin(class_name: str) -> tuple[str, str] | None:
    """Find the plugin whose class another library would call so, by kind and name: `ArithmeticEnv`, `MathVerifier`, `DockerSandbox`."""
    import rlvr

    found = re.fullmatch(r"([A-Z]\w*?)(Env(?:ironment)?|Verifier|Reward|Scorer|Sandbox|Tool|Sampler)", class_name)
    if found is None:
        return None
    kind = {"Environment": "env", "Reward": "verifier", "Scorer": "verifier"}.get(found[2], found[2].lower())
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", found[1]).lower()
    own = {"env": ENVS, "verifier": VERIFIERS}.get(kind, {}).get(words, words)
    return (kind, own) if own in rlvr.list(kind) else None


def find_function(name: str) -> Any:
    """Return the function or class that is called so in another library, and does the same here; None for other names."""
    import rlvr

    if name in FUNCTIONS:
        return getattr(rlvr, FUNCTIONS[name])
    if name in LISTS:
        return functools.partial(rlvr.list, LISTS[name])
    if name in REGISTRATIONS:
        return functools.partial(rlvr.register, kind=REGISTRATIONS[name])
    if name in GYMNASIUM:
        import gymnasium

        return getattr(gymnasium, name)
    if name == "TrainerCallback":
        import transformers

        return transformers.TrainerCallback
    if found := re.fullmatch(r"(GRPO|RLOO|PPO)(Trainer|Config)", name):
        return make_trainer_class(found[1].lower()) if found[2] == "Trainer" else TrainerArguments
    if name.startswith("verify_") and (verifier := VERIFIERS.get(name[7:], name[7:])) in rlvr.list("verifier"):
        return functools.partial(rlvr.verify, verifier)
    if (plugin := _find_plugin(name)) is not None:
        kind, own_name = plugin
        return functools.partial(getattr(rlvr, f"make_{kind}"), own_name)
    own = {
        "Rubric": make_rubric,
        "Suite": list,
        "compare": compare_reports,
        "evaluate_policy": evaluate_policy,
        "load_dataset": load_rows,
        "rollout": play_episodes,
        "score": score_answer,
    } | dict.fromkeys(VERIFIER_DECORATORS, decorate_verifier)
    return own.get(name)


def accept_synonyms(function: Callable[P, R]) -> Callable[P, R]:
    """Make a call take the words of other libraries, as its outermost decorator."""
    call = "train" if function.__qualname__ == "Trainer.__init__" else function.__qualname__.removesuffix(".__init__")
    words = {
        *SYNONYMS[call],
        *IGNORED.get(call, ()),
        *NEUTRAL.get(call, ()),
        *(LORA_WORDS if call == "train" else ()),
        BATCH_SIZE,
        "pass_at_k",
        "k",
        "num_samples",
        "num_fewshot",
    }

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if kwargs.keys() & words or _are_names(kwargs.get("tasks")):  # the weights of reward_funcs go with them
                kwargs = translate_keywords(call, kwargs)  # type: ignore[assignment]
            return function(*args, **kwargs)
        except ConfigError as error:
            if call == "train" and kwargs.keys() & {"model", "env", "data"}:  # a run of keywords, and not of a recipe with dotted keys
                error.args = (write_settings_as_keywords(str(error)), *error.args[1:])
            shorten_traceback(error)
            raise
        except KeyboardInterrupt as stop:
            shorten_traceback(stop)
            raise

    return called


def accept_synonyms_in_constructor(made: type[C]) -> type[C]:
    """Make the constructor of a dataclass take the words of other libraries, as its outermost decorator."""
    vars_of: Any = made
    plain = vars_of.__init__
    words = SYNONYMS[made.__name__]

    @functools.wraps(plain)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if not words.keys().isdisjoint(kwargs):
            kwargs = translate_keywords(made.__name__, kwargs)
        plain(self, *args, **kwargs)

    vars_of.__init__ = initialize
    return made


def _join_weights(call: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Join TRL's two lists, of reward functions and of their weights, to one verifier, their weighted sum."""
    weights, word = given.get("reward_weights"), next((word for word in (*VERIFIER_WORDS, "verifier") if word in given), "")
    functions = given.get(word)
    if call != "train" or not isinstance(weights, Sequence) or not isinstance(functions, Sequence) or isinstance(functions, str):
        return given  # a mapping of weights is a setting of an algorithm
    if len(weights) != len(functions):
        raise ConfigError(f"there are {len(functions)} {word} and {len(weights)} reward_weights; give a weight for each function")
    rest = {name: value for name, value in given.items() if name != "reward_weights"}
    return {**rest, word: _describe_sum(functions, weights)}


def _describe_sum(functions: Sequence[Any], weights: Sequence[float]) -> Any:
    """Describe the verifier that pays the weighted sum of others."""
    if not functions:
        raise ConfigError("there are no reward functions; give at least one")
    parts = [{"verifier": function, "weight": weight} for function, weight in zip(functions, weights, strict=True)]
    is_mean = all(isinstance(weight, int | float) for weight in weights) and min(weights) >= 0 and math.isclose(math.fsum(weights), 1.0)
    return parts if is_mean else {"name": "composite", "components": parts, "combine": "sum"}


def _join_lora(call: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Join the keywords of an adapter, as verl and transformers have them, to `lora`."""
    if call != "train" or not (own := [name for name in given if name in LORA_WORDS]):
        return given
    rest = {name: value for name, value in given.items() if name not in own}
    if any(given.get(name) is False for name in ("use_lora", "use_peft")):
        return rest
    if "lora" in given or "peft_config" in given:
        raise ConfigError(f"rlvr.train got lora and {own[0]}, which say the same; give one of them")
    lora = {word: given[name] for name in own if (word := LORA_WORDS[name])}
    return {**rest, "lora": {"rank": 8, **lora}}


def _count_prompts(call: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn sizes of a batch that count completions into the prompts of a step: those of transformers, and `batch_size` of verifiers."""
    size_word = "batch_size" if {"batch_size", "rollouts_per_example"} <= given.keys() else BATCH_SIZE
    if call != "train" or size_word not in given:
        return given
    words = (size_word,) if size_word == "batch_size" else (size_word, "gradient_accumulation_steps")
    sizes = {word: given[word] for word in words if word in given}
    if size_word == BATCH_SIZE:  # of one device
        sizes["processes"] = int(os.environ.get("WORLD_SIZE", "1"))
    group_words = ("num_generations", "group_size", "rollouts_per_example")
    group = next((given[word] for word in group_words if word in given), DEFAULT_NUM_GENERATIONS)
    told = " x ".join(f"{word}={size}" for word, size in sizes.items() if word in given or size != 1)
    if not all(isinstance(size, int) and size > 0 for size in (*sizes.values(), group)) or math.prod(sizes.values()) % group:
        raise ConfigError(
            f"{told} must be a multiple of num_generations={group}: it counts completions, and each prompt gets {group}; "
            "write prompts_per_step=, the prompts of a step"
        )
    if "prompts_per_step" in given:
        raise ConfigError(f"rlvr.train got prompts_per_step and {size_word}, which say the same; give one of them")
    rest = {name: value for name, value in given.items() if name not in words}
    rest |= {} if any(word in given for word in group_words) else {"num_generations": group}  # which the size was counted with
    return rest | {"prompts_per_step": math.prod(sizes.values()) // group}


def _name_num_samples(call: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name `num_samples`: the answers for each task where the number of tasks or a k is given, else the number of tasks."""
    if call != "evaluate" or "num_samples" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "num_samples"}
    own = {SYNONYMS[call].get(name, name) for name in rest}
    meant = "n" if "n" not in own and own & {"tasks", "pass_at_k", "k"} else "tasks"
    return {**rest, meant: given["num_samples"]}


def _count_answers(call: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn the k of pass@k into the number of answers for each task; the report shows pass@k of these k, too."""
    word = next((word for word in ("pass_at_k", "k") if call == "evaluate" and word in given), "")
    if not word:
        return given
    wanted = given[word]
    ks = [*wanted] if isinstance(wanted, list | tuple) else [wanted]
    if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
        raise ConfigError(f"{word} is {wanted!r:.60}; it must be a whole number from 1, or a list of them")
    rest = {name: value for name, value in given.items() if name != word}
    count = next((name for name in rest if SYNONYMS[call].get(name, name) == "n"), "")
    if count and isinstance(rest[count], int) and rest[count] < max(ks):
        raise ConfigError(f"{word} is {wanted!r:.60}, and {count} is {rest[count]}; pass@{max(ks)} needs {count}={max(ks)}, or more")
    return {**rest, "pass_at_k": ks} | ({} if count else {"n": max(ks)})


def translate_env_name(env: Any) -> Any:
    """Return the name of an environment as it is here; anything else is returned unchanged."""
    return ENVS.get(env, env) if isinstance(env, str) else env


def _are_names(value: Any) -> bool:
    return (isinstance(value, str) and not value.isdecimal()) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)
    )


def translate_keywords(call: str, given: Mapping[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
    """Return the keywords of a call with the words of this library; the words in `keep` are settings of their own.

    >>> translate_keywords("train", {"max_steps": 5, "learning_rate": 1e-5})
    {'steps': 5, 'learning_rate': 1e-05}
    """
    if call == "evaluate" and _are_names(given.get("tasks")):  # of environments, as lm-eval has them
        given = {("env" if name == "tasks" else name): value for name, value in given.items()}
    given = _join_lora(call, given)
    neutral = NEUTRAL.get(call, {})
    given = {name: value for name, value in given.items() if value not in neutral.get(name, ())}
    if call == "train" and given.get("bf16") is True:
        given = {("mixed_precision" if name == "bf16" else name): "bf16" if name == "bf16" else value for name, value in given.items()}
    given = _count_answers(call, _name_num_samples(call, _count_prompts(call, _join_weights(call, given))))
    if call == "evaluate" and given.get("num_fewshot") == 0:
        given = {name: value for name, value in given.items() if name != "num_fewshot"}
    words, found, said = SYNONYMS[call], dict[str, Any](), dict[str, str]()
    for name, value in given.items():
        if name in IGNORED.get(call, ()) and name not in keep:
            continue
        own = name if name in keep else words.get(name, name)
        if own in found:
            several = ", or a list of both, whose weighted mean is paid" if own == "verifier" else ""
            raise ConfigError(f"rlvr.{call} got {said[own]} and {name}, which mean the same; give one of them{several}")
        found[own], said[own] = value, name
    return found
