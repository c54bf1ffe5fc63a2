"""Base classes for games of other packages: the game runs in a process of its own, and its rewards decide the verdict."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from rlvr.contracts import Environment, Session, StepResult, Transcript, Verifier, VerifierExample
from rlvr.envs.external._foreign_host import ForeignError, ForeignHost, ForeignInstanceProxy, ForeignProcessLost
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import strip_thinking
from rlvr.task import Fault, Message, Task, Verdict, make_user_prompt
from rlvr.turns import Turn

MAX_SEED_TRIES = 256
"""Number of seeds tried to find one that belongs to the split."""
MAX_TURN_CHARS = 2_000
"""Longest turn in characters. A longer one is not a move: the policy is told so, and the game does not see it."""


class GameRewardVerifier(Verifier):
    """Verify a game by the rewards that its session recorded; the text of the answer does not count.

    The reference defines the score: `{"won": 1.0}` scores 1 if the game is over and its last reward is at least 1.0, else 0.
    `{"scale": [-1, 1]}` maps the sum of the rewards of a finished game to 0 ... 1. A reward that is not a finite number, outside of the
    declared scale, or above the declared `most`, gives no score.

    >>> task = Task(({"role": "user", "content": "Play."},), {"won": 1.0}, id="t")
    >>> GameRewardVerifier().verify_transcript(task, Transcript("", {"rewards": [0.0, 1.0], "over": True})).score
    1.0
    >>> GameRewardVerifier().verify_transcript(task, Transcript("", {"rewards": ["nan"], "over": True})).fault.value
    'infra'
    """

    examples = (VerifierExample({"won": 1.0}, correct=(), incorrect=("", "I won", '{"rewards": [1.0], "over": true}')),)

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer without a game: no move was made, so it scores 0."""
        return self.verify_transcript(task, Transcript(answer, {"rewards": [], "over": False}))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify the recorded game."""
        left = transcript.artifacts
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


class GameEnvironment(Environment):
    """Base class of game environments. A subclass sets the worker process of the game (`host`, `instance_settings`) and parses a turn
    into a move.

    The class in that process has `begin(seed)`, which starts a new game and returns its first text, and `act(parse_move)`, which returns
    {"text", "rewards", "over"}, and "cut" if a limit of the game ended it.
    """

    host: ForeignHost
    instance_settings: Mapping[str, Any]
    """The constructor arguments of a game, besides the seed."""
    id_prefix = ""
    """Prefix of the task ids."""
    reference: Mapping[str, Any]
    """How a finished game is scored: see `GameRewardVerifier`."""
    splits_by_first_text = True
    """Whether the first text describes the whole game: then its hash decides the split, and no game is in two splits."""
    seed = 0
    instruction = ""
    harmless_moves: Sequence[Any] = ()
    """Moves that a working game accepts without an error; empty if every move that reaches the game is legal."""

    def __init__(self) -> None:
        self.verifier = GameRewardVerifier()
        self._tasks: dict[tuple[str, int], Task] = {}
        self._scout: ForeignInstanceProxy | None = None
        self._scout_lock = Lock()

    @abstractmethod
    def parse_move(self, text: str) -> Any:
        """Parse the move from a turn; None if there is none."""

    @abstractmethod
    def format_no_move_reply(self) -> str:
        """Return the reply to a turn without a move."""

    def task(self, split: str, index: int) -> Task:
        """Return the game at `index`: the first of the seeds for (split, index) whose first text belongs to the split."""
        if split not in self.splits:
            raise ConfigError(f"there is no split {split!r}; allowed: {', '.join(self.splits)}")
        if (split, index) not in self._tasks:
            if len(self._tasks) > 10_000:
                self._tasks.clear()
            self._tasks[split, index] = self._make_task(split, index)
        return self._tasks[split, index]

    def _make_task(self, split: str, index: int) -> Task:
        for attempt in range(MAX_SEED_TRIES):
            seed = int.from_bytes(hashlib.blake2b(f"{self.seed}/{index}/{attempt}".encode(), digest_size=4).digest()) >> 2
            seed = 2 * seed + (split == "test")  # no seed is in both splits
            text = self.call_on_temporary_instance("reset", seed=seed)
            if len(self.splits) == 1 or not self.splits_by_first_text or (split == "test") == is_held_out(text):
                prompt = make_user_prompt(text, system=self.instruction)
                return Task(prompt, {**self.reference, "seed": seed}, id=f"{self.id_prefix}/{split}/{self.seed}.{index}")
        raise ConfigError(f"{self.id_prefix} begins the same way with every seed, so it has no {split!r} tasks; change its settings")

    def call_on_temporary_instance(self, method: str, **given: Any) -> Any:
        """Call a method of a separate instance that is not used for playing, such as `reset` or the list of moves."""
        with self._scout_lock:
            try:
                if self._scout is None:
                    self._scout = self.host.new_instance(**self.instance_settings)
                return self._scout.call(method, **given)
            except ForeignError as error:
                if self._scout is not None:
                    self._scout.close()
                self._scout = None
                raise ConfigError(
                    f"{self.id_prefix} cannot be played: {error}; its settings are {dict(self.instance_settings)!r:.200}"
                ) from error

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a game from the task's seed. All members of a group play the same game, so `seed` is ignored."""
        return GameSession(self, task)

    def prepare(self) -> None:
        """Start the process with the package."""
        self.host.ensure_started()

    def close(self) -> None:
        """End the process of the package, and every game in it."""
        super().close()
        if self._scout is not None:
            self._scout.close()
            self._scout = None
        self.host.close()


