"""Templates of the files that `rlvr export-env` writes. Names and settings are inserted as Python literals."""

from __future__ import annotations

HEADER = '''\
"""The environment $name of rlvr for $title (tested with $tested). Written by `rlvr export-env`; the settings may be changed.

$use
"""

import rlvr
'''
BUILD = """
environment = rlvr.make_env($name_repr, **$settings)
environment.prepare()  # checks the requirements before the first conversation
"""

TRL = (
    HEADER
    + """from rlvr.integrations.rows import make_rows
from rlvr.integrations.trl import EnvironmentFactory, RolloutFunction, make_reward_function
"""
    + BUILD
    + """rows = make_rows(environment, $split_repr, $count)  # datasets.Dataset.from_list(rows)


def reward_funcs():
    \"\"\"For `reward_funcs=`, if the environment has one turn.\"\"\"
    return [make_reward_function(environment)]


def environment_factory():
    \"\"\"For `environment_factory=`, if the environment has tools; its `.reward` goes into `reward_funcs=`.\"\"\"
    return EnvironmentFactory(environment)


def rollout_func():
    \"\"\"For `rollout_func=`, any environment; its `.reward` goes into `reward_funcs=`.\"\"\"
    return RolloutFunction(environment, rows)
"""
)
VERL = (
    HEADER
    + """from rlvr.integrations.verl import make_agent_loop_class, make_compute_score
"""
    + BUILD
    + """
if environment.max_turns == 1 and not environment.tools:
    compute_score = make_compute_score(environment)

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
except ModuleNotFoundError:  # where only `compute_score` is needed
    pass
else:

    @register("rlvr")
    class RlvrLoop(make_agent_loop_class(environment, AgentLoopBase, AgentLoopOutput)):
        \"\"\"The agent loop; verl makes an instance for each row.\"\"\"
"""
)
OPENRLHF = (
    HEADER
    + """from rlvr.integrations.openrlhf import make_executor_class, make_reward_function
"""
    + BUILD
    + """ENDS = ()  # the texts of the stop tokens, for `reward_func`, such as ("<|im_end|>",)

if environment.max_turns == 1 and not environment.tools:
    import torch

    reward_func = make_reward_function(environment, stop_texts=ENDS, tensor=torch.tensor)

try:
    from openrlhf.utils.agent import AgentExecutorBase
except ModuleNotFoundError:  # where only `reward_func` is needed
    pass
else:

    class AgentExecutor(make_executor_class(environment, AgentExecutorBase)):
        \"\"\"The class that OpenRLHF loads from this file.\"\"\"
"""
)
SKYRL = (
    HEADER
    + """import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from rlvr.integrations.skyrl import make_environment_class, make_generator_class
"""
    + BUILD
    + """

class RlvrEnv(make_environment_class(environment, BaseTextEnv, output=BaseTextEnvStepOutput)):
    \"\"\"The environment; SkyRL makes an instance for each conversation.\"\"\"


skyrl_gym.register(id="rlvr", entry_point=__name__ + ":RlvrEnv")  # import this file in the entry point of every worker


def generator(inference_engine_client, tokenizer):
    \"\"\"Make a generator for whole conversations with the tokens of rlvr, to replace that of SkyRL.\"\"\"
    from skyrl.train.generators.base import GeneratorInterface

    return make_generator_class(environment, GeneratorInterface)(inference_engine_client, tokenizer)
"""
)
SWIFT = (
    HEADER
    + """from rlvr.integrations.swift import make_environment_class, make_reward_class
"""
    + BUILD
    + """
if environment.max_turns == 1 and not environment.tools:
    from swift.rewards import ORM, orms

    orms["rlvr"] = make_reward_class(environment, ORM)
else:
    from swift.rollout.gym_env import Env, envs

    envs["rlvr"] = make_environment_class(environment, Env)
"""
)
NEMO = (
    HEADER
    + """from nemo_gym.base_resources_server import BaseVerifyResponse, SimpleResourcesServer
from nemo_gym.server_utils import SESSION_ID_KEY

from rlvr.integrations.nemo_gym import make_server_class
"""
    + BUILD
    + """

class RlvrResourcesServer(make_server_class(environment, SimpleResourcesServer, BaseVerifyResponse, session_key=SESSION_ID_KEY)):
    \"\"\"The resources server of this folder.\"\"\"


if __name__ == "__main__":
    RlvrResourcesServer.run_webserver()
"""
)
INSPECT = (
    HEADER
    + """from inspect_ai import task

from rlvr.integrations.inspect_task import make_inspect_task
"""
    + BUILD
    + """

@task
def $module():
    \"\"\"The tasks of the split $split.\"\"\"
    return make_inspect_task(environment, $split_repr, range($count))
"""
)
LM_EVAL = (
    HEADER
    + """from rlvr.integrations.lm_eval import make_custom_dataset, doc_to_text, make_process_results
"""
    + BUILD
    + """custom_dataset = make_custom_dataset(environment, $split_repr, $count)
process_results = make_process_results(environment)
"""
)
LM_EVAL_YAML = """\
task: $module
custom_dataset: !function $module.custom_dataset
test_split: test
output_type: generate_until
doc_to_text: !function $module.doc_to_text
doc_to_target: ""
process_results: !function $module.process_results
generation_kwargs:
  until: []
  max_gen_toks: $tokens
  do_sample: false
metric_list:
  - metric: score
    aggregation: nanmean
    higher_is_better: true
  - metric: unscored
    aggregation: mean
    higher_is_better: false
metadata:
  version: 1
"""
VERIFIERS = (
    HEADER
    + """import verifiers.v1 as vf

from rlvr.integrations.verifiers_v1 import TasksetRewards, make_task_rows
"""
    + BUILD
    + """rewards = TasksetRewards(environment)


class RlvrData(vf.TaskData):
    \"\"\"The data of a task: its split and index.\"\"\"

    split: str
    index: int


class RlvrTask(vf.Task[RlvrData]):
    \"\"\"A question that rlvr verifies.\"\"\"

    @vf.reward(weight=1.0)
    async def verdict(self, trace: vf.Trace) -> float:
        \"\"\"Return the score of the last message.\"\"\"
        return await rewards.score(self.data.split, self.data.index, [node.message for node in trace.nodes[-1:]])


class RlvrConfig(vf.TasksetConfig):
    \"\"\"The settings: split and number of tasks.\"\"\"

    split: str = $split_repr
    count: int = $count


class RlvrTaskset(vf.Taskset[RlvrTask, RlvrConfig]):
    \"\"\"The tasks of one split.\"\"\"

    def load(self) -> list[RlvrTask]:
        \"\"\"Make the tasks.\"\"\"
        return [RlvrTask(RlvrData(**row), self.config.task) for row in make_task_rows(environment, self.config.split, self.config.count)]


__all__ = ["RlvrTaskset"]
"""
)
PACKAGE = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dist"
version = "0.1.0"
description = "The environment $name of rlvr as a taskset"
requires-python = ">=3.11"
dependencies = ["rlvr", "verifiers"]

