r"""The published signatures that the adapters follow, looked up in the packages themselves.

    pip download --no-deps --ignore-requires-python -d wheels verl==0.9.1 openrlhf==0.11.2 skyrl==0.4.0 skyrl-gym==0.4.0 \\
        ms-swift==4.6.0 nemo-gym==0.4.0 openenv==0.10.0 fhaviary==0.37.0
    python benchmarks/adapters/signatures.py wheels

Wheels and source archives are read as syntax trees: nothing is installed or imported. What is compared are the classes, functions and names
that an adapter calls, inherits from or is called by. Bar: nothing differs, and the version is one that the adapter names.
Exit code 1 if a published signature is another one.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@dataclass(frozen=True)
class Fact:
    """One thing an adapter relies on: `what` is `call` (parameters in this order), `fields`, `names` of a module, or `keys` of a literal.

    >>> Fact("verl", "a/b.py", "fields", "Output", ("prompt_ids",)).where
    'Output'
    """

    package: str
    file: str
    what: str
    where: str
    wanted: tuple[str, ...]


LOOP = "verl/experimental/agent_loop/agent_loop.py"
AGENT = "openrlhf/utils/agent.py"
TEXT_ENV = "skyrl_gym/envs/base_text_env.py"
OPENENV = "openenv/core/env_server/interfaces.py"
RESOURCES = "nemo_gym/base_resources_server.py"
ENGINE = "skyrl/backends/skyrl_train/inference_servers/base.py"
OUTPUT = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns", "metrics", "extra_fields")
RECORD = (
    "prompt", "label", "images", "mm_train_inputs", "reward", "scores", "observation_tokens", "action_ranges", "rollout_log_probs",
    "truncated", "extra_logs",
)  # fmt: skip
COLUMNS = (
    "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics", "rollout_logprobs", "trajectory_ids",
    "is_last_step",
)  # fmt: skip
EXECUTE = ("prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "llm_engine", "images")
FACTS = (
    Fact("verl", LOOP, "fields", "AgentLoopOutput", OUTPUT),
    Fact("verl", LOOP, "call", "AgentLoopBase.__init__", ("trainer_config", "server_manager", "tokenizer")),
    Fact("verl", LOOP, "call", "AgentLoopBase.run", ("sampling_params",)),
    Fact("verl", LOOP, "call", "register", ("agent_name",)),
    Fact("verl", "verl/workers/rollout/llm_server.py", "call", "LLMServerClient.generate", ("request_id", "prompt_ids", "sampling_params")),
    Fact("verl", "verl/workers/rollout/replica.py", "fields", "TokenOutput", ("token_ids", "log_probs")),
    Fact("openrlhf", AGENT, "call", "AgentExecutorBase.execute", EXECUTE),
    Fact("openrlhf", AGENT, "call", "AgentInstanceBase.reset", ("states",)),
    Fact("openrlhf", AGENT, "call", "AgentInstanceBase.step", ("state_dict",)),
    Fact("openrlhf", AGENT, "keys", "MultiTurnAgentExecutor.execute", RECORD),
    Fact("openrlhf", "openrlhf/trainer/ray/vllm_engine.py", "names", "", ("_load_agent_executor",)),
    Fact("skyrl-gym", TEXT_ENV, "fields", "BaseTextEnvStepOutput", ("observations", "reward", "done", "metadata")),
    Fact("skyrl-gym", TEXT_ENV, "call", "BaseTextEnv.__init__", ()),
    Fact("skyrl-gym", TEXT_ENV, "call", "BaseTextEnv.init", ("prompt",)),
    Fact("skyrl-gym", TEXT_ENV, "call", "BaseTextEnv.step", ("action",)),
    Fact("skyrl-gym", TEXT_ENV, "call", "BaseTextEnv.close", ()),
    Fact("skyrl-gym", "skyrl_gym/envs/registration.py", "call", "register", ("id", "entry_point")),
    Fact("skyrl", "skyrl/train/generators/base.py", "fields", "GeneratorOutput", COLUMNS),
    Fact("skyrl", "skyrl/train/generators/base.py", "fields", "GeneratorInput", ("env_extras", "sampling_params", "trajectory_ids")),
    Fact("skyrl", "skyrl/train/generators/base.py", "call", "GeneratorInterface.generate", ("input_batch",)),
    Fact("skyrl", ENGINE, "fields", "InferenceEngineInput", ("prompt_token_ids", "sampling_params", "session_ids")),
    Fact("skyrl", ENGINE, "fields", "InferenceEngineOutput", ("response_ids", "response_logprobs")),
    Fact("ms-swift", "swift/rewards/orm.py", "names", "", ("ORM", "orms")),
    Fact("ms-swift", "swift/rewards/orm.py", "call", "ORM.__init__", ("args",)),
    Fact("ms-swift", "swift/rollout/gym_env.py", "names", "", ("Env", "envs")),
    Fact("ms-swift", "swift/rollout/gym_env.py", "call", "Env.__init__", ("env_config",)),
    Fact("ms-swift", "swift/rollout/gym_env.py", "call", "Env.reset", ("config",)),
    Fact("ms-swift", "swift/rollout/gym_env.py", "call", "Env.step", ("action",)),
    Fact("ms-swift", "swift/rollout/gym_env.py", "call", "Env.close", ()),
    Fact("openenv", OPENENV, "call", "Environment.reset", ("seed", "episode_id")),
    Fact("openenv", OPENENV, "call", "Environment.step", ("action", "timeout_s")),
    Fact("openenv", "openenv/core/env_server/types.py", "fields", "Observation", ("done", "reward")),
    Fact("openenv", "openenv/core/env_server/types.py", "fields", "State", ("episode_id", "step_count")),
    Fact("openenv", "openenv/core/env_server/http_server.py", "call", "create_fastapi_app", ("env", "action_cls", "observation_cls")),
    Fact("fhaviary", "aviary/env.py", "call", "Environment.reset", ()),
    Fact("fhaviary", "aviary/env.py", "call", "Environment.step", ("action",)),
    Fact("fhaviary", "aviary/env.py", "call", "TaskDataset.get_new_env_by_idx", ("idx",)),
    Fact("fhaviary", "aviary/tools/base.py", "fields", "ToolResponseMessage", ("content", "name", "tool_call_id")),
    Fact("fhaviary", "aviary/tools/base.py", "fields", "ToolCallFunction", ("arguments", "name")),
    Fact("nemo-gym", RESOURCES, "call", "SimpleResourcesServer.setup_webserver", ()),
    Fact("nemo-gym", RESOURCES, "call", "SimpleResourcesServer.seed_session", ("body",)),
    Fact("nemo-gym", RESOURCES, "call", "SimpleResourcesServer.verify", ("body",)),
    Fact("nemo-gym", RESOURCES, "fields", "BaseVerifyResponse", ("reward",)),
    Fact("nemo-gym", RESOURCES, "fields", "BaseRunRequest", ("responses_create_params",)),
    Fact("nemo-gym", "nemo_gym/server_utils.py", "names", "", ("SESSION_ID_KEY",)),
)
ADAPTERS = {
    "verl": "verl", "openrlhf": "openrlhf", "skyrl": "skyrl", "skyrl-gym": "skyrl", "ms-swift": "swift", "nemo-gym": "nemo_gym",
    "openenv": "openenv", "fhaviary": "aviary",
}  # fmt: skip


def read(archive: Path, ending: str) -> str:
    """The text of the file that ends so; the shortest path, where several do."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = sorted((name for name in wheel.namelist() if f"/{name}".endswith(f"/{ending}")), key=len)
            return wheel.read(found[0]).decode() if found else ""
    with tarfile.open(archive) as source:
        members = sorted((m for m in source.getmembers() if f"/{m.name}".endswith(f"/{ending}")), key=lambda m: len(m.name))
        file = source.extractfile(members[0]) if members else None
        return file.read().decode() if file else ""


