"""The token with which programs reach a Ray of this machine is readable by its user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.cluster.ray_transport import protect_ray_token


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o640, 0o600])
@pytest.mark.parametrize("place", ["home", "variable"])
def test_the_token_file_of_ray_has_mode_0600(mode: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / (".ray/auth_token" if place == "home" else "elsewhere")
    token.parent.mkdir(exist_ok=True)
    token.write_text("secret")
    token.chmod(mode)
    monkeypatch.setenv("HOME", str(tmp_path))
    if place == "home":
        monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    protect_ray_token()
    assert token.stat().st_mode & 0o777 == 0o600 and token.read_text() == "secret"


def test_a_token_that_does_not_exist_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    protect_ray_token()
    assert list(tmp_path.iterdir()) == []
