"""Packages for a machine without a network, in pieces: one stream of wheels, cut, carried piece by piece, and joined there.

    python -m benchmarks._gpu.wheels WHEELS FOLDER --leave-out '*_vllm_fa2_C*' '*_moe_C*'

Each piece is a folder of its own (FOLDER/01, FOLDER/02, ...) with a note of how many there are and what they must contain.
`gpu_vllm.py --wheels` takes a folder with all pieces, in whatever folders they lie, or with the wheels themselves. Members that match
`--leave-out` are removed from the wheels: kernels for other devices are most of a large wheel.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

PIECE = 60 << 20
"""Bytes of a piece."""
NOTE = "pieces.json"


def split(wheels: Path, into: Path, *, size: int = PIECE, leave_out: Sequence[str] = ()) -> list[Path]:
    """Write all wheels of a folder as pieces; return their folders.

    >>> split(Path("wheels"), Path("pieces"), leave_out=["*_vllm_fa2_C*"])              # doctest: +SKIP
    [PosixPath('pieces/01'), PosixPath('pieces/02')]
    """
    if not (found := sorted(wheels.glob("*.whl"))):
        raise SystemExit(f"{wheels} has no wheels; download them with `pip download --no-deps --dest {wheels} NAME`")
    into.mkdir(parents=True, exist_ok=True)
    sums, folders = list[str](), list[Path]()
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for wheel in found:
                data = slim(wheel, leave_out)
                entry = tarfile.TarInfo(wheel.name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        stream.seek(0)
        while data := stream.read(size):
            folders.append(into / f"{len(folders) + 1:02}")
            folders[-1].mkdir()
            (folders[-1] / f"piece-{len(folders):02}").write_bytes(data)
            sums.append(hashlib.sha256(data).hexdigest())
    for folder in folders:
        (folder / NOTE).write_text(json.dumps(sums), "utf-8")
    return folders


def slim(wheel: Path, leave_out: Sequence[str]) -> bytes:
    """A wheel without the members that match a pattern."""
    with zipfile.ZipFile(wheel) as file:
        dropped = [name for name in file.namelist() if any(fnmatch.fnmatch(name, pattern) for pattern in leave_out)]
        if not dropped:
            return wheel.read_bytes()
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
            for name in file.namelist():
                if name not in dropped:
                    out.writestr(name, file.read(name))
    return made.getvalue()


def join(folder: Path, into: Path) -> None:
    """Put the pieces in a folder together into wheels; a folder without pieces is left as it is."""
    pieces = {path.name: path for path in folder.rglob("piece-*")}
    if not pieces:
        return
    sums: list[str] = json.loads(next(folder.rglob(NOTE)).read_text("utf-8"))
    names = [f"piece-{number + 1:02}" for number in range(len(sums))]
    if missing := [name for name in names if name not in pieces]:
        raise SystemExit(f"{folder} lacks {', '.join(missing)} of {len(sums)} pieces; carry them too")
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as stream:
        for name, wanted in zip(names, sums, strict=True):
            data = pieces[name].read_bytes()
            if hashlib.sha256(data).hexdigest() != wanted:
                raise SystemExit(f"{pieces[name]} is damaged, or of another set of pieces; carry it again")
            stream.write(data)
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            for entry in tar:  # `filter="data"` is not in Python before 3.11.4
                content = tar.extractfile(entry)
                assert content is not None, f"{entry.name} is no file"
                (into / Path(entry.name).name).write_bytes(content.read())


def main() -> None:
    """Cut the wheels and say where the pieces are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--leave-out", nargs="*", default=[], metavar="PATTERN")
    parser.add_argument("--size", type=int, default=PIECE, help="bytes of a piece")
    args = parser.parse_args()
    for folder in split(args.wheels, args.into, size=args.size, leave_out=args.leave_out):
        print(f"{folder}  {sum(path.stat().st_size for path in folder.iterdir()) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
