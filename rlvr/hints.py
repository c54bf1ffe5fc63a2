"""What users of TRL, Gymnasium, verifiers, inspect and lm-eval type first, and the call that does it here: the tables of error messages.

A name that this library has is not in a table, and no table makes a call work: it only makes the error say the right call. The words
that a call takes as they are stand in `rlvr.synonyms`, and attributes that are the same thing here in `_synonyms` of their class.
`tests/test_hints.py` holds that every call, key, plugin and command of a hint exists.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dis import opname
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
_PACKAGE = __file__.rpartition("hints.py")[0]
"""The folder of the package, to which the frames of the library belong."""
_NOT_THE_USERS = (_PACKAGE, sys.prefix, sys.base_prefix, "<frozen")
"""How the paths of files begin that are no code of the user."""

PLUGIN_WORDS: Mapping[str, str] = {
    "env": "env",
    "envs": "env",
    "environment": "env",
    "environments": "env",
    "verifier": "verifier",
    "verifiers": "verifier",
    "reward": "verifier",
    "rewards": "verifier",
    "rubric": "verifier",
    "scorer": "verifier",
    "scorers": "verifier",
    "tool": "tool",
    "tools": "tool",
    "sandbox": "sandbox",
    "sandboxes": "sandbox",
    "sampler": "sampler",
    "samplers": "sampler",
    "algorithm": "algorithm",
    "algorithms": "algorithm",
    "algo": "algorithm",
}
_SCORED_SAMPLES = (
    "rlvr.evaluate(env, policy=model, tasks=2, n=4, split='train').samples for the prompt, completion and score of each, or "
    "rlvr.Rollout(env, tokenizer, rlvr.make_sampler('hf', model=folder)).sample(tasks, n=4) for groups of episodes to train on"
)
NAMES: Mapping[str, str] = {
    "Config": "settings are keywords: rlvr.train(model=..., env=..., steps=10, learning_rate=1e-6)",
    "Dataset": "a list of dicts, a file or a `datasets.Dataset` is an environment: rlvr.make_env(data, verifier='symbolic')",
    "Group": "a group is a list of episodes: rlvr.Rollout(env, tokenizer, sampler).sample(task, n=8)",
    **dict.fromkeys(
        ("GenerateConfig", "GenerationConfig"),
        "sampling settings are keywords: rlvr.generate(policy, prompts, n=4, temperature=0.7, max_new_tokens=64)",
    ),
    "LLM": "rlvr.generate('hf:DIR', prompts, n=4, max_new_tokens=64), which returns texts; 'vllm:DIR' samples with vLLM, on a GPU",
    **dict.fromkeys(("pass_at_k", "pass_k"), "rlvr.evaluate(env, policy=..., n=8).pass_at_k(4)"),
    "Model": "rlvr.load_model(folder), a transformers model and its tokenizer",
    "Policy": "a policy is a text such as 'hf:DIR', a model, or a function from a prompt to a completion: rlvr.generate(policy, prompts) returns "
    "its texts, and rlvr.evaluate(env, policy=...) scores them",
    "Scorer": "a scorer is a function f(answer, reference) that returns a score: rlvr.make_verifier(function)",
    "Solver": "a solver is the policy, a function from `messages` and `tools` to a turn: rlvr.evaluate(env, policy=function)",
    "StatefulToolEnv": "subclass rlvr.Environment, with `task` and `new_session`; `rlvr new env NAME --kind tools` writes one",
    **dict.fromkeys(
        ("Parser", "ThinkParser", "XMLParser", "parse", "parser"),
        "rlvr.verify('symbolic', answer=..., reference=...): verifiers read boxes and <answer> tags themselves, so nothing is parsed before; that the "
        "tags stand there is rewarded by the verifier 'format', such as verifier={'symbolic': 0.8, 'format': 0.2}",
    ),
    "EnvGroup": "rlvr.make_env('mixture', envs={'sums': 'arithmetic', 'game': 'guess_number'}), whose tasks are those of all",
    **dict.fromkeys(
        ("check_code", "verify_code", "CodeVerifier"),
        "rlvr.verify('unit_tests', answer=text, reference=['assert add(1, 2) == 3']), where the code is in a fenced block of the text",
    ),
    **dict.fromkeys(("evals_df", "list_eval_logs", "results_df", "samples_df"), "rlvr.load_evaluation(DIR).to_pandas()"),
    **dict.fromkeys(("from_pretrained", "get_model_and_tokenizer"), "rlvr.load_model(folder), a model and its tokenizer"),
    **dict.fromkeys(
        ("load_tasks", "load_jsonl", "read_jsonl", "load_data", "read_tasks"),
        "a file of questions and answers is an environment: rlvr.make_env(path, verifier='symbolic')",
    ),
    **dict.fromkeys(
        ("load_config", "load_recipe", "get_config", "get_recipe", "load_yaml", "read_config", "read_recipe"),
        "a recipe is a name or a file, which rlvr.train('quickstart', steps=2) takes; rlvr.load_run(folder).config are the settings of a run, and "
        "`rlvr show recipe quickstart` prints those of a recipe",
    ),
    "eval_retry": "rlvr.evaluate(env, policy=..., out=DIR, retry=True), the same call with retry",
    "pipeline": "rlvr.generate(folder, prompts, n=2, max_new_tokens=64), which returns texts",
    **dict.fromkeys(
        ("spaces", "wrappers"),
        "what rlvr.make(env) returns is a gymnasium.Env: its spaces and wrappers are those of gymnasium itself, gymnasium.spaces and gymnasium.wrappers",
    ),
    "TimeLimit": "gymnasium.wrappers.TimeLimit(rlvr.make(env), 3); environments with several turns have max_turns, too",
    "use_tools": "rlvr.evaluate(rows, policy=..., tools=[function], max_turns=4)",
    **dict.fromkeys(
        ("extract_answer", "extract_boxed", "extract_boxed_answer", "extract_hash_answer", "last_boxed_only_string"),
        "rlvr.make_verifier('symbolic').explain(answer, reference), which shows the extracted text; verifiers extract it themselves",
    ),
    **dict.fromkeys(
        ("compute_advantages", "grpo_advantages", "advantages", "compute_advantage"),
        "rlvr.Learner(model, 'grpo').update(groups), which computes the advantages of sampled groups and makes one update",
    ),
    **dict.fromkeys(
        ("seed", "seed_everything", "set_seed"),
        "seed=0 in the call: rlvr.train(..., seed=0), rlvr.evaluate(..., seed=0), env.reset(seed=0)",
    ),
    **dict.fromkeys(("is_equiv", "math_equal", "compare_answers"), "rlvr.verify('symbolic', answer=..., reference=...).passed"),
    **dict.fromkeys(
        ("describe", "info", "inspect", "spec"),
        "a shell shows a plugin with its settings: `rlvr show arithmetic`; rlvr.list('env') has the names",
    ),
    "help": "help(rlvr.verify), or `rlvr show verifier symbolic` in a shell",
    "push_to_hub": "rlvr.load_model(folder).model.push_to_hub(name), a method of transformers",
    "resume": "rlvr.train(recipe, out='runs/a', resume=True)",
    "retry": "rlvr.evaluate(env, policy=..., out=DIR, retry=True), the same call with retry",
    "sample": f"rlvr.generate(policy, prompts, n=8) for texts, or {_SCORED_SAMPLES}",
    "scorer": "a scorer is a function f(answer, reference) that returns a score: rlvr.make_verifier(function)",
    "solver": "a solver is the policy, a function from `messages` and `tools` to a turn: rlvr.evaluate(env, policy=function)",
    "vllm": "rlvr.make_sampler('vllm', model=folder); a policy is 'vllm:DIR'",
}
"""Names in the module that do not exist, and a call, or a sentence with one."""
NAME_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        r"\w*Trainer",
        "rlvr.train(model=..., data=rows, verifier=function, steps=10), or the same keywords in rlvr.Trainer(...).fit(); "
        "TRL's words reward_funcs=, train_dataset=, output_dir=, max_steps= and those of GRPOConfig are keywords there",
    ),
    (
        r"(?P<algorithm>GRPO|PPO|RLOO|DAPO|DPO)(?:Learner|Updater)",
        "rlvr.Learner(model, '{algorithm}', learning_rate=1e-6).update(groups), where groups are those of rlvr.Rollout(...).sample(tasks, n=8)",
    ),
    (r"(?P<algorithm>GRPO|PPO|RLOO|DAPO|DPO|KTO)(?:Algorithm)?", "rlvr.train(model=..., env=..., algorithm='{algorithm}', steps=10)"),
    (
        r"(?P<algorithm>DPO|KTO)Config",
        "settings are keywords: rlvr.train(model=..., env=..., algorithm='{algorithm}', steps=10, learning_rate=1e-6)",
    ),
    (
        r"(?:Lora|LoRA|Peft)Config",
        "rlvr.train(model=..., data=rows, lora={'rank': 8, 'alpha': 16}); peft's LoraConfig works too, lora=config",
    ),
    (r"\w*(?:Config|Args|Arguments|_defaults)", NAMES["Config"]),
    (r"\w*Vec(?:tor)?Env", "rlvr.make_vec(env, num_envs=4)"),
    (r"EarlyStop\w*", "subclass rlvr.Callback and call trainer.stop(reason) in `on_evaluate`; rlvr.BestCheckpoint keeps the best model"),
    (r"\w+Env|\w*Environment", "subclass rlvr.Environment, or give data: rlvr.make_env([{'question': ..., 'answer': ...}])"),
    (r"(?:list|available|all)_(\w+)", "rlvr.list({kind!r})"),
    (
        r"(?:register|add)_?\w*",
        "rlvr.register('my_env', MyEnv); nothing has to be registered, as every call takes the class, the object or the function itself",
    ),
    (
        r"(?:\w+)Wrapper",
        "what rlvr.make(env) returns is a gymnasium.Env, so gymnasium's own wrappers go around it: gymnasium.RewardWrapper",
    ),
    (
        r"(?:load|get|create|build)_(?:verifier|scorer|reward\w*)",
        "rlvr.make_verifier(name, **settings); one answer is judged with rlvr.verify(name, answer=..., reference=...).score",
    ),
    (r"(?:load|get|create|build)_(\w+)", "rlvr.make_{kind}(name, **settings)"),
)
"""Patterns of such names; {kind} is the kind of plugin that the name speaks of."""
TOPICS: tuple[tuple[str, str], ...] = (
    ("registry registered spec specs", "rlvr.list('env'), or another kind of plugin; rlvr.list() lists them all"),
    ("lora peft adapter", "rlvr.train(model=..., data=rows, lora={'rank': 8, 'alpha': 16}); a LoraConfig of peft works too, lora=config"),
    ("tool tools", "rlvr.make_tool(function), or a name of rlvr.list('tool')"),
    (
        "sandbox docker container execute exec python code",
        "rlvr.run_code('print(6 * 7)', timeout=5).stdout for one program, or rlvr.make_sandbox() for several",
    ),
    ("recipe recipes", "rlvr.train('quickstart'); a shell lists them: `rlvr list recipes`"),
    ("suite suites benchmark benchmarks bench", "rlvr.evaluate('quick', policy='hf:DIR'); a shell lists the suites: `rlvr list suites`"),
    ("compare", "report.compare(other), or `rlvr compare DIR DIR`"),
    ("resume restart", "rlvr.train(recipe, out='runs/a', resume=True)"),
    ("save export push", "rlvr.load_model(folder).save_pretrained(other)"),
    (
        "checkpoint",
        "rlvr.load_model(folder): the folder of a run is a model, and rlvr.load_run(folder).checkpoint is the path of its weights",
    ),
    ("metrics history log logs curve plot figures", "rlvr.load_run(folder).metrics, a data frame; .plot() draws it"),
    ("result results report reports", "rlvr.load_evaluation(folder) for an evaluation, rlvr.load_run(folder) for a training run"),
    ("train training fit learn finetune grpo ppo rloo trainer", "rlvr.train(model=..., env=..., algorithm='grpo', steps=10)"),
    ("eval evals evaluate evaluation evaluator", "rlvr.evaluate(env, policy='hf:DIR', tasks=100)"),
    (
        "generation generate generator sample samples completion completions complete chat infer inference predict",
        "rlvr.generate('hf:DIR', prompts, n=4), which returns texts",
    ),
    ("rollout rollouts episode episodes trajectory collect", "rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)"),
    (
        "verifier verifiers reward rewards scorer scorers rubric match matcher",
        "rlvr.make_verifier(name), one of rlvr.list('verifier'), or rlvr.make_verifier(function)",
    ),
    (
        "verify score grade grader judge check correct correctness equal equals compare math",
        "rlvr.verify('symbolic', answer=..., reference=...); rlvr.list('verifier') has the other verifiers",
    ),
    ("vec vector", "rlvr.make_vec(env, num_envs=4)"),
    ("env envs environment environments", "rlvr.make_env(name), one of rlvr.list('env'), or rlvr.make_env(data, verifier='exact')"),
    (
        "data dataset datasets jsonl csv rows",
        "rlvr.make_env(data, verifier='exact'): a file, a list of dicts or a data frame is an environment",
    ),
    ("model models tokenizer policy agent", "rlvr.load_model(folder), a model and its tokenizer"),
    ("sampler samplers engine", "rlvr.make_sampler('hf', model=folder)"),
    ("algorithm algorithms", "rlvr.make_algorithm('grpo')"),
    ("run runs", "rlvr.load_run(folder)"),
    ("config configs settings options default defaults", NAMES["Config"]),
    (
        "callback callbacks",
        "subclass rlvr.Callback, or transformers.TrainerCallback, and pass callbacks=[...] to rlvr.train or rlvr.Trainer; "
        "rlvr.BestCheckpoint keeps the best model",
    ),
    ("play", "a shell plays a task with you: `rlvr play arithmetic`"),
    ("view viewer show", "a shell writes a page of a run: `rlvr view RUN`"),
)
"""Words in a name that no table has, and the call for what they speak of; the first that matches."""
PLUGINS: Mapping[str, str] = {
    **dict.fromkeys(("accuracy", "accuracy_reward"), "symbolic"),
    "format_reward": "format",
    "think_format_reward": "format",
    "math_verify": "symbolic",
    "math_equal": "symbolic",
    "sympy": "symbolic",
    "exact_match": "exact",
    "equality": "exact",
    "equals": "exact",
    "match": "exact",
    "string_match": "exact",
    "em": "span",
    "f1": "span",
    "includes": "span",
    "contains": "span",
    "squad": "span",
    "pattern": "regex",
    "regexp": "regex",
    "regex_match": "regex",
    "number": "numeric",
    "float_match": "numeric",
    "multiple_choice": "choice",
    "multichoice": "choice",
    "mcq": "choice",
    "code": "unit_tests",
    "code_execution": "unit_tests",
    "python_tests": "unit_tests",
    "judge": "llm_judge",
    "llm": "llm_judge",
    "llm_as_judge": "llm_judge",
    "llm_as_a_judge": "llm_judge",
    "model_graded": "llm_judge",
    "model_graded_fact": "llm_judge",
    "model_graded_qa": "llm_judge",
    "ifeval": "instructions",
    "json": "json_schema",
    "reward_model": "learned",
    "transformers": "hf",
    "huggingface": "hf",
    "endpoint": "openai",
    "openai_api": "openai",
    "subprocess": "process",
    "local": "process",
    "python_repl": "python",
    "code_interpreter": "python",
    "shell_tool": "bash",
    "terminal": "bash",
}
"""Names of plugins in other libraries, and the plugin here; of several similar ones, the one that is closest."""
ENVS: Mapping[str, str] = {
    **dict.fromkeys(("maths", "MATH", "math500", "hendrycks_math"), "competition_math"),
    **dict.fromkeys(("gsm", "openai/gsm8k"), "gsm8k"),
}
"""Names of environments and data sets elsewhere, and the environment here; some of them also name a verifier."""
QUESTION_COLUMNS = ("question", "problem", "prompt", "query", "instruction", "input")
REFERENCE_COLUMNS = ("answer", "reference", "ground_truth", "target", "label", "final_answer", "expected", "gold")
SOLUTION_COLUMNS = ("solution",)
"""Usual names of the columns of data. A solution is the reference only if no column is named like an answer."""
ANSWER_COLUMNS = ("completion", "response", "output", "prediction", "generation", "model_answer")
"""Usual names of the column with what a model answered."""

VERIFIER_WORDS = (
    *("reward", "rewards", "reward_fn", "reward_func", "reward_funcs", "reward_function", "reward_functions"),
    *("rubric", "scorer", "grader"),
)
"""Keywords for the verifier in calls of other libraries."""
MEMORY_WORDS = ("mem_limit", "memory", "memory_limit", "mem", "max_memory")
"""Keywords for a limit on the memory of programs in calls of other libraries."""
NETWORK_WORDS = ("network", "network_disabled", "network_enabled", "network_mode", "allow_network", "allow_internet", "internet")
"""Keywords for the network of programs in calls of other libraries."""
CONFIG_KEYS: Mapping[str, str] = {
    "batch_size": "rollout.prompts_per_step, the prompts of one training step; num_generations is how often each is answered",
    "beta": "algorithm.beta",
    "bf16": "train.mixed_precision=bf16",
    "clip_range": "algorithm.epsilon",
    "epochs": "train.steps",
    "epsilon": "algorithm.epsilon",
    "eval_steps": "eval.every",
    "eval_strategy": "eval.every, a number of steps; 0: a run is evaluated before and after training",
    "evaluation_strategy": "eval.every, a number of steps; 0: a run is evaluated before and after training",
    "fp16": "train.mixed_precision=fp16",
    "gamma": "algorithm.gamma",
    "gradient_accumulation_steps": "train.max_tokens_per_microbatch, the tokens of one forward pass; gradients are accumulated over a step",
    "group_size": "rollout.num_generations",
    "kl_coef": "algorithm.beta",
    "lam": "algorithm.lam",
    "lora": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    "lora_config": "model.lora.rank",
    "lora_r": "model.lora.rank",
    "lora_rank": "model.lora.rank",
    "lora_target_modules": "model.lora.target_modules",
    "loss_type": "algorithm, such as dr_grpo or dapo",
    "lr": "train.learning_rate",
    "lr_scheduler_type": "train.lr_scheduler",
    "max_completion_length": "rollout.max_new_tokens",
    "max_prompt_length": "rollout.max_length, the tokens of prompt and completion together",
    "max_response_length": "rollout.max_new_tokens",
    "max_seq_length": "rollout.max_length",
    "max_steps": "train.steps",
    "max_tokens": "rollout.max_new_tokens",
    "model_name_or_path": "model.path",
    "num_iterations": "algorithm.num_iterations",
    "num_return_sequences": "rollout.num_generations",
    "num_samples_per_prompt": "rollout.num_generations",
    "num_steps": "train.steps",
    "num_train_epochs": "train.steps",
    "peft_config": "model.lora.rank",
    "per_device_train_batch_size": "rollout.prompts_per_step, of all devices together; num_generations is how often each is answered",
    "ppo_epochs": "algorithm.num_iterations",
    "processing_class": "tokenizer",
    "ref_model": "frozen_models.reference",
    "report_to": "log.report_to",
    "save_steps": "log.save_every",
    "save_total_limit": "log.save_total_limit",
    "scale_rewards": "algorithm.scale_rewards",
    "teacher": "frozen_models.reference",
    "torch_dtype": "model.dtype",
    "train_batch_size": "rollout.prompts_per_step, the prompts of one training step; num_generations is how often each is answered",
    "use_vllm": "rollout.sampler=vllm",
    "verify_workers": "rollout.max_concurrent_calls",
    "vllm_gpu_memory_utilization": "rollout.sampler.memory_fraction",
    "vllm_mode": "rollout.sampler.placement",
    "warmup_ratio": "train.warmup_steps, a number of steps",
}
"""Settings of a training run in other libraries: the key of the configuration here, perhaps with its value, and with a comment."""


def _write_keyword(config_key: str) -> str:
    """Write a key of the configuration as a keyword of `rlvr.train`, where the sections `train` and `rollout` are left out.

    >>> _write_keyword("train.learning_rate"), _write_keyword("log.save_every"), _write_keyword("train.mixed_precision=bf16")
    ('learning_rate=', "log={'save_every': ...}", "mixed_precision='bf16'")
    """
    key, comma, comment = config_key.partition(", ")
    key, _, value = key.partition("=")
    head, *rest = key.removeprefix("train.").removeprefix("rollout.").split(".")
    text = f"'{value}'" if value else "..."
    for part in reversed(rest):
        text = f"{{'{part}': {text}}}"
    if (
        rest
        and (first := {"algorithm": "'name': 'grpo'", "sampler": "'name': 'vllm'", "model": "'path': folder"}.get(head))
        and rest != ["path"]
    ):
        text = f"{{{first}, {text[1:]}"
    return f"{head}={'' if text == '...' else text}{comma}{comment}"


_NUM_ANSWERS = "n=, the number of answers for each task; report.pass_at_k(k) is pass@k for every k up to n"
_NUM_TASKS = "tasks=, the number of tasks"
_VERIFIER = "verifier="
_SCORE_RANGE = "the range is the verifier's: verifier=rlvr.make_verifier(function, score_range=(-1, 2))"
_FEW_SHOT = "solved examples are shown before questions of data: rlvr.evaluate(rlvr.make_env(data, shots=5), policy=...); other environments ask without"
_VERIFIED_LATER = "the answer and the reference are given when it is verified: rlvr.verify(verifier, answer=..., reference=...)"
_SAMPLED_LATER = "how to sample is said where it is done: rlvr.evaluate(env, policy, temperature=0.7, max_new_tokens=512)"
_OF_THE_RUN = "it is a setting of the run: rlvr.train(model=..., env=..., algorithm=..., {}), or the same keyword of rlvr.Trainer"
_PUSHED = "the trained model is a folder: rlvr.load_model(folder).model.push_to_hub(name)"
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "train": {
        **{name: _write_keyword(key) for name, key in CONFIG_KEYS.items() if name != "lora"},
        **dict.fromkeys(("dataset", "train_dataset"), "data="),
        **dict.fromkeys(("log_dir", "logging_dir", "output_dir", "run_name", "save_dir"), "out="),
        **dict.fromkeys(VERIFIER_WORDS, _VERIFIER),
        **dict.fromkeys(("hub_model_id", "push_to_hub"), _PUSHED),
        "resume_from": "out='runs/a', resume=True",
        "algo": "algorithm=",
        "args": "settings are keywords, such as steps=10, learning_rate=1e-6",
        "config": "settings={'train.steps': 10}, or keywords such as steps=10",
        "environment": "env=",
        "eval_dataset": "rlvr.train(model=..., env=rlvr.make_env(data, test=held_out))",
        "gamma": "algorithm={'name': 'ppo', 'gamma': ...}",
        **dict.fromkeys(
            ("early_stopping", "early_stopping_patience"), "a callback stops a run: subclass rlvr.Callback and call trainer.stop(reason)"
        ),
        "lam": "algorithm={'name': 'ppo', 'lam': ...}",
        "lora_alpha": "model={'path': folder, 'lora': {'rank': ..., 'alpha': ...}}",
        "optim": "the optimizer is AdamW; leave it out",
        "reward_weights": "verifier={'symbolic': 0.8, 'format': 0.2}, the weight of each",
        **dict.fromkeys(("wandb", "use_wandb", "wandb_project", "tensorboard"), "log={'report_to': 'wandb'}, or 'tensorboard', 'trackio'"),
        **dict.fromkeys(("total_timesteps", "n_steps"), "steps=10, the steps of training, each with prompts_per_step= prompts"),
        "score_range": _SCORE_RANGE,
    },
    "evaluate": {
        "score_range": _SCORE_RANGE,
        "allow_unscored": "report.envs[NAME].mean_score, the mean of the samples that have a score",
        "api_key": "the key is read from the variable OPENAI_API_KEY; sampler={'api_key_env': 'MY_KEY'} names another",
        "base_url": "policy='openai:URL#MODEL'",
        "best_of": _NUM_ANSWERS,
        "device": "sampler={'device': 'cuda:1'}",
        "fail_on_error": "a sample that failed has no score; the same call with out=DIR and retry=True samples it again",
        "few_shot": _FEW_SHOT,
        "fewshot": _FEW_SHOT,
        "gen_kwargs": "how to sample is said by keywords, such as temperature=0.7, top_p=0.95",
        "log_samples": "every sample is in report.samples; out=DIR writes them too",
        "max_retries": "sampler={'retries': 3}",
        "metric": "the report has the metrics: report.accuracy, report.pass_at_k(4)",
        "model_args": "policy='hf:DIR'",
        "num_fewshot": _FEW_SHOT,
        "policy_model": "policy=",
        "prompt_template": "rlvr.evaluate(rlvr.make_env(data, question='Q: {input}'), policy=...), with columns of the data in braces",
        "retry_on_error": "retry=True, with out= as before",
        "samples": _NUM_ANSWERS,
        "save_results": "every sample is in report.samples; out=DIR writes them too",
        "solver": "policy=, a model or a function from `messages` and `tools` to a turn",
    },
    "verify": {"text": "answer=, what the policy wrote", "problem": "prompt=, the question", "query": "prompt=, the question"},
    "verify_many": {
        **dict.fromkeys(("completions", "responses", "outputs", "predictions", "answer"), "answers=, what the policy wrote"),
        **dict.fromkeys(("targets", "golds", "labels", "solutions", "ground_truths", "reference"), "references=, the right answers"),
        **dict.fromkeys(("questions", "problems", "inputs"), "prompts=, the questions"),
        **dict.fromkeys(VERIFIER_WORDS, _VERIFIER),
    },
    "Learner": {
        "beta": "algorithm={'name': 'grpo', 'beta': 0.04}",
        "epsilon": "algorithm={'name': 'grpo', 'epsilon': 0.2}",
        "kl_coef": "algorithm={'name': 'grpo', 'beta': 0.04}",
        "lr_scheduler_type": "lr_scheduler=",
        "ref_model": "frozen_models={'reference': ...}",
        "reference": "frozen_models={'reference': ...}",
        "teacher": "frozen_models={'reference': ...}",
        "steps": "total_steps=",
    },
    "Rollout": {
        "group_size": "the number of answers is given with the call: rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
        "n": "the number of answers is given with the call: rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
        "num_generations": "the number of answers is given with the call: rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
        "model": "sampler=",
        "policy": "sampler=",
        **dict.fromkeys(
            (*VERIFIER_WORDS, "verifier"), "the verifier is the environment's: rlvr.Rollout(rlvr.make_env(rows, verifier=function))"
        ),
    },
    "Task": {
        "solution": "reference=, the right answer",
        "info": "meta=",
        **dict.fromkeys(
            ("dataset", "scorer", "solver"),
            "an rlvr.Task is one question; a benchmark is rows or a list of tasks: "
            "rlvr.evaluate([{'question': '2+2=', 'answer': '4'}], policy='hf:DIR', verifier='exact')",
        ),
    },
    "Verdict": {
        "correct": "score=",
        "info": "detail=",
        "answer": "a verdict has no answer: what was compared belongs into reason=",
    },
    "SamplingParams": {
        **dict.fromkeys(("max_tokens", "max_new_tokens"), "the limit is given with the request: rlvr.Request(token_ids, 32)"),
        **dict.fromkeys(("n", "seed"), "rlvr.generate(policy, prompts, n=4, seed=1, temperature=0.8), which takes prompts as texts"),
    },
    "generate": {
        "do_sample": "temperature=1.0 samples, temperature=0 does not",
        "sampling_params": "sampling settings are keywords: rlvr.generate(policy, prompts, n=4, temperature=0.7, max_new_tokens=64)",
    },
    "Limits": {
        "memory": "memory_mb=",
        "memory_limit": "memory_mb=",
    },
    "make_env": {
        **dict.fromkeys(
            ("num_examples", "num_train_examples", "num_eval_examples", "size", "num_tasks", "num_samples", "max_samples"),
            "how many tasks is said where they are taken: env.to_dataset(20), rlvr.evaluate(env, policy=..., tasks=20); data is cut with limit=",
        ),
        **dict.fromkeys(
            ("max_episode_steps", "max_steps"),
            "max_turns=, of environments with several turns",
        ),
        **dict.fromkeys(("data", "dataset", "data_files"), "the data comes first: rlvr.make_env(data)"),
        "score_range": _SCORE_RANGE,
        "split": "an environment has all its splits: env.task('test', 0) is a task of one, and rlvr.evaluate(env, policy=..., split='train') takes one",
        "tokenizer": "a tokenizer belongs to the Gymnasium environment: rlvr.make(env, tokenizer=...)",
        **dict.fromkeys(("n_envs", "num_environments"), "rlvr.make_vec(env, num_envs=4)"),
        "vectorization_mode": "answers are verified in parallel; leave it out",
        **dict.fromkeys(("num_fewshot", "few_shot", "fewshot", "n_shots"), "shots="),
        **dict.fromkeys(("max_tokens", "max_completion_length", "max_new_tokens", "temperature"), _SAMPLED_LATER),
        **dict.fromkeys(("prompt_template", "template", "prompt"), "question='Q: {input}', with columns of the data in braces"),
        **dict.fromkeys(VERIFIER_WORDS, _VERIFIER),
        **dict.fromkeys(("system_prompt", "system_message"), "system="),
        **dict.fromkeys(("answer", "target", "ground_truth"), "reference="),
        **dict.fromkeys(("eval_dataset", "test_dataset", "test_data"), "test="),
    },
    "make_verifier": {
        **dict.fromkeys((*ANSWER_COLUMNS, "answer", "reference", "target", "gold", "ground_truth"), _VERIFIED_LATER),
        "base_url": "url=",
        "judge_model": "model=",
        "tol": "tolerance=",
        "weights": "rlvr.make_verifier({'symbolic': 0.8, 'format': 0.2}), a mapping with the weight of each",
    },
    "make_algorithm": {
        **dict.fromkeys(("kl_coef", "kl_beta", "init_kl_coef"), "beta="),
        **dict.fromkeys(("clip_range", "cliprange", "clip_eps", "clip_ratio", "eps_clip"), "epsilon="),
        **dict.fromkeys(("clip_ratio_high", "eps_clip_high"), "epsilon_high="),
        **dict.fromkeys(("ent_coef", "entropy_coeff"), "entropy_coef="),
        **dict.fromkeys(("gae_lambda", "lambda_"), "lam="),
        **dict.fromkeys(("discount", "discount_factor"), "gamma="),
        **dict.fromkeys(("ppo_epochs", "num_ppo_epochs", "update_epochs"), "num_iterations="),
        **dict.fromkeys(("value_loss_coef", "vf_coeff"), "vf_coef="),
        **dict.fromkeys(("lr", "learning_rate"), _OF_THE_RUN.format("learning_rate=1e-6")),
        **dict.fromkeys(("group_size", "num_generations", "num_return_sequences"), _OF_THE_RUN.format("num_generations=8")),
        **dict.fromkeys(("batch_size", "train_batch_size", "prompts_per_step"), _OF_THE_RUN.format("prompts_per_step=8")),
        **dict.fromkeys(("max_steps", "num_steps", "steps"), _OF_THE_RUN.format("steps=10")),
        **dict.fromkeys(("max_tokens", "max_new_tokens", "max_completion_length"), _OF_THE_RUN.format("max_new_tokens=256")),
        **{name: _OF_THE_RUN.format(f"{name}={value}") for name, value in (("temperature", 1.0), ("max_grad_norm", 1.0))},
    },
    "make_sampler": {
        **dict.fromkeys(("base_url", "api_base", "endpoint"), "url="),
        "api_key_var": "api_key_env=",
        **dict.fromkeys(("max_retries", "num_retries"), "retries="),
        **dict.fromkeys(("max_connections", "max_workers", "num_workers"), "concurrency="),
        **dict.fromkeys(("max_tokens", "max_new_tokens", "temperature", "top_p", "top_k"), _SAMPLED_LATER),
        "api_key": "api_key_env=, the name of the environment variable with the key",
        "gpu_memory_utilization": "memory_fraction=",
        "tp": "tensor_parallel_size=",
    },
    "make_sandbox": {
        **dict.fromkeys(MEMORY_WORDS, "memory_mb="),
        **dict.fromkeys(NETWORK_WORDS, "no program in a sandbox has a network; leave it out"),
        "timeout": "the limit is given with the call: rlvr.make_sandbox(name).run(code, timeout=5)",
        "timeout_s": "the limit is given with the call: rlvr.make_sandbox(name).run(code, timeout=5)",
    },
}
"""Keywords of other libraries, by the call that gets them: how they are written here, or a sentence."""
CALLS: Mapping[str, str] = {
    "Task": "rlvr.Task('2+2=', reference='4')",
    "evaluate": "rlvr.evaluate(env, policy='hf:DIR', tasks=20)",
    "make_env": "rlvr.make_env(rows, verifier=function)",
    **dict.fromkeys(("Trainer", "train"), "rlvr.train(model='DIR', data=rows, verifier=function, steps=10)"),
}
"""An example of a call, for the message about wrong arguments."""
SAME_KEYWORDS: Mapping[str, str] = {"Trainer": "train", "make": "make_env", "make_vec": "make_env"}
"""Calls that take the keywords of another one."""
CODE = re.compile(r"(rlvr|gymnasium|report)\.\w|\w+=")
"""How a hint begins that is code and not a sentence."""


def suggest_rlvr_call(name: str) -> str:
    """Return the call of rlvr that does what this name does in another library, or "".

    >>> suggest_rlvr_call("list_verifiers")
    "write rlvr.list('verifier')"
    """
    if found := NAMES.get(name):
        return _advise(found)
    for pattern, call in NAME_PATTERNS:
        if match := re.fullmatch(pattern, name):
            if algorithm := match.groupdict().get("algorithm"):
                return _advise(call.format(algorithm=algorithm.lower()))
            kind = PLUGIN_WORDS.get(match.group(1).rpartition("_")[2], "") if match.groups() else ""
            if "{kind" in call and not kind:
                continue
            return _advise(call.format(kind=kind) if kind else call)
    return ""


def find_public_name(folder: str, name: str) -> Any:
    """Return the public name of `rlvr` that is looked for in one of its packages, whose own modules are found first. For their
    `__getattr__`.
    """
    import rlvr

    package = sys.modules[f"rlvr.{folder}"]
    frame = sys._getframe(1)  # of the caller of `__getattr__`, which is a partial of this
    if not name.startswith("_") and not any(
        os.path.exists(os.path.join(place, name + ending)) for place in package.__path__ for ending in ("", ".py")
    ):
        try:
            return getattr(rlvr, name)
        except AttributeError:
            hint = suggest_rlvr_call(name) or suggest_name(name, (), folder)
            message = f"rlvr.{folder} has no {name!r}; {hint}"
            if is_import_from(frame):  # which would replace the message of an AttributeError
                raise ImportError(message, name=f"rlvr.{folder}", path=package.__file__) from None
            raise AttributeError(message, name=name, obj=None) from None
    raise AttributeError(f"module 'rlvr.{folder}' has no attribute {name!r}", name=name, obj=package)


def is_import_from(frame: FrameType) -> bool:
    """Return whether a frame stands at `from module import name`, rather than at `module.name`."""
    return opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def suggest_name(name: str, names: Iterable[str], topic_words: str = "") -> str:
    """Return the end of a message about a name that the module lacks: one that is written almost like it, and what its words, else
    `topic_words`, speak of.

    >>> suggest_name("evaluat", ["evaluate", "verify"])[:23]
    "did you mean 'evaluate'"
    """
    near = difflib.get_close_matches(name, list(names), 1, 0.88)
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    topics = (_advise(call) for spoken in (words, {*topic_words.split()}) for known, call in TOPICS if spoken & {*known.split()})
    topic = next(topics, "")
    main = "rlvr.list, verify, evaluate, generate, train, make_env, make_verifier, load_model, load_run; rlvr.Environment, Verifier, Task, Trainer"
    meant = f"did you mean {near[0]!r}? " if near else ""
    return meant + (
        f"{'Or ' * bool(near)}{topic}" if topic else f"{'The' if near else 'the'} main names are {main}; `help(rlvr)` lists all"
    )


def explain_keyword(name: str, call: str = "") -> str:
    """Return how a keyword of another library is written in a call here, or ""; without a call: in `train`, else in `evaluate`.

    >>> explain_keyword("group_size", "train"), explain_keyword("epochs", "train")
    ('write num_generations=', 'write steps=')
    >>> explain_keyword("best_of", "evaluate")
    'write n=, the number of answers for each task; report.pass_at_k(k) is pass@k for every k up to n'
    """
    tables = [KEYWORDS.get(SAME_KEYWORDS.get(call, call), {})] if call else [KEYWORDS["train"], KEYWORDS["evaluate"]]
    return next((_advise(table[name]) for table in tables if name in table), "")


def translate_config_key(key: str) -> str:
    """Return the key of a run's configuration that does what a key of another library does, with or without its section, or "".

    >>> translate_config_key("lr"), translate_config_key("train.lr"), translate_config_key("use_vllm")
    ('train.learning_rate', 'train.learning_rate', 'rollout.sampler=vllm')
    """
    return CONFIG_KEYS.get(key.rpartition(".")[2], "").partition(", ")[0]


def explain_plugin_setting(kind: str, name: str, known: Iterable[str]) -> str:
    """Return how a plugin writes a setting of another library; "" if the plugin has no such setting.

    >>> explain_plugin_setting("algorithm", "kl_coef", ["beta"]), explain_plugin_setting("tool", "limit", ["size"])
    ('write beta=', '')
    """
    hint = KEYWORDS.get(f"make_{kind}", {}).get(name, "")
    target = re.match(r"(\w+)=", hint)
    return _advise(hint) if hint and (target is None or target.group(1) in known) else ""


def _advise(hint: str) -> str:
    return f"write {hint}" if CODE.match(hint) else hint


def translate_plugin_name(wanted: str, names: Iterable[str]) -> str:
    """Return the plugin among `names` that another library calls `wanted`, or "".

    >>> translate_plugin_name("accuracy", ["numeric", "symbolic"])
    'symbolic'
    """
    known = {*names}
    return next((found for table in (PLUGINS, ENVS) if (found := table.get(wanted, "")) in known), "")


def add_usage_to_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a call with wrong arguments say how the function is called. For functions of the front door.

    >>> add_usage_to_errors(suggest_rlvr_call)(nme="x")
    Traceback (most recent call last):
    TypeError: rlvr.suggest_rlvr_call: missing a required argument: 'name'; the call is rlvr.suggest_rlvr_call(name)
    """
    signature = inspect.signature(function)
    call = function.__qualname__.removesuffix(".__init__")

    def explain(error: TypeError, kwargs: Mapping[str, Any]) -> TypeError:
        found = {key: hint for key in kwargs if key not in signature.parameters and (hint := explain_keyword(key, call))}
        keys = {hint: ", ".join(key for key, other in found.items() if other == hint) for hint in found.values()}
        hints = [hint if f"'{key}'" in str(error) else f"{key}: {hint}" for hint, key in keys.items()]
        shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
        usage = f"the call is rlvr.{call}{inspect.Signature(shown)}" + (f", such as {CALLS[call]}" if call in CALLS else "")
        return TypeError("; ".join([f"rlvr.{call}: {error}", *hints, usage]))

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            shorten_traceback(error)
            raise
        except TypeError:  # the arguments are only looked at again after an error: the call itself costs nothing
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise explain(error, kwargs) from None
            raise

    return called


