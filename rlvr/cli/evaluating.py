"""`rlvr eval`: run or rescore an evaluation, and print its tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import make_cluster_overrides, parse_settings
from rlvr.config.cluster import ClusterConfig
from rlvr.config.overrides import apply_overrides
from rlvr.config.section import validate_section
from rlvr.contracts import Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.evaluation.episode_sources import EnvRequests, EpisodeSource
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.report import EvalReport, list_warnings, print_report
from rlvr.evaluation.rescore import rescore
from rlvr.evaluation.runner import TokenPrice
from rlvr.evaluation.samples import ROWS_FILE
from rlvr.evaluation.suite import SuiteItem
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.rollout_request import RolloutRequest


def rescore_run(
    run: Path,
    *,
    setting_pairs: Sequence[str],
    sampling_options: Mapping[str, object],
    out: Path | None,
    select: str,
    allow_unscored: bool,
    json: bool,
) -> int:
    """Verify the samples of a run again; returns 1 if a headline is withheld. No option of `sampling_options` may be set."""
    given = [
        f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}" for name, value in sampling_options.items() if value is not None
    ]
    if given:
        raise ConfigError(f"--rescore verifies the samples of {run} and samples nothing, so {', '.join(given)} has no effect; leave it out")
    report = rescore(run, out=out, settings=parse_settings(setting_pairs), select=select, console=screen.make_stderr_console())
    return _print_result(report, allow_unscored=allow_unscored, json=json)


def eval_suite(
    suite: str,
    policy: str,
    *,
    setting_pairs: Sequence[str],
    eval_settings: Mapping[str, Any],
    out: Path | None,
    price: str,
    allow_unscored: bool,
    json: bool,
    cluster: str = "",
) -> int:
    """Measure a policy on a suite and print the result; returns 1 if a headline metric is withheld because too many samples are
    unscored.
    """
    console, asked = screen.make_stderr_console(), _parse_price(price)
    elsewhere = ClusterSampling.from_cli(cluster, out, console) if cluster else None
    report = evaluate(
        suite,
        policy,
        settings=parse_settings(setting_pairs),
        out=out,
        console=console,
        price=asked,
        remote_sampling=elsewhere,
        **eval_settings,
    )
    return _print_result(report, allow_unscored=allow_unscored, json=json, price=asked)


class ClusterSampling:
    """Remote sampling for `rlvr eval --cluster`: a cluster's rollout workers sample the episodes. Ray is imported only when it is
    needed.
    """

    def __init__(self, settings: ClusterConfig, out: Path | None, console: Console) -> None:
        self.settings, self.out, self.console = settings, out, console

    @classmethod
    def from_cli(cls, cluster_option: str, out: Path | None, console: Console) -> ClusterSampling | None:
        """Parse `--cluster`. None if it asks for 0 rollout workers, so that this process samples; ConfigError for unsupported settings."""
        settings = validate_section(
            ClusterConfig, apply_overrides({}, make_cluster_overrides(cluster_option)).get("cluster", {}), "--cluster"
        )
        for name in ("verifier_workers", "max_resumes_after_all_rollout_workers_lost"):
            if value := getattr(settings, name):
                raise ConfigError(
                    f"cluster.{name} is {value}, but rollout workers of an evaluation verify their own samples and do not resume by themselves; "
                    f"remove it (the same command with --out continues an interrupted evaluation)"
                )
        if "task_timeout_s" not in settings.model_fields_set:  # a call samples a whole round, which has no time limit in one process either
            settings = settings.model_copy(update={"task_timeout_s": math.inf})
        return cls(settings, out, console) if settings.rollout_workers else None

    @contextmanager
    def __call__(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> Iterator[EpisodeSource]:
        """Start the rollout workers of a policy and keep them for all environments."""
        from rlvr.cluster.driver import Driver
        from rlvr.cluster.event_log import EventLog
        from rlvr.cluster.ray_transport import RayTransport
        from rlvr.cluster.rollout_worker import EvalWorkerSettings, check_sampler_supported

        check_sampler_supported(sampler, spec.name)
        torch = sys.modules.get("torch")
        exam = EvalWorkerSettings(spec, tuple(items), torch.get_num_threads() if torch else 0)
        with ExitStack() as stack:
            actors = RayTransport(self.settings, {}, exam)
            stack.callback(actors.close)
            count = self.settings.rollout_workers
            self._log(f"starting {count} rollout worker{'s' if count > 1 else ''} (cluster.address {self.settings.address!r})")
            driver = stack.enter_context(Driver(actors, self.settings, log=self._log, record=EventLog(self.out, ROWS_FILE)))
            driver.wait_for_worker()
            yield ClusterEpisodeSource(driver, sampler)

    def _log(self, line: str) -> None:
        self.console.print(Text(f"note: {line}"), soft_wrap=True)


class ClusterEpisodeSource:
    """Streams the episodes that rollout workers sample. All batches are submitted at once, so that no environment waits for another."""

    def __init__(self, driver: Any, sampler: Sampler) -> None:
        self.driver, self.sampler = driver, sampler

    def stream_episodes(self, requests: Iterable[EnvRequests]) -> Iterator[list[tuple[RolloutRequest, Episode]]]:
        """Yield each batch of requests with their episodes as soon as the whole batch is sampled and verified."""
        from rlvr.cluster.checks.episode_fields import EpisodeLimits

        begun = dict[Any, Sequence[RolloutRequest]]()
        for one in requests:
            limits = EpisodeLimits.from_mdp(one.mdp, may_count_own_tokens=True)
            for call in self.split_batches(one):
                begun[self.driver.start_rollout(call, one.sampling, as_one_task=True, limits=limits)] = call
        while begun:
            batch = self.driver.wait_for_any(*begun)
            yield list(zip(begun.pop(batch), batch.result(), strict=True))

    def split_batches(self, requests: EnvRequests) -> Iterator[Sequence[RolloutRequest]]:
        """Split the batches into smaller ones for the rollout workers, except where answers depend on the other requests of a batch."""
        from rlvr.cluster.rollout_tasks import SINGLES_PER_TASK

        for batch in requests.batches:
            each = len(batch)
            if not self.sampler.traits.eval_batch_size:
                each = math.ceil(len(batch) / self.driver.settings.rollout_workers)
                each = min(each, 2 * getattr(self.sampler, "concurrency", 0) or SINGLES_PER_TASK)
            yield from (batch[start : start + each] for start in range(0, len(batch), each))


def _print_result(report: EvalReport, *, allow_unscored: bool, json: bool, price: TokenPrice | None = None) -> int:
    if json:
        for name in report.withheld_envs if not allow_unscored else ():  # JSON has the counts; stderr says why a metric is null
            screen.make_stderr_console().print(Text("\n".join(list_warnings(report.envs[name], allow_unscored))), soft_wrap=True)
        screen.print_json(report.to_dict(allow_unscored=allow_unscored, price=price))
    else:
        print_report(screen.make_stdout_console(), report, allow_unscored=allow_unscored, price=price)
    return 1 if report.withheld_envs and not allow_unscored else 0


def _parse_price(text: str) -> TokenPrice | None:
    """Parse `READ,WRITTEN`, the prices of a million input and output tokens."""
    if not text:
        return None
    try:
        read, written = (float(part) for part in text.split(","))
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise ValueError("a price is negative or infinite")
    except ValueError as error:
        raise ConfigError(f"--price {text!r} is not READ,WRITTEN, the prices of a million tokens; for example --price 0.25,1.25") from error
    return TokenPrice(read, written)
