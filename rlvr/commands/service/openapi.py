"""Build the OpenAPI document of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROW: Mapping[str, Any] = {
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
VERDICT: Mapping[str, Any] = {
    "type": "object",
    "required": ["score", "reason", "fault"],
    "properties": {
        "index": {"type": "integer", "description": "In a batch: the index of the row."},
        "id": {},
        "score": {"type": ["number", "null"], "description": "From 0 to 1. Null: not verified, which is not a score of 0."},
        "reason": {"type": "string"},
        "fault": {"enum": ["none", "answer", "task", "infra"]},
        "parts": {"type": "object"},
        "detail": {"type": "object"},
    },
}
ERRORS: Mapping[str, str] = {
    "401": "The bearer token is missing or wrong.",
    "413": "The body is too large.",
    "422": "The request is invalid; the error says why.",
    "429": "Too many requests are running; try again after Retry-After seconds.",
}
KEY: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 200},
    "description": "A request with the key of an earlier request gets the verdicts of that request.",
}


def document(version: str, verifiers: Sequence[str], envs: Sequence[str]) -> dict[str, Any]:
    """Build the document for the served verifiers and environments.

    >>> document("0.1.0", ["numeric"], [])["openapi"]
    '3.1.0'
    """
    which = {"name": "verifier", "in": "query", "schema": {"enum": list(verifiers)}, "description": "Default: the first verifier."}
    env = {"type": "string", "enum": list(envs)} if envs else {"type": "string"}
    opens = {"env": env, "split": {"type": "string"}, "index": {"type": "integer"}, "seed": {"type": "integer"}}
    texts = {"type": "array", "items": {"type": "string"}}
    theirs = {"query": texts, "prompts": texts, "labels": {"type": "array"}}
    code = {"code": {"type": "string"}, "language": {"type": "string"}, "stdin": {"type": "string"}, "run_timeout": {"type": "number"}}
    batch = _post("Verify many answers; verdicts are streamed, one a line.", _object({"rows": {"type": "array", "items": ROW}}), VERDICT)
    batch["requestBody"]["content"]["application/x-ndjson"] = {"schema": ROW}
    batch["responses"]["200"]["content"] = {"application/x-ndjson": {"schema": VERDICT}}
    said = _object({"messages": {"type": "array"}, "over": {"type": "boolean"}})
    paths: dict[str, Any] = {
        "/verify": {"post": {**_post("Verify one answer.", ROW, VERDICT), "parameters": [which, KEY]}},
        "/verify/batch": {"post": {**batch, "parameters": [which, KEY]}},
        "/openrlhf": {
            "post": _post("Rewards for OpenRLHF (remote reward model).", _object(theirs), _object({"rewards": {"type": "array"}}))
        },
        "/seed_session": {"post": _post("For NeMo-Gym, whose /verify is supported too.", _object({}), _object({}))},
        "/run_code": {"post": _post("Run a program, in verl's format.", _object(code), _object({"status": {"type": "string"}}))},
        "/tasks": {"post": _post("The prompt of a task.", _object(opens), _object({"prompt": {"type": "array"}}))},
        "/sessions": {"post": _post("Open a session of an environment.", _object(opens), _object({"session": {"type": "string"}}), "201")},
        "/sessions/{session}/hear": {"post": _post("Step a session with a turn.", _object({"text": {"type": "string"}}), said)},
        "/sessions/{session}/close": {"post": _post("Close a session and verify it.", _object({"judge": {"type": "boolean"}}), VERDICT)},
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


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties)}


def _post(summary: str, body: Mapping[str, Any], reply: Mapping[str, Any], status: str = "200") -> dict[str, Any]:
    responses: dict[str, Any] = {code: {"description": text} for code, text in ERRORS.items()}
    responses[status] = {"description": "Done.", "content": {"application/json": {"schema": dict(reply)}}}
    return {"summary": summary, "requestBody": {"content": {"application/json": {"schema": dict(body)}}}, "responses": responses}
