"""Write the reference pages of the site as Markdown: from the plugins, the settings of a run, the command line and the docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import typer

from rlvr.cli.commands import app
from rlvr.cli.listing import YAML_FOLDERS, YAML_KINDS, describe_plugin
from rlvr.config.config import RunConfig
from rlvr.config.key_reference import iter_sections, list_keys
from rlvr.config.section import Section
from rlvr.evaluation.suite import SuiteItem
from rlvr.registry.plugins import PLUGIN_KINDS, list_entries

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = {
    "env": "All environments", "verifier": "All verifiers", "sandbox": "All sandboxes", "sampler": "All samplers", "tool": "All tools",
    "algorithm": "All algorithms",
}  # fmt: skip
MODULES = (
    "__init__", "task", "turns", "episode", "errors",
    "contracts/environment", "contracts/session", "contracts/verifier", "contracts/tool", "contracts/sandbox", "contracts/sampler",
    "contracts/algorithm", "contracts/tokenizer", "contracts/toolsession", "contracts/sandbox_files_session",
    "api", "mdp/env", "mdp/token_mdp", "mdp/vector", "rollout/rollout", "training/trainer", "training/callbacks",
    "algorithms/base/algorithm_spec", "algorithms/functions/answer_batch",
    "training/update/learner", "runs/run", "evaluation/evaluate", "evaluation/report", "evaluation/statistics", "evaluation/compare",
    "evaluation/rescore", "evaluation/export", "viewer/view", "rollout/replay", "conformance/__init__", "conformance/audit/audit",
    "registry/plugins", "integrations/trl", "integrations/verl", "integrations/openrlhf", "integrations/skyrl", "integrations/texts",
)  # fmt: skip
"""The modules whose names users import."""
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> dict[str, str]:
    """Every page of the reference, by its name without ending."""
    found = {"settings": settings_page(), "command_line": command_line_page()}
    found |= {PLUGIN_KINDS[kind].plural: plugin_page(kind, title) for kind, title in PLUGINS.items()}
    found |= {plural: yaml_page(plural) for plural in YAML_FOLDERS}
    for module in MODULES:
        found[page_name(module)] = module_page(module)
    return found


def page_name(module: str) -> str:
    """The page of a module, without ending."""
    return "python_" + (module.removesuffix("__init__").strip("/").replace("/", "_") or "rlvr")


def prose(text: str) -> str:
    """A docstring as Markdown: sections are lists; what is aligned, indented or an example is shown as it is written."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text)) if text else []
    made = []
    for block in filter(str.strip, blocks):
        block = re.sub(r" +# doctest:.*", "", block)
        if section := re.fullmatch(r"(Args|Returns|Raises|Yields):\n(.+)", block, re.DOTALL):
            made.append(section_list(section[1], textwrap.dedent(section[2])))
        elif ">>>" in block:
            made.append(f"```pycon\n{textwrap.dedent(block)}\n```")
        elif re.search(r"^\s+|\S {2,}\S", block, re.MULTILINE):
            made.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            made.append(escaped(block))
    return "\n\n".join(made)


def section_list(title: str, text: str) -> str:
    """A section of a docstring as a list: one entry for each argument or error."""
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", text)]
    named = [re.match(r"([*\w, ]+): (.*)", entry) for entry in entries]
    lines = [
        f"- `{found[1]}`: {escaped(found[2])}" if found else f"- {escaped(entry)}" for found, entry in zip(named, entries, strict=True)
    ]
    return f"**{title}**\n\n" + "\n".join(lines)


