"""Run an evaluation in one process: sample missing answers, store each sample as soon as it is verified, show progress."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console

from rlvr.contracts import Environment, Sampler, Tokenizer
from rlvr.episode import Episode
from rlvr.errors import ConfigError, EnvError
from rlvr.evaluation.episode_sources import EnvRequests, EpisodeSource, LocalEpisodeSource, RemoteSourceFactory, make_mdp
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.samples import TIMES_FILE, Key, SampleStore, digest_prompt_and_reference, wrap_write_errors
from rlvr.evaluation.statistics import format_mean
from rlvr.evaluation.suite import SuiteItem
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.transcript import decode_messages_after_prompt
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.rollout import RolloutRequest
from rlvr.runs.progress import ProgressReporter
from rlvr.runs.run_log import episode_to_json, read_jsonl

TIME_STORE_INTERVAL_S = 5.0
"""Interval at which the elapsed time is stored, so that a killed process does not lose it."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """The price of a million input tokens and of a million output tokens.

    >>> TokenPrice(0.5, 2.0).compute_cost(1_000_000, 500_000)
    1.5
    """

    input_price: float = 0.0
    output_price: float = 0.0

    def compute_cost(self, input_tokens: int, output_tokens: int) -> float:
        """Compute the cost of this many input and output tokens."""
        return (input_tokens * self.input_price + output_tokens * self.output_price) / 1e6


class EvalRunner:
    """Runs an evaluation in this process, and resumes from the stored samples."""

    def __init__(
        self,
        plan: EvalPlan,
        sample_store: SampleStore,
        *,
        concurrency: int | None = None,
        retry: bool = False,
        price: TokenPrice | None = None,
        console: Console | None = None,
        remote_sampling: RemoteSourceFactory | None = None,
    ) -> None:
        """Set up the run; `remote_sampling` samples in other processes instead of this one."""
        self.plan, self.sample_store, self.concurrency, self.price, self.remote_sampling = (
            plan,
            sample_store,
            concurrency,
            price,
            remote_sampling,
        )
        self.console = console or Console(quiet=True)
        self.stored_keys = {key for key, sample in sample_store.samples.items() if sample.score is not None or not retry}
        scores = [sample_store.samples[key].score for key in self.stored_keys]
        self.are_fractions = all(0 <= (score or 0.0) <= 1 for score in scores)
        self.score_sum, self.num_scored = sum(score or 0.0 for score in scores), sum(score is not None for score in scores)
        self._tokenizers: dict[str, Tokenizer] = {}
        """The tokenizer of each environment that is being sampled."""
        self.num_samples = self.output_tokens = self.input_tokens = self.num_turns = self.num_calls = 0
        self.start_time = self.last_store_time = time.perf_counter()
        self.attempt_id = str(time.time_ns())

    def run(
        self, specs: Mapping[str, PluginSpec], environments: Mapping[str, Environment], requests: Mapping[str, Sequence[RolloutRequest]]
    ) -> None:
        """Sample and store the answers that are missing, one environment after the other.

        The policy is not loaded if nothing is missing. `specs` has the policy's sampler for each environment; consecutive environments with
        the same sampler share it.
        """
        gone = self.sample_store.samples.keys() - {
            get_sample_key(request) for item_requests in requests.values() for request in item_requests
        }
        if gone:
            name, index, _ = min(gone)
            raise ConfigError(f"{name} has no task {index} any more, which was sampled; restore the data, or choose another --out")
        for item_requests in requests.values():
            self._check_questions_unchanged(item_requests)
        todo = [item for item in self.plan.envs if any(get_sample_key(request) not in self.stored_keys for request in requests[item.name])]
        if not todo:
            return
        for item in todo:
            environments[item.name].prepare()
        total = sum(map(len, requests.values()))
        shown = ProgressReporter(self.console, "samples", total, len(self.stored_keys), initial_delay_s=TIME_STORE_INTERVAL_S)
        with self._report_interruption(total), shown as work:
            for spec, group in groupby(todo, key=lambda item: specs[item.name]):
                items = list(group)
                with spec.build() as sampler, self._open_episode_source(spec, sampler, items) as answers:
                    self.sample_store.remove_report_and_extend_plan()
                    work.reset_timer()
                    asked = (self._make_env_requests(item, environments[item.name], sampler, requests[item.name]) for item in items)
                    for found in answers.stream_episodes(asked):
                        # already stored samples were only sampled again to fill the batch
                        if new := [(request, episode) for request, episode in found if get_sample_key(request) not in self.stored_keys]:
                            for request, episode in new:
                                self._store_sample(episode, request)
                            work.advance(self._progress_metrics(), len(new))
                            self._store_elapsed_time()
        self._store_elapsed_time(last=True)

    @contextmanager
    def _report_interruption(self, total: int) -> Iterator[None]:
        """Say after Ctrl-C how far the evaluation is, and how it goes on."""
        try:
            yield
        except KeyboardInterrupt:
            kept = (
                f"they are in {self.sample_store.folder}, and the same command continues"
                if self.sample_store.folder
                else "without --out they are lost"
            )
            self.console.print(f"stopped after {len(self.stored_keys) + self.num_samples} of {total} samples; {kept}", highlight=False)
            raise

    @contextmanager
    def _open_episode_source(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> Iterator[EpisodeSource]:
        """Open the source of episodes. If other processes sample, this process does not load the model."""
        if self.remote_sampling is not None:
            with self.remote_sampling(spec, sampler, items) as answers:
                yield answers
            return
        sampler.prepare()
        yield LocalEpisodeSource(sampler)

    def _check_questions_unchanged(self, requests: Sequence[RolloutRequest]) -> None:
        """Raise if a task that has samples asks something else now, because its metrics would mix two questions."""
        for request in requests:
            sample = self.sample_store.samples.get(get_sample_key(request))
            if sample is not None and sample.question_digest != digest_prompt_and_reference(request.task):
                raise ConfigError(
                    f"task {request.task.id!r} has another prompt or reference now than when it was sampled; restore the data, "
                    f"or choose another --out (--rescore judges old samples against corrected references)"
                )

    def _make_env_requests(
        self, item: SuiteItem, environment: Environment, sampler: Sampler, requests: Sequence[RolloutRequest]
    ) -> EnvRequests:
        mdp = make_mdp(item, environment, sampler)
        _check_prompt_room(mdp, requests)
        self._tokenizers[item.name] = mdp.tokenizer
        sampling = self.plan.make_sampling(item, mdp.tokenizer.stop_ids)
        return EnvRequests(item, mdp, sampling, list(self._iter_batches(sampler, requests)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of this run."""
        return time.perf_counter() - self.start_time

    def _iter_batches(self, sampler: Sampler, requests: Sequence[RolloutRequest]) -> Iterator[Sequence[RolloutRequest]]:
        """Yield batches of requests. If batch composition affects the last bits of an answer, a batch always has the same members."""
        if not sampler.traits.eval_batch_size:
            yield [request for request in requests if get_sample_key(request) not in self.stored_keys]
            return
        size = self.concurrency or sampler.traits.eval_batch_size
        # requests that were added when the evaluation grew have their own batches
        for _, stage in groupby(requests, key=lambda request: self.plan.find_extension_stage(*get_sample_key(request))):
            together = list(stage)
            for start in range(0, len(together), size):
                asked = together[start : start + size]
                if any(get_sample_key(request) not in self.stored_keys for request in asked):
                    yield asked

    def _store_sample(self, episode: Episode, request: RolloutRequest) -> None:
        row = {**episode_to_json(0, episode, []), "reference": request.task.reference}
        if episode.turns > 1 and not row.get("session"):  # the tokens alone say it to nobody who has not the tokenizer
            messages = decode_messages_after_prompt(row, self._tokenizers[get_sample_key(request)[0]])
            row |= {"messages": messages} if messages else {}
        sample = self.sample_store.append(row)
        self.num_samples += 1
        self.output_tokens += sample.tokens
        self.input_tokens += sample.prompt_tokens
        self.num_turns += sample.conversation_stats.turns
        self.num_calls += sample.conversation_stats.calls or 0
        if sample.score is not None:
            self.score_sum, self.num_scored = self.score_sum + sample.score, self.num_scored + 1
            self.are_fractions &= 0 <= sample.score <= 1

    def _progress_metrics(self) -> dict[str, float | str]:
        rate = self.output_tokens / max(self.elapsed_s, 1e-9)
        numbers: dict[str, float | str] = {
            "average": format_mean(self.score_sum / max(self.num_scored, 1), is_fraction=self.are_fractions),
            "tokens/s": f"{rate:.0f}",
        }
        if self.num_turns > self.num_samples or self.num_calls:
            numbers |= {"turns": f"{self.num_turns / self.num_samples:.3g}", "calls": f"{self.num_calls / self.num_samples:.3g}"}
        if unscored := len(self.stored_keys) + self.num_samples - self.num_scored:
            numbers["unscored"] = str(unscored)
        if self.price:
            numbers["cost"] = f"{self.price.compute_cost(self.input_tokens, self.output_tokens):.2f}"
        return numbers

    def _store_elapsed_time(self, *, last: bool = False) -> None:
        now = time.perf_counter()
        if self.sample_store.folder is None or (now - self.last_store_time < TIME_STORE_INTERVAL_S and not last):
            return
        self.last_store_time = now
        line = {
            "attempt": self.attempt_id,
            "seconds": round(now - self.start_time, 3),
            "samples": self.num_samples,
            "tokens": self.output_tokens,
        }
        with wrap_write_errors(self.sample_store.folder), (self.sample_store.folder / TIMES_FILE).open("a", encoding="utf-8") as times:
            times.write(json.dumps(line) + "\n")


def _check_prompt_room(mdp: TokenMDP, requests: Sequence[RolloutRequest]) -> None:
    """Raise if no prompt leaves room for an answer, because the limits are wrong; if only some do not, only their answers fail."""
    why: EnvError | None = None
    for request in requests:
        try:
            mdp.preview_prompt(request.task)
            return
        except EnvError as error:
            why = why or error
    if why is not None:
        raise why


def get_sample_key(request: RolloutRequest) -> Key:
    """Return the key of the sample that a request asks for."""
    return str(request.meta["env"]), int(str(request.meta["index"])), int(str(request.meta["sample"]))


def load_time_and_token_totals(folder: Path) -> tuple[float, int]:
    """Load the total seconds and output tokens of all attempts at an evaluation, killed ones included."""
    if not (folder / TIMES_FILE).is_file():
        return 0.0, 0
    last = {row["attempt"]: (row["seconds"], row["tokens"]) for row in read_jsonl(folder / TIMES_FILE)}
    return sum(seconds for seconds, _ in last.values()), sum(tokens for _, tokens in last.values())
