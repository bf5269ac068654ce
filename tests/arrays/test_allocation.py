"""Memory that the C library keeps: how many pages the operating system provides anew."""

import os
import platform
import subprocess
import sys

import pytest
from helpers import numpy_only

pytestmark = numpy_only

FAULTS = """
import resource
import numpy as np
from wtfarray._arrays.allocation import keep_freed_memory

{call}
def operations():
    x = np.ones(2**15)
    for _ in range(50):
        y = [x + 1.0 for _ in range(10)]
        del y
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
operations()
before = faults()
operations()
print(faults() - before)
"""


def page_faults(call):
    """Page faults of 500 operations on arrays of 256 kB, in a process of its own."""
    code = FAULTS.format(call=call)
    # Settings of the environment would replace the threshold that the library raises.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is that of glibc")
def test_memory_of_arrays_is_used_again():
    assert page_faults("") > 10_000
    assert page_faults("keep_freed_memory()") < 1_000
