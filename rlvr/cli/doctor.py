"""`rlvr doctor`: check the hardware, packages and services of this machine, and say how to install the missing ones.

With --model: check the numerics of a model and its sampler. With --cluster: check whether the processes of a cluster can be placed.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from rich.text import Text

import rlvr
from rlvr.cli import screen
from rlvr.cli.settings import make_cluster_overrides
from rlvr.config.cluster import ClusterConfig
from rlvr.config.overrides import apply_overrides
from rlvr.config.section import validate_section
from rlvr.errors import ConfigError, MissingExtra, format_install_command
from rlvr.registry.plugins import PLUGIN_KINDS, list_entries_with_import_errors, load_factory
from rlvr.runs.tables import make_table
from rlvr.samplers._vllm_version import check_vllm_version, format_supported_range, get_installed_version

PACKAGE_EXTRAS = {
    "gymnasium": "", "sympy": "", "docker": "", "pydantic": "", "typer": "", "rich": "", "PyYAML": "",
    "torch": "train", "transformers": "train", "accelerate": "train", "datasets": "train", "peft": "lora",
}  # fmt: skip
ENGINE_TIMEOUT_S = 5
ENGINE_API_VERSION = "1.40"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of `rlvr doctor`. State `missing`: an optional component is absent; `broken`: something must be repaired.

    >>> Finding("docker engine", "missing", "no answer", "start dockerd").state
    'missing'
    """

    name: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    advice: str = ""


def run_doctor(*, json: bool) -> int:
    """Run all checks and print the results; returns 1 if something is broken."""
    findings = [
        _check_python(),
        *(_check_package(name, extra) for name, extra in PACKAGE_EXTRAS.items()),
        _check_vllm(),
        _check_accelerator(),
        _check_engine(),
        *_check_sandboxes(),
        *_check_plugins(),
        _check_disk(),
    ]
    code = _print_findings(findings, json=json)
    if not json:
        screen.make_stdout_console().print(_describe_abilities(findings), soft_wrap=True)
    return code


def _describe_abilities(findings: Sequence[Finding]) -> str:
    """Say in one sentence what can be done on this machine.

    >>> _describe_abilities([Finding("torch", "missing", "", ""), Finding("sandbox docker", "ok", "")])
    'Ready for: verifying and evaluating endpoints; judging code that a model wrote (in docker). Not for: training (install rlvr[train]).'
    """
    states = {finding.name: finding.state for finding in findings}
    can = ["verifying and evaluating endpoints"]
    cannot = []
    if all(states.get(name) == "ok" for name in ("torch", "transformers", "accelerate")):
        can.append("training on an accelerator" if states.get("accelerator") == "ok" else "training small models on the CPU")
    else:
        cannot.append("training (install rlvr[train])")
    if isolated := [name for name in ("docker", "bubblewrap") if states.get(f"sandbox {name}") == "ok"]:
        can.append(f"judging code that a model wrote (in {isolated[0]})")
    else:
        cannot.append("judging code that a model wrote (needs a container engine, or the package bubblewrap)")
    return f"Ready for: {'; '.join(can)}." + (f" Not for: {'; '.join(cannot)}." if cannot else "")


def check_sampler_numerics(model: str, sampler: str, env: str, *, device: str | None = None, json: bool) -> int:
    """Measure and print the differences and a conclusion; returns 1 if they are too large for training."""
    from rlvr.training.sampler_mismatch import check_model_folder_numerics, measure_logprob_gaps, summarize_logprob_gaps

    checks, refused = check_model_folder_numerics(model, sampler, device=device)
    rows = list(measure_logprob_gaps(model, sampler, env_name=env, device=device))
    sound, words = summarize_logprob_gaps(rows)
    sound = sound and not refused
    if json:
        told = {"ok": sound, "verdict": refused or words, "checks": [check.to_dict() for check in checks]}
        screen.print_json(told | {"rows": [row.to_dict() for row in rows]})
        return int(not sound)
    console = screen.make_stdout_console()
    console.print(Text(f"{model} against its own plain forward pass, in float32", style="bold"))
    lines = [
        (
            screen.make_status_mark(c.passed),
            c.name,
            "" if c.gap is None else f"{c.gap:.1e}",
            f"{c.allowed:.1e}" if c.gap is not None else "",
            c.note,
        )
        for c in checks
    ]
    console.print(make_table(("", "computed as", "largest difference", "allowed", ""), lines))
    if refused:
        console.print(Text.assemble(screen.make_status_mark(False), " ", refused))
    numbers = [[f"{value:.1e}" for value in (row.median, row.p99, row.largest, row.kl)] for row in rows]
    cells = [(row.precision, f"{row.temperature:g}", row.position, str(row.tokens), *n) for row, n in zip(rows, numbers, strict=True)]
    console.print(Text(f"log-probabilities of {sampler} against the trainer's, {model}", style="bold"))
    console.print(make_table(("precision", "temperature", "tokens of an answer", "count", "median", "99 %", "largest", "KL"), cells))
    console.print(Text.assemble(screen.make_status_mark(sound), " ", words))
    return int(not sound)


