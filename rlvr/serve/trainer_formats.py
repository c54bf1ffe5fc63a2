"""The reward formats of other trainers: parse their requests into rows, and format verdicts as their replies.

These formats cannot express an answer without a score, so such a request fails with status 503 instead of a reward of 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.serve.guard import RequestError

REFERENCE_KEYS = ("reference", "expected_answer", "answer", "ground_truth")
"""The keys that may hold the reference in a row of NeMo-Gym, in order of priority."""


def parse_openrlhf_request(body: Any) -> list[bytes]:
    """Parse a request of OpenRLHF: `query` has prompt and answer in one text, `prompts` the prompts, `labels` the references.

    >>> parse_openrlhf_request({"query": ["2+2=4"], "prompts": ["2+2="], "labels": ["4"]})
    [b'{"reference": "4", "answer": "4", "prompt": "2+2="}']
    """
    queries, prompts, labels = (_get_list(body, name) for name in ("query", "prompts", "labels"))
    if not len(queries) == len(prompts) == len(labels):
        raise RequestError(
            422, f"query has {len(queries)} items, prompts {len(prompts)} and labels {len(labels)}; the numbers must be equal"
        )
    rows = []
    for place, (query, prompt, label) in enumerate(zip(queries, prompts, labels, strict=True)):
        if not isinstance(query, str) or not isinstance(prompt, str):
            raise RequestError(422, f"query {place} is {query!r:.60}, and its prompt {prompt!r:.60}; both must be texts")
        if not query.startswith(prompt):
            raise RequestError(422, f"query {place} does not begin with its prompt, so its answer cannot be separated from the prompt")
        rows.append(dump_json({"reference": label, "answer": query[len(prompt) :], "prompt": prompt}))
    return rows


def format_openrlhf_reply(lines: Sequence[bytes]) -> dict[str, Any]:
    """Format the reply to OpenRLHF.

    >>> format_openrlhf_reply([b'{"id": null, "score": 1.0, "reason": "equal", "fault": "none"}'])["rewards"]
    [1.0]
    """
    scores = [require_score(json.loads(line)) for line in lines]
    return {"rewards": scores, "scores": scores, "extra_logs": {"verifier_score": scores}}


def parse_nemo_gym_request(body: Mapping[str, Any]) -> bytes:
    """Parse a request to `/verify` of a NeMo-Gym resources server; the answer is the text of the last message of the policy.

    >>> parse_nemo_gym_request({"responses_create_params": {"input": "2+2="}, "response": {"output": []}, "expected_answer": "4"})
    b'{"reference": "4", "answer": "", "prompt": "2+2=", "meta": {}}'
    """
    meta = body.get("verifier_metadata") or {}
    meta = meta if isinstance(meta, dict) else {}
    found = [source[name] for source in (body, meta) for name in REFERENCE_KEYS if name in source]
    if not found:
        raise RequestError(422, f"the row has no reference; the row or its verifier_metadata needs one of {', '.join(REFERENCE_KEYS)}")
    params = body.get("responses_create_params") or {}
    given = params.get("input") if isinstance(params, dict) else None
    prompt = given if isinstance(given, str) else "\n".join(_get_message_text(item) for item in given or () if isinstance(item, dict))
    response = body["response"]
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise RequestError(422, f"response is {response!r:.80}; it must be an object whose 'output' is a list of objects")
    texts = [
        _get_answer_text(item)
        for item in output
        if item.get("type", "message") == "message" and item.get("role", "assistant") == "assistant"
    ]
    answer = texts[-1] if texts else ""
    return dump_json({"reference": found[0], "answer": answer, "prompt": prompt, "meta": meta})


def format_nemo_gym_reply(body: Mapping[str, Any], line: bytes) -> dict[str, Any]:
    """Format the reply to NeMo-Gym: the request with its reward."""
    verdict = json.loads(line)
    return {**body, "reward": require_score(verdict), "reason": verdict["reason"], "reward_components": verdict.get("components", {})}


def dump_json(value: Any) -> bytes:
    """Serialize a part of a request as JSON; nesting that is too deep is the client's error.

    >>> dump_json({"answer": "4"})
    b'{"answer": "4"}'
    """
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise RequestError(422, "the body is nested too deeply") from None


def require_score(verdict: Mapping[str, Any]) -> float:
    """Return the score of a verdict; raise status 503 if it has none."""
    if "error" in verdict:
        raise RequestError(422, str(verdict["error"]))
    if verdict["score"] is None:
        raise RequestError(503, f"an answer has no score, which is not a score of 0: {verdict['reason']}"[:400], **{"Retry-After": "5"})
    return float(verdict["score"])


def _get_message_text(item: Mapping[str, Any]) -> str:
    """Return the text of a message in the Responses format."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _get_answer_text(item: Mapping[str, Any]) -> str:
    """Return the text of a message of the policy; a message without a readable text is no empty answer."""
    content = item.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in parts):
        raise RequestError(422, f"the content of a message is {content!r:.80}; it must be a text, or a list of objects with a 'text'")
    return "".join(part.get("text", "") for part in parts)


def _get_list(body: Any, name: str) -> list[Any]:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, list):
        raise RequestError(422, f"{name} is {value!r:.60}, and must be a list; OpenRLHF sends query, prompts and labels")
    return value
