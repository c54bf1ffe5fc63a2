"""The data sets of reasoning_gym, verified more strictly: full score or none, and no answer is executed in our processes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from threading import Lock
from typing import Any

from rlvr.contracts import Environment, Sandbox, Verifier, VerifierExample
from rlvr.envs._algebra import get_required_metadata, is_gold_comparable, verify_without_package_scorer
from rlvr.envs.external._foreign_host import ForeignError, ForeignHost, ForeignInstanceProxy, ForeignProcessLost, ForeignRaised
from rlvr.envs.external._reasoning_catalog import (
    COMPARED_BY_ALGEBRA,
    COMPARED_EXACTLY,
    COMPARED_IN_SANDBOX,
    DATASET_NAMES,
    UNSUPPORTED,
    VERSION,
    WITHOUT_GOLD,
    are_lines_equal,
    describe_scoring,
    is_well_formed,
)
from rlvr.errors import ConfigError, RlvrError, format_suggestion, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict, make_user_prompt

MAX_QUESTION_DRAWS = 128
"""Number of questions drawn to find one that belongs to the split."""
MAX_ANSWER_CHARS = 20_000
"""Longest answer in characters; a longer one is wrong."""
INSTRUCTION = "Write your final answer, and nothing else, between <answer> and </answer>."
CALL_TIMEOUT_S = 30.0


class ReasoningGymVerifier(Verifier):
    """Verify an answer to a question of reasoning_gym: 1 if the package gives the full score to a well-formed answer, else 0."""

    version = f"1+{VERSION}"
    examples = (VerifierExample({"number": 0, "gold": "12"}, correct=("<answer>12</answer>",), incorrect=("", "12 or 13")),)

    def __init__(self, *, dataset: str, config: Mapping[str, Any], extractor: str, sandbox: Sandbox | None, python: str = "") -> None:
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        self.dataset, self.config, self.extractor, self.sandbox = dataset, dict(config), extractor, sandbox
        self.host = ForeignHost(
            "rlvr.envs.external._reasoning_worker:ReasoningDataset", extra="reasoning_gym", call_timeout_s=CALL_TIMEOUT_S, python=python
        )
        self._idle: list[ForeignInstanceProxy] = []
        self._lock = Lock()

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Extract the answer, check its form, and score it with the package."""
        number, gold = task.reference["number"], task.reference["gold"]
        found = extract_answer(answer, self.extractor)
        if found.text is None or not found.text.strip():
            return Verdict(0.0, f"no answer: {found.reason}")
        said = found.text.strip()
        if len(said) > MAX_ANSWER_CHARS:
            return Verdict(0.0, f"the answer has {len(said):,} characters, at most {MAX_ANSWER_CHARS:,} are read")
        try:
            said.encode()
        except UnicodeEncodeError:
            return Verdict(0.0, "the answer is no valid text: it holds lone surrogates")
        try:
            if self.dataset in COMPARED_EXACTLY:
                others = self.call_instance("get_metadata", number=number, names=["valid_answers"]) if self.dataset == "n_queens" else {}
                right = are_lines_equal(said, str(gold)) or any(are_lines_equal(said, other) for other in others.get("valid_answers", ()))
                return Verdict(float(right), f"{said!r:.80} is {'right' if right else 'wrong'}")
            if self.dataset in COMPARED_BY_ALGEBRA:
                facts = self.call_instance("get_metadata", number=number, names=list(get_required_metadata(self.dataset)))
                return verify_without_package_scorer(self.dataset, said, facts, gold, self.sandbox)
            if not is_well_formed(self.dataset, said, gold):
                return Verdict(0.0, f"{said!r:.80} does not have the form of an answer")
            return self._score_by_package(number, said, gold)
        except RlvrError as error:
            return Verdict(None, f"reasoning_gym could not score it: {error}", fault=Fault.INFRA)

    def call_instance(self, method: str, **given: Any) -> Any:
        """Call a method of an idle instance, or of a new one if none is idle.

        An instance that timed out is discarded.
        """
        with self._lock:
            world = self._idle.pop() if self._idle else None
        if world is None:
            world = self.host.new_instance(dataset=self.dataset, config=self.config)
        try:
            answer = world.call(method, **given)
        except ForeignProcessLost:
            raise
        except ForeignRaised:
            self._return_instance(world)
            raise
        self._return_instance(world)
        return answer

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for world in idle:
            world.close()
        self.host.close()

    def _return_instance(self, world: ForeignInstanceProxy) -> None:
        with self._lock:
            self._idle.append(world)

    def _score_by_package(self, number: int, answer: str, gold: str | None) -> Verdict:
        try:
            found = self.call_instance("score", number=number, answer=answer)
        except ForeignError as error:
            return self._find_fault(number, gold, error)
        score = found["score"]
        if isinstance(score, float) and math.isfinite(score) and -1e-9 <= score < 1 - 1e-9:
            stopped = "; its scorer was stopped from executing the answer" if found["stopped"] else ""
            return Verdict(0.0, f"{answer!r:.80} is wrong{stopped}", detail={"reasoning_gym": score})
        if isinstance(score, float) and abs(score - 1.0) <= 1e-9:
            return Verdict(1.0, f"{answer!r:.80} is right")
        return Verdict(None, f"the scorer of {self.dataset} gave {score!r:.80}; it must be a number from 0 to 1", fault=Fault.INFRA)

    def _find_fault(self, number: int, gold: str | None, error: ForeignError) -> Verdict:
        """Find the fault of a failed scorer: the answer's, if the scorer accepts another answer."""
        try:
            self.call_instance("score", number=number, answer=gold if gold is not None else "")
        except ForeignError as other:
            return Verdict(None, f"the scorer of {self.dataset} failed: {other}", fault=Fault.INFRA)
        return Verdict(0.0, f"the scorer of {self.dataset} cannot read the answer: {error}"[:400], fault=Fault.ANSWER)


