"""Build the OpenAPI document of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FINISH_REASONS = ("stop", "length", "tool_calls")
"""Why a turn ended; only `length` makes a difference."""
ROW_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["reference", "answer"],
    "properties": {
        "id": {"description": "Returned with the verdict."},
        "reference": {"description": "The reference answer."},
        "answer": {"type": "string"},
        "prompt": {"description": "A text, or a list of messages."},
        "meta": {"type": "object"},
    },
}
VERDICT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["score", "reason", "fault"],
    "properties": {
        "index": {"type": "integer", "description": "In a batch: the index of the row."},
        "id": {},
        "score": {
            "type": ["number", "null"],
            "description": "From 0 to 1, or what a reward function gave. Null: not verified, which is not a score of 0.",
        },
        "reason": {"type": "string"},
        "fault": {"enum": ["none", "answer", "task", "infra"]},
        "components": {"type": "object"},
        "detail": {"type": "object"},
    },
}
ERROR_DESCRIPTIONS: Mapping[str, str] = {
    "401": "The bearer token is missing or wrong.",
    "413": "The body is too large.",
    "422": "The request is invalid; the error says why.",
    "429": "Too many requests are running; try again after Retry-After seconds.",
}
KEY_PARAMETER: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 200},
    "description": "A request with the key of an earlier request gets the verdicts, or the reply, of that request.",
}


def build_openapi_document(version: str, verifiers: Sequence[str], envs: Sequence[str]) -> dict[str, Any]:
    """Build the document for the served verifiers and environments.

    >>> build_openapi_document("0.1.0", ["numeric"], [])["openapi"]
    '3.1.0'
    """
    which = {"name": "verifier", "in": "query", "schema": {"enum": list(verifiers)}, "description": "Default: the first verifier."}
    env = {"type": "string", "enum": list(envs)} if envs else {"type": "string"}
    opens = {"env": env, "split": {"type": "string"}, "index": {"type": "integer"}, "seed": {"type": "integer"}}
    opens["dialect"] = {"type": "string", "description": "How calls are written in the text of a turn: fenced, hermes, ..."}
    calls = {"type": "array", "items": {"type": "object"}, "description": "Calls in OpenAI's format, instead of calls in the text."}
    turn = {"text": {"type": "string"}, "tool_calls": calls, "finish_reason": {"enum": list(FINISH_REASONS)}}
    texts = {"type": "array", "items": {"type": "string"}}
    theirs = {"query": texts, "prompts": texts, "labels": {"type": "array"}}
    code = {"code": {"type": "string"}, "language": {"type": "string"}, "stdin": {"type": "string"}, "run_timeout": {"type": "number"}}
    batch = _post_operation(
        "Verify many answers; verdicts are streamed, one a line.",
        _object_schema({"rows": {"type": "array", "items": ROW_SCHEMA}}),
        VERDICT_SCHEMA,
    )
    batch["requestBody"]["content"]["application/x-ndjson"] = {"schema": ROW_SCHEMA}
    batch["responses"]["200"]["content"] = {"application/x-ndjson": {"schema": VERDICT_SCHEMA}}
    said = _object_schema({"messages": {"type": "array"}, "done": {"type": "boolean"}})
    closed = _object_schema({"closed": {"type": "boolean"}, "verdict": VERDICT_SCHEMA, "turns": {"type": "integer"}})
    paths: dict[str, Any] = {
        "/verify": {"post": {**_post_operation("Verify one answer.", ROW_SCHEMA, VERDICT_SCHEMA), "parameters": [which, KEY_PARAMETER]}},
        "/verify/batch": {"post": {**batch, "parameters": [which, KEY_PARAMETER]}},
        "/openrlhf": {
            "post": _post_operation(
                "Rewards for OpenRLHF (remote reward model).", _object_schema(theirs), _object_schema({"rewards": {"type": "array"}})
            )
        },
        "/seed_session": {"post": _post_operation("For NeMo-Gym, whose /verify is supported too.", _object_schema({}), _object_schema({}))},
        "/run_code": {
            "post": _post_operation(
                "Run a program, in verl's format.", _object_schema(code), _object_schema({"status": {"type": "string"}})
            )
        },
        "/tasks": {"post": _post_operation("The prompt of a task.", _object_schema(opens), _object_schema({"prompt": {"type": "array"}}))},
        "/sessions": {
            "post": _post_operation(
                "Open a session of an environment.", _object_schema(opens), _object_schema({"session": {"type": "string"}}), "201"
            )
        },
        "/sessions/{session}/step": {
            "post": {**_post_operation("Step a session with a turn.", _object_schema(turn), said), "parameters": [KEY_PARAMETER]}
        },
        "/sessions/{session}/close": {
            "post": {
                **_post_operation("Close a session and verify it.", _object_schema({"verify": {"type": "boolean"}}), closed),
                "parameters": [KEY_PARAMETER],
            }
        },
        "/healthz": {"get": {"summary": "Whether a worker is ready; needs no token.", "responses": {"200": {"description": "Ready."}}}},
        "/metrics": {"get": {"summary": "Counters for Prometheus.", "responses": {"200": {"description": "Text."}}}},
    }
    for path, methods in paths.items():
        if "{session}" in path:
            methods["parameters"] = [{"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "rlvr serve", "version": version, "description": "Verifiers and environments over HTTP."},
        "security": [{"token": []}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }


def _object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties)}


def _post_operation(summary: str, body: Mapping[str, Any], reply: Mapping[str, Any], status: str = "200") -> dict[str, Any]:
    responses: dict[str, Any] = {code: {"description": text} for code, text in ERROR_DESCRIPTIONS.items()}
    responses[status] = {"description": "Done.", "content": {"application/json": {"schema": dict(reply)}}}
    return {"summary": summary, "requestBody": {"content": {"application/json": {"schema": dict(body)}}}, "responses": responses}
