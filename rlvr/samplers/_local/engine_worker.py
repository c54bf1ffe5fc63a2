"""The process of one engine: it executes orders of the trainer, and ends with the trainer.

    take    load the weights in a folder, and the adapter if there is one
    score   return the log-probability of each token of a text
    serve   sample requests until `end`
    rest    release the GPU memory until the next `take`

The trainer's end of the socket closes when the trainer ends, for whatever reason. Then this process and its children are killed.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rlvr.contracts import Request, RequestQueue, SamplingParams
from rlvr.contracts.sampler import NumberedRequests
from rlvr.errors import ConfigError
from rlvr.samplers._colocated import ColocatedEngine, VLLMEngineConfig
from rlvr.samplers._local.engine_plan import clear_shared_memory
from rlvr.samplers._local.engine_process import KILL_TIMEOUT_S
from rlvr.samplers._local.message_socket import MessageSocket
from rlvr.samplers._local.process_group import kill_process_group

Orders = SimpleQueue[dict[str, Any]]
POLL_INTERVAL_S = 0.05
"""How long to wait for requests while nothing is sampled."""
PROGRESS_INTERVAL_S = 0.5
"""How often the trainer is told how many tokens were sampled, so that it does not take a long completion for a hanging engine."""
PARENT_CHECK_INTERVAL_S = 1.0
"""How often to check that the trainer still runs. A process that the trainer forked may hold its socket open."""


class SocketRequestQueue(RequestQueue):
    """Queue of the requests that the trainer sends, until it sends `end`."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.num_running, self.has_ended = orders, 0, False

    def pop(self, max_requests: int) -> NumberedRequests | None:
        """Return the requests received so far; wait a moment if nothing is being sampled."""
        found: NumberedRequests = []
        while not self.has_ended:
            try:
                order = self.orders.get(timeout=POLL_INTERVAL_S) if not (found or self.num_running) else self.orders.get_nowait()
            except Empty:
                break
            if order["do"] == "end":
                self.has_ended = True
            else:
                found.append((order["id"], Request(order["prompt"], order["max_tokens"], order["seed"])))
                self.num_running += 1
        return None if self.has_ended else found

    def pop_all_if_idle(self) -> NumberedRequests | None:
        """Return all requests received so far."""
        return self.pop(sys.maxsize)


class EngineWorker:
    """Runs in an engine's process: executes the trainer's orders with one engine."""

    def __init__(self, connection: MessageSocket, orders: Orders, start: dict[str, Any]) -> None:
        self.connection, self.orders, self.second_names = connection, orders, dict[str, str]()
        source: Any = start["model"] if start["whole"] else Path(start["model"])
        place = VLLMEngineConfig(**start["place"])
        self.engine = ColocatedEngine(source, place, completion_timeout_s=math.inf, tied_weights=start["tied"], folder=Path(start["home"]))
        if start["tied"] and not self.engine.is_on_gpu:
            self.second_names = {start["tied"][1]: start["tied"][0]}
        connection.send({"told": "ready", "max_model_len": self.engine.max_model_len})

    def run(self) -> None:
        """Execute orders, for as long as the trainer runs."""
        while True:
            order = self.orders.get()
            match order["do"]:
                case "take":
                    self.load_weights(order)
                case "score":
                    self.connection.send({"told": "scored", "scores": self.engine.compute_logprobs(order["tokens"])})
                case "rest":
                    self.engine.sleep()
                    self.connection.send({"told": "rested"})
                case "serve":
                    self.serve(SamplingParams(**order["sampling"] | {"stop_ids": frozenset(order["sampling"]["stop_ids"])}))

    def load_weights(self, order: dict[str, Any]) -> None:
        """Load the weights that the trainer has written; unchanged parts are not sent again."""
        if order["folder"]:
            self.engine.reload_weights(
                "reload_from_folder", {"folder": order["folder"], "second_names": self.second_names}, order["version"]
            )
        if order["adapter"]:
            self.engine.load_adapter(order["adapter"], order["version"])
        self.connection.send({"told": "took", "order": order["order"]})

    def serve(self, sampling: SamplingParams) -> None:
        """Sample until the trainer sends `end`; then abort running requests."""
        feed = SocketRequestQueue(self.orders)
        answers, reported_at = self.engine.stream_from_queue(feed, sampling), time.monotonic()
        for given in answers:
            if time.monotonic() - reported_at > PROGRESS_INTERVAL_S:
                self.connection.send({"told": "progress", "tokens": self.engine.count_all_generated_tokens()})
                reported_at = time.monotonic()
            if given is not None:
                feed.num_running -= 1
                self.connection.send({"told": "ended", "id": given[0], **asdict(given[1])})
            if feed.has_ended:
                answers.close()  # type: ignore[attr-defined]
                return


def _receive_commands(connection: MessageSocket, orders: Orders, parent: int, folder: str) -> None:
    """Receive orders until the trainer is gone, then kill this process and its children."""
    while os.getppid() == parent:
        if select.select([connection.sock], [], [], PARENT_CHECK_INTERVAL_S)[0]:
            if (order := connection.receive()) is None:
                break
            orders.put(order)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)  # weights in memory that nothing else would release
    kill_process_group(os.getpgrp(), timeout_s=KILL_TIMEOUT_S)
    if folder:
        clear_shared_memory(Path(folder))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the worker. Arguments: the socket, the trainer's pid, a folder to remove if the trainer dies."""
    fd, parent, home = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    wire, orders = MessageSocket(socket.socket(fileno=fd)), Orders()
    threading.Thread(target=_receive_commands, args=(wire, orders, parent, home), daemon=True).start()
    try:
        EngineWorker(wire, orders, orders.get()).run()
    except Exception as error:
        wire.send(
            {"told": "fault", "text": f"{type(error).__name__}: {error}", "config": str(error) if isinstance(error, ConfigError) else ""}
        )
        raise


if __name__ == "__main__":
    main()