def start_and_check_cluster(cluster_option: str, *, json: bool) -> int:
    """Start the processes of a cluster configuration and print the findings; returns 1 if one cannot be placed, or if versions differ."""
    from rlvr.cluster.checks.doctor import check_cluster_ready

    data = apply_overrides({}, make_cluster_overrides(cluster_option)).get("cluster")
    found = check_cluster_ready(validate_section(ClusterConfig, data, "--cluster"))
    findings = [
        Finding(seen.name, "broken" if seen.problem else "ok", ": ".join(filter(None, (seen.problem, seen.detail))), seen.advice)
        for seen in found
    ]
    return _print_findings(findings, json=json)


def _print_findings(findings: Sequence[Finding], *, json: bool) -> int:
    broken = any(finding.state == "broken" for finding in findings)
    if json:
        screen.print_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
        return int(broken)
    console = screen.make_stdout_console()
    signs = {"ok": screen.make_status_mark(True), "missing": Text("–", style="yellow"), "broken": screen.make_status_mark(False)}
    console.print(make_table(("", "what", "found", "what to do"), [(signs[f.state], f.name, f.detail, f.advice) for f in findings]))
    return int(broken)


def _check_python() -> Finding:
    detail = (
        f"Python {platform.python_version()}, rlvr {rlvr.__version__}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    )
    return Finding("python", "ok", detail)


def _check_package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        if not extra:
            return Finding(name, "broken", "not installed", f"reinstall: `{format_install_command()}`")
        return Finding(name, "missing", "not installed", f"`{format_install_command(extra)}`")


def _check_vllm() -> Finding:
    try:
        found = get_installed_version()
    except MissingExtra as error:
        return Finding("vllm", "missing", "not installed", f"`{format_install_command(error.extra)}`")
    try:
        check_vllm_version(found)
    except ConfigError:
        return Finding(
            "vllm",
            "broken",
            f"{found}; the sampler works with {format_supported_range()}",
            f"`pip install 'vllm{format_supported_range()}'`",
        )
    return Finding("vllm", "ok", f"{found} (works with {format_supported_range()})")


def _check_accelerator() -> Finding:
    try:
        import torch
    except ImportError as error:
        absent = importlib.util.find_spec("torch") is None
        return Finding("accelerator", "missing" if absent else "broken", "torch is not installed" if absent else f"torch fails: {error}")
    if torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        named = getattr(getattr(torch, found.type, None), "get_device_name", None)
        count = torch.accelerator.device_count()
        names = {named(i) if named else found.type for i in range(count)}
        return Finding("accelerator", "ok", f"{count} x {', '.join(sorted(names))} ({found.type})")
    return Finding("accelerator", "missing", "CPU only", "enough for the quickstart; larger models need a GPU")


def _check_engine() -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the SDK does not close the socket of a refused connection
        found, error = _get_engine_version()
        gc.collect()
    if found:
        return Finding("docker engine", "ok", found)
    program = shutil.which("docker")
    there = f"the command is {program}, but " if program else ""
    advice = "start it (`dockerd`, Docker Desktop); only code tasks need it"
    return Finding("docker engine", "missing", f"{there}no engine responds ({error})", advice)


def _check_sandboxes() -> list[Finding]:
    found = []
    for entry in list_entries_with_import_errors("sandbox"):
        if not entry.error:
            factory: Any = load_factory("sandbox", entry.name)
            lacks: list[tuple[str, str]] = getattr(factory, "find_problems", list)()
            languages: list[str] = getattr(factory, "list_languages", list)()
            fine = f"can run programs here{', in ' if languages else ''}{', '.join(languages)}"
            found += [Finding(f"sandbox {entry.name}", "missing", what, how) for what, how in lacks]
            found += [Finding(f"sandbox {entry.name}", "ok", fine)] if not lacks else []
    return found


def _get_engine_version() -> tuple[str, str]:
    try:
        import docker

        client = docker.from_env(
            timeout=ENGINE_TIMEOUT_S, version=ENGINE_API_VERSION
        )  # with a fixed API version, the constructor sends no request that could fail before the client can be closed
        try:
            return str(client.api.version(api_version=False)["Version"]), ""
        finally:
            client.close()
    except Exception as error:  # the SDK passes on errors of the socket, the proxy and requests
        return "", type(error).__name__


def _check_plugins() -> list[Finding]:
    findings = []
    for kind in PLUGIN_KINDS.values():
        entries = list_entries_with_import_errors(kind.name)
        bad = [entry for entry in entries if entry.error]
        findings.append(Finding(kind.plural, "ok", f"{len(entries) - len(bad)} registered"))
        findings += [Finding(f"{kind.name} {entry.name}", "broken", entry.error, f"fix or uninstall {entry.source}") for entry in bad]
    return findings


def _check_disk() -> Finding:
    free = shutil.disk_usage(os.getcwd()).free / 1e9
    return Finding("disk", "ok" if free > 2 else "missing", f"{free:.0f} GB free here", "" if free > 2 else "checkpoints need disk space")
