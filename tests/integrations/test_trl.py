"""TRL's three doors, called as TRL 1.16 calls them."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import get_json_schema

import rlvr
from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ConfigError
from rlvr.integrations.rows import make_rows
from rlvr.integrations.trl import EnvironmentFactory, RolloutFunction, make_reward_function
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.verifiers.numeric import Numeric
from rlvr.verifiers.symbolic import Symbolic
from tests.fixtures.worlds import First, Raises, Same, Sums, Unable
from tests.integrations.worlds import Counts, Hangs, Twice, Watched, tokenizer


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as TRL hands them over: a list for each column."""
    kept = {key: [row[key] for row in rows] for key in ("split", "index", "task_id")}
    return {"prompts": [row["prompt"] for row in rows], **kept, "trainer_state": None, "log_extra": None, "log_metric": None}


# ---- reward_funcs


def test_an_environment_is_a_reward_function() -> None:
    env = First()
    rows, reward = make_rows(env, "train", 3), make_reward_function(env)
    gold = [str(env.gold(env.task("train", index))) for index in range(3)]
    chats = [[{"role": "assistant", "content": text}] for text in (gold[0], "x", gold[2])]
    assert reward(completions=chats, completion_ids=[[1]] * 3, **columns(rows)) == [1.0, 0.0, 1.0]
    assert reward.__name__ == "rlvr_first"


def test_a_verifier_is_a_reward_function() -> None:
    reward = make_reward_function(Numeric(), reference="answer")
    assert reward(prompts=["2+2="] * 3, completions=["4", "5", "4.0"], answer=["4"] * 3) == [1.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match="no column 'answer'; it has solution"):
        reward(prompts=["2+2="], completions=["4"], solution=["4"])


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_a_verifier_scores_in_a_trainer_of_trl(tmp_path: Path) -> None:
    trl: Any = importlib.import_module("trl")  # it loads its names when they are first used, which no type checker sees
    own = tokenizer()
    own.save_pretrained(tmp_path / "model")
    config = LlamaConfig(vocab_size=len(own), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")

    def is_short(answer: str, reference: str) -> float:
        if len(answer) % 2:
            raise ValueError("an error for some answers")
        return float(len(answer) < 3)

    settings = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=8, num_generations=8, max_completion_length=4,
        report_to="none", use_cpu=True, logging_steps=1, bf16=False,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(tmp_path / "model"),
        reward_funcs=[rlvr.make_verifier("numeric"), rlvr.make_verifier(is_short)],
        args=settings,
        train_dataset=rlvr.make_env("arithmetic").to_dataset(8),
    )
    trainer.train()
    assert [row["step"] for row in trainer.state.log_history if "rewards/Numeric/mean" in row] == [1, 2]
    assert any(key.startswith("rewards/") and "short" in key for key in trainer.state.log_history[0])


RIGHT = {"role": "assistant", "content": "so \\boxed{3/4}"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "{}"}}]}
TOOL = {"role": "tool", "name": "add", "content": "3/4"}
TRL_GIVES: list[tuple[str, Any, float]] = [
    ("a text", "\\boxed{0.75}", 1.0),
    ("a chat", [RIGHT], 1.0),
    ("a wrong chat", [RIGHT | {"content": "3/5"}], 0.0),
    ("a call of a tool, its result, an answer", [CALL, TOOL, RIGHT], 1.0),
    ("a call that nobody answered any more", [CALL, TOOL], 0.0),
    ("a tool that was called too late", [RIGHT, CALL, TOOL], 0.0),
    ("nothing", [], 0.0),
]


@pytest.mark.parametrize(("completion", "score"), [case[1:] for case in TRL_GIVES], ids=[case[0] for case in TRL_GIVES])
def test_a_reward_function_reads_all_that_trl_gives(completion: Any, score: float) -> None:
    reward = make_reward_function(Symbolic(), reference="answer")
    try:
        assert reward(prompts=[[{"role": "user", "content": "1/2 + 1/4 = ?"}]], completions=[completion], answer=["3/4"]) == [score]
    finally:
        vars(reward)["close"]()


