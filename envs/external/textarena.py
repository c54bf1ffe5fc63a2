"""The games of TextArena that work offline: puzzles for one player, and two-player games against a random opponent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.envs.external._game_env import GameEnvironment
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task

VERSION = "0.7.4"
ONE_PLAYER_GAMES: Mapping[str, int] = {
    "Bandit": 22,
    "Countdown": 12,
    "Crosswords": 40,
    "Cryptarithm": 30,
    "FifteenPuzzle": 60,
    "FrozenLake": 24,
    "GuessTheNumber": 20,
    "LightsOut": 50,
    "LogicPuzzle": 40,
    "Mastermind": 20,
    "Minesweeper": 60,
    "RushHour": 50,
    "Secretary": 24,
    "Set": 20,
    "Slitherlink": 60,
    "Sudoku": 60,
    "ThreeCardMonte": 12,
    "TowerOfHanoi": 30,
}
"""Games for one player, with the number of turns of the policy."""
TWO_PLAYER_GAMES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "ConnectFour": (24, tuple(f"[{column}]" for column in range(7))),
    "KuhnPoker": (24, ("[check]", "[bet]", "[call]", "[fold]")),
    "Nim": (12, tuple(f"[{pile} {count}]" for pile in range(4) for count in range(1, 8))),
    "TicTacToe": (6, tuple(f"[{cell}]" for cell in range(9))),
    "UltimateTicTacToe": (44, tuple(f"[{board} {row} {column}]" for board in range(9) for row in range(3) for column in range(3))),
    "WildTicTacToe": (6, tuple(f"[{mark} {cell}]" for mark in "XO" for cell in range(9))),
}
"""Two-player games, with the number of turns of the policy and the opponent's moves: it plays a random legal one."""
UNSUPPORTED: Mapping[str, str] = {
    "Blackjack": "its reward is the share of hands won, so no game is won",
    "Game2048": "nothing is won within a reasonable number of moves",
    "MarketEntryGame": "it does not end within a deadline",
    "PegJump": "it gives a reward before the first move",
    "PublicGoodsGame": "it does not end within a deadline",
    "QuantumTicTacToe": "one player plays both sides",
    "SpiteAndMalice": "one player plays both sides",
    **dict.fromkeys(("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"), "it calls a model behind an API"),
    **dict.fromkeys(
        ("Codenames", "DontSayIt", "Hangman", "LetterAuction", "WordChains", "WordLadder", "WordSearch", "Wordle"),
        "it downloads word lists when it is imported",
    ),
    **dict.fromkeys(
        ("Checkers", "Chess", "IteratedStagHunt", "Klondike", "ReverseTicTacToe", "UltimateTexasHoldem"), "it needs Python 3.12"
    ),
    **dict.fromkeys(("ScorableGames", "UsedCarNegotiation"), "files of it are missing from the package"),
    **dict.fromkeys(("Sokoban", "SpellingBee"), "it needs packages that TextArena does not install"),
}
MOVE_PATTERN = re.compile(
    r"(?:(?:my\s+)?(?:next\s+|final\s+)?(?:move|guess|action|answer)(?:\s+is)?\s*:?\s*)?(\[[^\[\]]{1,80}\])[.!]?", re.IGNORECASE
)
"""The last line of a turn that makes a move. A move inside a sentence may be denied or compared, so it does not count."""
GAMES_WITH_SOLUTION = ("GuessTheNumber", "Mastermind", "TowerOfHanoi")
"""Games whose state reveals a winning solution."""
SEED_INDEPENDENT_GAMES = ("TowerOfHanoi",)
"""Games that do not depend on the seed."""
HARMLESS_MOVES = ("[0]", "[1]", "[5]", "[0 0]", "[A B]", "")


