"""Worker class of `textarena`: one game of the package, with a random opponent in games for two."""

from __future__ import annotations

import copy
import importlib
import random
from typing import Any

from rlvr.envs.external._foreign_worker import find_version


class TextArenaInstance:
    """Worker class of `textarena`: one game of TextArena. The policy is player 0."""

    def __init__(self, *, game: str, variant: str, moves: list[str]) -> None:
        self.arena = importlib.import_module("textarena")
        self.id = f"{game}-v0{'-' + variant if variant else ''}-raw"
        self.moves = moves
        self.players = 2 if moves else 1

    @staticmethod
    def import_and_describe_package() -> Any:
        """Import the package and return its version."""
        return {"version": find_version("textarena", importlib.import_module("textarena"))}

    def reset(self, seed: int) -> str:
        """Start a new game; some games draw random numbers when created, others when reset."""
        random.seed(seed)
        self.env = self.arena.make(self.id)
        self.env.reset(num_players=self.players, seed=seed)
        self.rng = random.Random(f"opponent/{seed}")
        done = self._play_opponent()
        return self._read_new_text() if not done else "The game is over before it begins."

    def step(self, move: str) -> dict[str, Any]:
        """Play the policy's move, and the opponent's moves after it."""
        done, _ = self.env.step(move)
        done = bool(done) or self._play_opponent()
        if not done:
            return {"text": self._read_new_text(), "rewards": [], "over": False}
        rewards, info = self.env.close()
        foul = bool(info.get(0, {}).get("invalid_move"))  # some games then return a text as reward: the game counts as lost
        return {"text": str(info.get(0, {}).get("reason") or ""), "rewards": [0 if foul else (rewards or {}).get(0)], "over": True}

    def find_winning_moves(self, seed: int) -> list[str] | None:
        """Return winning moves, for the few games whose state reveals the secret; else None."""
        self.reset(seed)
        state = self.env.state.game_state
        if "game_number" in state:
            return [f"[{state['game_number']}]"]
        if "towers" in state:
            return _solve_hanoi(len(state["towers"]["A"]), "A", "C", "B")
        if "secret_code" in state:
            return [f"[{' '.join(map(str, state['secret_code']))}]"]
        return None

    def list_legal_moves(self, seed: int, played: list[str | None]) -> list[str]:
        """Return the moves that are legal after these moves of the policy; a turn without a move changes nothing."""
        self.reset(seed)
        for move in played:
            if move is not None and self.env.state.current_player_id == 0 and not self.env.state.done:
                self.step(move)
        return [move for move in self.moves if self._is_legal(move)]

    def _play_opponent(self) -> bool:
        """Play the opponent until it is the policy's turn; return whether the game is over. Each move is tried in a copy first."""
        for _ in range(100):
            if not self.moves or self.env.state.current_player_id == 0 or self.env.state.done:
                return bool(self.env.state.done)
            for move in self.rng.sample(self.moves, len(self.moves)):
                if self._is_legal(move):
                    self.env.step(move)
                    break
            else:
                raise RuntimeError("the opponent found no legal move")
        raise RuntimeError("the opponent moved a hundred times in a row")

    def _is_legal(self, move: str) -> bool:
        trial, before = copy.deepcopy(self.env), random.getstate()
        state, player = trial.state, trial.state.current_player_id
        seen = len(state.observations[player])
        trial.step(move)
        random.setstate(before)
        told = [text for _, text, _ in state.observations[player][seen:] if isinstance(text, str)]
        fouls = any("attempted an invalid move" in text for text in told)
        return not fouls and not state.game_info[player].get("invalid_move")

    def _read_new_text(self) -> str:
        """Return the text that the policy has not read yet, without its own text, which some games record with swapped fields."""
        _, seen = self.env.get_observation()
        return "\n".join(text for who, text, _ in seen if type(who) is int and who != 0 and isinstance(text, str)).strip()


def _solve_hanoi(disks: int, begin: str, end: str, spare: str) -> list[str]:
    if not disks:
        return []
    return [*_solve_hanoi(disks - 1, begin, spare, end), f"[{begin} {end}]", *_solve_hanoi(disks - 1, spare, end, begin)]