def node_of(tree: ast.AST, dotted: str) -> ast.AST | None:
    """The class or function of that name."""
    for name in dotted.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [node for node in ast.iter_child_nodes(tree) if isinstance(node, kinds) and node.name == name]
        if not found:
            return None
        tree = found[-1]
    return tree


def names_in(node: ast.AST, what: str) -> Iterator[str]:
    """What a node has: parameters, annotated fields, the names of a module, or the keys of its dictionaries."""
    if what == "call" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs] if one.arg != "self")
    elif what == "keys":
        literals = [one for one in ast.walk(node) if isinstance(one, ast.Dict)]
        yield from (key.value for one in literals for key in one.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    else:
        for one in ast.iter_child_nodes(node):
            targets = [one.target] if isinstance(one, ast.AnnAssign) else one.targets if isinstance(one, ast.Assign) else []
            yield from (target.id for target in targets if isinstance(target, ast.Name))
            if isinstance(one, ast.ClassDef | ast.FunctionDef):
                yield one.name


def trouble(fact: Fact, archive: Path) -> str:
    """What differs; empty where nothing does."""
    text = read(archive, fact.file)
    if not text:
        return f"no file {fact.file}"
    node = node_of(ast.parse(text), fact.where) if fact.where else ast.parse(text)
    if node is None:
        return f"no {fact.where}"
    found = tuple(names_in(node, fact.what))
    same = found[: len(fact.wanted)] == fact.wanted if fact.what == "call" else set(fact.wanted) <= set(found)
    return "" if same else f"{fact.where}: {', '.join(found)}"


def main() -> int:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, help="a folder of wheels or source archives")
    folder, wrong, compared = parser.parse_args().wheels, 0, 0
    print(f"{'package':12s} {'version':8s} {'followed':12s} {'compared':>8s}  differs")
    for package, adapter in ADAPTERS.items():
        module = import_module(f"rlvr.integrations.{adapter}")
        tested = (str(module.TESTED), *getattr(module, "ALSO", ()))
        archives = [path for path in sorted(folder.iterdir()) if path.name.replace("_", "-").startswith(f"{package}-")]
        archives = [path for path in archives if path.name.replace("_", "-")[len(package) + 1].isdigit()]
        for archive in archives:
            version = archive.name.replace("_", "-")[len(package) + 1 :].split("-")[0].removesuffix(".tar.gz")
            facts = [fact for fact in FACTS if fact.package == package]
            found = [text for fact in facts if (text := trouble(fact, archive))]
            wrong += len(found) + (version not in tested)
            compared += len(facts)
            print(f"{package:12s} {version:8s} {' '.join(tested):12s} {len(facts):8d}  {'; '.join(found) or 'nothing'}")
        if not archives:
            wrong += 1
            print(f"{package:12s} no archive in {folder}")
    print(json.dumps({"compared": compared, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