def write_settings_as_keywords(message: str) -> str:
    """Write the settings of a run in a message, section.key=value, as keywords of `rlvr.train`; a message is also read in a shell.

    >>> write_settings_as_keywords("set rollout.max_length=1024, or lower rollout.max_new_tokens; eval.tasks=0 measures nothing")
    "set max_length=1024, or lower max_new_tokens; eval={'tasks': 0} measures nothing"
    >>> write_settings_as_keywords("data/train.jsonl and train.parquet: line 3; train.learning_rate=1e-5")
    'data/train.jsonl and train.parquet: line 3; learning_rate=1e-5'
    >>> write_settings_as_keywords("choose another --out, or continue with --resume")
    'choose another out=, or continue with resume=True'
    >>> write_settings_as_keywords("resume it as it was started: rlvr train runs/a/config.yaml --out runs/a --resume")
    "resume it as it was started: rlvr.train('runs/a/config.yaml', out='runs/a', resume=True)"
    >>> write_settings_as_keywords("rlvr train runs/a/config.yaml --out runs/a --resume train.steps=4")
    "rlvr.train('runs/a/config.yaml', {'train.steps': 4}, out='runs/a', resume=True)"
    """

    def write(match: re.Match[str]) -> str:
        section, key, value = match["section"], match["key"], match["value"]
        if value is None:
            return key if section in ("train", "rollout") else match[0]
        if not re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value):
            value = {"true": "True", "false": "False", "null": "None"}.get(value, repr(value))
        return f"{key}={value}" if section in ("train", "rollout", "log") else f"{section}={{'{key}': {value}}}"

    message = re.sub(
        r"rlvr train (?P<recipe>'[^']*'|\S+) --out (?P<out>'[^']*'|\S+) --resume\b(?: train\.steps=(?P<steps>\d+))?",
        lambda found: (
            f"rlvr.train({shlex.split(found['recipe'])[0]!r}, {{'train.steps': {found['steps']}}}, ".replace("{'train.steps': None}, ", "")
            + f"out={shlex.split(found['out'])[0]!r}, resume=True)"
        ),
        message,
    )
    message = re.sub(r"another --out\b", "another out=", message).replace("--resume", "resume=True")
    return re.sub(
        r"(?<![\w./\\'\"])(?P<section>train|rollout|log|eval|model)\.(?!(?:jsonl?|csv|tsv|parquet|txt|ya?ml|toml|py|log|gz|md)\b)(?P<key>[a-z]\w*)"
        r"(?:=(?P<value>-?\w(?:[\w.+-]*\w)?))?(?![\w(/])",
        write,
        message,
    )


