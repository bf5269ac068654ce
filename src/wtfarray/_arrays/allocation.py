"""Memory of temporary arrays, which the C library is to keep from one operation to the next."""

import ctypes
import sys
from functools import cache

KEPT_BYTES = 2**24
"""Arrays up to this size are taken from memory that the process has already."""


@cache
def keep_freed_memory() -> None:
    """
    Have the C library keep the memory of arrays that are freed; once in a process.

    The allocator of glibc returns freed blocks to the operating system that are larger than a
    threshold, 128 kB at first, and gets them back page by page, each cleared: hundreds of thousands
    of pages in a fit of a few seconds. The threshold rises to the size of the largest block that
    the process has freed: here of one that nothing has been written to, so that it takes no memory.
    Other allocators are not affected.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.free(library.malloc(KEPT_BYTES))
