"""The commands and their arguments. The work is in `rlvr.cli`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import rlvr
from rlvr.cli.commands.failures import EXIT_INTERRUPTED, print_failure, report_exception, translate_arguments
from rlvr.cli.logging_setup import configure_logging
from rlvr.errors import ConfigError

app = typer.Typer(
    name="rlvr",
    help="Environments and verifiers for reinforcement learning from verifiable rewards.",
    epilog="Exit codes: 0 success, 1 a check failed or a score is missing, 2 wrong usage or settings, 3 an error inside rlvr.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the plugin, such as seed=3; the value is YAML.")
]
CLUSTER_HELP = "auto, local, HOST:PORT, or a YAML file with a section `cluster`."
KINDS_HELP = "envs, verifiers, sandboxes, samplers, tools, algorithms, recipes, suites"


@app.callback()
def handle_global_options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, with the name of each logger.")] = False,
    log_file: Annotated[Path | None, typer.Option("--log-file", metavar="FILE", help="Append the whole log to this file.")] = None,
) -> None:
    """Set up the log; show the version (`rlvr --version`), or the help if no command was given."""
    configure_logging(quiet=quiet, verbose=verbose, log_file=log_file)
    if version:
        print(f"rlvr {rlvr.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=f"One of: {KINDS_HELP}.")] = None,
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="With envs: list the catalog of this environment, such as gymnasium's.")
    ] = "",
    json: Json = False,
) -> None:
    """List the registered plugins, recipes and suites."""
    from rlvr.cli import listing

    if catalog:
        listing.list_catalog(kind, catalog, json=json)
    else:
        listing.list_plugins(kind, json=json)


@app.command()
def show(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="env, verifier, sandbox, sampler, tool, algorithm, recipe, suite or config; not needed where one kind alone has the name.",
        ),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, or path/to/file.py:Object. Of config, a section such as train, or nothing.")
    ] = "",
    json: Json = False,
) -> None:
    """Show the settings of one plugin, or of a run (`show config`)."""
    from rlvr.cli import listing

    listing.show_plugin(kind, name, json=json)


@app.command()
def verify(
    verifier: Annotated[str, typer.Argument(metavar="VERIFIER", help="Its name, or path/to/file.py:Object.")],
    reference: Annotated[str | None, typer.Option(help="The right answer; JSON if it starts with {, [ or a quote.")] = None,
    answer: Annotated[str | None, typer.Option(help="The answer to verify.")] = None,
    file: Annotated[
        Path | None, typer.Option(help='JSONL lines {"reference", "answer", "id"?, "prompt"?, "meta"?}; - is standard input.')
    ] = None,
    prompt: Annotated[str, typer.Option(help="The question, for verifiers that read it, with --answer.")] = "",
    meta: Annotated[str, typer.Option(help="The task's meta as a JSON object, with --answer.")] = "",
    settings: Settings = None,
    workers: Annotated[int, typer.Option(help="How many answers are verified in parallel, with --file.")] = 8,
    explain: Annotated[bool, typer.Option("--explain", help="Show the steps to the verdict and the rule that decided.")] = False,
    json: Json = False,
) -> int:
    """Verify one answer, or a file; exit code 1 if any has no score.

    An answer has no score if its task or the verifier failed. That is not a score of 0.
    """
    from rlvr.cli import verifying

    if explain and file is not None:
        raise ConfigError("--explain explains one answer; give --reference R with --answer A")
    if file is not None and reference is None and answer is None and not meta and not prompt:
        return verifying.verify_file(verifier, file, setting_pairs=settings or [], workers=workers, json=json)
    if file is None and reference is not None and answer is not None:
        return verifying.verify_one(
            verifier, reference, answer, prompt=prompt, meta=meta, setting_pairs=settings or [], explain=explain, json=json
        )
    if file is None:
        missing = " and ".join(name for name, value in (("--reference", reference), ("--answer", answer)) if value is None)
        raise ConfigError(f"verify lacks {missing}; give --reference R with --answer A for one answer, or --file pairs.jsonl for many")
    raise ConfigError("verify takes either --reference R with --answer A, or --file pairs.jsonl, not both; leave out one of them")


@app.command()
def check(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="env, verifier, sandbox, sampler, tool, algorithm or agent; not needed where one kind alone has the name."
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, or path/to/file.py:Object.")] = "",
    settings: Settings = None,
    catalog: Annotated[bool, typer.Option("--catalog", help="Check each environment that `rlvr list envs --catalog NAME` lists.")] = False,
    json: Json = False,
) -> int:
    """Check one plugin against its contract; exit code 1 on failure."""
    from rlvr.cli import checking

    if not name:
        kind, name = checking.find_kind_to_check(kind), kind
    if catalog:
        return checking.check_catalog(kind, name, setting_pairs=settings or [], json=json)
    return checking.check_plugin(kind, name, setting_pairs=settings or [], json=json)


@app.command()
def play(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An environment's name, or path/to/file.py:Object.")],
    index: Annotated[int, typer.Option("--index", "--task", min=0, help="Which task of the split.")] = 0,
    split: Annotated[str | None, typer.Option(help="The split; default: test, where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the session.")] = 0,
    settings: Settings = None,
    json: Json = False,
) -> int:
    """Play a task yourself, and see the verdict.

    A line is a turn, and a tool is called by a line of JSON. Exit code 1 if the verdict has no score.
    """
    from rlvr.cli import playing

    return playing.play_task(env, setting_pairs=settings or [], split=split, index=index, seed=seed, json=json)


@app.command()
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="env, verifier, tool, sampler or algorithm.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A lower-case Python name, such as chess_mate.")],
    template: Annotated[
        str, typer.Option("--kind", help="Of an env: question (default), conversation, tools (a world with tools) or box (a container).")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The folder to write; default: rlvr-NAME here.")] = None,
    json: Json = False,
) -> None:
    """Write a template of a plugin package, with a test."""
    from rlvr.cli import scaffold

    scaffold.write_plugin_package(kind, name, out=out, json=json, env_kind=template)


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe (`rlvr list recipes`), a YAML file, or data: .jsonl, .csv, .parquet, hf:ORG/NAME."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=v", help="Settings that replace the recipe's, such as train.steps=50.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model to train: a folder, or a Hub id such as Qwen/Qwen2.5-0.5B.")] = "",
    test: Annotated[str, typer.Option(help="With data: the held-out data; default: a tenth of the questions.")] = "",
    verifier: Annotated[str, typer.Option(help="The verifier, such as numeric, FILE.py:FUNCTION or '{symbolic: 0.9, format: 0.1}'.")] = "",
    out: Annotated[Path | None, typer.Option(help="The run folder; it must not exist yet. Default: runs/ENV-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out, or start it if there is none.")] = False,
    cluster: Annotated[str, typer.Option(help=f"Sample on other machines: {CLUSTER_HELP}")] = "",
    json: Json = False,
) -> None:
    """Train a policy and write a run folder."""
    from rlvr.cli import running
    from rlvr.cli.settings import make_cluster_overrides

    overrides = [*make_cluster_overrides(cluster), *(overrides or [])]
    running.train_run(recipe, overrides, model=model, test_data=test, verifier=verifier, out=out, resume=resume, json=json)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The recipe to write.")] = Path("recipe.yaml"),
    data: Annotated[str, typer.Option(help="A data file or folder, hf:ORG/NAME, or an environment's name.")] = "",
    model: Annotated[str, typer.Option(help="A Hub id or a folder.")] = "",
    verifier: Annotated[str, typer.Option(help="The verifier of the answers; default: symbolic.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: Json = False,
) -> None:
    """Write a first recipe; prompts for missing options."""
    from rlvr.cli import data_training as starting

    starting.write_recipe(str(file), data=data, model=model, verifier=verifier, force=force, json=json)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A folder that `rlvr eval --out` wrote.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another such folder, with the same tasks.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare even if prompts, settings, verifiers or sampling differ, or many samples are unscored.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of the bootstrap.")] = 0,
    json: Json = False,
) -> None:
    """Compare two evaluations, task by task."""
    from rlvr.cli import comparing

    comparing.print_eval_comparison(first, second, force=force, seed=seed, json=json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `rlvr eval --out` or `rlvr train` wrote.")],
    to: Annotated[str, typer.Option(help="trl-dataset, csv or parquet; of an evaluation also markdown or inspect.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; default: a file in the run's folder.")] = None,
    json: Json = False,
) -> None:
    """Write a run in another format."""
    from rlvr.cli import comparing

    comparing.export_run(run, to, out=out, json=json)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `rlvr train` wrote.")],
    audit: Annotated[
        int | None, typer.Option(min=1, help="Number of groups to sample again with the weights of the checkpoints, and to compare.")
    ] = None,
    json: Json = False,
) -> int:
    """Replay a run's episodes; exit code 1 if any differs.

    Without --audit the recorded tokens are stepped through the environment. With --audit answers are sampled again and compared by token.
    """
    from rlvr.cli import running

    if audit is not None:
        return running.resample_recorded_groups(run, num_groups=audit, json=json)
    return running.replay_recorded_episodes(run, json=json)


@app.command()
def doctor(
    model: Annotated[Path | None, typer.Option(help="A model's folder: compare a sampler's log-probabilities with the trainer's.")] = None,
    sampler: Annotated[str, typer.Option(help="With --model: the sampler, hf or vllm.")] = "hf",
    env: Annotated[str, typer.Option(help="With --model: the environment of the prompts.")] = "arithmetic",
    device: Annotated[str | None, typer.Option(help="With --model: the trainer's device; default: the accelerator.")] = None,
    plan: Annotated[str | None, typer.Option(help="A recipe: estimate whether it fits into memory, and what to change.")] = None,
    memory: Annotated[float | None, typer.Option(help="With --plan: memory of a GPU in GB; default: this machine's device.")] = None,
    gpus: Annotated[int, typer.Option(help="With --plan: how many GPUs shard the model (FSDP2).")] = 1,
    cluster: Annotated[str, typer.Option(help=f"Check whether a cluster can place its processes: {CLUSTER_HELP}")] = "",
    json: Json = False,
) -> int:
    """Check this installation; exit code 1 if something is broken.

    With --model the command compares a sampler's log-probabilities with the trainer's; exit code 1 if they are too far apart. With --plan
    it estimates the memory of a training run; exit code 1 if the run does not fit. With --cluster it starts one process of each kind, and
    one on each machine; exit code 1 if a process cannot be placed, or if versions differ.
    """
    if plan is not None:
        from rlvr.cli import planning

        return planning.check_memory_plan(plan, memory_gb=memory, gpus=gpus, json=json)
    from rlvr.cli import doctor as checks

    if cluster:
        return checks.start_and_check_cluster(cluster, json=json)
    if model is not None:
        return checks.check_sampler_numerics(str(model), sampler, env, device=device, json=json)
    return checks.run_doctor(json=json)


def main() -> None:
    """Run the `rlvr` command (the entry point)."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a text may contain characters that this encoding cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; exceptions become messages (unless RLVR_TRACEBACK is set)."""
    try:
        code = app(args=list(arguments), prog_name="rlvr", standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # Typer's exit code for Ctrl-C
            return print_failure("stopped", EXIT_INTERRUPTED)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return print_failure("stopped", EXIT_INTERRUPTED)
    except (Exception, SystemExit) as error:
        if (meant := translate_arguments(error, arguments)) is not None:
            return run_command(meant)
        if os.environ.get("RLVR_TRACEBACK") and isinstance(error, Exception):
            raise
        return report_exception(error, arguments)