@pytest.mark.parametrize("verifier", [Unable(), Raises()])
def test_what_could_not_be_judged_is_none(verifier: Any) -> None:
    env = First(verifier=verifier)
    assert make_reward_function(env)(completions=["4"], **columns(make_rows(env, "train", 1))) == [None]


def test_a_batch_without_any_score_is_said_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """The answers of GSM8K as they are published end in `#### 4`: as references they are no values."""
    reward = make_reward_function(Symbolic(), reference="answer")
    with caplog.at_level("WARNING", logger="rlvr"):
        for _ in range(2):
            assert reward(prompts=["2+2="] * 2, completions=["4", "5"], answer=["#### 4", ""]) == [None, None]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("none of 2 answers got a score, so no row of this batch trains: ")
    assert said.endswith("; make the references what the verifier compares with")
    caplog.clear()
    assert (
        make_reward_function(Symbolic(), reference="answer")(prompts=["2+2="] * 2, completions=["4", "5"], answer=["4", "####"])[0] == 1.0
    )
    assert not caplog.records


def test_rows_of_other_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="write the rows again"):
        make_reward_function(Sums(below=5))(completions=["4"], **columns(make_rows(Sums(), "train", 1, start=7)))


# ---- environment_factory


def methods_of(environment: Any) -> dict[str, Any]:
    """The tools that TRL finds: every public function of the class but two."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {name: getattr(environment, name) for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")}


class Everything(Tool):
    """A tool with every kind of argument."""

    @tool
    def look(self, text: str, number: int, share: float = 0.5, sure: bool = False, names: list[str] | None = None) -> str:
        """Look at something.

        Args:
            text: a text.
            number: a whole number.
            share: a share.
            sure: yes or no.
            names: some names.
        """
        return f"{text} {number} {share} {sure} {names}"


def test_tools_are_described_as_the_session_does() -> None:
    class Looks(Counts):
        def __init__(self) -> None:
            super().__init__()
            self.tools = (Everything(),)

    worlds = EnvironmentFactory(Looks())
    made = worlds()
    found = methods_of(made)
    assert list(found) == ["look"]
    told, own = get_json_schema(found["look"])["function"], worlds.specs[0].to_openai_format()["function"]
    assert told["description"] == own["description"]
    assert set(told["parameters"]["properties"]) == set(own["parameters"]["properties"])
    assert set(told["parameters"]["required"]) == set(own["parameters"]["required"])
    for name, schema in own["parameters"]["properties"].items():
        assert told["parameters"]["properties"][name]["description"] == schema["description"]
    assert told["parameters"]["properties"]["number"]["type"] == "integer"
    made.reset(**make_rows(worlds.runner.environment, "train", 1)[0])
    assert found["look"](text="a", number=2) == "a 2 0.5 False None"
    assert "Error" in found["look"](text="a", number="two") and "Error" in found["look"](text="a", number=2, colour="red")
    worlds.close()


def test_conversations_are_judged_with_what_their_sessions_know() -> None:
    worlds = EnvironmentFactory(Counts())
    rows = make_rows(worlds.runner.environment, "train", 4, start=5)
    pool = [worlds() for _ in rows]
    for environment, row in zip(pool, rows, strict=True):
        assert environment.reset(**row) is None
    assert methods_of(pool[0])["add"](number=5) == "The count is 5. "
    assert methods_of(pool[1])["add"](number=6, note="6") == "The count is 6. 6"
    said = [
        [{"role": "assistant", "content": "5"}],
        [{"role": "assistant", "content": "", "tool_calls": [{}]}, {"role": "tool", "content": "6"}],
        [{"role": "assistant", "content": "8"}],
        [{"role": "assistant", "content": "8"}, {"role": "tool", "content": "8"}],
    ]
    given = columns(rows) | {"environments": pool}
    assert worlds.reward(completions=said, **given) == [1.0, 0.0, 0.0, 0.0]
    assert not Watched.alive, "a verdict closes the session"
    for environment, row in zip(pool, rows, strict=True):
        environment.reset(**row)  # TRL uses its objects again
    assert methods_of(pool[0])["add"](number=1) == "The count is 1. "
    worlds.close()
    assert not Watched.alive


def test_a_call_that_alone_breaks_its_tool_is_the_answers_own_zero_and_touches_no_other() -> None:
    worlds = EnvironmentFactory(Counts())
    rows = make_rows(worlds.runner.environment, "train", 2, start=5)
    pool = [worlds(), worlds()]
    for environment, row in zip(pool, rows, strict=True):
        environment.reset(**row)
    with pytest.raises(Exception, match="the tool failed"):
        methods_of(pool[0])["add"](number=999)
    said = [[{"role": "assistant", "content": text}] for text in "56"]
    assert worlds.reward(completions=said, environments=pool, **columns(rows)) == [0.0, 1.0]
    worlds.close()


def test_a_conversation_that_is_over_takes_no_more_calls() -> None:
    worlds = EnvironmentFactory(Counts())
    environment = worlds()
    environment.reset(**make_rows(worlds.runner.environment, "train", 1)[0])
    results = [methods_of(environment)["add"](number=1) for _ in range(4)]
    assert results[:2] == ["The count is 1. ", "The count is 2. "] and "is over" in results[3]
    worlds.close()


@pytest.mark.parametrize(
    ("env", "words"), [(Twice(), "replies to the policy's texts"), (First(), "has no tools"), (Hangs(), "has no tools")]
)
def test_environments_without_tools_are_refused(env: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EnvironmentFactory(env)


# ---- rollout_func


def trainer_with(model: Any) -> Any:
    """The parts of a trainer that are read."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda given: given, process_index=0),
        model=model,
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0),
        processing_class=tokenizer(),
        max_completion_length=24,
    )


