"""Write the template of a plugin package (`rlvr new`), or an environment for another trainer (`rlvr export-env`)."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from string import Template

from rich.text import Text

import rlvr
from rlvr.cli import env_templates, screen
from rlvr.cli.settings import parse_settings
from rlvr.contracts.plugin import CONTRACT_VERSION
from rlvr.errors import ConfigError, format_suggestion
from rlvr.integrations.exporting import export_env
from rlvr.registry.plugins import get_kind, list_entries

PLUGIN_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # also a valid name of a distribution

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dist"
version = "0.1.0"
description = "$title: a plugin for rlvr"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["rlvr>=$rlvr"]

[project.entry-points."rlvr.$plural"]
$name = "$package:$cls"

[tool.setuptools]
packages = ["$package"]
"""

README = """\
# $dist

The $kind `$name` for rlvr.

```
pip install -e .
rlvr check $kind $name
$use
```
`rlvr show $kind $name` prints its description and settings; `pytest` runs the check as a test.
All code is in `$package/__init__.py`. `rlvr` finds it through the entry point in `pyproject.toml`.
"""

TEST = '''\
"""The conformance kit of rlvr, run on this plugin."""

from rlvr.conformance import check_$kind, list_failures


def test_it_keeps_the_contract() -> None:
    assert list_failures(check_$kind("$name"$settings)) == []
'''

ENV = '''\
"""$title: double a number. A template: change the question, keep the structure."""

from __future__ import annotations

import random

from rlvr import Environment, Task, Verifier


class $cls(Environment):
    """Double a number: `2*21=` is 42.

    >>> import rlvr
    >>> rlvr.make_env("$name").task("train", 0).question  # doctest: +SKIP
    '2*21='
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    needs = {"verifier": "numeric"}  # built by name; `rlvr list verifiers` shows all

    def __init__(self, *, verifier: Verifier, largest: int = 999, seed: int = 0) -> None:
        """Keyword arguments are the settings.

        Args:
            verifier: verifies the answer.
            largest: the largest number to double.
            seed: another seed gives other tasks.
        """
        if largest < 10:
            raise ValueError(f"largest is {largest}; it must be at least 10")
        self.verifier, self.largest, self.seed = verifier, largest, seed

    def task(self, split: str, index: int) -> Task:
        """Generate the task at `index`: always the same task for the same settings, split and index, in every process."""
        rng = random.Random(f"$name/{self.seed}/{split}/{index}")
        number = rng.randrange(self.largest // 5) * 5  # multiples of five: one in five of them is held out
        number += 0 if split == "test" else rng.randint(1, 4)  # so no held-out question is ever trained on
        return Task(f"2*{number}=", reference=str(2 * number), id=f"$name/{split}/{self.seed}.{index}")

    def gold(self, task: Task) -> str:
        """Return an answer with full score."""
        return str(task.reference)
'''

VERIFIER = '''\
"""$title: the answer equals the reference, ignoring case. A template: change the comparison, keep the structure."""

from __future__ import annotations

from rlvr import Fault, Task, Verdict, Verifier, VerifierExample
from rlvr.extraction import extract_answer


class $cls(Verifier):
    """The final answer equals the reference, ignoring case.

    >>> import rlvr
    >>> verifier = rlvr.make_verifier("$name")
    >>> verifier.verify(rlvr.Task(rlvr.make_user_prompt("The capital of France?"), "Paris", id="t"), "PARIS").score
    1.0
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    version = "1"  # raise it whenever a verdict may change
    examples = (VerifierExample("Paris", correct=("Paris", "paris", " PARIS "), incorrect=("Rome", "Paris or Rome", "not Paris", "")),)

    def __init__(self, *, extractor: str = "whole") -> None:
        """Keyword arguments are the settings.

        Args:
            extractor: how the answer is marked: whole, boxed, tag, hash, final_line or auto.
        """
        extract_answer("", extractor)  # an unknown name is an error here, not at the first answer
        self.extractor = extractor

    def verify(self, task: Task, answer: str) -> Verdict:
        """Extract the final answer, then compare all of it; never search for the reference inside a longer text."""
        if not isinstance(task.reference, str) or not task.reference.strip():
            return Verdict(None, f"the reference {task.reference!r} is not a text", fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        right = found.text.strip().casefold() == task.reference.strip().casefold()
        return Verdict(float(right), f"{found.text!r:.80} {'is' if right else 'is not'} {task.reference!r:.80}")
'''

