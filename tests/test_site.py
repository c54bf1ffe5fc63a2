"""The site: every page is in its menu, links are rewritten, and a broken link is found. `make site` builds it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.pages import PAGES, ROOT


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    yield importlib.import_module("make")
    for name in ("make", "reference"):
        sys.modules.pop(name, None)


def test_every_page_is_in_the_menu_and_the_menu_has_no_other(site: Any) -> None:
    menu = [name for names in site.MENU.values() for name in names if not name.startswith("reference/")]
    pages = {site.COPIES.get(page.relative_to(ROOT).as_posix(), page.name).removesuffix(".md") for page in PAGES}
    assert sorted(menu) == sorted((pages | {"contributing"}) - {"index"}) and len(menu) == len(set(menu))


def test_links_are_those_of_the_site(site: Any) -> None:
    readme, page = ROOT / "README.md", ROOT / "docs" / "train.md"
    assert site.relinked("[a](docs/train.md#resume)", readme) == "[a](train.md#resume)"
    assert site.relinked("![a](docs/pictures/view.png) [b](https://h/x)", readme) == "![a](pictures/view.png) [b](https://h/x)"
    assert site.relinked("[a](../README.md) [b](../sandbox/README.md)", page) == "[a](index.md) b (`sandbox/README.md`)"
    assert site.relinked("```text\n[a](docs/train.md)\n```", readme) == "```text\n[a](docs/train.md)\n```"


def test_a_broken_link_and_what_is_loaded_from_elsewhere_are_found(site: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#x">1</a><a href="#here">2</a><a href="https://h/">3</a><img src="p.png">'
    )
    (tmp_path / "b.html").write_text('<h1 id="x"></h1><script src="https://cdn/x.js"></script><a href="a.html#gone">4</a>')
    found, count = site.broken(tmp_path)
    assert count == 6
    assert found == ["a.html links to p.png", "b.html links to a.html#gone", "b.html loads https://cdn/x.js"]


def test_a_docstring_is_shown_as_it_is_written(site: Any) -> None:
    reference = importlib.import_module("reference")
    made = reference.prose("Two * `a*b` <x>.\n\n    >>> f(1)  # doctest: +SKIP\n    2\n\nkey    value")
    assert made == "Two \\* `a*b` \\<x>.\n\n```pycon\n>>> f(1)\n2\n```\n\n```text\nkey    value\n```"
    made = reference.prose("Args:\n    a: one\n        line.\n    b, c: <two>\n\nRaises:\n    ConfigError: a is 0.")
    assert made == "**Args**\n\n- `a`: one line.\n- `b, c`: \\<two>\n\n**Raises**\n\n- `ConfigError`: a is 0."
    page = reference.settings_page()
    assert "| `max_turn_tokens` | `int \\| None` | `None` | The maximum number of tokens of a turn" in page and "## model.lora" in page
    assert "`--max-turn-tokens`" in reference.command_line_page() and "## rlvr eval" in reference.command_line_page()
    assert "## Verifier" in reference.module_page("contracts/verifier")
