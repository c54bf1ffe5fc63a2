"""TokenVectorEnv: step many token environments together and verify their finished answers in parallel.

>>> import gymnasium
>>> envs = gymnasium.make_vec("rlvr:rlvr/Arithmetic-v0", num_envs=4, obs="ids")
>>> observations, infos = envs.reset(seed=[7, 7, 8, 8])
>>> observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
>>> envs.close()

It returns exactly the results of `SyncVectorEnv` over the same environments, which does the batching and the automatic resets. But
verification is parallel: k answers that end in one step take about as long as one verification. Environments with equal seeds get
equal tasks in every episode, so `seed=[7, 7, 8, 8]` makes two groups of two.

In the default mode `NextStep`, the step after an end ignores its action and returns the start of the next episode with
reward 0.0: exclude that transition from training. `SameStep` puts the end into `final_obs` and `final_info`. `Disabled`
never resets by itself; call `reset(options={"reset_mask": mask})`.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlvr.contracts import Environment, Tokenizer
from rlvr.errors import ConfigError, EnvError, format_suggestion
from rlvr.mdp.env import TokenEnv, load_default_tokenizer, split_token_env_settings
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, build_timeout_verdict
from rlvr.registry.plugins import build_from_config, get_parameters, load_factory
from rlvr.synonyms import translate_keywords
from rlvr.task import Verdict


class _PrecomputedStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps a TokenEnv whose token is already appended and verified; `step` only returns the result."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        env: Any = self.env
        five: tuple[Any, float, bool, bool, dict[str, Any]] = env.build_step_tuple()
        return five


class TokenVectorEnv(SyncVectorEnv):
    """Many `TokenEnv`s over one environment, one verifier and one tokenizer, with one bounded pool of verification threads."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        env: str | dict[str, Any] | Environment,
        tokenizer: str | Tokenizer | Any = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        workers: int = 8,
        verify_timeout_s: float = 600.0,
        **settings: Any,
    ) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs!r}; at least 1 environment is required")
        if workers < 1 or verify_timeout_s <= 0:
            raise ConfigError(f"workers {workers} and verify_timeout_s {verify_timeout_s} must be above 0")
        mode = _parse_autoreset_mode(autoreset_mode)
        self.environment: Environment = build_from_config("env", env)
        shared: Any = load_default_tokenizer(settings.get("obs", "")) if tokenizer is None else load_tokenizer(tokenizer)
        try:
            self.token_envs = [TokenEnv(env=self.environment, tokenizer=shared, **settings) for _ in range(num_envs)]
        except Exception:
            self.environment.close()
            raise
        if self.environment.traits.has_sessions:
            self._check_room(num_envs)
        super().__init__([lambda e=e: _PrecomputedStep(e) for e in self.token_envs], autoreset_mode=mode)  # type: ignore[misc]
        self.verify_timeout_s = verify_timeout_s
        self._executor = DaemonThreadExecutor(min(workers, num_envs))

    def _check_room(self, num_envs: int) -> None:
        """Raise ConfigError if not all environments can have a session at once: `reset` opens them one after the other."""
        task = self.environment.task(self.environment.splits[0], 0)
        for limiter in self.environment.get_session_limiters(task):
            if limiter.capacity < num_envs:
                self.environment.close()
                raise ConfigError(f"num_envs is {num_envs}, and there are {limiter.capacity} {limiter.name}s; {limiter.hint}")

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Append one token or text to every running episode, verify the finished ones in parallel, and return the batch."""
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,):
            raise EnvError(f"actions have the shape {chosen.shape}; allowed: one action for each of the {self.num_envs} environments")
        if self.closed:
            raise EnvError("step() was called on closed environments; create new ones")
        largest = self.token_envs[0].pad_id - 1
        if is_text := chosen.dtype.kind == "U":
            chosen = np.array([str(action) for action in actions], dtype=object)  # numpy's own texts lose zero bytes at their end
        elif chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() > largest or self.token_envs[0].obs == "text":
            allowed = "texts" if self.token_envs[0].obs == "text" else f"whole numbers from 0 to {largest}, or texts"
            raise EnvError(f"actions {actions!r:.200} are no actions of these environments; allowed: {allowed}")
        resets = self.autoreset_mode is AutoresetMode.NEXT_STEP
        idle = [i for i, env in enumerate(self.token_envs) if env.state is None or (env.state.stop_reason is not None and not resets)]
        if idle:
            raise EnvError(f"step() was called without a running episode in environments {idle}; call reset() first")
        judged: dict[Future[Verdict], TokenEnv] = {}
        for env, action in zip(self.token_envs, chosen, strict=True):
            assert env.state is not None
            if env.state.stop_reason is None and env.step_without_verification(action):
                judged[self._executor.submit(env.mdp.verify, env.state)] = env
        done, _ = wait(judged, timeout=self.verify_timeout_s)
        for verdict, env in judged.items():
            env.set_verdict(verdict.result() if verdict in done else self._build_timeout_verdict(verdict))
        return super().step(tuple(chosen) if is_text else chosen)

    def _build_timeout_verdict(self, verdict: Future[Verdict]) -> Verdict:
        verdict.cancel()
        return build_timeout_verdict(self.verify_timeout_s)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the executor, the environment and its verifier, without waiting for a hanging verifier."""
        if hasattr(self, "_executor"):
            self._executor.close()
        super().close_extras(**kwargs)


def _parse_autoreset_mode(mode_name: str | AutoresetMode) -> AutoresetMode:
    """Parse an autoreset mode: a Gymnasium member, its value ("NextStep") or its name ("next_step")."""
    if isinstance(mode_name, AutoresetMode):
        return mode_name
    known = {name: mode for mode in AutoresetMode for name in (mode.value, mode.name.lower())}
    if mode_name not in known:
        raise ConfigError(f"autoreset_mode is {mode_name!r}; {format_suggestion(str(mode_name), [mode.value for mode in AutoresetMode])}")
    return known[mode_name]


def make_token_vector_env(*, name: str, num_envs: int = 1, **kwargs: Any) -> TokenVectorEnv:
    """Build a TokenVectorEnv, as the entry point of `gymnasium.make_vec`; unknown settings are passed to the environment."""
    own = {key: kwargs.pop(key) for key in ("autoreset_mode", "workers", "verify_timeout_s") if key in kwargs}
    settings, rest = split_token_env_settings(translate_keywords("make", kwargs, keep=get_parameters(load_factory("env", name))))
    return TokenVectorEnv(num_envs, env={"name": name, **rest}, **own, **settings)