def shorten_traceback(error: BaseException) -> None:
    """Remove the library's own frames and causes from an error that says everything, so that a notebook shows the call and the message.

    An error through code of the user keeps them all. Logged in full at the level DEBUG.
    """
    if not getattr(error, "says_everything", False):
        return
    seen: BaseException | None = error
    while seen is not None:
        frame = seen.__traceback__
        while frame is not None:
            if not frame.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
                return
            frame = frame.tb_next
        seen = seen.__cause__
    logging.getLogger(__name__).debug("the error in full", exc_info=error)
    error.__cause__ = None
    error.__suppress_context__ = True
    error.__traceback__ = None


def add_usage_to_constructor_errors(made: type[C]) -> type[C]:
    """Make a class whose constructor gets wrong arguments say how it is called, as its decorator."""
    vars_of: Any = made
    vars_of.__init__ = add_usage_to_errors(vars_of.__init__)
    return made


def _list_names(value: Any) -> list[str]:
    """List the public attributes of an object, as they are written after it."""
    return [f".{name}" for name in sorted({*dir(type(value)), *getattr(value, "__dict__", ())}) if not name.startswith("_")]


class Hinted:
    """A class whose objects know the attributes of other libraries: those that are the same thing under another name, and hints for others.

    >>> from rlvr.task import Verdict
    >>> Verdict(1.0, "4 equals 4").explanation
    '4 equals 4'
    """

    __slots__ = ()
    _synonyms: ClassVar[Mapping[str, str]] = {}
    """Attributes of other libraries, and the one here that is the same thing: both may be read. They are not listed or completed."""
    _hints: ClassVar[Mapping[str, str]] = {}
    """Other attributes that are asked for, and how they are written here: reading them is an error that says so."""

    if not TYPE_CHECKING:  # a type checker must still report attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Raise the error of a missing attribute, with the right call if the table has it."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised AttributeError: raise its own error again
            if same := type(self)._synonyms.get(name):
                return attrgetter(same)(self)
            hint = type(self)._hints.get(name)
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):  # those are asked for by copy, pickle and the like
                hint = "; ".join(filter(None, (hint, f"it has {', '.join(_list_names(self))}")))
            # with a name, Python adds the attribute that is spelled most alike, which misleads beside a hint
            raise AttributeError(f"{message}; {hint}") if hint else AttributeError(message, name=name, obj=self)
