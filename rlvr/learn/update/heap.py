"""The heap: memory that one step frees is kept for the next.

A step on the CPU takes and frees the same hundreds of megabytes. glibc gives them back to the system each time, and the next step
takes them again page by page, which costs up to a tenth of it.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls them: how much free memory is kept, and from which size on a block is the system's own."""
KEPT, LARGE = (1 << 31) - 1, 1 << 28


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; False where its allocator is not glibc's, or was told already what to do.

    >>> keep_freed_memory()                                  # doctest: +SKIP
    True
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGE))
