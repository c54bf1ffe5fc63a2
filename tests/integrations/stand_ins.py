"""Base classes with the published signatures of the frameworks, for tests without them.

verl 0.9.1, OpenRLHF 0.11.2, SkyRL 0.4.0 (skyrl-gym 0.4.0), ms-swift 4.6.0, NeMo-Gym 0.4.0 and 0.7.0, OpenEnv 0.10.0,
aviary 0.37.0. `benchmarks/adapters/signatures.py` compares them with the packages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from types import SimpleNamespace
from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict

from tests.integrations.worlds import Engine


class AgentLoopOutput(BaseModel):
    """verl's output of an agent loop."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: dict[str, Any]
    extra_fields: dict[str, Any] = {}


class AgentLoopBase(ABC):
    """verl's base of agent loops."""

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, processor: Any, dataset_cls: Any, data_config: Any,
        hf_model_type: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.config, self.server_manager, self.tokenizer = trainer_config, server_manager, tokenizer

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput: ...


class AgentLoops(dict[str, str]):
    """verl's registry of agent loops: it keeps the name of a class, and imports it again for each row."""

    def register(self, agent_name: str) -> Any:
        def decorate(kind: type) -> type:
            self[agent_name] = f"{kind.__module__}.{kind.__qualname__}"
            return kind

        return decorate

    def made(self, agent_name: str, **given: Any) -> Any:
        module, _, name = self[agent_name].rpartition(".")
        return getattr(import_module(module), name)(**given)


class ServerManager:
    """verl's door to its engines."""

    def __init__(self, engine: Engine, *, logprobs: bool = True) -> None:
        self.engine, self.logprobs, self.settings = engine, logprobs, list[dict[str, Any]]()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.settings.append(sampling_params)
        tokens, logprobs = (column[: sampling_params["max_tokens"]] for column in self.engine.next(prompt_ids))
        return SimpleNamespace(token_ids=tokens, log_probs=logprobs if self.logprobs else None, stop_reason="completed", extra_fields={})


class AgentExecutorBase(ABC):
    """OpenRLHF's base of executors."""

    @abstractmethod
    async def execute(
        self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any, images: Any = None
    ) -> Any: ...


class AgentInstanceBase(ABC):
    """OpenRLHF's base of environments."""

    @abstractmethod
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return states

    @abstractmethod
    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]: ...


class LLMEngine:
    """OpenRLHF's engine: vLLM's own output."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        tokens, logprobs = self.engine.next(prompt_token_ids)
        entries = [{token: SimpleNamespace(logprob=p)} for token, p in zip(tokens, logprobs, strict=True)]
        given = entries if sampling_params.logprobs is not None else None
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, text="", logprobs=given, finish_reason="stop")])


class BaseTextEnvStepOutput(TypedDict):
    """skyrl-gym's output of a step."""

    observations: list[dict[str, str]]
    reward: float
    done: bool
    metadata: dict[str, Any]


class BaseTextEnv:
    """skyrl-gym's base of environments."""

    def __init__(self) -> None:
        self.turns, self.max_turns = 0, 1


class GeneratorInterface(ABC):
    """SkyRL's base of generators."""

    @abstractmethod
    async def generate(self, input_batch: Any) -> Any: ...


class InferenceEngineClient:
    """SkyRL's door to its engines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        (prompt,) = input_batch["prompt_token_ids"]
        tokens, logprobs = self.engine.next(prompt)
        return {"responses": [""], "response_ids": [tokens], "stop_reasons": ["stop"], "response_logprobs": [logprobs]}


class ORM:
    """ms-swift's base of rewards."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        self.args = args

    def __call__(self, **kwargs: Any) -> list[float]:
        raise NotImplementedError


class Env:
    """ms-swift's base of environments."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.env_config = env_config


class OpenEnvironment(ABC):
    """OpenEnv's base of environments."""

    def __init__(self, transform: Any = None, rubric: Any = None) -> None:
        self.transform, self.rubric = transform, rubric

    @abstractmethod
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any: ...

    @abstractmethod
    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any: ...

    @property
    @abstractmethod
    def state(self) -> Any: ...

    def close(self) -> None:
        self.transform = None


class OpenAction(BaseModel):
    """OpenEnv's actions, and its observations."""

    model_config = ConfigDict(extra="forbid")
    done: bool = False
    reward: bool | int | float | None = None
    metadata: dict[str, Any] = {}


class AviaryEnvironment(ABC):
    """aviary's base of environments."""

    @abstractmethod
    async def step(self, action: Any) -> Any: ...

    @abstractmethod
    async def reset(self) -> Any: ...

    async def close(self) -> None:
        self.closed = True


class AviaryMessage(BaseModel):
    """aviary's messages, and the results of tools."""

    role: str = "user"
    content: str | None = None
    name: str = ""
    tool_call_id: str = ""
    tool_calls: list[Any] = []


class AviaryTool(BaseModel):
    """aviary's tool."""

    type: str
    function: dict[str, Any]


class BaseVerifyResponse(BaseModel):
    """NeMo-Gym's verdict, without `mask_sample`."""

    model_config = ConfigDict(extra="allow")
    reward: float


class MaskingVerifyResponse(BaseVerifyResponse):
    """NeMo-Gym's verdict, with it."""

    mask_sample: bool = False
    failure_reason: str | None = None
