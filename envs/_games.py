"""Base classes for games of other packages: the game runs in a process of its own, and its rewards decide the verdict."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from rlvr.answers import visible
from rlvr.contracts import Environment, Example, Heard, Session, Transcript, Verifier
from rlvr.envs._host import ForeignError, ForeignLate, Host, World
from rlvr.errors import ConfigError
from rlvr.task import Fault, Message, Task, Verdict, user
from rlvr.turns import Turn

TRIES = 256
"""Number of seeds tried to find one that belongs to the split."""
LONGEST = 2_000
"""Longest turn in characters. A longer one is not a move: the policy is told so, and the game does not see it."""


class Rewards(Verifier):
    """Verify a game by the rewards that its session recorded; the text of the answer does not count.

    The reference defines the score: `{"won": 1.0}` scores 1 if the game is over and its last reward is at least 1.0, else 0.
    `{"scale": [-1, 1]}` maps the sum of the rewards of a finished game to 0 ... 1. A reward that is not a finite number, outside of the
    declared scale, or above the declared `most`, gives no score.

    >>> task = Task("t", ({"role": "user", "content": "Play."},), {"won": 1.0})
    >>> Rewards().judge(task, Transcript("", {"rewards": [0.0, 1.0], "over": True})).score
    1.0
    >>> Rewards().judge(task, Transcript("", {"rewards": ["nan"], "over": True})).fault.value
    'infra'
    """

    examples = (Example({"won": 1.0}, right=(), wrong=("", "I won", '{"rewards": [1.0], "over": true}')),)

    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer without a game: no move was made, so it scores 0."""
        return self.judge(task, Transcript(answer, {"rewards": [], "over": False}))

    def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify the recorded game."""
        left = transcript.evidence
        if trouble := left.get("trouble"):
            fault = Fault(trouble["fault"])
            return Verdict(0.0 if fault is Fault.ANSWER else None, trouble["why"], fault=fault)
        rewards, over = left.get("rewards", []), bool(left.get("over"))
        if wrong := next((reward for reward in rewards if not _is_number(reward)), None):
            return Verdict(None, f"the game gave the reward {wrong!r:.80}; it must be a finite number", fault=Fault.INFRA)
        most = task.reference.get("most", math.inf)
        if large := next((reward for reward in rewards if reward > most + 1e-9), None):
            return Verdict(None, f"the game gave the reward {large!r}; at most {most:g} is declared", fault=Fault.INFRA)
        cut = bool(left.get("cut"))
        won, scale = task.reference.get("won"), task.reference.get("scale", [0.0, 1.0])
        detail = {"rewards": rewards, "over": over}
        if not over:
            return Verdict(0.0, f"the game was not over after {len(rewards)} moves", detail=detail)
        if won is not None:
            right = bool(rewards) and not cut and rewards[-1] >= won
            last = "the game broke off" if cut else f"the last reward is {rewards[-1] if rewards else 'none'}"
            return Verdict(float(right), f"{last}; {won:g} is won", detail=detail)
        total, (low, high) = math.fsum(rewards), scale
        if not low - 1e-9 <= total <= high + 1e-9:
            return Verdict(
                None,
                f"the game gave {total!r} in all, outside of {low:g} to {high:g}; set success_threshold or scale",
                fault=Fault.INFRA,
                detail=detail,
            )
        return Verdict(min(1.0, max(0.0, (total - low) / (high - low))), f"the game gave {total:g} of {high:g}", detail=detail)


class Games(Environment):
    """Base class of game environments. A subclass sets the process that plays (`host`, `settings`) and parses a turn into a `move`.

    The class in that process has `begin(seed)`, which starts a new game and returns its first text, and `act(move)`, which returns {"text",
    "rewards", "over"}, and "cut" if a limit of the game ended it.
    """

    host: Host
    settings: Mapping[str, Any]
    """The constructor arguments of a game, besides the seed."""
    source = ""
    """Prefix of the task ids."""
    reference: Mapping[str, Any]
    """How a finished game is scored: see `GameRewardVerifier`."""
    open_worlds = True
    """Whether the first text describes the whole game: then its hash decides the split, and no game is in two splits."""
    seed = 0
    instruction = ""
    harmless: Sequence[Any] = ()
    """Moves that a working game accepts without an error; empty if every move that reaches the game is legal."""

    def __init__(self) -> None:
        self.verifier = Rewards()
        self._tasks: dict[tuple[str, int], Task] = {}
        self._scout: World | None = None
        self._scouting = Lock()

    @abstractmethod
    def move(self, text: str) -> Any:
        """Parse the move from a turn; None if there is none."""

    @abstractmethod
    def unread(self) -> str:
        """Return the reply to a turn without a move."""

    def task(self, split: str, index: int) -> Task:
        """Return the game at `index`: the first of the seeds for (split, index) whose first text belongs to the split."""
        if split not in self.splits:
            raise ConfigError(f"there is no split {split!r}; allowed: {', '.join(self.splits)}")
        if (split, index) not in self._tasks:
            if len(self._tasks) > 10_000:
                self._tasks.clear()
            self._tasks[split, index] = self._made(split, index)
        return self._tasks[split, index]

    def _made(self, split: str, index: int) -> Task:
        for attempt in range(TRIES):
            seed = int.from_bytes(hashlib.blake2b(f"{self.seed}/{index}/{attempt}".encode(), digest_size=4).digest()) >> 2
            seed = 2 * seed + (split == "test")  # no seed is in both splits
            text = self.scouted("begin", seed=seed)
            if len(self.splits) == 1 or not self.open_worlds or (split == "test") == held_out(text):
                prompt = user(text, system=self.instruction)
                return Task(f"{self.source}/{split}/{self.seed}.{index}", prompt, {**self.reference, "seed": seed})
        raise ConfigError(f"{self.source} begins the same way with every seed, so it has no {split!r} tasks; change its settings")

    def scouted(self, what: str, **given: Any) -> Any:
        """Call a method of a separate instance that is not used for playing, such as `begin` or the list of moves."""
        with self._scouting:
            try:
                if self._scout is None:
                    self._scout = self.host.open(**self.settings)
                return self._scout.ask(what, **given)
            except ForeignError as error:
                if self._scout is not None:
                    self._scout.close()
                self._scout = None
                raise ConfigError(f"{self.source} cannot be played: {error}; its settings are {dict(self.settings)!r:.200}") from error

    def open(self, task: Task, *, seed: int) -> Session:
        """Open a game from the task's seed. All members of a group play the same game, so `seed` is ignored."""
        return Playing(self, task)

    def ready(self) -> None:
        """Start the process with the package."""
        self.host.start()

    def close(self) -> None:
        """End the process of the package, and every game in it."""
        super().close()
        if self._scout is not None:
            self._scout.close()
            self._scout = None
        self.host.close()


