"""Several local engines of one trainer: started and updated together, load-balanced, and restarted when they die.

An engine that dies or times out is killed and restarted with the newest weights. Its requests go to the other engines, or wait for it;
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

from rlvr.contracts import Completion, Feed, Request, Sampling, Weights
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.model.device import free_cached_memory
from rlvr.runs.owner import own_folder, sweep
from rlvr.samplers._colocated import Place, tied_names
from rlvr.samplers._dialect import room_for
from rlvr.samplers._local.balance import Load, chosen, group_of
from rlvr.samplers._local.fleet import Fleet, clear_shared, shared_memory
from rlvr.samplers._local.process import EngineProcess
from rlvr.samplers._local.slot import Slot
from rlvr.samplers._probe import TOLERANCE, apart
from rlvr.samplers._servers.patience import Patience
from rlvr.samplers._servers.replies import AGAIN
from rlvr.samplers._servers.servers import LOOK_S

PREFIX = "rlvr-engines-"
MOST_DEATHS = 3
"""Most deaths of an engine in a row without a completion in between."""
STALL_S = 5.0
"""If this process has not polled for this long (it was stopped or busy), the deadlines of engines are extended."""


class Engines:
    """The local engines of this process."""

    where = "the vLLM engines beside the trainer"

    def __init__(self, model: Any, place: Place, patience: Patience, fleet: Fleet, *, concurrency: int, folder: str | None = None) -> None:
        self.patience, self.fleet, self.place = patience, fleet, place
        within = folder or str(shared_memory(model))
        sweep(PREFIX, within)
        try:
            self._home = own_folder(PREFIX, within)
            self._sent, self._based = self._home / "sent", False
            self._sent.mkdir()
        except OSError as error:
            raise ConfigError(
                f"weights_folder {within} cannot be written to: {error.strerror}; give an existing folder with room"
            ) from error
        self._inbox: SimpleQueue[tuple[Slot, EngineProcess, dict[str, Any] | None] | None] = SimpleQueue()
        self._names, self._told = count(), dict[str, Any]()
        """The order message that loads the newest weights."""
        self._sampling: dict[str, Any] = {}
        self._again: list[tuple[int, Request, str]] = []
        self.max_model_len, self._look = 0, time.monotonic()
        self.slots = [Slot(number, Load(concurrency)) for number in range(fleet.engines)]
        try:
            self._start: dict[str, Any] = {"place": asdict(place), "whole": isinstance(model, str), "model": model, "tied": None}
            if not isinstance(model, str):
                plain = model.get_base_model() if hasattr(model, "get_base_model") else model
                plain.config.save_pretrained(self._home / "shape")
                self._start |= {"model": str(self._home / "shape"), "tied": tied_names(plain)}
            for slot in self.slots:
                self._begin(slot)
            self._until(lambda: all(slot.state == "ready" for slot in self.slots))
        except BaseException:
            self.close()
            raise

    def take(self, weights: Weights, version: int) -> None:
        """Write the weights once, to shared memory, and let all engines load them.

        If writing fails, an engine that dies afterwards cannot reload the previous weights, and its error says so.
        """
        try:
            sent = self._written(weights, version)
        except (OSError, SafetensorError) as error:
            told = getattr(error, "strerror", None) or error
            raise SamplerError(f"the weights could not be written to {self._sent}: {told}; set weights_folder to one with room") from error
        if self.place.sleep:
            free_cached_memory()  # the engines take it
        self._told = {"do": "take", "order": next(self._names), "version": version, **sent}
        for slot in self.slots:
            slot.load.groups.clear()
            slot.scored = None
            if slot.state != "starting":
                self._load(slot)
        self._until(lambda: all(slot.state == "ready" for slot in self.slots))

    def _written(self, weights: Weights, version: int) -> dict[str, str]:
        """Write the weights, and remove the previous ones. The base weights of an adapter are written once."""
        part = weights.adapter() if self.place.lora_rank else None
        home = Path(weights.once(lambda: str(self._sent)))  # the main process's folder; by now all engines have loaded the previous weights
        for old in self._sent.iterdir():
            if part is None or old.name != "base":
                shutil.rmtree(old, ignore_errors=True)
        if part is None:
            folder, adapter = home / f"weights-{version}", ""
            weights.save(folder, self.place.dtype)
        else:
            folder, adapter = home / "base", str(home / f"adapter-{version}")
            if not self._based:
                part.base.save(folder, self.place.dtype)
            part.save(Path(adapter))
        self._based = part is not None
        if not folder.is_dir():
            raise ConfigError(
                f"the weights in {folder} are not visible to all processes; set weights_folder to a folder that all machines see"
            )
        return {"folder": str(folder), "adapter": adapter}

    def rest(self) -> None:
        """Let the engines release GPU memory, if they share the trainer's GPU."""
        if self.place.sleep:
            self._replies({"do": "rest"})

    def scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return one scoring function for each engine."""
        return {slot.where: partial(self.score, slot) for slot in self.slots}

    def score(self, slot: Slot, tokens: Sequence[int]) -> list[float]:
        """Return one engine's log-probability of each token except the first."""
        [reply] = self._replies({"do": "score", "tokens": list(tokens)}, [slot])
        slot.scored = list(tokens), reply["scores"]
        return list(reply["scores"])

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield each completion as it finishes; requests go to engines with free capacity."""
        numbers: dict[int, int] = {}
        self._sampling = asdict(sampling) | {"stop_ids": sorted(sampling.stop_ids)}
        feed.notify = lambda: self._inbox.put(None)
        try:
            while True:
                room = sum(slot.load.room for slot in self.slots if slot.state == "ready") - len(self._again)
                more = feed.take(max(0, room))
                for number, request in more or ():
                    room_for(request, self.where, self.max_model_len)
                    numbers[name := next(self._names)] = number
                    self._again.append((name, request, group_of(request)))
                self._send_out()
                if more is None and not numbers:
                    return
                message = self._heard(LOOK_S)
                if message is None or message["told"] != "ended" or message["id"] not in numbers:
                    yield None
                    continue
                yield numbers.pop(message["id"]), Completion(message["tokens"], message["logprobs"], message["finish"], message["error"])
        finally:
            feed.notify = None
            self._again.clear()
            for slot in self.slots:
                slot.load.empty()
                if slot.serving and slot.process is not None:
                    slot.process.send({"do": "end"})
                slot.serving = False

    def close(self) -> None:
        """Stop all engines and remove their files."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.close()
            slot.process = None
        shutil.rmtree(self._home, ignore_errors=True)
        clear_shared(self._home)

    # ---- one engine -----------------------------------------------------------------------------------------------

    def _begin(self, slot: Slot) -> None:
        """Start the process of an engine."""
        slot.state, slot.fault = "starting", ""
        self._wait_for(slot, self.patience.start_s)
        slot.serving = slot.based = False
        own = self._home / f"{self._home.name}-{slot.number}"
        shutil.rmtree(own, ignore_errors=True)  # of the process before
        clear_shared(self._home, f"{slot.number}-")
        try:
            own.mkdir()
            slot.process = EngineProcess(
                {"do": "start", "home": str(own), **self._start},
                lambda process, message: self._inbox.put((slot, process, message)),
                log=self._home / f"engine-{slot.number}.log",
                gpus=self.fleet.of(slot.number),
                home=str(self._home),
                send_s=self.patience.deadline_s,
            )
        except OSError as error:  # no memory for a process, or no room for its files
            raise SamplerError(f"{slot.where} cannot be started: {error}. {AGAIN}") from error

    def _load(self, slot: Slot) -> None:
        """Let an engine load the newest weights; it is ready if the trainer has sent none yet."""
        slot.state = "loading" if self._told else "ready"
        self._order(slot, self._told | ({"folder": ""} if slot.based and self._told["adapter"] else {}))

    def _order(self, slot: Slot, order: dict[str, Any]) -> None:
        self._wait_for(slot, self.patience.deadline_s)
        if order and slot.process is not None:
            slot.process.send(order)

    def _send_out(self) -> None:
        """Send waiting requests to engines with free capacity."""
        ready = [slot for slot in self.slots if slot.state == "ready"]
        while self._again:
            name, request, group = self._again[0]
            place = chosen([slot.load for slot in ready], request, group)
            if place is None:
                return
            slot = ready[place]
            if not slot.serving:
                slot.serving = True
                self._order(slot, {"do": "serve", "sampling": self._sampling})
            if not slot.load.running:
                self._wait_for(slot, self.patience.deadline_s)
            del self._again[0]
            slot.load.add(name, request, group)
            asked = {"id": name, "prompt": list(request.prompt), "max_tokens": request.max_tokens, "seed": request.seed}
            if slot.process is not None:
                slot.process.send({"do": "ask"} | asked)

    def _replies(self, order: dict[str, Any], slots: Sequence[Slot] | None = None) -> list[dict[str, Any]]:
        """Send an order to engines and collect the replies; it is sent again to a restarted engine."""
        slots = self.slots if slots is None else slots
        sent: dict[int, Any] = {}

        def all_said() -> bool:
            for slot in slots:
                if slot.state == "ready" and sent.get(slot.number) is not slot.process:
                    sent[slot.number], slot.reply = slot.process, None
                    self._order(slot, order)
            return all(slot.state == "ready" and slot.reply is not None for slot in slots)

        self._until(all_said, busy=slots)
        return [slot.reply or {} for slot in slots]

    def _until(self, done: Callable[[], bool], busy: Sequence[Slot] = ()) -> None:
        """Process messages until the condition is true. It terminates because each engine has a deadline."""
        while not done():
            self._heard(LOOK_S, busy)

    def _heard(self, wait_s: float, busy: Sequence[Slot] = ()) -> dict[str, Any] | None:
        """Receive and apply the next message. Engines past their deadline are restarted."""
        if (late := time.monotonic() - self._look) > 0:
            self._look = time.monotonic() + LOOK_S
            for slot in self.slots:
                slot.until += late if late > STALL_S else 0.0
                waited = slot.state != "ready" or slot.load.running or (slot in busy and slot.reply is None)
                if waited and time.monotonic() > slot.until:
                    self._died(slot, f"it did not answer in time ({'busy' if slot.state == 'ready' else slot.state})")
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
            self._died(slot, "")
            return None
        try:
            self._effect(slot, message)
        except RlvrError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            self._died(slot, f"it sent an invalid message ({type(error).__name__}: {error}): {str(message)[:200]}")
            return None
        return message

    def _effect(self, slot: Slot, message: dict[str, Any]) -> None:
        match message["told"]:
            case "ready":
                length = int(message["max_model_len"])
                self.max_model_len = min(self.max_model_len, length) if self.max_model_len else length
                self._load(slot)
            case "took" if message["order"] != self._told["order"]:
                pass  # newer weights were sent since
            case "took" if slot.scored is not None:
                slot.state, slot.based = "checking", bool(self._told["adapter"])
                self._order(slot, {"do": "score", "tokens": slot.scored[0]})
            case "took":
                slot.state, slot.based = "ready", bool(self._told["adapter"])
            case "scored" if slot.state == "checking":
                self._checked(slot, list(map(float, message["scores"])))
            case "scored":
                slot.reply = message | {"scores": list(map(float, message["scores"]))}
            case "rested":
                slot.reply = message
            case "ended":
                if len(list(map(int, message["tokens"]))) != len(list(map(float, message["logprobs"]))):
                    raise ValueError("tokens and log-probabilities of different numbers")
                if slot.load.remove(message["id"]):
                    slot.deaths = 0
                    self._wait_for(slot, self.patience.deadline_s)
            case "fault":
                slot.fault = str(message["text"])
                if message["config"]:
                    raise ConfigError(message["config"])
            case told:
                raise ValueError(f"told {told!r}")

    def _wait_for(self, slot: Slot, seconds: float) -> None:
        """Set an engine's deadline, which is extended by time in which this process does not poll."""
        self._look = time.monotonic()
        slot.until = self._look + seconds

    def _checked(self, slot: Slot, scores: list[float]) -> None:
        """Check that a restarted engine scores like the previous one."""
        assert slot.scored is not None
        mean, _ = apart(slot.scored[1], scores)
        if not mean <= TOLERANCE["bfloat16"][0]:
            raise SamplerError(f"{slot.where} was restarted and has other weights than before: its scores differ by {mean:.3g}. {AGAIN}")
        slot.state = "ready"

    def _died(self, slot: Slot, why: str) -> None:
        """Restart an engine; its requests go back to the waiting list."""
        assert slot.process is not None
        slot.process.close()
        why = why or slot.fault or slot.process.told()
        self._again[:0] = slot.load.empty()
        slot.load.groups.clear()
        slot.deaths += 1
        if slot.deaths > MOST_DEATHS:
            raise SamplerError(f"{slot.where} died {slot.deaths} times in a row; the last time: {why}. {AGAIN}")
        self._begin(slot)
