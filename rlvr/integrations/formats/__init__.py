"""The export formats of `rlvr export-env`: file templates for each framework, and how to use the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlvr.integrations.formats.templates import (
    AGENT_LOOP,
    AVIARY,
    INSPECT,
    LM_EVAL,
    LM_EVAL_YAML,
    NEMO,
    OPENENV,
    OPENRLHF,
    PACKAGE,
    SERVER,
    SKYRL,
    SWIFT,
    TRL,
    VERIFIERS,
    VERL,
)


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """The export format of one framework: file templates, the row function, and the use of the files.

    >>> ExportFormat("TRL", "1.16.0", {"$module.py": "# $name"}, usage="load it").data_file
    'rows.jsonl'
    """

    title: str
    tested_version: str
    files: Mapping[str, str]
    usage: str
    row_function: str = ""
    """The function of the adapter that makes a row, as `module:function`; empty for plain rows."""
    data_file: str = "rows.jsonl"
    """The file of the rows; empty if the exported code makes the rows."""


FORMATS: Mapping[str, ExportFormat] = {
    "trl": ExportFormat("TRL", "1.16.0", {"$module.py": TRL}, "Import it next to GRPOTrainer."),
    "verl": ExportFormat(
        "verl", "0.9.1", {"$module.py": VERL, "agent_loop.yaml": AGENT_LOOP},
        "PYTHONPATH=THIS_FOLDER; reward.custom_reward_function.path=$module.py, or "
        "actor_rollout_ref.rollout.agent.agent_loop_config_path=agent_loop.yaml",
        row_function="rlvr.integrations.verl:make_verl_row",
    ),
    "openrlhf": ExportFormat(
        "OpenRLHF", "0.11.2", {"$module.py": OPENRLHF}, "--train.agent_func_path $module.py, or --reward.remote_url $module.py",
        row_function="rlvr.integrations.openrlhf:make_openrlhf_row",
    ),
    "skyrl": ExportFormat(
        "SkyRL", "0.4.0", {"$module.py": SKYRL}, "Import it in the entry point.", row_function="rlvr.integrations.skyrl:make_skyrl_row",
    ),
    "ms-swift": ExportFormat(
        "ms-swift", "4.6.0", {"$module.py": SWIFT}, "--external_plugins $module.py", row_function="rlvr.integrations.swift:make_swift_row"
    ),
    "nemo-gym": ExportFormat(
        "NeMo-Gym", "0.4.0", {"$module.py": NEMO, "$module.yaml": SERVER}, "Put the folder into resources_servers/ and name $module.yaml.",
        row_function="rlvr.integrations.nemo_gym:make_nemo_row",
    ),
    "inspect": ExportFormat("inspect_ai", "0.3.285", {"$module.py": INSPECT}, "inspect eval $module.py --model ...", data_file=""),
    "lm-eval": ExportFormat(
        "lm-evaluation-harness", "0.4.13", {"$module.py": LM_EVAL, "$module.yaml": LM_EVAL_YAML},
        "lm_eval --tasks $module --include_path THIS_FOLDER", data_file="",
    ),
    "verifiers": ExportFormat(
        "verifiers", "0.4.0", {"$module.py": VERIFIERS, "pyproject.toml": PACKAGE}, "pip install THIS_FOLDER; the taskset's id is $dist",
        data_file="",
    ),
    "openenv": ExportFormat(
        "OpenEnv", "0.10.0", {"$module.py": OPENENV}, "uvicorn $module:app; a reset takes split and index from a row.",
    ),
    "aviary": ExportFormat("aviary", "0.37.0", {"$module.py": AVIARY}, "RlvrTasks in $module.py is a TaskDataset.", data_file=""),
}  # fmt: skip
"""The export format of each framework."""
SINGLE_TURN_FORMATS = ("lm-eval", "verifiers")
"""Formats that only support single answers."""
