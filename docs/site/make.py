"""Build the site: the pages of docs/, with a reference from the code, as HTML that needs no network.

    python docs/site/make.py --out build/site

Every page is a plain Markdown file that can be read by itself; this script copies them to a folder, adds the front page, the menu and the
reference, runs Sphinx with warnings as errors, and checks all links, anchors and pictures of the result.
"""

from __future__ import annotations

import argparse
import html.parser
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
DOCS, ROOT = HERE.parent, HERE.parents[1]
MENU = {
    "Tutorials": ["quickstart", "data", "environment", "agents", "evaluate"],
    "How-to": [
        "train", "run_health", "experiments", "verifier", "audits", "sessions", "real_agents", "repository", "algorithms", "sampling", "scale", "library",
        "endpoints", "view", "serve", "their_environments", "your_trainer", "coming_from", "envs", "verifiers", "contributing",
    ],
    "Reference": [
        "reference/settings", "reference/command_line", "run_folder", "reference/envs", "reference/verifiers", "reference/sandboxes",
        "reference/samplers", "reference/tools", "reference/algorithms", "reference/recipes", "reference/suites", "glossary", "stability",
    ],
    "Explanation": ["architecture", "verdicts", "exactness", "statistics", "sandbox", "cluster", "compared"],
    "Python reference": ["reference/python_rlvr", "reference/python_*"],
}  # fmt: skip
COPIES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "envs/README.md": "envs.md", "verifiers/README.md": "verifiers.md"}
"""Pages outside of docs/, and their names in the site."""
LEFT_OUT = {"glossary": "## Retired words"}
"""The heading from which on a page is for contributors only, and is left out of the site."""


def stage(source: Path) -> None:
    """Copy and write all pages."""
    sys.path.insert(0, str(HERE))
    from reference import pages

    shutil.copytree(DOCS / "pictures", source / "pictures")
    shutil.copytree(DOCS / "notebooks", source / "notebooks")  # to download
    shutil.copytree(HERE / "static", source / "static")
    shutil.copy(HERE / "conf.py", source)
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        text = text.partition(LEFT_OUT[page.stem])[0] if page.stem in LEFT_OUT else text
        (source / page.name).write_text(relinked(text, page), "utf-8")
    for name, copy in COPIES.items():
        (source / copy).write_text(relinked((ROOT / name).read_text("utf-8"), ROOT / name), "utf-8")
    (source / "reference").mkdir()
    for name, text in pages().items():
        (source / "reference" / f"{name}.md").write_text(text, "utf-8")
    left_out = {path.stem for path in source.glob("*.md")} - {name for names in MENU.values() for name in names} - {"index"}
    if left_out:
        raise SystemExit(f"these pages are not in the menu of docs/site/make.py: {', '.join(sorted(left_out))}")
    with (source / "index.md").open("a", encoding="utf-8") as index:
        for title, names in MENU.items():
            glob = ":glob:\n" if any("*" in name for name in names) else ""
            index.write(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n{glob}\n" + "\n".join(names) + "\n```\n")


def relinked(text: str, page: Path) -> str:
    """A page with its links to files as links of the site; a link to a file that is no page becomes its name."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return found.group()
        place = (page.parent / path).resolve()
        name = place.relative_to(ROOT).as_posix()
        if name in COPIES:
            return f"{mark}[{label}]({COPIES[name]}{'#' + anchor if anchor else ''})"
        if place.is_relative_to(DOCS) and place.is_file():
            return f"{mark}[{label}]({place.relative_to(DOCS).as_posix()}{'#' + anchor if anchor else ''})"
        return f"{label} (`{name}`)"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, part) for part in parts)


class Page(html.parser.HTMLParser):
    """The links, the anchors and what is loaded of one page of the result."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect what a tag names."""
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "srcset") if name in given]
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "shortcut icon"):
            self.loaded.append(given.get("href", ""))


def broken(site: Path) -> tuple[list[str], int]:
    """The links that lead nowhere, and whatever a page would load from elsewhere; and how many links there are."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found, count = [], 0
    for path, page in pages.items():
        for target in [*page.links, *page.loaded]:
            parts, count = urlsplit(target), count + 1
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    found.append(f"{path.name} loads {target}")
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not place.exists() or (parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].anchors):
                found.append(f"{path.relative_to(site)} links to {target}")
    return found, count


def main() -> None:
    """Build, and exit with 1 if there is a warning or a broken link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        stage(source)
        shutil.rmtree(options.out, ignore_errors=True)
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(Path(folder) / "cache")]
        if code := subprocess.run([*command, str(source), str(options.out)], timeout=600).returncode:
            raise SystemExit(code)
    lost, count = broken(options.out)
    for line in lost:
        print(line)
    made = len(list(options.out.rglob("*.html")))
    print(f"{made} pages, {count} links, {len(lost)} broken, in {time.monotonic() - began:.0f} s: {options.out / 'index.html'}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