def escaped(text: str) -> str:
    """Text outside of backticks without the marks of Markdown."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]{}|~#])", r"\\\1", part) for part in parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; an empty text if there is no row."""
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return "{.settings}\n" + "\n".join("| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines)


def code(value: Any) -> str:
    """A value in backticks, also inside a table."""
    text = str(value).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""


def default_text(value: Any) -> str:
    """A default as it is written: a function by its name."""
    return value.__name__ if callable(value) else re.sub(r"<function (?:\w+\.)*(\w+) at 0x\w+>", r"\1", repr(value))


def plugin_page(kind: str, title: str) -> str:
    """All plugins of a kind with their settings."""
    word = PLUGIN_KINDS[kind].plural
    parts = [f"# {title}", f"In a terminal: `rlvr list {word}`, and `rlvr show {kind} NAME` for one of them."]
    for entry in sorted((entry for entry in list_entries(kind) if entry.source == "rlvr"), key=lambda entry: entry.name):
        about = describe_plugin(kind, entry.name)
        rows = [
            [
                code(row["name"]), code(row["type"]), "required" if row["required"] else code(default_text(row["default"])),
                escaped(str(row["about"])),
            ]
            for row in about["settings"]
        ]  # fmt: skip
        parts += [f"## {entry.name}", prose(about["about"]), table(("setting", "type", "default", "about"), rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def yaml_page(plural: str) -> str:
    """All recipes, or all suites: the comment at the start of each file, and the file."""
    uses = {"recipes": "`rlvr train NAME` runs one", "suites": "`rlvr eval NAME --policy POLICY` evaluates a policy on one"}
    parts = [f"# All {plural}", f"{uses[plural]}; `rlvr show {YAML_KINDS[plural]} NAME` prints it."]
    for path in sorted(YAML_FOLDERS[plural].glob("*.yaml")):
        lines = path.read_text("utf-8").splitlines()
        start = next(number for number, line in enumerate(lines) if not line.startswith("#"))
        about = escaped(" ".join(line.removeprefix("#").strip() for line in lines[:start]))
        parts += [f"## {path.stem}", about, "```yaml\n" + "\n".join(lines[start:]) + "\n```"]
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Every key of a recipe and of a suite."""
    head = "Any key can be set in the YAML file of a recipe, or on the command line: `rlvr train RECIPE train.steps=50`."
    parts = ["# Settings of a run", head]
    for path, kind in iter_sections(RunConfig):
        parts += [f"## {path or 'Recipe'}", prose((kind.__doc__ or "").partition(">>>")[0]), _keys(kind)]
    parts += ["## Entry of a suite", "What an entry of a suite for `rlvr eval` may set.", _keys(SuiteItem)]
    return "\n\n".join(parts) + "\n"


def _keys(kind: type[Section]) -> str:
    rows = []
    for key in list_keys(kind):
        shown = key.default_text if key.default_text in ("required", "a section") else code(key.default_text)
        rows.append(
            [code(key.name), code(key.type_text), shown, f"{escaped(key.description)} {'(' + key.limits + ')' if key.limits else ''}"]
        )
    return table(("key", "type", "default", "about"), rows)


def command_line_page() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    parts = ["# Command line", "Every command has `--help`, and nearly all have `--json`."]
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            option = parameter.param_type_name == "option"
            names = ", ".join(parameter.opts) if option else str(parameter.metavar or parameter.name).upper()
            rows.append([code(names), escaped(str(getattr(parameter, "help", "") or ""))])
        parts += [f"## rlvr {name}", prose(command.help or ""), table(("argument", "about"), rows)]
    return "\n\n".join(parts) + "\n"


def module_page(module: str) -> str:
    """The public classes and functions of a module, from its source: nothing is imported."""
    tree = parse(module)
    name = ("rlvr." + module.replace("/", ".")).removesuffix(".__init__")
    parts = [f"# {name}", prose(ast.get_docstring(tree) or "")]
    if module == "__init__":
        parts.append(names_of_rlvr())
    elif module.endswith("/__init__"):
        parts += [part for source, name in imported(module) for part in _definitions(_find(source, name))]
    else:
        parts += _definitions([node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")])
    return "\n\n".join(part for part in parts if part) + "\n"


def parse(module: str) -> ast.Module:
    """The source of a module."""
    return ast.parse((ROOT / "rlvr" / f"{module}.py").read_text("utf-8"))


def imported(module: str) -> list[tuple[str, str]]:
    """The module and the name of everything in `__all__` of a package."""
    tree, found = parse(module), dict[str, str]()
    offered = next(
        ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlvr."):
            source = (node.module or "").removeprefix("rlvr.").replace(".", "/")
            found |= {name.name: source for name in node.names if name.name in offered}
    return [(source, name) for name, source in sorted(found.items())]


def names_of_rlvr() -> str:
    """A table of the names that `import rlvr` offers, each with a link to its page."""
    inside = {name: source for source, name in imported("contracts/__init__")}
    rows = []
    for source, name in imported("__init__"):
        source = inside.get(name, source) if source == "contracts" else source
        nodes = _find(source, name)
        about = " ".join((ast.get_docstring(nodes[-1]) or "").partition("\n\n")[0].split()) if nodes else ""
        page = f"[`rlvr.{name}`]({page_name(source)}.md#{name.lower()})" if nodes and source in MODULES else code(f"rlvr.{name}")
        rows.append([page, escaped(about)])
    return table(("name", "about"), rows)


def _find(module: str, name: str) -> list[Definition]:
    return [node for node in parse(module).body if isinstance(node, Definition) and node.name == name]


def _decorators(node: Definition) -> set[str]:
    return {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}


def _definitions(nodes: Sequence[Definition], owner: str = "") -> list[str]:
    """One heading for each name: the ways to call it, then its docstring."""
    groups: dict[str, list[Definition]] = {}
    for node in nodes:
        groups.setdefault(node.name, []).append(node)
    parts = []
    for name, group in groups.items():
        if isinstance(group[-1], ast.ClassDef):
            parts += _class(group[-1])
            continue
        title = f"### {escaped('Settings' if name == '__init__' else f'{owner}.{name}')}" if owner else f"## {escaped(name)}"
        shown = [node for node in group if "overload" in _decorators(node)] or [group[-1]]
        lines = "\n".join(_signature(node) for node in shown if not isinstance(node, ast.ClassDef))
        parts += [title, f"```python\n{lines}\n```", prose(ast.get_docstring(group[-1]) or "")]
    return parts


def _class(node: ast.ClassDef) -> list[str]:
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    bases = ", ".join(map(ast.unparse, node.bases))
    parts = [f"## {escaped(node.name)}", f"```python\nclass {node.name}{f'({bases})' if bases else ''}\n```"]
    parts.append(prose(ast.get_docstring(node) or ""))
    rows = []
    for place, part in enumerate(node.body):
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            after = node.body[place + 1] if place + 1 < len(node.body) else None
            note = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            default = code(ast.unparse(part.value)) if part.value else ""
            rows.append([code(ast.unparse(part.target)), code(ast.unparse(part.annotation)), default, escaped(str(note))])
    parts.append(table(("attribute", "type", "default", "about"), rows))
    shown = [method for method in methods if method.name == "__init__" or not method.name.startswith("_")]
    return parts + _definitions(shown, node.name)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = ast.unparse(node.args)
    ends = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if _decorators(node) & {"property", "cached_property"}:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}  # a property"
    line = f"{node.name}({given}){ends}"
    if len(line) > 100:
        line = f"{node.name}(\n    " + ",\n    ".join(re.split(r", (?=[\w*]+(?::|=|,|$))", given)) + f",\n){ends}"
    return line