class ReasoningGym(Environment):
    """One data set of reasoning_gym: generated puzzles of arithmetic, algebra, logic, games, graphs and more.

    Questions are generated by number, and a hash of the text puts each question into one split, so no question is in both, for any
    seed. Answers are verified in another process. `rlvr list envs --catalog reasoning_gym` shows the data sets.

    >>> import rlvr
    >>> env = rlvr.make_env("reasoning_gym", dataset="gcd")  # doctest: +SKIP
    >>> env.task("train", 0).question  # doctest: +SKIP
    'Find the Greatest Common Divisor (GCD) of these numbers: 297, 30. ...'
    """

    choice = "dataset"
    """Name of the setting whose value is a name of the catalog."""
    needs = {"sandbox": "auto"}
    max_prompt_tokens = 8192
    max_new_tokens = 2048

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        dataset: str = "chain_sum",
        config: Mapping[str, Any] | None = None,
        extractor: str = "tag",
        seed: int = 0,
        instruction: str = INSTRUCTION,
        python: str = "",
    ) -> None:
        """Choose the data set.

        Args:
            sandbox: compares formulas, for the two data sets of integrals that need it; the others never start it.
            dataset: its name; `rlvr list envs --catalog reasoning_gym` shows all.
            config: its settings, such as {"min_terms": 2}, without seed and size.
            extractor: how the answer is extracted: tag, boxed, whole, auto and so on.
            seed: another seed gives other questions.
            instruction: the text after each question.
            python: the interpreter of an environment that has reasoning-gym; empty: this one.
        """
        if dataset in UNSUPPORTED:
            raise ConfigError(f"the data set {dataset!r} is not offered: {UNSUPPORTED[dataset]}")
        if dataset not in DATASET_NAMES:
            raise ConfigError(f"reasoning_gym {VERSION} has no data set {dataset!r}; {format_suggestion(str(dataset), DATASET_NAMES)}")
        config = dict(config or {})
        if given := sorted({"seed", "size"} & set(config)):
            raise ConfigError(f"config sets {', '.join(given)}; the environment chooses these itself: use its own setting seed")
        self.sandbox = sandbox
        self.dataset, self.config, self.seed, self.instruction = dataset, config, seed, instruction
        self.verifier = self.package_verifier = ReasoningGymVerifier(
            dataset=dataset, config=config, extractor=extractor, sandbox=sandbox, python=python
        )
        self.extractor = extractor
        self._tasks: dict[tuple[str, int], Task] = {}

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [
            {"name": name, "offered": "no gold" if name in WITHOUT_GOLD else "yes", "why": describe_scoring(name)}
            for name in sorted(DATASET_NAMES)
        ]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in sorted(UNSUPPORTED.items())]

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index` of the split.

        That is the first question drawn for the index whose text belongs to the split.
        """
        if split not in self.splits:
            raise ConfigError(f"reasoning_gym has no split {split!r}; allowed: {', '.join(self.splits)}")
        if (split, index) not in self._tasks:
            if len(self._tasks) > 10_000:
                self._tasks.clear()
            self._tasks[split, index] = self._make_task(split, index)
        return self._tasks[split, index]

    def gold(self, task: Task) -> str | None:
        """Return the gold answer in the form that the extractor reads; None if the data set has none."""
        gold = task.reference["gold"]
        if gold is None:
            return None
        return {"tag": f"<answer>{gold}</answer>", "boxed": f"\\boxed{{{gold}}}"}.get(self.extractor, str(gold))

    def prepare(self) -> None:
        """Start the process of the package, and the sandbox for data sets that need it."""
        about = self.package_verifier.host.ensure_started()
        if about["version"] != VERSION:
            python = f"{self.package_verifier.host.python} -m " if self.package_verifier.host.python else ""
            raise ConfigError(
                f"reasoning_gym {about['version']} is installed, {VERSION} is needed: {python}pip install reasoning-gym=={VERSION}"
            )
        if self.dataset in COMPARED_IN_SANDBOX and self.sandbox is not None:
            self.sandbox.prepare()

    def _make_task(self, split: str, index: int) -> Task:
        for attempt in range(MAX_QUESTION_DRAWS):
            number = int.from_bytes(hashlib.blake2b(f"{self.seed}/{split}/{index}/{attempt}".encode(), digest_size=4).digest()) >> 1
            try:
                item = self.package_verifier.call_instance("get_question_and_answer", number=number)
            except ForeignRaised as error:
                raise ConfigError(f"reasoning_gym cannot make {self.dataset} with {self.config!r:.200}: {error}") from error
            question, gold = item["question"], item["answer"]
            if (gold is None or (gold.strip() and is_gold_comparable(self.dataset, gold))) and (split == "test") == is_held_out(question):
                text = f"{question}\n\n{self.instruction}" if self.instruction else question
                reference = {"number": number, "gold": gold}
                return Task(make_user_prompt(text), reference, id=f"reasoning_gym/{self.dataset}/{split}/{self.seed}.{index}")
        raise ConfigError(f"{self.dataset} with {self.config!r:.200} has hardly any {split} question; choose other settings")


def is_held_out(question: str) -> bool:
    """Return whether a question is held out: one in four, by a hash of its text.

    >>> is_held_out("1 + 1 ="), is_held_out("4 + 1 =")
    (False, True)
    """
    return hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % 4 == 0


make = ReasoningGym
