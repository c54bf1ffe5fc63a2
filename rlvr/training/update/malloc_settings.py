"""Make glibc keep freed memory for the next step.

A step on the CPU allocates and frees the same hundreds of megabytes. glibc returns them to the system each time, and the next
step allocates them again page by page, which takes up to a tenth of its time.
"""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt: the amount of free memory to keep, and the size above which blocks are mapped separately."""
MAX_TRIM_THRESHOLD_BYTES, MMAP_THRESHOLD_BYTES = (1 << 31) - 1, 1 << 28


def keep_freed_memory() -> bool:
    """Make this process keep freed memory; False if its allocator is not glibc's or is already configured.

    >>> keep_freed_memory()  # doctest: +SKIP
    True
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, MAX_TRIM_THRESHOLD_BYTES)) and bool(mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
