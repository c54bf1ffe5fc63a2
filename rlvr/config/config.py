"""RunConfig: all settings of a training run, in one YAML file, checked before any work begins.

    rlvr train quickstart seed=1 train.steps=50 algorithm='{name: grpo, epsilon: 0.1}'

A recipe is given by name (a file in `rlvr/config/recipes/`) or by path, of a YAML, TOML or JSON file. An unknown key is an error that
suggests the nearest known key. The values of `a.b=value` overrides are parsed as YAML. At the top of a recipe, and as an override, a keyword
of `rlvr.train` stands for its key: `learning_rate` and TRL's `max_steps` for `train.learning_rate` and `train.steps`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from rlvr.config.cluster import ClusterConfig
from rlvr.config.frozen_model import FrozenModelConfig
from rlvr.config.health import HealthConfig
from rlvr.config.hub import check_remote_code, resolve_model_folder
from rlvr.config.overrides import apply_overrides, drop_env_and_model_for_data_run, parse_exponents, set_key
from rlvr.config.rollout import RolloutConfig
from rlvr.config.section import Section, normalize_plugin, validate_section
from rlvr.config.training import TrainConfig
from rlvr.config.yamlfile import read_yaml
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.hints import CONFIG_KEYS
from rlvr.plugin_files import resolve_plugin_files
from rlvr.synonyms import BATCH_SIZE, IGNORED, SYNONYMS, translate_keywords

RECIPE_FOLDER = Path(__file__).parent / "recipes"


class LoraConfig(Section):
    """A LoRA adapter (peft), trained instead of the model's own weights, without dropout.

    >>> LoraConfig(rank=8, target_modules=["q_proj", "v_proj"]).effective_alpha
    16
    """

    rank: int = Field(ge=1)  # the width of the adapter
    alpha: int | None = Field(default=None, ge=1)
    """The adapter is scaled by alpha / rank. Unset: alpha is 2 * rank."""
    target_modules: list[str] | None = Field(default=None, min_length=1)
    """The linear layers to adapt, by the last part of their names. Unset: all but the output head."""

    @property
    def effective_alpha(self) -> int:
        """The alpha that is used."""
        return self.alpha or 2 * self.rank


class ModelConfig(Section):
    """The policy: a folder or an id of the Hugging Face Hub to load, or the configuration of a small model to create for the run.

    >>> ModelConfig(config={"model_type": "qwen2", "hidden_size": 128}).path is None
    True
    """

    path: str | None = None  # the model to load: a folder, or an id of the Hub such as ORG/NAME
    revision: str | None = None
    """A commit, tag or branch of a model of the Hub."""
    trust_remote_code: bool = False
    """Allow code from the model repository to run in this process, with your permissions."""
    config: dict[str, Any] | None = None
    """The transformers configuration of a small model to create for the run, instead of loading one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the stored weights."""
    fp32_head: bool = False
    """Compute the output head in float32 if the rest is computed in a lower precision."""
    compile: Literal["layers"] | None = None
    """layers: compile the decoder layers with torch.compile for training; if that fails, the run reports why and continues uncompiled."""
    lora: LoraConfig | None = None
    """Unset: all weights are trained. The adapter is added after the SFT warmup; the reference is the model without it."""

    @field_validator("lora", mode="before")
    @classmethod
    def _check_lora(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Mapping | LoraConfig):
            raise ValueError(f"lora is {value!r:.40}; it has settings of its own: write model.lora.rank=8, or lora: {{rank: 8}}")
        return value

    @model_validator(mode="after")
    def _check_source(self) -> ModelConfig:
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a folder or a Hub id to load) or config (a small model to create), exactly one of them")
        if self.path is None and (self.revision or self.trust_remote_code):
            raise ValueError("revision and trust_remote_code belong to a model of the Hub (path), and this one is created from a config")
        return self

    @property
    def name_with_revision(self) -> str:
        """The name of the model, including its revision."""
        return f"{self.path}@{self.revision}" if self.revision else str(self.path)

    @property
    def local_folder(self) -> Path:
        """The folder of the model on this machine; a model of the Hub is downloaded first."""
        found = resolve_model_folder(str(self.path), self.revision, include_code=self.trust_remote_code)
        check_remote_code(found, str(self.path), trusted=self.trust_remote_code)
        return found


class SFTWarmupConfig(Section):
    """SFT warmup: supervised steps on the environment's gold solutions, before training on rewards.

    >>> SFTWarmupConfig(max_steps=60).batch_size
    64
    """

    max_steps: int = Field(ge=1)  # the maximum number of optimizer steps
    batch_size: int = Field(default=64, ge=1)  # gold solutions per step
    learning_rate: float = Field(default=1e-3, gt=0)
    """The learning rate of the SFT warmup only."""
    target_accuracy: float = Field(default=1.0, gt=0, le=1)
    """Stop the warmup early once this accuracy on training tasks is reached."""


class StoredDataConfig(Section):
    """Train on stored data instead of sampling: the episodes of an earlier run, or gold solutions (`{}`).

    >>> StoredDataConfig(run="runs/quickstart").held_out_pair_task_fraction
    0.1
    """

    run: str | None = None
    """A run folder. If env, tokenizer or model is not set in this configuration, it is taken from that run."""
    held_out_pair_task_fraction: float = Field(default=0.1, ge=0, lt=1)
    """The fraction of tasks whose pairs are held out to evaluate a reward model."""


class RewardModelConfig(Section):
    """Train a reward model instead of a policy, on pairs from the run in `data`.

    >>> RewardModelConfig(margin_coefficient=1.0).pairs_per_group
    4
    """

    pairs_per_group: int = Field(default=4, ge=1)
    """The maximum number of pairs per group: the best with the worst, then the second best with the second worst, and so on."""
    margin_coefficient: float = Field(default=0.0, ge=0)
    """The margin of a pair in the loss, as a multiple of the difference of the verifier's two scores; 0: no margin."""
    center_rewards_coefficient: float = Field(default=0.01, ge=0)
    """The weight of a penalty that keeps scores near 0, so that scores of several models are comparable."""


