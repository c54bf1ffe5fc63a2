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
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rlvr.contracts import Feed, Request, Sampling
from rlvr.contracts.sampler import Asked
from rlvr.errors import ConfigError
from rlvr.samplers._colocated import Colocated, Place
from rlvr.samplers._local.fleet import clear_shared
from rlvr.samplers._local.group import end_group
from rlvr.samplers._local.process import END_S
from rlvr.samplers._local.wire import Wire

Orders = SimpleQueue[dict[str, Any]]
LOOK_S = 0.05
"""How long to wait for requests while nothing is sampled."""
PARENT_S = 1.0
"""How often to check that the trainer still runs. A process that the trainer forked may hold its socket open."""


class Requested(Feed):
    """Queue of the requests that the trainer sends, until it sends `end`."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.running, self.ended = orders, 0, False

    def take(self, room: int) -> Asked | None:
        """Return the requests received so far; wait a moment if nothing is being sampled."""
        found: Asked = []
        while not self.ended:
            try:
                order = self.orders.get(timeout=LOOK_S) if not (found or self.running) else self.orders.get_nowait()
            except Empty:
                break
            if order["do"] == "end":
                self.ended = True
            else:
                found.append((order["id"], Request(order["prompt"], order["max_tokens"], order["seed"])))
                self.running += 1
        return None if self.ended else found

    def wave(self) -> Asked | None:
        """Return all requests received so far."""
        return self.take(sys.maxsize)


class Worker:
    """Executes the trainer's orders with one engine."""

    def __init__(self, wire: Wire, orders: Orders, start: dict[str, Any]) -> None:
        self.wire, self.orders, self.twins = wire, orders, dict[str, str]()
        source: Any = start["model"] if start["whole"] else Path(start["model"])
        place = Place(**start["place"])
        self.engine = Colocated(source, place, deadline_s=math.inf, tied=start["tied"], home=Path(start["home"]))
        if start["tied"] and not self.engine.on_gpu:
            self.twins = {start["tied"][1]: start["tied"][0]}
        wire.send({"told": "ready", "max_model_len": self.engine.max_model_len})

    def run(self) -> None:
        """Execute orders, for as long as the trainer runs."""
        while True:
            order = self.orders.get()
            match order["do"]:
                case "take":
                    self.take(order)
                case "score":
                    self.wire.send({"told": "scored", "scores": self.engine.score(order["tokens"])})
                case "rest":
                    self.engine.rest()
                    self.wire.send({"told": "rested"})
                case "serve":
                    self.serve(Sampling(**order["sampling"] | {"stop_ids": frozenset(order["sampling"]["stop_ids"])}))

    def take(self, order: dict[str, Any]) -> None:
        """Load the weights that the trainer has written; unchanged parts are not sent again."""
        if order["folder"]:
            self.engine.renew("reload_from", {"folder": order["folder"], "twins": self.twins}, order["version"])
        if order["adapter"]:
            self.engine.adapt(order["adapter"], order["version"])
        self.wire.send({"told": "took", "order": order["order"]})

    def serve(self, sampling: Sampling) -> None:
        """Sample until the trainer sends `end`; then abort running requests."""
        feed = Requested(self.orders)
        answers = self.engine.serve(feed, sampling)
        for given in answers:
            if given is not None:
                feed.running -= 1
                self.wire.send({"told": "ended", "id": given[0], **asdict(given[1])})
            if feed.ended:
                answers.close()  # type: ignore[attr-defined]
                return


def listen(wire: Wire, orders: Orders, parent: int, home: str) -> None:
    """Receive orders until the trainer is gone, then kill this process and its children."""
    while os.getppid() == parent:
        if select.select([wire.sock], [], [], PARENT_S)[0]:
            if (order := wire.receive()) is None:
                break
            orders.put(order)
    if home:
        shutil.rmtree(home, ignore_errors=True)  # weights in memory that nothing else would release
    end_group(os.getpgrp(), within_s=END_S)
    if home:
        clear_shared(Path(home))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the worker. Arguments: the socket, the trainer's pid, a folder to remove if the trainer dies."""
    fd, parent, home = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    wire, orders = Wire(socket.socket(fileno=fd)), Orders()
    threading.Thread(target=listen, args=(wire, orders, parent, home), daemon=True).start()
    try:
        Worker(wire, orders, orders.get()).run()
    except Exception as error:
        wire.send(
            {"told": "fault", "text": f"{type(error).__name__}: {error}", "config": str(error) if isinstance(error, ConfigError) else ""}
        )
        raise


if __name__ == "__main__":
    main()
