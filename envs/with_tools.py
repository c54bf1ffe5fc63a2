"""Any environment, with tools: `{name: with_tools, env: gsm8k, tools: [python], max_turns: 6}`.

Shorter, as settings of the environment itself: `{name: gsm8k, tools: [python], max_turns: 6}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr.contracts import Environment, EnvironmentWrapper, Sandbox, Session, ToolSession
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError
from rlvr.task import StepReward, Task, Verdict
from rlvr.turns import Turn

MIN_NEW_TOKENS_WITH_TOOLS = 256


class WithTools(EnvironmentWrapper):
    """The tasks and the verifier of another environment; the policy may call tools before it answers.

    A turn without calls goes to the wrapped environment: it is the answer to a question, or the next turn of a conversation. `tools: []`
    adds no tools.

    >>> import rlvr
    >>> env = rlvr.make_env("with_tools", env="arithmetic", tools=["calculator"])
    >>> env.task("train", 0).question, env.max_turns
    ('3+8=', 6)
    """

    needs = {"env": "", "tools": ["calculator"], "sandbox": "auto"}

    def __init__(
        self,
        *,
        env: Environment,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        max_turns: int | None = None,
        max_new_tokens: int | None = None,
        dialect: str = "",
    ) -> None:
        """Set the environment, the tools and the limits.

        Args:
            env: the environment that poses the tasks.
            tools: the tools of the policy; `rlvr list tools` shows all.
            sandbox: runs the tools that need a sandbox; it is built only if there are such tools.
            max_turns: how many turns the policy has, calls included; by default five more than the environment has.
            max_new_tokens: how many tokens the policy may write in all turns together; by default twice as many as the environment
                allows, and with tools at least 256, so that a call and an answer fit if each character is a token.
            dialect: how calls are written; by default as the model's chat template does.
        """
        if env.tools:
            raise ConfigError(f"{type(env).__name__} has tools of its own; set its setting `tools`, and leave with_tools out")
        super().__init__(env)
        self.tools, self.sandbox, self.dialect = tools, sandbox, dialect
        self.max_turns = env.max_turns + 5 * bool(tools) if max_turns is None else max_turns
        if max_new_tokens is None:
            max_new_tokens = max(2 * env.max_new_tokens, MIN_NEW_TOKENS_WITH_TOOLS) if tools else env.max_new_tokens
        self.max_new_tokens = max_new_tokens

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session of the wrapped environment, with the tools."""
        inner = self.env.new_session(task, seed=seed)
        return ToolSession(task, self.tools, sandbox=self.sandbox, seed=seed, inner=inner) if self.tools else inner

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the text that the wrapped environment verifies."""
        return self.env.select_answer(task, completions)

    def step_rewards_for_turns(self, task: Task, turns: Sequence[Turn], verdict: Verdict) -> Sequence[StepReward]:
        """Return the step rewards; the wrapped environment sees only the turns without calls, so their turn numbers are mapped back."""
        heard = [place for place, turn in enumerate(turns) if not turn.calls_needing_result_or_error]
        places = heard if self.env.max_turns > 1 else [len(turns) - 1]
        found = self.env.step_rewards(task, [turns[place].text for place in places], verdict)
        return [replace(earned, turn=places[earned.turn] if places else -1) for earned in found]


make = WithTools