class TextArena(GameEnvironment):
    """A game of TextArena, one move per turn, in brackets as the game asks for it. The score is 1 if the game is won, else 0.

    The move is alone on the last line of a turn, and only the move is passed to the game, which runs in a process of its own. Two invalid
    moves in a row lose, as in TextArena. In two-player games the opponent plays random legal moves, seeded by the task.

    >>> import rlvr
    >>> env = rlvr.make_env("textarena", game="TicTacToe")  # doctest: +SKIP
    >>> env.task("train", 0).question  # doctest: +SKIP
    'You are Player 0 in Tic Tac Toe. ...'
    """

    choice = "game"
    """Name of the setting whose value is a name of the catalog."""
    max_prompt_tokens = 8192
    splits_by_first_text = False
    harmless_moves = HARMLESS_MOVES

    def __init__(
        self,
        *,
        game: str = "GuessTheNumber",
        variant: str = "",
        max_turns: int | None = None,
        seed: int = 0,
        instruction: str = "",
        python: str = "",
    ) -> None:
        """Choose the game.

        Args:
            game: its name; `rlvr list envs --catalog textarena` shows all.
            variant: one of TextArena's own, such as hardcore; empty: the plain game.
            max_turns: the most turns of the policy.
            seed: another seed gives different games.
            instruction: a system message.
            python: the interpreter of an environment that has textarena; empty: this one.
        """
        super().__init__()
        if game in UNSUPPORTED:
            raise ConfigError(f"the game {game!r} is not offered: {UNSUPPORTED[game]}")
        if game not in ONE_PLAYER_GAMES and game not in TWO_PLAYER_GAMES:
            raise ConfigError(f"there is no game {game!r}; {format_suggestion(str(game), {*ONE_PLAYER_GAMES, *TWO_PLAYER_GAMES})}")
        usual, moves = (ONE_PLAYER_GAMES[game], ()) if game in ONE_PLAYER_GAMES else TWO_PLAYER_GAMES[game]
        self.game, self.seed, self.instruction = game, seed, instruction
        self.id_prefix = f"textarena/{game}{'-' + variant if variant else ''}"
        self.instance_settings = {"game": game, "variant": variant, "moves": list(moves)}
        self.reference = {"won": 1.0, "most": 1.0}
        self.max_turns = usual if max_turns is None else max_turns
        if not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 move must be allowed")
        self.max_new_tokens = 32 * self.max_turns
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte
        if game in SEED_INDEPENDENT_GAMES:
            self.splits = ("train",)
        self.host = ForeignHost(
            "rlvr.envs.external._textarena_worker:TextArenaInstance", extra="textarena", call_timeout_s=10.0, python=python
        )

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [{"name": name, "offered": "yes", "why": f"one player, {turns} turns"} for name, turns in ONE_PLAYER_GAMES.items()]
        rows += [
            {"name": name, "offered": "yes", "why": f"against a random opponent, {row[0]} turns"} for name, row in TWO_PLAYER_GAMES.items()
        ]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in sorted(UNSUPPORTED.items())]

    def prepare(self) -> None:
        """Start the process, and check that the version is the one that the tables of this file were made with."""
        about = self.host.ensure_started()
        if about["version"] != VERSION:
            command = f"{self.host.python} -m pip" if self.host.python else "pip"
            raise ConfigError(f"textarena {about['version']} is installed, {VERSION} is needed: {command} install textarena=={VERSION}")

    def num_tasks(self, split: str) -> int | None:
        """Return 1 if the game does not depend on the seed, else None."""
        return 1 if self.game in SEED_INDEPENDENT_GAMES else None

    def parse_move(self, text: str) -> str | None:
        """Parse the move in brackets on the last line of the turn; None if there is none."""
        form = MOVE_PATTERN.fullmatch(text.rstrip().rpartition("\n")[2].strip().strip("*_`").strip())
        return form[1] if form else None

    def list_legal_turns(self, task: Task, completions: Sequence[str]) -> list[str] | None:
        """Return the legal moves, for games with a list of moves: those of two players."""
        if not self.instance_settings["moves"]:
            return None
        moves = [self.parse_move(text) for text in completions]
        return list(self.call_on_temporary_instance("list_legal_moves", seed=task.reference["seed"], played=moves))

    def oracle_turns(self, task: Task) -> list[str] | None:
        """Return winning moves, for TowerOfHanoi, GuessTheNumber and Mastermind; else None."""
        found = (
            self.call_on_temporary_instance("find_winning_moves", seed=task.reference["seed"]) if self.game in GAMES_WITH_SOLUTION else None
        )
        return list(found) if found else None

    def gold(self, task: Task) -> str | None:
        """Return the first move of the oracle turns."""
        script = self.oracle_turns(task)
        return script[0] if script else None

    def format_no_move_reply(self) -> str:
        """Return a message that says how to write a move."""
        return "That is no move. Write one move in square brackets, as the game asks for it, alone on the last line."


make = TextArena
