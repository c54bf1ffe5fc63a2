"""The commands `rlvr audit` and `rlvr serve`, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr.cli.commands.app import Json, Settings, app


@app.command()
def audit(
    verifier: Annotated[str, typer.Argument(metavar="VERIFIER", help="A verifier, or any reward function: path/to/file.py:function.")],
    pairs: Annotated[Path | None, typer.Option(help='Labelled pairs: JSONL lines {"answer", "reference", "label"}.')] = None,
    settings: Settings = None,
    max_fpr: Annotated[float | None, typer.Option(help="Exit code 1 if the false positive rate is above this share.")] = None,
    max_fnr: Annotated[float | None, typer.Option(help="Exit code 1 if the false negative rate is above this share.")] = None,
    golds: Annotated[int, typer.Option(help="The number of references from which pairs are generated.")] = 40,
    search: Annotated[int, typer.Option(help="Budget of calls for the search of an answer that is always accepted; 0: no search.")] = 400,
    timeout: Annotated[float, typer.Option(help="Timeout of one verdict, in seconds.")] = 10.0,
    total_timeout: Annotated[float, typer.Option(help="Timeout of the whole audit, in seconds; exit code 1 if it is reached.")] = 3600.0,
    success_threshold: Annotated[float, typer.Option(help="The score from which on an answer counts as accepted.")] = 0.5,
    seed: Annotated[int, typer.Option(help="The seed of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for audit.html and audit.json.")] = None,
    json: Json = False,
) -> int:
    """Measure a verifier's error rates; exit code 1 above a limit.

    The exit code is also 1 if the verifier crashes or hangs, or if the audit was not finished.
    """
    from rlvr.cli import auditing

    limits = {"--max-fpr": max_fpr, "--max-fnr": max_fnr}
    how = {"max_search_calls": search, "timeout_s": timeout, "total_timeout_s": total_timeout, "seed": seed}
    how["success_threshold"] = success_threshold
    return auditing.audit_verifier(
        verifier,
        labelled_pairs=pairs,
        setting_pairs=settings or [],
        rate_limits=limits,
        audit_settings=how,
        max_golds=golds,
        out=out,
        json=json,
    )


@app.command()
def serve(
    verifiers: Annotated[
        list[str] | None, typer.Argument(metavar="[VERIFIER]...", help="A name, or '{name: NAME, setting: value}'.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="An environment whose sessions are served; repeat it for several.")] = None,
    sandbox: Annotated[str, typer.Option(help="A sandbox that runs programs for verl (/run_code), such as docker.")] = "",
    host: Annotated[str, typer.Option(help="The address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any free one.")] = 8765,
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 2,
    threads: Annotated[int, typer.Option(help="Number of answers of one request that a worker verifies at once.")] = 8,
    timeout: Annotated[float, typer.Option(help="Timeout of one verdict, in seconds; after it the answer has no score.")] = 60.0,
    queue: Annotated[int, typer.Option(help="Maximum of waiting answers; further requests get status 429.")] = 10_000,
    max_body: Annotated[int, typer.Option(help="Maximum size of a request body, in bytes; a larger one gets status 413.")] = 16 << 20,
    memory: Annotated[int, typer.Option(help="Maximum size of all request bodies together, in bytes; beyond it: status 429.")] = 256 << 20,
    sessions: Annotated[int, typer.Option(help="Maximum of open sessions.")] = 256,
    open_wait: Annotated[float, typer.Option(help="Seconds that a request waits for a free session; after it: status 429.")] = 5.0,
    lease: Annotated[float, typer.Option(help="Seconds without a call after which a session is closed.")] = 300.0,
    grace: Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")] = 30.0,
    request_timeout: Annotated[float, typer.Option(help="Timeout for receiving a whole request, in seconds.")] = 30.0,
    token_file: Annotated[Path | None, typer.Option(help="A file with the bearer token.")] = None,
    token_env: Annotated[str, typer.Option(help="The environment variable with the bearer token.")] = "RLVR_SERVE_TOKEN",
    json: Json = False,
) -> int:
    """Serve verifiers and environments over HTTP until SIGTERM."""
    from rlvr.serve.command import ServeConfig
    from rlvr.serve.command import serve as start

    wanted = ServeConfig(
        verifiers or (),
        env or (),
        sandbox,
        host,
        port,
        workers,
        threads,
        timeout,
        queue,
        max_body,
        memory,
        sessions,
        open_wait,
        lease,
        grace,
        request_timeout,
        token_file,
        token_env,
        json,
    )
    return start(wanted)
