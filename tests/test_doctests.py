"""The examples in the docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import wtfarray

MODULES = ["wtfarray", *(m.name for m in pkgutil.walk_packages(wtfarray.__path__, "wtfarray."))]
OPTIONAL = {"click", "cupy", "jax", "matplotlib", "rich", "sklearn", "torch"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_docstrings_hold(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