TOOL = '''\
"""$title: a counter. A template: change what it does, keep the structure."""

from __future__ import annotations

from rlvr import Tool, ToolError, ToolExample, tool


class $cls(Tool):
    """A counter, separate for each conversation.

    >>> import rlvr
    >>> with rlvr.make_tool("$name").session() as counter:  # doctest: +SKIP
    ...     counter.$name(2)
    'The count is 2.'
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    examples = (
        ToolExample("$name", {"number": 2}, "The count is 2."),
        ToolExample("$name", {}, "The count is 3."),
        ToolExample("$name", {"number": 1000}, "at most", ok=False),
    )

    def __init__(self, *, most: int = 100) -> None:
        """Keyword arguments are the settings.

        Args:
            most: the largest number that one call may add.
        """
        if most < 1:
            raise ValueError(f"most is {most}; it must be at least 1")
        self.most = most

    def setup(self) -> None:
        """Set up the state of one conversation; release it in `teardown`."""
        self.count = 0

    @tool
    def $name(self, number: int = 1) -> str:
        """Add to the count and return it.

        Args:
            number: how much to add.
        """
        if number > self.most:
            raise ToolError(f"number is {number}; at most {self.most} is allowed")  # sent to the policy, which continues
        self.count += number
        return f"The count is {self.count}."
'''

SAMPLER = '''\
"""$title: one forward pass for each token, without a cache. A template: change how tokens are computed, keep the structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rlvr import Sampler
from rlvr.contracts import Completion, Request, SamplerTraits, SamplingParams
from rlvr.errors import ConfigError, SamplerError


class $cls(Sampler):
    """Samples from the trainer's model, one forward pass over the whole row for each token.

    >>> import rlvr
    >>> rlvr.make_sampler("$name").traits.runs_model  # doctest: +SKIP
    True
    """

    contract_version = $contract  # of rlvr.contracts, for which this is written
    traits = SamplerTraits()  # it loads weights and runs the model; an engine with its own copy says runs_model=False

    def __init__(self, *, max_prompt: int = 100_000) -> None:
        """Keyword arguments are the settings.

        Args:
            max_prompt: the largest number of tokens that a prompt may have.
        """
        if max_prompt < 1:
            raise ConfigError(f"max_prompt is {max_prompt}; it must be at least 1")
        self.max_prompt = max_prompt
        self.model: Any = None

    def update_from_model(self, model: Any, version: int) -> None:
        """Take the trainer's model. An engine of its own defines `update_weights` instead, and empties its prefix cache there."""
        self.model = model

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield each completion as soon as it is there, in any order."""
        if self.model is None:
            raise SamplerError("the sampler $name has no model yet")
        if sampling.top_p < 1 or sampling.top_k:  # refused, since the log-probabilities would be those of another distribution
            raise ConfigError("the sampler $name samples from all tokens; leave top_p and top_k unset")
        for index, request in enumerate(requests):
            if len(request.prompt) > self.max_prompt:  # one request that fails, not the run
                yield index, Completion([], [], "error", f"the prompt has {len(request.prompt)} tokens; at most {self.max_prompt} are read")
            else:
                yield index, self._complete(request, sampling)

    @torch.inference_mode()
    def _complete(self, request: Request, sampling: SamplingParams) -> Completion:
        was_training, rng = self.model.training, torch.Generator().manual_seed(request.seed)  # the seed alone decides
        self.model.eval()
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < request.max_tokens and not (tokens and tokens[-1] in sampling.stop_ids):
            row = torch.tensor([[*request.prompt, *tokens]], device=self.model.device)
            logits = self.model(input_ids=row, use_cache=False).logits[0, -1].float().cpu()
            if sampling.temperature:
                all_logprobs = (logits / sampling.temperature).log_softmax(-1)
                tokens.append(int(torch.multinomial(all_logprobs.exp(), 1, generator=rng)))
                logprobs.append(float(all_logprobs[tokens[-1]]))
            else:  # greedy: the only choice, so its log-probability is 0
                tokens.append(int(logits.argmax()))
                logprobs.append(0.0)
        self.model.train(was_training)
        return Completion(tokens, logprobs, "stop" if tokens[-1] in sampling.stop_ids else "length")
'''

ALGORITHM = '''\
"""$title: GRPO with the median of the group as baseline. A template: change the advantage or the loss, keep the structure.

    A_i = R_i - median of the group's rewards
    L = GRPO's

paper    none; name the paper that it implements, and the differences
"""

from __future__ import annotations

import statistics

from rlvr.algorithms.base.algorithm_spec import declare_traits
from rlvr.algorithms.base.policy_gradient import define_policy_gradient
from rlvr.algorithms.functions.answer_batch import Advantages, AnswerBatch
from rlvr.algorithms.grpo import loss


@declare_traits("requires_group", "skips_zero_variance")  # it compares the answers of a group; a group of equal rewards has no advantage
def advantage(answers: AnswerBatch, *, scale: float = 1.0) -> Advantages:
    """The reward minus the median of the group. The keyword arguments are settings."""
    found = []
    for group in answers.rewards:  # None for an answer without a score
        middle = statistics.median([reward for reward in group if reward is not None] or [0.0])
        found.append([0.0 if reward is None else scale * (reward - middle) for reward in group])
    return found


make = define_policy_gradient(__name__, __doc__, advantage, loss, loss_aggregation="token-mean")
'''

