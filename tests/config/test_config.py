"""The run configuration: what is read, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlvr.config.config import RunConfig, find_recipes, load_config, validate_config
from rlvr.config.key_reference import iter_sections, list_keys
from rlvr.config.training import LR_SCHEDULERS
from rlvr.config.yamlfile import read_yaml
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.runs.run_log import list_config_differences
from rlvr.training.update.optimization import OptimizationSettings


def test_every_shipped_recipe_is_valid(tmp_path: Path) -> None:
    assert "quickstart" in find_recipes()
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(load_config("quickstart").to_yaml(), "utf-8")
    for name, path in find_recipes().items():
        given = [f"data.run={tmp_path}"] if "run: null" in path.read_text("utf-8") else []
        assert isinstance(load_config(name, given), RunConfig)


def test_a_run_to_learn_from_and_a_rollout_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(load_config("quickstart").to_yaml(), "utf-8")
    with pytest.raises(ConfigError, match="rollout: input should be a valid dictionary"):
        load_config("dpo", [f"data.run={tmp_path}", "rollout=3"])
    for spoiled in ("seed: 0\n", "- 1\n"):
        (tmp_path / "config.yaml").write_text(spoiled)
        with pytest.raises(ConfigError, match=r"config\.yaml: "):
            load_config("dpo", [f"data.run={tmp_path}"])


def test_overrides_reach_any_depth_and_are_read_as_yaml() -> None:
    config = load_config(
        "quickstart", ["seed=3", "train.learning_rate=1e-4", "algorithm={name: rloo, beta: 0.1}", "env.levels=['1+1']", "sft_warmup=null"]
    )
    assert (config.seed, config.train.learning_rate, config.sft_warmup) == (3, 1e-4, None)
    assert config.algorithm == {"name": "rloo", "beta": 0.1} and config.env["levels"] == ["1+1"]


def test_an_override_extends_a_plugin_given_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("env: arithmetic\ntokenizer: chars\nmodel: {config: {model_type: qwen2}}\ntrain: {learning_rate: 2e-3}\n")
    config = load_config(str(path), ["env.levels=['1+1']"])
    assert config.env == {"name": "arithmetic", "levels": ["1+1"]} and config.train.learning_rate == 2e-3


def test_a_dumped_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = load_config("quickstart", ["seed=5"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(str(tmp_path / "config.yaml")) == config
    assert list_config_differences(config, load_config("quickstart", ["seed=6", "train.steps=1"])) == [
        "seed: 5 -> 6",
        f"train.steps: {config.train.steps} -> 1",
    ]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["trian.steps=3"], r"no key 'trian'; did you mean 'train'"),
        (["train.step=3"], r"no key 'train.step'; did you mean 'train.steps'"),
        (["rollout.verify_workers=8"], r"no key 'rollout.verify_workers'; did you mean 'rollout.max_concurrent_calls'"),
        (["train.steps=many"], r"train.steps: input should be a valid integer, got 'many'"),
        (["train.steps=0"], r"train.steps: .*greater than or equal to 1, got 0"),
        (["rollout.num_generations=0"], r"rollout.num_generations: .*1, got 0"),
        (["rollout.sampler={batch_size: 3}"], r"a 'name' is missing in \{'batch_size': 3\}"),
        (["model={}"], r"model: give either path .* or config"),
        (["tokenizer=null"], r"tokenizer is not set"),
        (["seed"], r"'seed' is not of the form key=value"),
        (["seed=[1"], r"not YAML"),
        (["seed.x=1"], r"has no keys"),
        (["train.lr_scheduler=cosin"], r"train.lr_scheduler: 'cosin' is not a schedule; did you mean 'cosine'.*path/to/file.py:function"),
        (["train.lr_scheduler=reduce_lr_on_plateau"], r"is not a schedule; .*llowed: constant, "),
        (["data={}", "rollout.curriculum={}"], r"rollout.curriculum is set, but with `data` nothing is sampled"),
        (["data={}", "algorithm={name: sft, dynamic_sampling_rounds: 3}"], r"algorithm.dynamic_sampling_rounds is set, but with `data`"),
    ],
)
def test_what_is_wrong_is_named(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config("quickstart", overrides)


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12))
MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{n + 1}: &m{n + 1} {{<<: [{', '.join([f'*m{n}'] * 9)}]}}\n" for n in range(12))


def test_an_alias_is_what_it_stands_for(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\nd: [*a, *a]\n")
    one = {"x": 1}
    assert read_yaml(tmp_path / "x.yaml") == {"a": one, "b": one, "c": {"x": 1, "y": 2}, "d": [one, one]}


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="did you mean 'quickstart'"):
        load_config("quickstrat")
    for text, told in (
        ("[1, 2]", "contains list"),
        ("a: [", "not valid YAML"),
        ("", "contains NoneType"),
        ("env: &e {name: arithmetic, x: *e}", "an alias .* inside of what it names"),
        ("env: " + "[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("env: " + "[" * 50_000, "nested more than 50 deep"),
        ("seed: " + "9" * 10_000, "not valid YAML: .*digits"),
        (LAUGHS, "aliases .* that stand for more than 100,000 values"),
        (MERGES, "aliases .* that stand for more than 100,000 values"),
    ):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=told):
            load_config(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize("name", LR_SCHEDULERS)
def test_every_schedule_that_is_offered_takes_steps(name: str) -> None:
    for warmup in (0, 2, 4):
        made = OptimizationSettings(learning_rate=1e-2, lr_scheduler=name, warmup_steps=warmup)
        optimizer, schedule = made.build_optimizer([torch.nn.Parameter(torch.zeros(1))], 8)
        rates = []
        for _ in range(7):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        ramp = [1e-2 * (k + 1) / warmup for k in range(warmup)]
        assert rates[:warmup] == pytest.approx(ramp), "from the first step on it moves, and it rises to the full rate"
        assert all(0 < rate <= 1e-2 for rate in rates)
        if warmup:
            assert rates[warmup] == pytest.approx(1e-2)  # no second step is lost, and the decay begins after the ramp
        if name.startswith("constant"):
            assert rates[warmup:] == pytest.approx([1e-2] * (7 - warmup))


SCHEDULES = """
def halves(step, total_steps):
    return 1.0 if step < total_steps // 2 else 0.5