def test_rollouts_have_the_tokens_the_mask_and_the_log_probabilities_of_the_model() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer()), max_position_embeddings=256, **shape)).train()
    play = RolloutFunction(Twice(), make_rows(Twice(), "train", 2), max_length=200)
    prompts = [row["prompt"] for row in make_rows(Twice(), "train", 2) for _ in range(2)]
    given = play(prompts, trainer_with(model))
    assert {len(column) for column in given.values()} == {4} and model.training
    for prompt, ids, mask, logprobs in zip(given["prompt_ids"], given["completion_ids"], given["env_mask"], given["logprobs"], strict=True):
        whole = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            all_ = torch.log_softmax(model(whole).logits[0, :-1].float(), -1).gather(1, whole[0, 1:, None])[len(prompt) - 1 :, 0]
        assert sum(mask) == 24 or ids[-1] in (tokenizer().eos_token_id,)
        for own, ours, theirs in zip(mask, logprobs, all_.tolist(), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3) if own else ours == 0.0
    assert given["prompt_ids"][0] == given["prompt_ids"][1] and given["completion_ids"][0] != given["completion_ids"][1]
    assert play.reward(**given) == given["rlvr_score"] == [0.0] * 4
    play.close()


def test_rollouts_pass_on_what_could_not_be_judged() -> None:
    class Told(ScriptedSampler):
        def update_from_model(self, model: Any, version: int) -> None: ...

    env = Counts(verifier=Unable())
    play = RolloutFunction(env, make_rows(env, "train", 2), sampler=Told(answers=["7"]))
    given = play([row["prompt"] for row in make_rows(env, "train", 2)], trainer_with(None))
    assert given["rlvr_score"] == [None, None] and "does not answer" in given["rlvr_reason"][0]
    play.close()
    assert not Watched.alive


def test_prompts_of_no_row_are_refused() -> None:
    play = RolloutFunction(Twice(), make_rows(Twice(), "train", 2), sampler=ScriptedSampler())
    for prompt in ("What is 1?", [{"role": "user", "content": "What is 5?"}]):
        with pytest.raises(ConfigError, match="belongs to no row"):
            play([prompt], trainer_with(None))


def test_tasks_that_cannot_be_told_apart_are_refused() -> None:
    class Same2(Twice):
        def task(self, split: str, index: int) -> Any:
            task = super().task(split, index)
            return type(task)(super().task(split, 0).prompt, task.reference, id=task.id)

    with pytest.raises(ConfigError, match="have the same prompt"):
        RolloutFunction(Same2(verifier=Same()), make_rows(Same2(), "train", 2))
