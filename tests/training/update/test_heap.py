"""The heap: what one step frees is there for the next, without the system being asked again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from statistics import median

import pytest

from rlvr.training.update.malloc_settings import keep_freed_memory

PAGES_TAKEN = """
import json, resource, torch
from rlvr.training.update.malloc_settings import keep_freed_memory

def taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)  # 48 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
usual = [taken() for _ in range(20)]
assert keep_freed_memory()
print(json.dumps([usual, [taken() for _ in range(60)]]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
def test_memory_that_was_freed_is_taken_again_without_asking_the_system() -> None:
    untold = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run([sys.executable, "-c", PAGES_TAKEN], capture_output=True, text=True, timeout=120, check=True, env=untold)
    usual, kept = json.loads(found.stdout)
    # The first blocks still grow the heap, and how many do depends on what lies between them; it is what it settles at that counts.
    settled = median(kept[20:])
    assert min(usual) > 5 and settled < median(usual) / 10, (usual, kept)


def test_an_allocator_that_was_told_what_to_do_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not keep_freed_memory()
