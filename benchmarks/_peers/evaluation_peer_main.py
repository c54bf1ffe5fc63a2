"""Runs inside a peer's own environment: reads the recorded answers, prints its accuracy and standard error as one JSON line.

    python evaluation_peer_main.py inspect|lmeval samples.json

`samples.json` holds {"n": 4, "tasks": [{"id", "question", "target", "answers": [...]}]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def inspect(data: dict[str, Any]) -> dict[str, Any]:
    """inspect-ai: its own numeric match at the end of the answer, mean over epochs, accuracy and stderr."""
    from inspect_ai import Epochs, Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import accuracy, match, stderr
    from inspect_ai.solver import Generate, TaskState, solver

    answers = {task["id"]: task["answers"] for task in data["tasks"]}

    @solver
    def recorded() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state.output = ModelOutput.from_content("recorded", answers[state.sample_id][state.epoch - 1])
            return state

        return solve

    dataset = [Sample(input=task["question"], target=task["target"], id=task["id"]) for task in data["tasks"]]
    task = Task(dataset, solver=recorded(), scorer=match(numeric=True), metrics=[accuracy(), stderr()], epochs=Epochs(data["n"], "mean"))
    (log,) = eval(task, model="mockllm/model", display="none", log_format="json")
    metrics = log.results.scores[0].metrics
    right = {f"{sample.id} {sample.epoch - 1}": next(iter(sample.scores.values())).value == "C" for sample in log.samples}
    return {"accuracy": metrics["accuracy"].value, "stderr": metrics["stderr"].value, "right": right}


def lmeval(data: dict[str, Any]) -> dict[str, Any]:
    """lm-eval: the strict match of its gsm8k task, its mean and stderr. It scores one answer for each problem, the first."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    first = {task["question"]: task["answers"][0] for task in data["tasks"]}

    class Recorded(LM):
        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [first[request.args[0]] for request in requests]

        def loglikelihood(self, requests: list[Any]) -> list[Any]:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    Path("docs.json").write_text(json.dumps([{key: task[key] for key in ("question", "target")} for task in data["tasks"]]), "utf-8")
    config = {
        "task": "recorded",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(Path("docs.json").resolve())}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{target}}",
        "generation_kwargs": {"until": ["\n\n\n"], "do_sample": False},
        "filter_list": [
            {
                "name": "strict-match",
                "filter": [{"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}, {"function": "take_first"}],
            }
        ],
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "ignore_case": True,
                "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
            }
        ],
    }
    found = lm_eval.simple_evaluate(model=Recorded(), tasks=[config], task_manager=TaskManager(include_defaults=False))
    metrics = found["results"]["recorded"]
    right = {f"{data['tasks'][sample['doc_id']]['id']} 0": bool(sample["exact_match"] == 1.0) for sample in found["samples"]["recorded"]}
    return {"accuracy": metrics["exact_match,strict-match"], "stderr": metrics["exact_match_stderr,strict-match"], "right": right}


if __name__ == "__main__":
    peer, file = sys.argv[1:]
    print(json.dumps({"inspect": inspect, "lmeval": lmeval}[peer](json.loads(Path(file).read_text("utf-8")))))