[tool.setuptools]
py-modules = ["$module"]
"""
AGENT_LOOP = """\
- name: rlvr
  _target_: $module.RlvrLoop
"""
SERVER = """\
$module:
  resources_servers:
    $module:
      entrypoint: $module.py
      domain: other
$agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: $module}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
        - {name: train, type: train, jsonl_fpath: rows.jsonl}
"""

OPENENV = (
    HEADER
    + """from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

from rlvr.integrations.openenv import make_environment_class
"""
    + BUILD
    + """

class Said(Action):
    \"\"\"One turn of the policy.\"\"\"

    text: str


class Seen(Observation):
    \"\"\"The next text for the policy.\"\"\"

    text: str = ""


class RlvrEnvironment(make_environment_class(environment, Environment, Seen, State, split=$split_repr, count=$count)):
    \"\"\"A conversation; OpenEnv makes an instance for each session.\"\"\"


app = create_fastapi_app(RlvrEnvironment, Said, Seen, max_concurrent_envs=64)
"""
)
AVIARY = (
    HEADER
    + """from aviary.core import Environment, Message, TaskDataset, Tool, ToolResponseMessage

from rlvr.integrations.aviary import make_environment_class
"""
    + BUILD
    + """

class RlvrEnvironment(make_environment_class(environment, Environment, message=Message, response=ToolResponseMessage, tool=Tool)):
    \"\"\"One conversation.\"\"\"


class RlvrTasks(TaskDataset[RlvrEnvironment]):
    \"\"\"The tasks of the split $split.\"\"\"

    def __len__(self):
        return $count

    def get_new_env_by_idx(self, idx):
        \"\"\"Make the conversation of one task.\"\"\"
        return RlvrEnvironment($split_repr, range($count)[idx])
"""
)
