"""The trainer: a run from its configuration to its report.

    with Trainer("quickstart", out="runs/a") as trainer:
        report = trainer.fit()

Constructing a trainer does everything that comes before the first step: it builds and checks the components, opens the run folder, and
either restores the newest checkpoint or trains the SFT warmup, if there is one. `fit` then evaluates, and repeats `step`:

    tasks -> episodes -> update -> weights to the sampler -> metrics -> callbacks (logs, checkpoints, notes, the user's own)

Sampling carries no random state from step to step: tasks and seeds are functions of the run's seed, the step's number and the position in
the task order. A checkpoint has the generators of the update (the order of minibatches, torch's own). So a run that was killed and resumed
has the final weights of one that was not: to the bit where `rlvr.models.determinism`
holds (on a CPU), up to rounding elsewhere.

Under `accelerate launch` every process runs this on its share of the groups; only the main process writes.
"""

from __future__ import annotations

import functools
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import transformers
from accelerate import Accelerator, DistributedType
from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.episode import Episode
from rlvr.errors import CheckFailed, ConfigError
from rlvr.hints import Hinted, add_usage_to_errors
from rlvr.models.determinism import configure_device
from rlvr.models.device import resolve_device
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.numerics_check import format_check_results, has_experts
from rlvr.runs.conversation_stats import compute_conversation_metrics
from rlvr.runs.plugin_record import record_plugins, warn_about_plugin_changes
from rlvr.runs.progress import ProgressReporter
from rlvr.runs.run import Run
from rlvr.runs.run_log import RunLog, TokenDiagnostics, is_empty_run, lock_run_folder, read_metrics
from rlvr.runs.tables import EscapingConsole
from rlvr.synonyms import accept_synonyms
from rlvr.training import checkpoint
from rlvr.training.batch_sources import (
    RolloutBatch,
    check_batch_source_unchanged,
    check_sampling_supported,
    count_policy_tokens,
    make_batch_source,
)
from rlvr.training.callbacks import (
    Callback,
    CanaryGuard,
    PeriodicCheckpoints,
    ProgressLine,
    RewardCurve,
    RunLogWriter,
    StepRecord,
    check_callbacks,
)
from rlvr.training.components import ComponentBuilder, build_components, build_learner
from rlvr.training.held_out import (
    build_sub_environment_metrics,
    compute_held_out_score,
    compute_mean_scores_by_env,
    count_held_out_and_contaminated,
    count_unscored,
    estimate_score_interval,
    has_partial_scores,
    sample_held_out,
)
from rlvr.training.processes import (
    build_accelerator,
    get_local_shard,
    monitor_peers,
    run_and_all_gather,
    run_on_main,
    wrap_peer_loss_errors,
)
from rlvr.training.run_health import RunHealth
from rlvr.training.run_inputs import resolve_run_inputs
from rlvr.training.run_summary import build_run_table, print_run_table
from rlvr.training.sampler_mismatch import check_logprob_mismatch
from rlvr.training.sft_warmup import run_sft_warmup
from rlvr.training.step_metrics import (
    add_dropped_token_counts,
    compute_sampling_metrics,
    compute_session_timing_metrics,
    compute_token_staleness_metrics,
    drop_baselines_and_canaries,
)
from rlvr.training.step_notes import UnusualMetricNotes
from rlvr.training.stop_signals import StopSignals
from rlvr.training.task_sampling.offline_dataset import check_episodes_unchanged
from rlvr.training.trackers import Trackers
from rlvr.training.train_report import TrainReport
from rlvr.training.transformers_callbacks import wrap_transformers_callbacks
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.learner import UpdateResult
from rlvr.training.update.sharded_tensors import reshard
from rlvr.training.weight_changes import WeightChanges

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Trainer(Hinted):
    """Trains a policy as configured, and writes a run folder.

    A trainer is complete when it is constructed: `fit` runs all steps, `step` one of them. It must be closed, best with `with`.

    >>> with Trainer("quickstart", {"train.steps": 5}, out="runs/a") as trainer:  # doctest: +SKIP
    ...     report = trainer.fit()
    """

    _synonyms = {"history": "log_history"}
    _hints = {
        "learn": "write .fit(); the number of steps is steps= of the trainer",
        "run": "write .fit()",
        "train_step": "write .step()",
        "state": "write .num_completed_steps",
        "push_to_hub": "upload the folder checkpoints/last in trainer.folder, for example with huggingface_hub",
        "add_callback": "write .callbacks.append(callback), or give callbacks=[...]",
    }

    @accept_synonyms
    @add_usage_to_errors
    def __init__(
        self,
        recipe: RunConfig | str | Path | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | Sequence[str] | None = None,
        verifier: Any = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        env: Any = None,
        data: Any = None,
        algorithm: Any = None,
        callbacks: Callback | transformers.TrainerCallback | Sequence[Callback | transformers.TrainerCallback] = (),
        batch_source: Any = None,
        out: str | Path | None = None,
        resume: bool = False,
        console: Console | None = None,
        accelerator: Accelerator | None = None,
        component_builder: ComponentBuilder = build_components,
        **sections: Any,
    ) -> None:
        """Prepare a run up to its first step.

        Args:
            recipe: a configuration, the name of a recipe, a YAML file, a mapping, or None: then env and model must be given.
            settings: values by dotted key that replace those of the recipe: {"train.steps": 5}.
            verifier: with `data`: how answers are scored, as in `rlvr.make_verifier`.
            model: a folder, a Hub id, or a model object, which is trained in place.
            tokenizer: a name or a tokenizer object.
            env: a name, a mapping, or an environment object, which the caller closes.
            data: questions with answers instead of an environment: a file, a list of dicts or of tasks, a data frame, a
                `datasets.Dataset`; or the section `data` of the configuration, a stored run.
            algorithm: a name, a mapping, or an algorithm object.
            callbacks: called after the shipped ones, in order; see `Callback`. Those of transformers are taken, too.
            batch_source: the class of a batch source of your own, a `rlvr.training.batch_sources.SynchronousSource`; to be given again with
                `resume`. None: chosen by the configuration.
            out: the run folder; by default that of the recipe, or one in `runs/` with the time in its name.
            resume: continue the run in `out` from its newest checkpoint; start it if there is none.
            console: where progress is shown; by default standard error.
            accelerator: the accelerator, if the caller has made it.
            component_builder: builds the components; a cluster passes its own.
            sections: sections of the configuration, such as train={"steps": 5}; and keys without their section: those of train, rollout and
                log, of the algorithm (beta=0.04), and with `data` those of the environment (tools=[...], max_turns=3).
        """
        transformers.utils.logging.disable_progress_bar()  # only our own progress bar
        self._started_at, self._seconds_before = time.monotonic(), 0.0
        callbacks = check_callbacks(wrap_transformers_callbacks(callbacks))
        inputs = resolve_run_inputs(
            recipe, settings, model=model, tokenizer=tokenizer, env=env, data=data, verifier=verifier, algorithm=algorithm, **sections
        )
        inputs = replace(inputs, batch_source=batch_source)
        if getattr(batch_source, "is_off_policy", False) is True:
            config = inputs.config
            inputs = replace(inputs, config=config.model_copy(update={"rollout": config.rollout.copy_for_off_policy_source()}))
        self._batch_source_class = getattr(batch_source, "__qualname__", None)
        self.config = config = inputs.config
        out = config.out if out is None else out
        check_arguments(config, out, resume=resume, has_custom_builder=component_builder is not build_components)
        with ExitStack() as outer:  # closes everything again if the preparation fails
            if accelerator is None:
                configure_device(config, resolve_device())
                accelerator = build_accelerator(config, Path(out or make_run_folder_path(config)))
            if resume and accelerator.distributed_type is DistributedType.DEEPSPEED:
                raise ConfigError(
                    "--resume under DeepSpeed is not supported: its optimizer state cannot be gathered; launch with fsdp2.yaml"
                )
            self.accelerator, main = accelerator, accelerator.is_main_process
            self.console = (console or EscapingConsole(stderr=True)) if main else Console(quiet=True)
            stack = outer.enter_context(ExitStack())
            outer.enter_context(monitor_peers(accelerator))  # leaves first, so that a lost process is told as such
            stack.enter_context(wrap_peer_loss_errors(accelerator))
            # the default name contains the time, which may differ between processes
            self.folder = folder = run_on_main(accelerator, lambda: Path(out or make_run_folder_path(config)))
            is_new = run_on_main(accelerator, lambda: not resume or is_empty_run(folder))
            if is_new and resume:  # a job that always passes --resume, killed before it wrote anything
                self._print(f"{folder} contains no run yet: starting a new one")
            place = run_on_main(accelerator, lambda: _find_checkpoint(folder) if resume else None)
            if not is_new:
                RunLog.reopen(folder, config)  # another configuration is rejected before anything is built
                run_on_main(accelerator, lambda: warn_about_plugin_changes(folder))

            components = component_builder(inputs, accelerator, stack, checkpoint_folder=place)
            check_sampling_supported(components)
            if is_new:
                run_on_main(accelerator, lambda: RunLog.create(folder, config).close())
                run_on_main(accelerator, lambda: record_plugins(folder, (components.environment, components.algorithm)))
            self._folder_lock = stack.enter_context(ExitStack())
            run_on_main(accelerator, lambda: self._folder_lock.enter_context(lock_run_folder(folder)))
            self.run_log = RunLog(folder, is_writer=main)
            if not is_new:
                run_on_main(accelerator, lambda: self.run_log.record_num_steps_in_config(config.train.steps))
            print_run_table(self.console, build_run_table(components, folder))
            if place is not None:
                run_on_main(accelerator, lambda: checkpoint.remove_partial_checkpoints(folder))
            else:
                self.run_log.truncate_logs({})  # a run that was killed before its first checkpoint starts from the beginning
            stack.callback(self.run_log.close)
            self.checkpoint_writer = stack.enter_context(checkpoint.CheckpointWriter(config.train.collective_timeout_s))
            if place is None and config.sft_warmup is not None:
                with ProgressReporter(self.console, "warmup", config.sft_warmup.max_steps) as work:
                    components = run_sft_warmup(components, config.sft_warmup, work)

            self.learner, components, self.not_compiled_reason = build_learner(components, folder, is_resumed=place is not None)
            self.components = components
            self.environment, self.tokenizer, self.mdp = components.environment, components.tokenizer, components.mdp
            self.model, self.algorithm, self.sampler = components.model, components.algorithm, components.sampler
            self.rollout, self.task_sampler = components.rollout, components.task_sampler
            self.batch_source = stack.enter_context(make_batch_source(components, self.learner, inputs.batch_source))
            self.weight_changes = WeightChanges()
            """What the steps, and others, did to the weights."""
            self.callbacks = [*make_callbacks(self, self.console), *callbacks]
            self.num_steps, self.num_completed_steps, self.stop_reason = config.train.steps, 0, ""
            self.stop_signals = StopSignals()
            self.is_interrupted = False
            """Whether Ctrl-C or SIGTERM has asked for a stop after this step; the same in all processes."""
            self.report_values: dict[str, Any] = {}
            self.is_resumed, self.last_saved_step = place is not None, -1
            """The step of the newest checkpoint; -1: there is none yet."""
            self.held_out_episodes: list[Episode] = []
            """The answers to the held-out tasks in the last evaluation."""
            self.best_reward_step = -1
            """The last of the best steps so far; the newest checkpoint up to this step is kept."""
            self.safe_step = -1
            """A step from before any trouble that can still show; the newest checkpoint up to it is kept too."""
            self.verified_step = -1
            """The last step in which the verifier was known to be as before; the newest checkpoint up to it is kept too."""
            if place is not None:
                for line in run_on_main(accelerator, lambda: checkpoint.describe_skipped(folder, place)):
                    self._print(f"warning: {line}")
                self.restore(place)
                self._print(f"resumed from {place} after step {self.num_completed_steps} of {self.num_steps}")
            else:
                self.sync_weights()
                if not is_new:
                    self._print(
                        f"{folder} has no checkpoint yet (log.save_every is {config.log.save_every}): the run starts at step 1 again"
                    )
            self._is_closed = False
            self._resources = outer.pop_all()

    # ---- the run ------------------------------------------------------------------------------------------------------

    def fit(self) -> TrainReport:
        """Run all steps that are left, and return the report of the run."""
        if not self.is_resumed and self.num_completed_steps == 0:
            self.report_values["accuracy_before"] = self.evaluate()
            self.save()  # of step 0: what a run goes back to that is in doubt, or killed, before its first periodic checkpoint
        for line in self._list_model_notes():
            self._print(line)
        self._call("on_run_begin")
        step = self.num_completed_steps
        with self.stop_signals.receive(self._describe_stop):
            try:
                while not self.is_finished:
                    step += 1
                    self.step()
                    if self.is_interrupted:
                        self._end_interrupted_run()
            except (KeyboardInterrupt, SystemExit):
                self._print(self._describe_standing(f"stopped after step {self.num_completed_steps} of {self.num_steps}"))
                raise
            except CheckFailed:  # it says what was kept
                raise
            except Exception as error:
                logger.debug("step %d failed", step, exc_info=True)
                with suppress(Exception):  # the error that stopped the run is the one to tell
                    self.checkpoint_writer.wait_for_write()
                error.add_note(self._describe_standing(f"step {step} of {self.num_steps} failed"))
                raise
        if self.last_saved_step != self.num_completed_steps:
            self.save()
        report = self._finish()
        self._call("on_run_end", report)
        return report

    @property
    def metrics(self) -> Any:
        """The metrics of the run so far, one row for each step, as those of `rlvr.load_run`."""
        return Run(self.folder).metrics

    @property
    def log_history(self) -> list[dict[str, Any]]:
        """The metrics as a list with a dict for each step, as in the state of a trainer of transformers."""
        return Run(self.folder).log_history

    def train(self) -> TrainReport:
        """Run all steps that are left, as `fit` does: the name in transformers and TRL."""
        return self.fit()

    def step(self) -> StepRecord:
        """Run one training step: sample, update, send the weights to the sampler, compute the metrics, call the callbacks."""
        step, config, c = self.num_completed_steps, self.config, self.components
        began = time.perf_counter()
        batch = self.batch_source.next(step)
        sampled = time.perf_counter()
        self._call("on_batch", step + 1, batch)
        self.weight_changes.begin_step(self._get_own_weights(), step + 1)  # right around the update: any callback may write weights
        learned = self.learner.update_with_diagnostics(get_local_shard(self.accelerator, batch.groups))
        metrics = learned.metrics
        has_learned = bool(metrics.get("learning_rate")) and not metrics.get("step/skipped")
        self.weight_changes.end_step(self._get_own_weights(), step + 1, has_learned=has_learned)
        updated = time.perf_counter()
        # experts are routed differently, and top_p and top_k filter differently, where rounding tips the balance: rare large differences
        rare = has_experts(self.model) or c.sampling.top_k or c.sampling.top_p < 1
        try:
            check_logprob_mismatch(metrics, c.logprob_tolerance, check_every_token=not rare)
        except CheckFailed as error:
            kept = f"kept: the checkpoint of step {self.last_saved_step} in {self.folder / 'checkpoints'}"
            cause = f"\nlikely cause: {told}" if (told := self.weight_changes.explain_foreign_weight_change(step + 1)) else ""
            raise CheckFailed(f"the run stopped in step {step + 1}: {error}{cause}\n{kept}") from None

        evaluates = bool(config.eval.every) and (step + 1) % config.eval.every == 0
        if evaluates or step + 1 == self.num_steps:
            self.batch_source.wait_until_idle()  # the sampler is about to need the newest weights
        self.num_completed_steps = step + 1
        if evaluates or step + 1 == self.num_steps or not self.batch_source.sends_weights:
            self.sync_weights()
        row: dict[str, Any] = {
            "step": step + 1,
            **compute_sampling_metrics(batch.all_groups),
            **add_dropped_token_counts(metrics, batch),
            **batch.metrics,
        }
        if self.environment.sub_environments:
            row |= build_sub_environment_metrics(self.environment.sub_environments, drop_baselines_and_canaries(batch.all_groups))
        if self.environment.max_turns > 1:
            row |= compute_conversation_metrics(drop_baselines_and_canaries(batch.all_groups))
        if config.rollout.is_off_policy:
            row |= compute_token_staleness_metrics(batch.all_groups, step, config.rollout.max_staleness)
        if evaluates:
            row["eval/accuracy"] = self.evaluate()
        record = StepRecord(
            step + 1, row, self._measure_times(batch, began, sampled, updated), batch, self._gather_diagnostics(batch, learned)
        )
        run_on_main(self.accelerator, self.checkpoint_writer.raise_if_failed)
        self.is_interrupted = run_on_main(self.accelerator, lambda: self.stop_signals.received is not None)
        self._call("on_step_end", step + 1, record)
        return record

    def stop(self, reason: str = "by a callback") -> None:
        """End the run after this step: it is saved and reported as usual. With several processes, all must call this in the same step."""
        if not self.stop_reason:
            self.stop_reason = reason
            logger.info("the run stops after step %d: %s", self.num_completed_steps, reason)

    @property
    def is_finished(self) -> bool:
        """Whether no step is left: all are done, or a callback has called `stop`."""
        return bool(self.stop_reason) or self.num_completed_steps >= self.num_steps

    def evaluate(self) -> float | None:
        """Return the mean score on the held-out tasks; None without such tasks, or if more than 2 % of the answers have no score."""
        return self._evaluate()[1]

    def sync_weights(self) -> None:
        """Send the current weights to the sampler. A collective operation."""
        self.sampler.update_weights(self.learner.weights, self.num_completed_steps)

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint, in a thread; return before it is written if memory allows a copy. A collective operation."""
        step, writer, accelerator = self.num_completed_steps, self.checkpoint_writer, self.accelerator
        if step:
            self.report_values["seconds"] = self.total_seconds
        state = checkpoint.add_random_state(self._collect_state())
        progress = checkpoint.Progress(step, run_on_main(accelerator, self.run_log.flush_and_get_offsets), dict(self.report_values))
        run_on_main(accelerator, writer.wait_for_write)
        partial = run_on_main(accelerator, lambda: checkpoint.create_partial_folder(self.folder, step))
        tokenizer, base = to_transformers_tokenizer(self.tokenizer), str(self.config.model.path or self.folder / "base")
        kept_steps = {"best_reward_step": self.best_reward_step, "safe_step": self.safe_step, "verified_step": self.verified_step}

        def publish(kept: Any) -> None:
            if kept["adapter"] is not None:
                with checkpoint.handle_write_errors(partial):
                    adapter.save_adapter(self.model, kept["adapter"], partial / "adapter", base)
            checkpoint.publish_checkpoint(
                partial,
                tokenizer,
                kept,
                progress,
                save_total_limit=self.config.log.save_total_limit,
                **kept_steps,
            )

        def write_in_background(model: Any) -> None:
            weights = model.state_dict()
            fits = checkpoint.count_tensor_bytes(weights, state) <= checkpoint.measure_copy_budget_bytes()
            weights, kept = checkpoint.copy_to_host((weights, state)) if fits else (weights, state)

            def write() -> None:
                with checkpoint.handle_write_errors(partial):
                    model.save_pretrained(partial, state_dict=weights)
                publish(kept)

            writer.start_write(step, write)
            if not fits:
                writer.wait_for_write()

        if self.learner.is_sharded:
            with checkpoint.handle_write_errors(partial):  # all processes together
                self.learner.weights.save(partial)
                self.learner.write_sharded_state(partial)
            run_on_main(accelerator, lambda: writer.start_write(step, functools.partial(publish, checkpoint.copy_to_host(state))))
        else:
            model = self.learner.gather_model()
            run_on_main(accelerator, lambda: write_in_background(model))
        self.last_saved_step = step
        self._call("on_save", step)

    def set_aside_checkpoints_after(self, step: int) -> int:
        """Set aside the checkpoints after a step; return the step of the one from which a resume goes on."""

        def set_aside() -> int:
            self.checkpoint_writer.wait_for_write()
            return checkpoint.set_aside_checkpoints_after(self.folder, step)

        self.last_saved_step = run_on_main(self.accelerator, set_aside)
        return self.last_saved_step

    def save_model(self, folder: str | Path) -> None:
        """Write the current weights and the tokenizer, as transformers loads them; with LoRA the merged weights, and the adapter alone
        in the folder `adapter`, as peft loads it. A collective operation.
        """
        self.learner.weights.save(Path(folder))
        run_on_main(self.accelerator, lambda: to_transformers_tokenizer(self.tokenizer).save_pretrained(folder))
        if adapter.has_adapter(self.model):
            self.save_adapter(Path(folder) / "adapter")

    def save_adapter(self, folder: str | Path) -> None:
        """Write the LoRA adapter alone, as peft loads it. A collective operation."""
        matrices = adapter.get_adapter_state(self.model)
        if matrices is None:
            raise ConfigError("the model has no adapter, as the run has no lora={...}; write save_model(folder)")
        base = str(self.config.model.path or self.folder / "base")
        run_on_main(self.accelerator, lambda: adapter.save_adapter(self.model, matrices, Path(folder), base))

    def restore(self, checkpoint_folder: Path) -> None:
        """Restore the state of a checkpoint, whose weights the model has already, and cut the logs to its step."""
        state, progress = checkpoint.load_checkpoint_state(checkpoint_folder)
        if self.components.offline_dataset is not None:
            check_episodes_unchanged(state.get("data"), self.components.offline_dataset.digest, self.config)
        with checkpoint.handle_load_errors(checkpoint_folder):
            adapter.load_adapter(self.model, state.get("adapter"))
            self.learner.load_state_dict(state["learner"], checkpoint_folder)
            self.task_sampler.load_state_dict(state["task_sampler"])
            check_batch_source_unchanged(state.get("batch_source_class"), self._batch_source_class)
            self.batch_source.load_state_dict(state["batch_source"])
        self.num_completed_steps = self.last_saved_step = progress.num_completed_steps
        self.report_values = dict(progress.report_values)
        self._seconds_before = float(self.report_values.get("seconds", 0.0))
        self.sync_weights()
        self.run_log.truncate_logs(progress.log_offsets)

    @property
    def total_seconds(self) -> float:
        """The time of the run so far, including the processes before a resume."""
        return round(self._seconds_before + time.monotonic() - self._started_at, 2)

    def close(self) -> None:
        """Close everything that the trainer has opened; it can no longer train. May be called more than once."""
        self.__exit__(None, None, None)

    def release_folder(self) -> None:
        """Let another trainer continue the run, after the last step of this one, which may still be used to read and to save its model."""
        self._folder_lock.close()

    def enter_context(self, opened: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the trainer closes; for callbacks that hold something open."""
        return self._resources.enter_context(opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        resources = self._resources.pop_all()
        if self._is_closed:
            return
        self._is_closed = True
        if kind is not None:  # the error may be replaced by a clearer one, where another process is the cause
            resources.__exit__(kind, error, trace)
            return
        with resources:
            self.sampler.close()  # before accelerate destroys torch's process group, which an engine may use
            if self.accelerator.num_processes > 1:
                # the wrapper of the learner must not hold the group's last reference: it would wait for its thread while holding the GIL
                del self.learner
            self.accelerator.free_memory()
            self.accelerator.end_training()

    # ---- parts of a step ----------------------------------------------------------------------------------------------

    def _get_own_weights(self) -> Any:
        """Return the model with the part of its weights that belongs to this process: a forward pass leaves more of them gathered."""
        reshard(self.learner.policy)
        return self.model

    def _evaluate(self) -> tuple[list[Episode], float | None]:
        episodes = sample_held_out(self.components)
        self.held_out_episodes, accuracy = episodes, compute_held_out_score(episodes)
        self.report_values["has_partial_scores"] = self.report_values.get("has_partial_scores", False) or has_partial_scores(episodes)
        if episodes:
            self._call("on_evaluate", self.num_completed_steps, accuracy)
        return episodes, accuracy

    def _measure_times(self, batch: RolloutBatch, began: float, sampled: float, updated: float) -> dict[str, Any]:
        ended = time.perf_counter()
        times = {
            "step": self.num_completed_steps,
            "step_time": ended - began,
            "time/wait_for_batch": sampled - began,
            "time/sample": batch.timing.sampling_s,
            "time/verify_after_sampling": batch.timing.verify_tail_s,
            "time/verify_total": batch.timing.total_verify_s,
            "verify_hidden": batch.timing.hidden_verify_fraction,
            "time/update": updated - sampled,
            "tokens_per_second": count_policy_tokens(batch.all_groups) / (ended - began),
        }
        times |= self.rollout.compute_timing_metrics(times)
        return times | (compute_session_timing_metrics(batch) if self.mdp.has_sessions else {})

    def _gather_diagnostics(self, batch: RolloutBatch, learned: UpdateResult) -> list[list[TokenDiagnostics]]:
        """Gather the advantages and log ratios of the tokens of each group, where episodes are logged; none for dropped groups."""
        if not self.config.log.episodes:
            return []

        def of_this_process() -> list[list[TokenDiagnostics]]:
            by_group = zip(learned.advantages, learned.log_ratios, strict=True)
            return [list(zip(advantages, ratios, strict=True)) for advantages, ratios in by_group]

        gathered = run_and_all_gather(self.accelerator, of_this_process)
        none: list[list[TokenDiagnostics]] = [[((), None) for _ in group] for group in batch.all_groups[len(batch.groups) :]]
        return [*gathered, *none]

    def _collect_state(self) -> dict[str, Any]:
        """Collect the state of every component for a checkpoint, without the weights."""
        source = self.batch_source.state_dict()  # first: it waits for running sampling, which moves the task sampler on
        if wrong := checkpoint.find_unloadable_value(source):
            raise ConfigError(
                f"state_dict of {type(self.batch_source).__name__} has {wrong}, which a checkpoint cannot be loaded with; return texts, numbers, "
                "lists, dicts and tensors, such as json.dumps(batch_to_json(batch))"
            )
        dataset = self.components.offline_dataset
        return {
            "batch_source": source,
            "batch_source_class": self._batch_source_class,
            "learner": self.learner.state_dict(),
            "task_sampler": self.task_sampler.state_dict(),
            "adapter": adapter.get_adapter_state(self.model),
            "data": dataset and dataset.digest,
        }

    def _finish(self) -> TrainReport:
        """Evaluate the trained policy, and make the report."""
        if self.num_completed_steps < self.num_steps and self.batch_source.sends_weights:  # a callback stopped the run: the last step
            self.batch_source.wait_until_idle()  # did not know that it was the last, and the sampler still has the weights of an older one
            self.sync_weights()
        episodes, accuracy = self._evaluate()
        steps = run_on_main(self.accelerator, lambda: list(read_metrics(self.folder)))
        held_out, seen = count_held_out_and_contaminated(self.components)
        report = TrainReport(
            str(self.folder),
            self.num_completed_steps,
            self.total_seconds,
            self.report_values.get("accuracy_before"),
            accuracy,
            held_out,
            seen,
            held_out_unscored=count_unscored(episodes),
            has_partial_scores=self.report_values["has_partial_scores"],
            interval_after=None if accuracy is None else estimate_score_interval(self.components, episodes),
            scores_by_env=compute_mean_scores_by_env(self.components, episodes),
            status=f"stopped: {self.stop_reason}" if self.stop_reason else "finished",
            rewards=[row["reward"] for row in steps if row["reward"] is not None],
            held_out_answers=len(episodes),
        )
        run_on_main(self.accelerator, self.checkpoint_writer.wait_for_write)
        return report

    def _describe_stop(self) -> str:
        """Describe what happens after the first Ctrl-C or SIGTERM."""
        if not self.accelerator.is_main_process:
            return ""
        return (
            f"\nstopping after step {self.num_completed_steps + 1} of {self.num_steps}, which is then saved; Ctrl-C again stops at once\n"
        )

    def _describe_standing(self, ending: str) -> str:
        """Describe what is saved of a run that ended so, and how it goes on."""
        return (
            f"{ending}; saved: {_find_checkpoint(self.folder) or 'no checkpoint yet'}\n"
            f"continue with: rlvr train {self.folder / 'config.yaml'} --out {self.folder} --resume"
        )

    def _end_interrupted_run(self) -> NoReturn:
        """End the run after a signal, as that signal would."""
        run_on_main(self.accelerator, self.checkpoint_writer.wait_for_write)
        raise SystemExit(128 + signal.SIGTERM) if self.stop_signals.received is signal.SIGTERM else KeyboardInterrupt

    def _list_model_notes(self) -> Iterator[str]:
        """Yield notes about the model: numerics checks of a sharded model, and reasons for slow operation."""
        if self.learner.is_sharded:
            yield f"model check: {format_check_results(self.components.check_results)}"
        if self.components.slow_sampling_reason:
            yield f"sampling is slow: {self.components.slow_sampling_reason}"
        if self.not_compiled_reason:
            yield f"layers are not compiled: {self.not_compiled_reason}"
        if self.learner.padding_reason:
            yield f"rows are padded instead of packed: {self.learner.padding_reason}"
        elif self.accelerator.device.type != "cpu" and (why := self.learner.packing.no_kernel_reason):
            yield f"packed rows need masks, which are slow: {why}"

    def _call(self, event: str, *given: Any) -> None:
        for callback in self.callbacks:
            if getattr(callback, event)(self, *given) is False:  # as in stable-baselines3
                self.stop(f"{type(callback).__name__}.{event} returned False")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _find_checkpoint(folder: Path) -> Path | None:
    return checkpoint.find_newest_checkpoint(folder) if checkpoint.has_checkpoint(folder) else None


def make_callbacks(trainer: Trainer, console: Console) -> list[Callback]:
    """Make the callbacks of every run, in their order: what is logged before a checkpoint belongs to it."""
    guard = [CanaryGuard()] if trainer.task_sampler.reward_monitor is not None else []
    health = RunHealth(trainer.config, console, trainer.weight_changes)
    return [
        RunLogWriter(trainer.run_log),
        Trackers(trainer.accelerator, trainer.config, trainer.folder),
        UnusualMetricNotes(trainer.config, console, trainer.algorithm),
        ProgressLine(console),
        RewardCurve(console),
        health,  # before the checkpoints, which a step in doubt does not get
        PeriodicCheckpoints(health),
        *guard,
    ]


def make_run_folder_path(config: RunConfig) -> Path:
    """Return the default run folder."""
    env = str(config.env["name"]).rpartition(":")[2]  # the object in path/to/file.py:Object
    return Path("runs") / f"{env}-{datetime.now():%Y%m%d-%H%M%S}"


def check_arguments(config: RunConfig, out: str | Path | None, *, resume: bool, has_custom_builder: bool) -> None:
    """Raise ConfigError for inconsistent arguments of `Trainer`."""
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    if config.cluster is not None and not has_custom_builder:
        raise ConfigError("cluster is set, which this trainer does not know; call rlvr.cluster.training.train, or use `rlvr train`")
    if config.reward_model_training is not None:
        raise ConfigError("reward_model_training is set, and a trainer trains a policy; call rlvr.training.reward_model.train_reward_model")
