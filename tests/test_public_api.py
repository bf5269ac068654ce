"""The public names, what importing them costs, and the Array API functions they rely on."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import array_api_strict
import pytest

import wtfarray

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "wtfarray").rglob("*.py"))
EXTENSIONS = ("linalg", "fft")


def is_submodule(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith("wtfarray.")


def test_all_is_the_public_surface():
    public = {
        name
        for name, value in vars(wtfarray).items()
        if not name.startswith("_") and not is_submodule(value)
    }
    assert len(wtfarray.__all__) == len(set(wtfarray.__all__))
    assert {name for name in wtfarray.__all__ if name != "__version__"} == public


def test_api_page_lists_the_public_names():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(name for name in wtfarray.__all__ if name != "__version__")


@pytest.mark.parametrize("adapter", ["torch", "jax"])
def test_api_page_lists_the_adapters(adapter):
    """Read, not imported: the libraries are installed in their own sessions only."""
    tree = ast.parse((ROOT / "src" / "wtfarray" / f"{adapter}.py").read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(rf"^\.\. auto\w+:: wtfarray\.{adapter}\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(names)


def test_import_loads_no_optional_package():
    optional = {"torch", "jax", "cupy", "scipy", "sklearn", "matplotlib", "tqdm", "tensorly"}
    optional |= {"click", "rich"}
    code = "import sys, wtfarray; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "wtfarray" in loaded
    assert not loaded & optional


def namespace_names(tree: ast.AST) -> set[str]:
    """Return `exp` for ``xp.exp`` and ``self.xp.exp``, `linalg.qr` for ``xp.linalg.qr``."""

    def dotted(node: ast.AST) -> str | None:
        match node:
            case ast.Name(id="xp") | ast.Attribute(attr="xp"):
                return ""
            case ast.Attribute(value=value, attr=attr):
                prefix = dotted(value)
                if prefix in EXTENSIONS:
                    return f"{prefix}.{attr}"
                return attr if prefix == "" else None
        return None

    return {name for node in ast.walk(tree) if (name := dotted(node))} - set(EXTENSIONS)


def used_names() -> set[str]:
    return set().union(
        *(namespace_names(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES)
    )


def lookup(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def newer_than_2024(function: Any) -> bool:
    """Tell whether array-api-strict refuses `function` because 2024.12 does not have it."""
    try:
        function()
    except RuntimeError as error:
        return "requires API version" in str(error)
    except TypeError:  # arguments are missing, so it got past the check of the version
        pass
    return False


def test_namespace_names_are_found():
    code = "xp.exp(xp.linalg.qr(x)); self.xp.fft.fft(x).real; np.sum(x); xp.float64.name; xps.a"
    assert namespace_names(ast.parse(code)) == {"exp", "linalg.qr", "fft.fft", "float64"}


def test_newer_names_are_found():
    with array_api_strict.ArrayAPIStrictFlags(api_version="2024.12"):
        assert newer_than_2024(array_api_strict.isin)
        assert not newer_than_2024(array_api_strict.take_along_axis)


def test_used_names_are_in_the_standard():
    with array_api_strict.ArrayAPIStrictFlags(api_version="2024.12"):
        found = {name: lookup(array_api_strict, name) for name in used_names()}
        unknown = {name for name, value in found.items() if value is None}
        newer = {
            name for name, value in found.items() if callable(value) and newer_than_2024(value)
        }
    assert {"exp", "linalg.qr", "sum"} <= set(found)
    assert not unknown
    assert not newer


def test_used_names_are_in_cupy():
    pytest.importorskip("cupy", reason="CuPy is not installed; the numpy session has it")
    import array_api_compat.cupy as xp

    assert not {name for name in used_names() if lookup(xp, name) is None}