def is_held_out(text: str) -> bool:
    """Return whether a game with this first text is held out: one in five, for any seed.

    >>> is_held_out("a"), is_held_out("c")
    (False, True)
    """
    return hashlib.blake2b(text.encode(), digest_size=4).digest()[0] % 5 == 0


class GameSession(Session):
    """Session of one game."""

    def __init__(self, environment: GameEnvironment, task: Task) -> None:
        self.environment, self.task = environment, task
        self.moves: list[Any] = []
        self.rewards: list[Any] = []
        self.done = self.truncated = False
        self.failure: dict[str, str] = {}
        self._instance: ForeignInstanceProxy | None = None

    def initial_messages(self) -> Sequence[Message]:
        """Start the game. Returns no messages, because its first text is the prompt; raises ForeignError if that text differs."""
        self._instance, text = self._start_game()
        if text != self.task.question:
            raise ForeignError(f"{self.task.id}: the same seed began with another text: {text!r:.200}; it cannot be trained on")
        return ()

    def step(self, turn: Turn) -> StepResult | None:
        """Play the move of the turn."""
        if self.done or self.failure:
            return None
        shown = strip_thinking(turn.text)
        move = self.environment.parse_move(shown) if shown is not None and len(shown) <= MAX_TURN_CHARS else None
        if move is None:
            return StepResult(({"role": "user", "content": self.environment.format_no_move_reply()},))
        if (found := self.play_move(move)) is None:
            return StepResult(done=True)
        text = str(found.get("text") or "")
        said: tuple[Message, ...] = ({"role": "user", "content": text},) if text else ()
        return StepResult(said or (() if self.done else ({"role": "user", "content": "-"},)), done=self.done)

    def play_move(self, move: Any) -> dict[str, Any] | None:
        """Play a move and record what it gave; None if the game failed, which `artifacts` then says."""
        assert self._instance is not None
        self.moves.append(move)
        try:
            return self._record_step(self._instance.call("step", move=move))
        except ForeignError as error:
            self.failure = self._find_fault(error)
            return None

    def artifacts(self) -> Mapping[str, Any]:
        """Return the moves and rewards, whether the game is over, and, if the game failed, the fault and its reason."""
        rewards = [reward if _is_number(reward) else repr(reward)[:80] for reward in self.rewards]
        left = {"rewards": rewards, "over": self.done, "cut": self.truncated, "moves": self.moves}
        return left | ({"trouble": self.failure} if self.failure else {})

    def close(self) -> None:
        """End the process of the game."""
        if self._instance is not None:
            self._instance.close()

    def _start_game(self) -> tuple[ForeignInstanceProxy, str]:
        environment = self.environment
        world = environment.host.new_instance(**environment.instance_settings)
        try:
            return world, str(world.call("reset", seed=self.task.reference["seed"]))
        except BaseException:
            world.close()
            raise

    def _record_step(self, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict) or not isinstance(found.get("rewards"), list) or not isinstance(found.get("over"), bool):
            raise ForeignError(f"the game answered {found!r:.200}")
        self.rewards += found["rewards"]
        self.done, self.truncated = found["over"], bool(found.get("cut"))
        return found

    def _find_fault(self, error: ForeignError) -> dict[str, str]:
        """Find the fault of a failed move: replay the game to the same point, then try the move again, then harmless moves.

        Only a move that fails again where a harmless one does not is the answer's fault. Otherwise the game failed: no score.
        """
        why = f"the game failed at move {len(self.moves)} ({error})"[:400]
        others = [move for move in self.environment.harmless_moves if move != self.moves[-1]]
        if others and self._replay_fails_at(self.moves[-1]):
            tried = others[:2] if isinstance(error, ForeignProcessLost) else others
            fine = next((move for move in tried if self._replay_fails_at(move) is False), None)
            if fine is not None:
                return {"fault": Fault.ANSWER.value, "why": f"{why}, again with the same move, and not with {fine!r}"}
        return {"fault": Fault.INFRA.value, "why": why}

    def _replay_fails_at(self, retried_move: Any) -> bool | None:
        """Return whether the replayed game fails at the move `last`; None if it fails before that."""
        try:
            world, _ = self._start_game()
            with world:
                for move in self.moves[:-1]:
                    world.call("step", move=move)
                try:
                    world.call("step", move=retried_move)
                except ForeignError:
                    return True
                return False
        except ForeignError:
            return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