class EvalConfig(Section):
    """Evaluation on held-out tasks, before and after training, and every `every` steps.

    >>> EvalConfig(tasks=500).split
    'test'
    """

    tasks: int = Field(default=200, ge=0)
    """The number of held-out tasks; 0: no evaluation."""
    split: str = "test"  # the held-out split of the environment
    every: int = Field(default=0, ge=0)  # also evaluate every this many steps; 0: only before and after training
    temperature: float = Field(default=0.0, ge=0)
    """The sampling temperature of evaluations; 0: greedy."""


class LogConfig(Section):
    """Settings of logging, checkpoints and experiment trackers.

    >>> LogConfig().report_to
    []
    """

    report_to: list[str] = Field(default_factory=list)
    """The experiment trackers that get the metrics: prometheus (a file in the run folder), and those of accelerate that are installed, such as
    tensorboard, wandb, trackio and mlflow."""
    save_every: int = Field(default=50, ge=1)  # steps between checkpoints
    save_total_limit: int | None = Field(default=2, ge=2)
    """The number of newest checkpoints to keep; null: all."""
    episodes: bool = True  # write every episode to episodes.jsonl


class RunConfig(Section):
    """All settings of a training run.

    >>> load_config("quickstart", ["seed=1"]).seed
    1
    """

    seed: int = Field(default=0, ge=0)  # the seed of all randomness
    env: dict[str, Any]
    """The environment: a name, or {name: ..., setting: value}; `rlvr list envs` shows the names."""
    tokenizer: str | None = None  # the name chars, chars:ALPHABET or bytes, a folder or a Hub id; unset: the model's own
    model: ModelConfig
    frozen_models: dict[str, FrozenModelConfig] = Field(default_factory=dict)
    """The models beside the policy, {name: path}, by the names that the algorithm gives them. Unset, the reference is the policy as it was
    before training on rewards.
    """
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    cluster: ClusterConfig | None = None  # sample on other machines, with Ray
    data: StoredDataConfig | None = None
    reward_model_training: RewardModelConfig | None = None
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "grpo"})
    """The algorithm: a name, or {name: ..., setting: value}; `rlvr list algorithms` shows the names."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    sft_warmup: SFTWarmupConfig | None = None
    eval: EvalConfig = Field(default_factory=EvalConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    out: str | None = Field(default=None, exclude=True)
    """The run folder, if no --out (in Python, out=) is given. The run's own config.yaml does not have it."""

    @field_validator("model", mode="before")
    @classmethod
    def _normalize_model(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("frozen_models", mode="before")
    @classmethod
    def _normalize_frozen_models(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"it is {value!r:.80}; write {{name: path}}, for example {{reference: runs/teacher/checkpoints/last}}")
        return {name: {"path": model} if isinstance(model, str) else model for name, model in value.items()}

    @field_validator("env", mode="before")
    @classmethod
    def _normalize_env(cls, value: Any) -> Any:
        return normalize_plugin(value)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _normalize_algorithm(cls, value: Any) -> Any:
        usual = isinstance(value, Mapping) and "name" not in value  # settings alone are those of the default algorithm
        return normalize_plugin({"name": "grpo", **value} if usual else value)

    @model_validator(mode="after")
    def _check_combinations(self) -> RunConfig:
        if self.tokenizer is None and self.model.path is None:
            raise ValueError("tokenizer is not set; a model created from a config needs one, for example tokenizer: 'chars'")
        if self.data is not None and self.rollout.max_staleness:
            raise ValueError(f"rollout.max_staleness is {self.rollout.max_staleness}, but with `data` nothing is sampled; set it to 0")
        if self.data is not None and self.cluster is not None:
            raise ValueError("cluster is set, but with `data` nothing is sampled; remove it")
        rounds = self.algorithm.get("dynamic_sampling_rounds", 1)
        for name, given, usual in (
            ("rollout.curriculum", self.rollout.curriculum, None),
            ("rollout.canary_fraction", self.rollout.canary_fraction, 0.0),
            ("rollout.partial_rollout_tokens", self.rollout.partial_rollout_tokens, None),
            ("algorithm.dynamic_sampling_rounds", rounds, 1),
        ):
            if self.data is not None and given != usual:
                raise ValueError(f"{name} is set, but with `data` nothing is sampled, so it has no effect; remove it")
        if self.rollout.partial_rollout_tokens and self.rollout.canary_fraction:
            raise ValueError(
                "rollout.partial_rollout_tokens and rollout.canary_fraction are both set, which do not work together yet; remove one"
            )
        if self.reward_model_training is not None and self.model.lora is not None:
            raise ValueError("model.lora is set, but a reward model trains all its weights; remove it")
        if self.reward_model_training is not None and (self.data is None or self.data.run is None):
            raise ValueError("data.run is not set: a reward model is trained on pairs from a run, for example data.run=runs/DIR")
        return self

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name; the model's own by default."""
        return self.tokenizer or self.model.name_with_revision

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML."""
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def find_recipes() -> dict[str, Path]:
    """Return the recipes that can be given by name."""
    return {path.stem: path for path in sorted(RECIPE_FOLDER.glob("*.yaml"))}


def load_config(target: str | Path, overrides: Sequence[str] = (), *, overrides_source: str = "the settings") -> RunConfig:
    """Read a recipe by name or path, apply the overrides, and check the result. Both may have keywords of `rlvr.train` for keys; an error
    about an override says that it comes from `overrides_source`.
    """
    name, overrides = str(target), translate_overrides(overrides)
    recipe = translate_flat_keys(_read_recipe(name), name)
    recipe = drop_env_and_model_for_data_run(recipe, overrides) if name in find_recipes() else recipe
    made = _fill_from_data_run(apply_overrides(recipe, overrides))
    return validate_section(RunConfig, resolve_plugin_files(made), name, {text.partition("=")[0]: overrides_source for text in overrides})


SECTIONS_OF_KEYWORDS: Mapping[str, type[Section]] = {"train": TrainConfig, "rollout": RolloutConfig, "log": LogConfig}
"""The sections whose keys are keywords of `rlvr.train`."""
ALGORITHM_KEYWORDS = frozenset(
    {key.removeprefix("algorithm.") for key in CONFIG_KEYS.values() if key.startswith("algorithm.")}
    | {SYNONYMS["train"]["ent_coef"], "epsilon_high"}
)
"""Settings of algorithms that are known without the algorithm; `algorithm.NAME` sets any other."""


def find_key_of_keyword(word: str) -> str:
    """Find the key of a configuration that a keyword of `rlvr.train` sets, also in the words of other libraries that mean exactly the same;
    "" if there is none.

    >>> find_key_of_keyword("max_steps"), find_key_of_keyword("save_every"), find_key_of_keyword("kl_coef"), find_key_of_keyword("seed")
    ('train.steps', 'log.save_every', 'algorithm.beta', 'seed')
    >>> find_key_of_keyword("reward_funcs"), find_key_of_keyword("output_dir"), find_key_of_keyword("epochs")
    ('env.verifier', 'out', '')
    """
    own = SYNONYMS["train"].get(word, word)
    if own in RunConfig.model_fields:
        return own
    if section := next((name for name, kind in SECTIONS_OF_KEYWORDS.items() if own in kind.model_fields), ""):
        return f"{section}.{own}"
    return {"verifier": "env.verifier", "lora": "model.lora"}.get(own, f"algorithm.{own}" if own in ALGORITHM_KEYWORDS else "")


def _convert_keyword(key: str, value: Any) -> tuple[str, Any]:
    """Return a key and its value, where a keyword takes what the key does not: data by name, one tracker, an adapter in peft's words."""
    if key == "data" and isinstance(value, str):
        return "env", {"name": "dataset", "path": value}
    if key == "log.report_to" and isinstance(value, str):
        return key, [] if value == "none" else [value]
    if key == "model.lora" and isinstance(value, Mapping):
        words = {"r": "rank", "lora_alpha": "alpha"}
        return key, {words.get(name, name): inner for name, inner in value.items() if (name, inner) != ("target_modules", "all-linear")}
    return key, value


def translate_flat_keys(recipe: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a recipe with every key in its section, where keywords of `rlvr.train` may stand at its top; a key that is given twice is an error.

    >>> translate_flat_keys({"env": "arithmetic", "max_steps": 2, "rollout": {"top_p": 0.9}, "num_generations": 4}, "grpo.yaml")
    {'env': 'arithmetic', 'rollout': {'top_p': 0.9, 'num_generations': 4}, 'train': {'steps': 2}}
    """
    rollout = recipe.get("rollout")
    group = rollout.get("num_generations") if isinstance(rollout, Mapping) and BATCH_SIZE in recipe else None
    try:
        given = translate_keywords("train", recipe if group is None else {**recipe, "num_generations": group})
    except ConfigError as error:
        raise ConfigError(f"{source}: {str(error).removeprefix('rlvr.train got ')}") from None
    if group is not None:
        del given["num_generations"]
    typed = {SYNONYMS["train"].get(word, word): word for word in recipe}
    flat = {
        word: value for word, value in given.items() if word not in RunConfig.model_fields or (word == "data" and isinstance(value, str))
    }
    made: dict[str, Any] = {word: value for word, value in given.items() if word not in flat}
    for word, given_value in flat.items():
        key, value = _convert_keyword(find_key_of_keyword(word), given_value)
        *section, name = key.split(".")
        holder = made.get(section[0]) if section else made
        if key and isinstance(holder, Mapping) and name in holder:
            raise ConfigError(f"{source}: {typed.get(word, word)} and {key} are both given, which set the same; give one of them")
        if not key:
            made[typed.get(word, word)] = value  # reported with all other unknown keys
        else:
            made = set_key(made, key.split("."), value, f"{key}={value}")
    return made


def translate_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides with keys of the configuration, where the key may be a keyword of `rlvr.train`.

    >>> translate_overrides(["max_steps=5", "train.lr_scheduler=linear", "report_to=wandb", "logging_steps=1"])
    ['train.steps=5', 'train.lr_scheduler=linear', 'log.report_to=["wandb"]']
    """
    made = list[str]()
    for text in overrides:
        word, equals, value = text.partition("=")
        key = find_key_of_keyword(word.strip())
        if word.strip() in IGNORED["train"]:
            continue
        if not equals or not key or key == word.strip() != "data":
            made.append(text)
            continue
        parsed = apply_overrides({}, [f"value={value}"])["value"]
        new_key, converted = _convert_keyword(key, parsed)
        made.append(f"{key}={value}" if converted is parsed else f"{new_key}={json.dumps(converted)}")
    return made


def _fill_from_data_run(data: dict[str, Any]) -> dict[str, Any]:
    """With `data.run`: fill in env, tokenizer, model and length limits from that run, if they are not given."""
    section = data.get("data")
    folder = section.get("run") if isinstance(section, Mapping) else None
    if not isinstance(folder, str):
        if isinstance(section, Mapping) and "env" not in data:
            raise ConfigError("data.run is not set: give the run whose episodes to train on, for example data.run=runs/DIR")
        return data
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise NotFound(f"data.run is {folder!r}, which is not a run folder: it has no config.yaml; give a folder that `rlvr train` wrote")
    run = validate_config(resolve_plugin_files(read_yaml(path), path.parent), str(path))
    theirs = run.model_dump(mode="json")
    last = Path(folder) / "checkpoints" / "last"
    model = data.get("model") or {}
    if isinstance(model, dict) and not model.keys() & {"path", "config"}:
        model = {"path": str(last)} | model
    filled = {"env": theirs["env"], "tokenizer": run.tokenizer_name} | data | {"model": model}
    if isinstance(model, dict) and model.get("path") == str(last) and not last.is_dir():
        raise ConfigError(f"{folder} has no checkpoint to start from; set model.path to the model to train")
    room = {key: value for key in ("max_new_tokens", "max_turn_tokens", "max_length") if (value := theirs["rollout"][key]) is not None}
    return filled | ({"rollout": room | mine} if isinstance(mine := data.get("rollout") or {}, dict) else {})  # else an error follows


def _read_recipe(target: str) -> dict[str, Any]:
    """Read a recipe as a mapping."""
    path = find_recipes().get(target, Path(target).expanduser())
    if not path.is_file():
        raise NotFound(f"no recipe {target!r}: it is neither a file nor the name of a recipe; {format_suggestion(target, find_recipes())}")
    if not isinstance(data := read_yaml(path), dict):
        raise ConfigError(f"{path} contains {type(data).__name__}, not a mapping; it must have keys such as env, model and train")
    return dict(resolve_plugin_files(parse_exponents(data), path.parent))


def validate_config(data: Mapping[str, Any], source: str) -> RunConfig:
    """Validate a configuration; raise one ConfigError that names every wrong key. Plugins in files are named by their absolute path."""
    return validate_section(RunConfig, resolve_plugin_files(data), source)