ENV_TEMPLATES = {
    "question": ENV,
    "conversation": env_templates.CONVERSATION,
    "tools": env_templates.TOOLS,
    "box": env_templates.BOX,
}
"""The templates of environments, by the value of --kind."""
BOX_CHECK_SETTINGS = ', sandbox={"name": "process", "trusted": True}'
"""Settings with which the test of a box runs without a container engine."""
TEMPLATES = {"env": ENV, "verifier": VERIFIER, "tool": TOOL, "sampler": SAMPLER, "algorithm": ALGORITHM}
USAGE_COMMANDS = {
    "env": "rlvr eval $name --policy scripted:gold\nrlvr train RECIPE env=$name",
    "verifier": "rlvr verify $name --reference Paris --answer PARIS",
    "tool": "rlvr show tool $name --json",
    "sampler": "rlvr train quickstart rollout.sampler=$name",
    "algorithm": "rlvr train quickstart algorithm=$name",
}


def write_plugin_package(kind: str, name: str, *, out: Path | None, json: bool, env_kind: str = "") -> None:
    """Write a plugin package and print the next steps; `env_kind` chooses the template of an environment."""
    wanted = get_kind(kind).name
    if env_kind and wanted != "env":
        raise ConfigError(f"--kind {env_kind} chooses the template of an environment, and a {wanted} has only one; leave it out")
    if env_kind and env_kind not in ENV_TEMPLATES:
        raise ConfigError(f"--kind is {env_kind!r}; {format_suggestion(env_kind, ENV_TEMPLATES)}")
    if wanted not in USAGE_COMMANDS:
        raise ConfigError(f"there is no template for a {wanted}; {format_suggestion(wanted, USAGE_COMMANDS)}")
    _check_plugin_name(wanted, name)
    package = f"rlvr_{name}"
    if out is None and (Path(package.replace("_", "-")).exists() or find_spec(package) is not None):
        package = f"rlvr_{name}_{wanted}"  # a plugin of another kind has this name
    dist = package.replace("_", "-")
    folder = out if out is not None else Path(dist)
    if folder.exists():
        raise ConfigError(f"{folder} exists and is not overwritten; choose another --out")
    words = {
        "kind": wanted,
        "plural": get_kind(wanted).plural,
        "name": name,
        "dist": dist,
        "package": package,
        "contract": str(CONTRACT_VERSION),
        "rlvr": rlvr.__version__,
        "settings": BOX_CHECK_SETTINGS if env_kind == "box" else "",
        "cls": "make" if wanted == "algorithm" else "".join(part.capitalize() for part in name.split("_")),
        "title": name.replace("_", " ").strip().capitalize(),
    }
    words["use"] = Template(USAGE_COMMANDS[wanted]).substitute(words)
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{package}/__init__.py": ENV_TEMPLATES[env_kind] if env_kind else TEMPLATES[wanted],
        f"{package}/py.typed": "",
        f"tests/test_{name}.py": TEST,
    }
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(Template(text).substitute(words), "utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; choose another --out") from error
    if json:
        screen.print_json({"kind": wanted, "name": name, "folder": str(folder), "files": sorted(files)})
        return
    console = screen.make_stdout_console()
    console.print(Text(f"{folder}/", style="bold"))
    for path in sorted(files):
        console.print(Text(f"  {path}"))
    console.print(Text(f"\npip install -e {folder}\nrlvr check {wanted} {name}\n{words['use']}"))


def _check_plugin_name(kind: str, name: str) -> None:
    if not PLUGIN_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is not a valid name for a {kind}; use lower-case letters, digits and underscores, such as chess_mate")
    taken = next((entry for entry in list_entries(kind) if entry.name == name), None)
    if taken:
        raise ConfigError(f"the {kind} {name!r} exists already, in {taken.source}; choose another name")


def write_env_export(
    name: str, format_name: str, *, out: Path, split: str, count: int | None, setting_pairs: Sequence[str], json: bool
) -> None:
    """Write an environment for another trainer or evaluator, and print how to use the files."""
    written = export_env(name, format_name, out, settings=parse_settings(setting_pairs), split=split, count=count)
    if json:
        screen.print_json({"folder": str(written.folder), "files": list(written.files), "tasks": written.rows, "use": written.usage})
        return
    console = screen.make_stdout_console()
    for file in written.files:
        console.print(Text(f"wrote {written.folder / file}"))
    console.print(Text(f"{written.rows} tasks. {written.usage}"))
