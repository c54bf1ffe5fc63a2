"""The script for vLLM on a GPU, at tiny size on a CPU, and what carries it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_vllm
from benchmarks._gpu import engine
from benchmarks._gpu.wheels import join, split

ROOT = Path(__file__).parents[2]
PARTS = ("packages", "weights", "seeds", "invariant")
"""The quickest. The others take two minutes more: `python benchmarks/gpu_vllm.py --tiny` runs all."""


@pytest.mark.vllm
@pytest.mark.timeout(300)
def test_parts_run_to_their_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_vllm.py"), "--tiny", "--parts", *PARTS, "--out", str(tmp_path / "lines")],
        cwd=Path("/"), env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}, capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    *figures, summary = lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and not [line for line in lines if "failed" in line or "error" in line], (lines, done.stderr[-2000:])
    assert [part["part"] for part in summary["parts"] if "skipped" not in part] == [*PARTS[:-1]]
    found = {(line["part"], line.get("case")): line for line in figures}
    assert "vllm" in found["packages", "import vllm"]["file"] and found["packages", "versions"]["torch"]
    assert all(0 < load["weight_probe/logprob_difference_max"] < 1e-4 for load in found["weights", "float32"]["loads"])
    assert found["seeds", "default"]["equal_again"] == 8 and "GPUs only" in found["invariant", None]["skipped"]
    assert [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()] == lines


def test_what_a_package_declares_for_another_machine_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["six>=1; python_version < '3'", "audio[x]>=2; platform_machine != 'none'", "chat; extra == 'chat'", "plain<9,>=1.2"]
    monkeypatch.setattr(engine, "requires", {"vllm": lines}.get)
    assert [asked.name for asked in engine.declared("vllm")] == ["audio", "plain"] and engine.declared("nothing") == []


def test_each_part_is_there() -> None:
    assert set(PARTS) < set(gpu_vllm.PARTS) and all(callable(getattr(engine, part)) for part in gpu_vllm.PARTS)


def wheel(folder: Path, name: str, **members: bytes) -> Path:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        for member, data in members.items():
            file.writestr(f"{name}/{member}.py", data)
    return folder


def test_wheels_are_carried_in_pieces_and_joined(tmp_path: Path) -> None:
    (wheels := tmp_path / "wheels").mkdir()
    wheel(wheels, "large", code=os.urandom(50_000), kernels=os.urandom(90_000))
    wheel(wheels, "small", code=b"x = 1")
    folders = split(wheels, tmp_path / "all", size=40_000, leave_out=["large/kernels*"])
    assert len(folders) == 2 and all(path.stat().st_size <= 40_000 for folder in folders for path in folder.glob("piece-*"))
    join(tmp_path / "all", tmp_path / "joined")
    with zipfile.ZipFile(tmp_path / "joined" / "large-1.0-py3-none-any.whl") as file, zipfile.ZipFile(next(wheels.glob("large*"))) as first:
        assert file.namelist() == ["large/code.py"] and file.read("large/code.py") == first.read("large/code.py")
    assert (tmp_path / "joined" / "small-1.0-py3-none-any.whl").read_bytes() == next(wheels.glob("small*")).read_bytes()
    (folders[1] / "piece-02").write_bytes(b"")
    with pytest.raises(SystemExit, match="piece-02 is damaged"):
        join(tmp_path / "all", tmp_path / "again")
    (folders[1] / "piece-02").unlink()
    with pytest.raises(SystemExit, match="lacks piece-02 of 2 pieces"):
        join(tmp_path / "all", tmp_path / "again")
    with pytest.raises(SystemExit, match="has no wheels"):
        split(tmp_path / "all", tmp_path / "more")


def test_a_part_finds_the_packages_of_carried_pieces_and_leaves_nothing(tmp_path: Path) -> None:
    (wheels := tmp_path / "wheels").mkdir()
    wheel(wheels, "carried", __init__=b"answer = 42")
    (tmp_path / "parts.py").write_text(
        "import tempfile\n"
        "def use(bench):\n    import carried\n    bench.line('use', answer=carried.answer, at=tempfile.mkdtemp())\n"
        "def hang(bench):\n    import time\n    bench.line('hang', at=tempfile.mkdtemp())\n    time.sleep(100)\n"
    )
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "from benchmarks import gpu_day\n"
        f"sys.argv = ['x', '--tiny', '--wheels', {str(tmp_path / 'pieces')!r}]\n"
        "sys.exit(gpu_day.main('', {'use': ('parts', 60.0), 'hang': ('parts', 60.0)}))\n"
    )
    split(wheels, tmp_path / "pieces")
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        used, hangs = (json.loads(next(line for line in process.stdout if f'"{case}", "a' in line)) for case in ("use", "hang"))
        assert used["answer"] == 42 and all(Path(line["at"]).is_relative_to(tmp_path / "tmp") for line in (used, hangs))
        process.terminate()
        began = time.monotonic()
        assert process.wait(60) == 143 and time.monotonic() - began < 30
    assert not list((tmp_path / "tmp").iterdir())
