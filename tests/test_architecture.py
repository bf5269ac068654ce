"""The layout of the library: private modules with tests of their own, few public names."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY, TESTS = ROOT / "src" / "wtfarray", ROOT / "tests"
PUBLIC = {
    "__init__",
    "__main__",
    "anndata",
    "cli",
    "distributed",
    "jax",
    "plot",
    "sklearn",
    "torch",
}
# Beside an installed package of the same name the folder of its tests has another.
FOLDERS = {"sklearn": "sklearn_"}


def defines_something(path):
    """Whether a module has functions or classes; names for types alone have no tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body)


def modules():
    """Every module of the packages, and the private ones beside them."""
    for path in sorted(LIBRARY.rglob("*.py")):
        if not path.name.startswith("__") and defines_something(path):
            yield path.relative_to(LIBRARY)


def mirrored(module):
    """Where the tests of a module are: `_x/y.py` in `x/test_y.py`."""
    folders = [FOLDERS.get(part, part.removeprefix("_")) for part in module.parts[:-1]]
    return Path(*folders, f"test_{module.stem.removeprefix('_')}.py")


@pytest.mark.parametrize("module", [str(module.as_posix()) for module in modules()])
def test_every_module_has_a_test_file(module):
    expected = mirrored(Path(module))
    assert (TESTS / expected).exists(), f"{module} has no tests/{expected.as_posix()}"


def test_modules_are_found():
    found = {module.as_posix() for module in modules()}
    assert {"_transport/costs.py", "sklearn/_base.py", "cli/_commands.py", "torch.py"} <= found
    assert mirrored(Path("_transport/costs.py")) == Path("transport/test_costs.py")
    assert mirrored(Path("sklearn/_base.py")) == Path("sklearn_/test_base.py")
    assert mirrored(Path("torch.py")) == Path("test_torch.py")


def test_modules_that_are_not_public_have_an_underscore():
    names = {path.stem for path in LIBRARY.iterdir() if path.is_dir() or path.suffix == ".py"}
    names -= {"__pycache__"}
    assert {name for name in names if not name.startswith("_")} <= PUBLIC


@pytest.mark.parametrize("package", ["cli", "plot", "sklearn"])
def test_modules_of_public_packages_have_an_underscore(package):
    names = {path.stem for path in (LIBRARY / package).glob("*.py")}
    assert len(names) > 1
    assert all(name.startswith("_") for name in names)