def broken(step, total_steps):
    return -1.0

def raises(step, total_steps):
    return 1.0 / step
"""


def test_an_own_learning_rate_schedule_is_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCHEDULES, "utf-8")
    path = tmp_path / "own.py"
    assert load_config("quickstart", [f"train.lr_scheduler={path}:halves"]).train.lr_scheduler == f"{path}:halves"
    for warmup, wanted in ((0, [1.0, 1.0, 1.0, 0.5, 0.5]), (2, [0.5, 1.0, 1.0, 0.5, 0.5])):
        made = OptimizationSettings(learning_rate=1e-2, lr_scheduler=f"{path}:halves", warmup_steps=warmup)
        optimizer, schedule = made.build_optimizer([torch.nn.Parameter(torch.zeros(1))], 6)
        rates = []
        for _ in range(5):
            rates.append(schedule.get_last_lr()[0] / 1e-2)
            optimizer.step()
            schedule.step()
        assert rates == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", r"own.py:broken returned -1.0 for step 0 of 6; it must return the fraction of train.learning_rate, 0 or more"),
        ("raises", r"own.py:raises raised ZeroDivisionError at step 0 of 6: float division by zero"),
        ("missing", r"own.py.* has no 'missing'"),
    ],
)
def test_an_own_schedule_that_is_wrong_is_named(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "own.py").write_text(SCHEDULES, "utf-8")
    with pytest.raises(RlvrError, match=told):
        OptimizationSettings(lr_scheduler=f"{tmp_path / 'own.py'}:{name}").build_optimizer([torch.nn.Parameter(torch.zeros(1))], 6)


def test_a_key_without_its_section_and_a_value_without_brackets_are_explained() -> None:
    with pytest.raises(
        ConfigError, match=r"there is no key 'learning_rate'; did you mean 'train\.learning_rate' or 'sft_warmup\.learning_rate'\?"
    ):
        validate_config({"env": "arithmetic", "model": "m", "learning_rate": 1.0}, "the run")
    with pytest.raises(
        ConfigError, match=r"^the settings: there is no key 'target_accuracy'; did you mean 'sft_warmup\.target_accuracy'\?"
    ):
        load_config("quickstart", ["target_accuracy=1"])
    with pytest.raises(ConfigError, match=r"log\.report_to: 'wandb' is not a list; write \[wandb\]"):
        load_config("quickstart", ["log.report_to=wandb"])


def test_the_description_of_every_key_is_a_sentence() -> None:
    for path, section in iter_sections(RunConfig):
        for key in list_keys(section):
            first, last = key.description[:1], key.description[-1:]
            assert not key.description or ((first.isupper() or not first.isalpha()) and last in ".!?"), (
                f"{path}.{key.name}: {key.description}"
            )