def held_out(text: str) -> bool:
    """Return whether a game with this first text is held out: one in five, for any seed.

    >>> held_out("a"), held_out("c")
    (False, True)
    """
    return hashlib.blake2b(text.encode(), digest_size=4).digest()[0] % 5 == 0


class Playing(Session):
    """Session of one game."""

    def __init__(self, environment: Games, task: Task) -> None:
        self.environment, self.task = environment, task
        self.moves: list[Any] = []
        self.rewards: list[Any] = []
        self.over = self.cut = False
        self.trouble: dict[str, str] = {}
        self._world: World | None = None

    def opening(self) -> Sequence[Message]:
        """Start the game. Returns no messages, because its first text is the prompt; raises ForeignError if that text differs."""
        self._world, text = self._fresh()
        if text != self.task.question:
            raise ForeignError(f"{self.task.id}: the same seed began with another text: {text!r:.200}; it cannot be trained on")
        return ()

    def hear(self, turn: Turn) -> Heard | None:
        """Play the move of the turn."""
        if self.over or self.trouble:
            return None
        shown = visible(turn.text)
        move = self.environment.move(shown) if shown is not None and len(shown) <= LONGEST else None
        if move is None:
            return Heard(({"role": "user", "content": self.environment.unread()},))
        assert self._world is not None
        self.moves.append(move)
        try:
            text = self._took(self._world.ask("act", move=move))
        except ForeignError as error:
            self.trouble = self._blame(error)
            return Heard(over=True)
        said: tuple[Message, ...] = ({"role": "user", "content": text},) if text else ()
        return Heard(said or (() if self.over else ({"role": "user", "content": "-"},)), over=self.over)

    def evidence(self) -> Mapping[str, Any]:
        """Return the rewards, whether the game is over, and what failed."""
        rewards = [reward if _is_number(reward) else repr(reward)[:80] for reward in self.rewards]
        left = {"rewards": rewards, "over": self.over, "cut": self.cut, "moves": self.moves}
        return left | ({"trouble": self.trouble} if self.trouble else {})

    def close(self) -> None:
        """End the process of the game."""
        if self._world is not None:
            self._world.close()

    def _fresh(self) -> tuple[World, str]:
        environment = self.environment
        world = environment.host.open(**environment.settings)
        try:
            return world, str(world.ask("begin", seed=self.task.reference["seed"]))
        except BaseException:
            world.close()
            raise

    def _took(self, found: Any) -> str:
        if not isinstance(found, dict) or not isinstance(found.get("rewards"), list) or not isinstance(found.get("over"), bool):
            raise ForeignError(f"the game answered {found!r:.200}")
        self.rewards += found["rewards"]
        self.over, self.cut = found["over"], bool(found.get("cut"))
        return str(found.get("text") or "")

    def _blame(self, error: ForeignError) -> dict[str, str]:
        """Find the fault of a failed move: replay the game to the same point, then try the move again, then harmless moves.

        Only a move that fails again where a harmless one does not is the answer's fault. Otherwise the game failed: no score.
        """
        why = f"the game failed at move {len(self.moves)} ({error})"[:400]
        others = [move for move in self.environment.harmless if move != self.moves[-1]]
        if others and self._fails(self.moves[-1]):
            tried = others[:2] if isinstance(error, ForeignLate) else others
            fine = next((move for move in tried if self._fails(move) is False), None)
            if fine is not None:
                return {"fault": Fault.ANSWER.value, "why": f"{why}, again with the same move, and not with {fine!r}"}
        return {"fault": Fault.INFRA.value, "why": why}

    def _fails(self, last: Any) -> bool | None:
        """Return whether the replayed game fails at the move `last`; None if it fails before that."""
        try:
            world, _ = self._fresh()
            with world:
                for move in self.moves[:-1]:
                    world.ask("act", move=move)
                try:
                    world.ask("act", move=last)
                except ForeignError:
                    return True
                return False
        except ForeignError:
            return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
