"""Several local engines of one trainer: started and updated together, load-balanced, and restarted when they die.

An engine that dies, or generates no token for too long, is killed and restarted with the newest weights. Its requests go to the other engines, or wait for it;
each has its own seed, so its tokens do not depend on the engine, except for rounding.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from safetensors import SafetensorError

from rlvr.contracts import Completion, Request, RequestQueue, SamplingParams, Weights
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.models.device import free_cached_memory
from rlvr.runs.folder_owner import create_owned_folder, remove_orphaned_folders
from rlvr.samplers._colocated import VLLMEngineConfig, find_tied_head_and_embeddings
from rlvr.samplers._local.engine_plan import EnginePlan, choose_parent_of_weights_folder, clear_shared_memory
from rlvr.samplers._local.engine_process import EngineProcess
from rlvr.samplers._local.engine_slot import EngineSlot
from rlvr.samplers._local.load_balancer import EngineLoad, choose_engine, make_group_key
from rlvr.samplers._servers.replies import RESUME_HINT
from rlvr.samplers._servers.server_engine import POLL_INTERVAL_S
from rlvr.samplers._servers.timeouts import Timeouts
from rlvr.samplers._vllm_format import check_request_length
from rlvr.samplers._weight_probe import LOGPROB_TOLERANCES, compute_logprob_differences

FOLDER_PREFIX = "rlvr-engines-"
MAX_DEATHS = 3
"""Most deaths of an engine in a row without a completion in between."""
STALL_S = 5.0
"""If this process has not polled for this long (it was stopped or busy), the deadlines of engines are extended."""


class LocalEngines:
    """The trainer's local vLLM engines, each in a process of its own: starts, updates, balances and restarts them."""

    name = "the vLLM engines beside the trainer"

    def __init__(
        self, model: Any, config: VLLMEngineConfig, timeouts: Timeouts, plan: EnginePlan, *, concurrency: int, folder: str | None = None
    ) -> None:
        self.timeouts, self.plan, self.config = timeouts, plan, config
        within = folder or str(choose_parent_of_weights_folder(model))
        remove_orphaned_folders(FOLDER_PREFIX, within)
        try:
            self._folder = create_owned_folder(FOLDER_PREFIX, within)
            self._weights_folder, self._has_base_weights = self._folder / "sent", False
            self._weights_folder.mkdir()
        except OSError as error:
            raise ConfigError(
                f"weights_folder {within} cannot be written to: {error.strerror}; give an existing folder with room"
            ) from error
        self._inbox: SimpleQueue[tuple[EngineSlot, EngineProcess, dict[str, Any] | None] | None] = SimpleQueue()
        self._names, self._load_order = count(), dict[str, Any]()
        """The order message that loads the newest weights."""
        self._sampling: dict[str, Any] = {}
        self._waiting: list[tuple[int, Request, str]] = []
        self.max_model_len, self._last_poll = 0, time.monotonic()
        self.slots = [EngineSlot(number, EngineLoad(concurrency)) for number in range(plan.num_engines)]
        try:
            self._start_order: dict[str, Any] = {"place": asdict(config), "whole": isinstance(model, str), "model": model, "tied": None}
            if not isinstance(model, str):
                plain = model.get_base_model() if hasattr(model, "get_base_model") else model
                plain.config.save_pretrained(self._folder / "shape")
                self._start_order |= {"model": str(self._folder / "shape"), "tied": find_tied_head_and_embeddings(plain)}
            for slot in self.slots:
                self._start_engine(slot)
            self._wait_until(lambda: all(slot.state == "ready" for slot in self.slots))
        except BaseException:
            self.close()
            raise

    def update_weights(self, weights: Weights, version: int) -> None:
        """Write the weights once, to shared memory, and let all engines load them.

        If writing fails, an engine that dies afterwards cannot reload the previous weights, and its error says so.
        """
        try:
            sent = self._write_weights(weights, version)
        except (OSError, SafetensorError) as error:
            told = getattr(error, "strerror", None) or error
            raise SamplerError(
                f"the weights could not be written to {self._weights_folder}: {told}; set weights_folder to one with room"
            ) from error
        if self.config.sleep:
            free_cached_memory()  # the engines take it
        self._load_order = {"do": "take", "order": next(self._names), "version": version, **sent}
        for slot in self.slots:
            slot.load.groups.clear()
            slot.reference_scores = None
            if slot.state != "starting":
                self._load_weights(slot)
        self._wait_until(lambda: all(slot.state == "ready" for slot in self.slots))

    def _write_weights(self, weights: Weights, version: int) -> dict[str, str]:
        """Write the weights, and remove the previous ones. The base weights of an adapter are written once."""
        part = weights.get_adapter() if self.config.lora_rank else None
        home = Path(
            weights.run_on_main(lambda: str(self._weights_folder))
        )  # the main process's folder; by now all engines have loaded the previous weights
        for old in self._weights_folder.iterdir():
            if part is None or old.name != "base":
                shutil.rmtree(old, ignore_errors=True)
        if part is None:
            folder, adapter = home / f"weights-{version}", ""
            weights.save(folder, self.config.dtype)
        else:
            folder, adapter = home / "base", str(home / f"adapter-{version}")
            if not self._has_base_weights:
                part.base.save(folder, self.config.dtype)
            part.save(Path(adapter))
        self._has_base_weights = part is not None
        if not folder.is_dir():
            raise ConfigError(
                f"the weights in {folder} are not visible to all processes; set weights_folder to a folder that all machines see"
            )
        return {"folder": str(folder), "adapter": adapter}

    def sleep(self) -> None:
        """Let the engines release GPU memory, if they share the trainer's GPU."""
        if self.config.sleep:
            self._collect_replies({"do": "rest"})

    def get_logprob_scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return one scoring function for each engine."""
        return {slot.name: partial(self.compute_logprobs, slot) for slot in self.slots}

    def compute_logprobs(self, slot: EngineSlot, tokens: Sequence[int]) -> list[float]:
        """Return one engine's log-probability of each token except the first."""
        [reply] = self._collect_replies({"do": "score", "tokens": list(tokens)}, [slot])
        slot.reference_scores = list(tokens), reply["scores"]
        return list(reply["scores"])

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield each completion as it finishes; requests go to engines with free capacity."""
        numbers: dict[int, int] = {}
        self._sampling = asdict(sampling) | {"stop_ids": sorted(sampling.stop_ids)}
        queue.on_requests_ready = lambda: self._inbox.put(None)
        try:
            while True:
                room = sum(slot.load.num_free for slot in self.slots if slot.state == "ready") - len(self._waiting)
                more = queue.pop(max(0, room))
                for number, request in more or ():
                    check_request_length(request, self.name, self.max_model_len)
                    numbers[name := next(self._names)] = number
                    self._waiting.append((name, request, make_group_key(request)))
                self._dispatch_requests()
                if more is None and not numbers:
                    return
                message = self._receive_message(POLL_INTERVAL_S)
                if message is None or message["told"] != "ended" or message["id"] not in numbers:
                    yield None
                    continue
                yield (
                    numbers.pop(message["id"]),
                    Completion(message["tokens"], message["logprobs"], message["finish_reason"], message["error"]),
                )
        finally:
            queue.on_requests_ready = None
            self._waiting.clear()
            for slot in self.slots:
                slot.load.remove_all()
                if slot.is_serving and slot.process is not None:
                    slot.process.send({"do": "end"})
                slot.is_serving = False

    def close(self) -> None:
        """Stop all engines and remove their files."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()
            slot.process = None
        shutil.rmtree(self._folder, ignore_errors=True)
        clear_shared_memory(self._folder)

    # ---- one engine -----------------------------------------------------------------------------------------------

    def _start_engine(self, slot: EngineSlot) -> None:
        """Start the process of an engine."""
        slot.state, slot.last_fault = "starting", ""
        self._set_deadline(slot, self.timeouts.start_timeout_s)
        slot.is_serving, slot.has_base_weights, slot.num_tokens = False, False, 0
        own = self._folder / f"{self._folder.name}-{slot.number}"
        shutil.rmtree(own, ignore_errors=True)  # of the process before
        clear_shared_memory(self._folder, f"{slot.number}-")
        try:
            own.mkdir()
            slot.process = EngineProcess(
                {"do": "start", "home": str(own), **self._start_order},
                lambda process, message: self._inbox.put((slot, process, message)),
                log=self._folder / f"engine-{slot.number}.log",
                gpus=self.plan.get_devices(slot.number),
                home=str(self._folder),
                send_timeout_s=self.timeouts.completion_timeout_s,
            )
        except OSError as error:  # no memory for a process, or no room for its files
            raise SamplerError(f"{slot.name} cannot be started: {error}. {RESUME_HINT}") from error

    def _load_weights(self, slot: EngineSlot) -> None:
        """Let an engine load the newest weights; it is ready if the trainer has sent none yet."""
        slot.state = "loading" if self._load_order else "ready"
        self._send_order(slot, self._load_order | ({"folder": ""} if slot.has_base_weights and self._load_order["adapter"] else {}))

    def _send_order(self, slot: EngineSlot, order: dict[str, Any]) -> None:
        self._set_deadline(slot, self.timeouts.completion_timeout_s)
        if order and slot.process is not None:
            slot.process.send(order)

    def _dispatch_requests(self) -> None:
        """Send waiting requests to engines with free capacity."""
        ready = [slot for slot in self.slots if slot.state == "ready"]
        while self._waiting:
            name, request, group = self._waiting[0]
            place = choose_engine([slot.load for slot in ready], request, group)
            if place is None:
                return
            slot = ready[place]
            if not slot.is_serving:
                slot.is_serving = True
                self._send_order(slot, {"do": "serve", "sampling": self._sampling})
            if not slot.load.running:
                self._set_deadline(slot, self.timeouts.completion_timeout_s)
            del self._waiting[0]
            slot.load.add(name, request, group)
            asked = {"id": name, "prompt": list(request.prompt), "max_tokens": request.max_tokens, "seed": request.seed}
            if slot.process is not None:
                slot.process.send({"do": "ask"} | asked)

    def _collect_replies(self, order: dict[str, Any], slots: Sequence[EngineSlot] | None = None) -> list[dict[str, Any]]:
        """Send an order to engines and collect the replies; it is sent again to a restarted engine."""
        slots = self.slots if slots is None else slots
        sent: dict[int, Any] = {}

        def all_said() -> bool:
            for slot in slots:
                if slot.state == "ready" and sent.get(slot.number) is not slot.process:
                    sent[slot.number], slot.reply = slot.process, None
                    self._send_order(slot, order)
            return all(slot.state == "ready" and slot.reply is not None for slot in slots)

        self._wait_until(all_said, busy=slots)
        return [slot.reply or {} for slot in slots]

    def _wait_until(self, done: Callable[[], bool], busy: Sequence[EngineSlot] = ()) -> None:
        """Process messages until the condition is true. It terminates because each engine has a deadline."""
        while not done():
            self._receive_message(POLL_INTERVAL_S, busy)

    def _receive_message(self, wait_s: float, busy: Sequence[EngineSlot] = ()) -> dict[str, Any] | None:
        """Receive and apply the next message. Engines past their deadline are restarted."""
        if (late := time.monotonic() - self._last_poll) > 0:
            self._last_poll = time.monotonic() + POLL_INTERVAL_S
            for slot in self.slots:
                slot.deadline += late if late > STALL_S else 0.0
                waited = slot.state != "ready" or slot.load.running or (slot in busy and slot.reply is None)
                if waited and time.monotonic() > slot.deadline:
                    self._restart(slot, f"it did not answer in time ({'busy' if slot.state == 'ready' else slot.state})")
        try:
            found = self._inbox.get(timeout=wait_s)
        except Empty:
            return None
        if found is None:
            return None
        slot, process, message = found
        if process is not slot.process:
            return None  # from an earlier process
        if message is None:
            self._restart(slot, "")
            return None
        try:
            self._apply_message(slot, message)
        except RlvrError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            self._restart(slot, f"it sent an invalid message ({type(error).__name__}: {error}): {str(message)[:200]}")
            return None
        return message

    def _apply_message(self, slot: EngineSlot, message: dict[str, Any]) -> None:
        match message["told"]:
            case "ready":
                length = int(message["max_model_len"])
                self.max_model_len = min(self.max_model_len, length) if self.max_model_len else length
                self._load_weights(slot)
            case "took" if message["order"] != self._load_order["order"]:
                pass  # newer weights were sent since
            case "took" if slot.reference_scores is not None:
                slot.state, slot.has_base_weights = "checking", bool(self._load_order["adapter"])
                self._send_order(slot, {"do": "score", "tokens": slot.reference_scores[0]})
            case "took":
                slot.state, slot.has_base_weights = "ready", bool(self._load_order["adapter"])
            case "scored" if slot.state == "checking":
                self._check_restarted_scores(slot, list(map(float, message["scores"])))
            case "scored":
                slot.reply = message | {"scores": list(map(float, message["scores"]))}
            case "rested":
                slot.reply = message
            case "ended":
                if len(list(map(int, message["tokens"]))) != len(list(map(float, message["logprobs"]))):
                    raise ValueError("tokens and log-probabilities of different numbers")
                if slot.load.remove(message["id"]):
                    slot.num_deaths = 0
                    self._set_deadline(slot, self.timeouts.completion_timeout_s)
            case "progress":
                if (tokens := int(message["tokens"])) > slot.num_tokens:
                    slot.num_tokens = tokens
                    self._set_deadline(slot, self.timeouts.completion_timeout_s)
            case "fault":
                slot.last_fault = str(message["text"])
                if message["config"]:
                    raise ConfigError(message["config"])
            case told:
                raise ValueError(f"told {told!r}")

    def _set_deadline(self, slot: EngineSlot, seconds: float) -> None:
        """Set an engine's deadline, which is extended by time in which this process does not poll."""
        self._last_poll = time.monotonic()
        slot.deadline = self._last_poll + seconds

    def _check_restarted_scores(self, slot: EngineSlot, scores: list[float]) -> None:
        """Check that a restarted engine scores like the previous one."""
        assert slot.reference_scores is not None
        mean = compute_logprob_differences(slot.reference_scores[1], scores).mean
        if not mean <= LOGPROB_TOLERANCES["bfloat16"].mean:
            raise SamplerError(
                f"{slot.name} was restarted and has other weights than before: its scores differ by {mean:.3g}. {RESUME_HINT}"
            )
        slot.state = "ready"

    def _restart(self, slot: EngineSlot, reason: str) -> None:
        """Restart an engine; its requests go back to the waiting list."""
        assert slot.process is not None
        slot.process.kill()
        reason = reason or slot.last_fault or slot.process.describe_exit()
        self._waiting[:0] = slot.load.remove_all()
        slot.load.groups.clear()
        slot.num_deaths += 1
        if slot.num_deaths > MAX_DEATHS:
            raise SamplerError(f"{slot.name} died {slot.num_deaths} times in a row; the last time: {reason}. {RESUME_HINT}")
        self._start_engine(slot)
