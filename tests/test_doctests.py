"""
The examples in the docstrings.

Modules that import torch or JAX run in the session of that library, all others in that of NumPy.
"""

import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import wtfarray

MODULES = ["wtfarray", *(m.name for m in pkgutil.walk_packages(wtfarray.__path__, "wtfarray."))]
NEEDS = re.compile(r"^(?: {4})?import (torch|jax)\b", re.MULTILINE)
"""How a module says that it cannot be imported without one of them."""
OPTIONAL = {"click", "cupy", "matplotlib", "rich", "sklearn"}


def session(name):
    """The backend in whose session a module is tested."""
    needed = NEEDS.findall(Path(find_spec(name).origin).read_text(encoding="utf-8"))
    return needed[0] if needed else "numpy"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_docstrings_hold(name, backend):
    if backend.name != session(name):
        pytest.skip(f"tested in the session of {session(name)}")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_sessions_of_the_adapters():
    assert {"wtfarray.torch", "wtfarray.jax"} <= set(MODULES)
    assert {session(f"wtfarray.{name}") for name in ("torch", "jax", "cli")} == {
        "torch",
        "jax",
        "numpy",
    }
