"""Five turns of an agent, with tools and reasoning, through the gateway's path of tokens, for every chat template of TRL's wheel and for the styles of
`tests/fixtures/templates.py`: no sampled token is lost, doubled or encoded again.

The agent leaves out the reasoning of earlier turns and renames its calls, as real ones do. A template that cannot be driven is refused with the reason,
which is printed. Exit code 1 if a template is driven wrongly.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlvr
from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.hf_tokenizer import HFTokenizer
from rlvr.contracts import Completion, Request, Sampler, SamplerTraits, SamplingParams
from rlvr.episode import Episode
from rlvr.errors import RlvrError
from rlvr.turns import Call, ToolSpec
from tests.fixtures.templates import STYLES, control_tokens, tokenizer_for

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
ENDS = (
    "<｜end▁of▁sentence｜>",
    "<|eot|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "</s>",
    "<|return|>",
    "<|endoftext|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|user|>",
)


async def ask_five_times(client: Any, task: Any) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a question that is long enough"}]
    for number in range(5):
        reply = await client.chat(messages, tools=[TOOL])
        reply.pop("reasoning_content", None)
        if reply.get("tool_calls"):
            calls = [{**call, "id": f"mine{number}"} for call in reply["tool_calls"]]
            messages += [{**reply, "tool_calls": calls}, {"role": "tool", "tool_call_id": f"mine{number}", "content": f"result {number}"}]
        else:
            messages += [reply, {"role": "user", "content": f"and now? {number}"}]


class Alternating(Sampler):
    """Writes a call and an answer in turn, each after some reasoning."""

    traits = SamplerTraits(loads_weights=False)

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.tokens, self.dialect, self.sampled, self.prompts = (
            tokenizer,
            get_dialect(tokenizer.dialect),
            list[list[int]](),
            list[list[int]](),
        )

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield one completion for each request."""
        for place, request in enumerate(requests):
            number = len(self.sampled)
            opens, closes = (*self.dialect.reasoning_marks, ("", ""))[0]
            thought = f"{opens}\nso {number}\n{closes}\n\n" if opens else ""
            if opens and self.tokens.decode(list(request.prompt)[-16:]).rstrip().endswith(opens):
                thought = thought.removeprefix(opens)
            call = self.dialect.format_calls([Call("0.0", "look", {"text": f"x {number}"})], [ToolSpec("look", "Looks.", PARAMETERS)])
            words = thought + (call if number % 2 == 0 else f"answer {number}")
            tokens = [*self.tokens.encode(words)]
            ends = [token for token, mark in self.tokens.stop_marks.items() if words.rstrip().endswith(mark)]
            tokens = [token for token in tokens if token not in self.tokens.stop_ids] + (ends or [self.tokens.eos_id])
            self.sampled.append(tokens)
            self.prompts.append(list(request.prompt))
            yield place, Completion(tokens, [-0.1] * len(tokens), "stop")


def drive(tokenizer: HFTokenizer) -> tuple[Episode, Alternating]:
    env, sampler = rlvr.make_env("agent", env="arithmetic", function=ask_five_times), Alternating(tokenizer)
    try:
        with rlvr.Rollout(env, tokenizer, sampler, max_length=100_000, max_new_tokens=50_000) as rollout:
            [[episode]] = rollout.sample(env.task("train", 0), seed=1)
            return episode, sampler
    finally:
        env.close()


def find_problem(episode: Episode, sampler: Alternating) -> str:
    """Say what is wrong with the episode's tokens, by what the sampler was given and gave."""
    spans = [episode.tokens[start:end] for start, end in episode.turn_spans]
    if "trouble" in episode.meta or len(spans) != 5:
        return f"{len(spans)} turns; {episode.meta.get('trouble', '')}"
    if any(own[: len(span)] != span for own, span in zip(sampler.sampled, spans, strict=True)):
        return "a turn has other tokens than were sampled"
    for k in range(1, 5):
        known = [*sampler.prompts[k - 1], *spans[k - 1]]
        if len(episode.branches) == 1 and sampler.prompts[k][: len(known)] != known:
            return f"turn {k} does not go on where turn {k - 1} ended"
    return ""


def load_templates() -> dict[str, tuple[str, tuple[str, ...]]]:
    import trl

    found = {name: (template, stops) for name, (template, stops, _) in STYLES.items()}
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        template = path.read_text("utf-8")
        found[path.stem] = (template, tuple(end for end in ENDS if end in control_tokens(template)) or ("</s>",))
    return found


def main() -> int:
    counts, refused, wrong = Counter[str](), dict[str, str](), dict[str, str]()
    for name, (template, stops) in load_templates().items():
        reasons = []
        for stop in (stops, *((one,) for one in stops)):  # the template does not say which token ends a turn
            try:
                tokenizer = HFTokenizer(tokenizer_for(template, stop), [])
                tokenizer.stop_ids = frozenset({*tokenizer.stop_ids, *tokenizer.tokenizer.convert_tokens_to_ids(list(stop))})
                episode, sampler = drive(tokenizer)
            except RlvrError as error:
                reasons.append(str(error))
                continue
            if episode.error:
                reasons.append(episode.error)
                continue
            if problem := find_problem(episode, sampler):
                wrong[name] = problem
            counts["driven in one branch" if len(episode.branches) == 1 else "driven in several branches"] += 1
            break
        else:
            refused[name] = reasons[0][:200]
    for name, reason in {**refused, **{name: f"WRONG: {problem}" for name, problem in wrong.items()}}.items():
        print(f"{name}: {reason}")
    figures = {"templates": sum(counts.values()) + len(refused), **counts, "refused": len(refused), "wrong": len(wrong)}
    print(json.dumps(figures | {"passed": not wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
