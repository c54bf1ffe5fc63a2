"""The command `rlvr eval` and its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr.cli.commands.app import CLUSTER_HELP, Json, Settings, app
from rlvr.errors import ConfigError

Whole = int | None
Number = float | None
Text = str | None
Answers = Annotated[Whole, typer.Option("-n", "--n", help="Answers per task; default: the suite's, or 1.")]
Tasks = Annotated[Whole, typer.Option("--tasks", "--limit", help="How many tasks, from the first; default: the suite's, or 100.")]
Split = Annotated[Text, typer.Option(help="The split; default: the suite's, or test.")]
Temperature = Annotated[Number, typer.Option(help="0 is greedy; default: the suite's, or 0 for one answer per task, 1 for several.")]
TopP = Annotated[Number, typer.Option(help="Nucleus sampling: total probability of the likeliest tokens; default: 1.")]
TopK = Annotated[Whole, typer.Option(help="Sample from this many of the likeliest tokens; default: 0, all.")]
System = Annotated[Text, typer.Option(help="The system prompt, in place of the environment's own; '' for none.")]
NewTokens = Annotated[Whole, typer.Option(help="Maximum tokens of an answer, all turns together; default: the suite's.")]
TurnTokens = Annotated[Whole, typer.Option(help="Maximum tokens of a turn; a longer turn is cut, and the conversation continues.")]
Length = Annotated[Whole, typer.Option(help="Maximum tokens of prompt and answer together; endpoints have their own limit.")]
EpisodeTimeout = Annotated[
    Number, typer.Option(help="Time limit of an episode in seconds: the conversation ends with the turn that exceeds it.")
]
CallTimeout = Annotated[Number, typer.Option(help="Timeout of one step or verification in seconds; then there is no score. Default: 600.")]
Concurrency = Annotated[Whole, typer.Option(help="How many requests run in parallel; default: the sampler's.")]
Price = Annotated[
    str, typer.Option(metavar="READ,WRITTEN", help="Prices of a million input and output tokens, such as 0.25,1.25; shows the cost.")
]
SamplerSettings = Annotated[
    list[str] | None,
    typer.Option("--sampler", metavar="KEY=VALUE", help="A setting of the policy's sampler, such as api_key_env=MY_KEY; value in YAML."),
]


@app.command("eval")
def eval_(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A suite (`rlvr list suites`), a YAML file of one, a recipe, an environment, or data.")
    ] = "",
    policy: Annotated[str, typer.Option(help="hf:DIR, vllm:DIR, openai:URL#MODEL, scripted:gold|noop|random, or FILE.py:FUNCTION.")] = "",
    n: Answers = None,
    tasks: Tasks = None,
    split: Split = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    system: System = None,
    max_new_tokens: NewTokens = None,
    max_turn_tokens: TurnTokens = None,
    max_length: Length = None,
    episode_timeout_s: EpisodeTimeout = None,
    call_timeout_s: CallTimeout = None,
    concurrency: Concurrency = None,
    select: Annotated[str, typer.Option(help="Also show best@k, selected by: shortest, longest or confident.")] = "",
    seed: Annotated[int, typer.Option(help="The seed of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder to write; an unfinished or smaller run is continued.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Sample the answers without a score again.")] = False,
    allow_unscored: Annotated[bool, typer.Option("--allow-unscored", help="Show headlines even if many samples have no score.")] = False,
    price: Price = "",
    rescore: Annotated[Path | None, typer.Option(metavar="RUN", help="Verify a run's samples again; nothing is sampled.")] = None,
    settings: Settings = None,
    sampler: SamplerSettings = None,
    cluster: Annotated[str, typer.Option(help=f"Sample on other machines: {CLUSTER_HELP}")] = "",
    json: Json = False,
) -> int:
    """Measure a policy on a suite; exit code 1 if many are unscored."""
    from rlvr.cli import evaluating
    from rlvr.cli.settings import parse_settings

    given = locals()
    names = ("n", "tasks", "split", "temperature", "top_p", "top_k", "system", "max_new_tokens", "max_turn_tokens", "max_length")
    sampling: dict[str, Any] = {name: given[name] for name in (*names, "episode_timeout_s", "call_timeout_s", "concurrency")}
    shown = {"allow_unscored": allow_unscored, "json": json}
    if rescore is not None and not suite and not policy:
        sampling |= {"seed": seed or None, "price": price or None, "sampler": sampler or None, "cluster": cluster or None}
        return evaluating.rescore_run(rescore, setting_pairs=settings or [], sampling_options=sampling, out=out, select=select, **shown)
    if suite and not policy and rescore is None:
        raise ConfigError(
            f"--policy is missing; give one, such as hf:DIR, openai:URL#MODEL or scripted:gold: rlvr eval {suite} --policy hf:DIR"
        )
    if not suite or rescore is not None:
        raise ConfigError("eval takes either a SUITE with --policy, such as `rlvr eval quick --policy scripted:gold`, or --rescore RUN")
    how = {**sampling, "seed": seed, "select": select, "retry": retry, "sampler": parse_settings(sampler or [], "--sampler")}
    return evaluating.eval_suite(
        suite, policy, setting_pairs=settings or [], out=out, price=price, eval_settings=how, cluster=cluster, **shown
    )
