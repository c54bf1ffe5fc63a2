"""`rlvr check env NAME --catalog`: the kit over every name of a collection."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command
from rlvr.conformance.check_runner import CheckResult
from rlvr.conformance.checks import iter_checks


def test_check_runs_the_kit_on_each_that_is_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three breaks its contract, one is refused: the first is found, the second is not checked, and the third is checked."""
    monkeypatch.setattr("rlvr.cli.checking.iter_checks", lambda *given: islice(iter_checks(*given), 9))  # up to the gold answer
    (tmp_path / "many.py").write_text(
        "from rlvr.envs.arithmetic import Arithmetic\n\n\n"
        "class Many(Arithmetic):\n"
        '    """Sums, of which one kind has a wrong gold answer."""\n\n'
        '    choice = "kind"\n\n'
        '    def __init__(self, *, verifier: object, kind: str = "fine") -> None:\n'
        "        super().__init__(verifier=verifier)\n"
        "        self.kind = kind\n\n"
        "    @classmethod\n"
        "    def list_support_status(cls) -> list[dict[str, str]]:\n"
        '        kinds = {"bad": "yes", "gone": "no", "fine": "yes"}\n'
        '        return [{"name": name, "offered": how, "why": "for a test"} for name, how in kinds.items()]\n\n'
        "    def gold(self, task: object) -> str:\n"
        '        return "1000000" if self.kind == "bad" else super().gold(task)\n'
    )
    where = f"{tmp_path / 'many.py'}:Many"
    assert run_command(["check", "env", where, "--catalog", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["ok"]) for row in found["offered"]] == [("bad", False), ("fine", True)]
    assert {check["name"] for check in found["offered"][0]["checks"] if not check["ok"]} >= {"the gold answer scores 1"}
    monkeypatch.setattr(
        "rlvr.cli.checking.iter_checks", lambda kind, name, settings: [CheckResult("it can be built", settings["kind"] == "fine")]
    )
    assert run_command(["check", "env", where, "--catalog"]) == 1
    assert "1 of 2 passed" in capsys.readouterr().out
    for line, words in (
        (["check", "env", "arithmetic", "--catalog"], "'arithmetic' is not one"),
        (["check", "env", where, "--catalog", "--set", "kind=fine"], "leave out --set kind=fine"),
    ):
        assert run_command(line) == 2
        assert words in capsys.readouterr().err
