"""The commands `rlvr audit` and `rlvr serve`, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr.commands.cli.app import Json, Settings, app


@app.command()
def audit(
    verifier: Annotated[str, typer.Argument(metavar="VERIFIER", help="A verifier, or any reward function: path/to/file.py:function.")],
    pairs: Annotated[Path | None, typer.Option(help='Labelled pairs: JSONL lines {"answer", "reference", "label"}.')] = None,
    settings: Settings = None,
    max_fpr: Annotated[float | None, typer.Option(help="Exit 1 if more wrong answers than this share are paid.")] = None,
    max_fnr: Annotated[float | None, typer.Option(help="Exit 1 if more right answers than this share are refused.")] = None,
    golds: Annotated[int, typer.Option(help="From how many references pairs are made.")] = 40,
    search: Annotated[int, typer.Option(help="How many questions the search for a universal answer may ask; 0 for none.")] = 400,
    timeout: Annotated[float, typer.Option(help="Seconds for one verdict.")] = 10.0,
    seed: Annotated[int, typer.Option(help="The seed of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for audit.html and audit.json.")] = None,
    json: Json = False,
) -> int:
    """Measure how often a verifier is wrong; exit 1 past a limit."""
    from rlvr.commands import auditing

    limits = {"--max-fpr": max_fpr, "--max-fnr": max_fnr}
    how = {"search": search, "timeout_s": timeout, "seed": seed}
    return auditing.audit_verifier(verifier, pairs=pairs, settings=settings or [], limits=limits, how=how, golds=golds, out=out, json=json)


@app.command()
def serve(
    verifiers: Annotated[
        list[str] | None, typer.Argument(metavar="[VERIFIER]...", help="A name, or '{name: NAME, setting: value}'.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="An environment whose sessions are served; may be given several times.")
    ] = None,
    sandbox: Annotated[str, typer.Option(help="A sandbox that runs programs for verl (/run_code), such as docker.")] = "",
    host: Annotated[str, typer.Option(help="The address to listen on; other than this machine's own it needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any free one.")] = 8765,
    workers: Annotated[int, typer.Option(help="How many processes judge.")] = 2,
    threads: Annotated[int, typer.Option(help="How many answers each of them judges at once.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds for one verdict; later it has no score.")] = 60.0,
    queue: Annotated[int, typer.Option(help="How many answers may wait; more are refused with 429.")] = 10_000,
    max_body: Annotated[int, typer.Option(help="The largest body of a request, in bytes; larger is refused with 413.")] = 16 << 20,
    memory: Annotated[int, typer.Option(help="Bytes of all bodies under way; more is refused with 429.")] = 256 << 20,
    sessions: Annotated[int, typer.Option(help="How many sessions may be open.")] = 256,
    lease: Annotated[float, typer.Option(help="Seconds after its last call until a session is closed.")] = 300.0,
    grace: Annotated[float, typer.Option(help="Seconds that requests under way have after SIGTERM.")] = 30.0,
    request_timeout: Annotated[float, typer.Option(help="Seconds in which a request must arrive as a whole.")] = 30.0,
    token_file: Annotated[Path | None, typer.Option(help="A file with the bearer token.")] = None,
    token_env: Annotated[str, typer.Option(help="The environment variable with the bearer token.")] = "RLVR_SERVE_TOKEN",
    json: Json = False,
) -> int:
    """Serve verifiers and environments over HTTP until SIGTERM."""
    from rlvr.commands.service.command import Served
    from rlvr.commands.service.command import serve as start

    wanted = Served(
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
        lease,
        grace,
        request_timeout,
        token_file,
        token_env,
        json,
    )
    return start(wanted)
