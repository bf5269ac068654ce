"""What others install: wheel and sdist, what importing them costs, and their types."""

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OPTIONAL = {"cupy", "jax", "matplotlib", "scipy", "sklearn", "tensorly", "torch", "tqdm"}


@dataclass(frozen=True)
class Package:
    sdist: Path
    wheel: Path
    python: str
    """Of an environment with the wheel, and with the other packages of this one."""

    def run(self, code):
        """The output of some Python code, which must not warn."""
        command = [self.python, "-W", "error", "-c", textwrap.dedent(code)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=clean())
        assert run.returncode == 0, run.stderr
        return run.stdout


def clean():
    """The environment without the variables that lead Python to the sources."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def command(*arguments, cwd=ROOT):
    run = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture(scope="module")
def package(backend, tmp_path_factory):
    """The sdist of the checkout, a wheel built from that sdist, and an environment with it."""
    if backend.name != "numpy":
        pytest.skip("the package is built in the numpy session")
    for tool in ("hatchling", "pip"):
        if find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("package")
    command("hatchling", "build", "--target", "sdist", "--directory", folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    command("hatchling", "build", "--target", "wheel", "--directory", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    scheme = {"base": str(environment), "platbase": str(environment)}
    site = sysconfig.get_path("purelib", "venv", scheme)
    command("pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site, wheel)
    # After the environment's own: the checkout may be installed there, but does not come first.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "others.pth").write_text("\n".join(others), encoding="utf-8")
    return Package(
        sdist, wheel, str(Path(sysconfig.get_path("scripts", "venv", scheme)) / "python")
    )


def test_sdist_holds_sources_and_tests(package):
    with tarfile.open(package.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/wtfarray/py.typed"} <= names
    assert "tests/test_packaging.py" in names


def test_wheel_holds_the_library_only(package):
    with zipfile.ZipFile(package.wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        header = Parser().parsestr(archive.read(metadata).decode())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert "wtfarray/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"wtfarray"}
    needed = [line for line in header.get_all("Requires-Dist") if "extra ==" not in line]
    assert {line.partition(">")[0] for line in needed} == {"array-api-compat", "numpy"}
    assert {"jax", "tensorly", "torch"} <= set(header.get_all("Provides-Extra"))


def test_library_works_without_extras(package):
    """Optional packages cannot be imported; a fit must not need them."""
    package.run(
        f"""
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {OPTIONAL!r}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
        import wtfarray as wtf
        import numpy as np

        assert {str(Path(package.python).parent.parent)!r} in wtf.__file__
        X = np.random.default_rng(0).dirichlet(np.ones(6), 4)
        fit = wtf.nmf(X, 2, wtf.Wasserstein(wtf.grid_cost(6), eps=0.1, lam=1.0), rng=0)
        assert fit.converged

        for name in ("torch", "jax", "sklearn"):
            try:
                __import__("wtfarray." + name)
            except ImportError as error:
                assert "pip install 'wtfarray[" + name + "]'" in str(error), error
            else:
                raise AssertionError(name)
        """
    )


def test_import_loads_no_extra(package):
    loaded = package.run("import sys, wtfarray; print(*sys.modules)")
    assert not {name.partition(".")[0] for name in loaded.split()} & OPTIONAL


def test_import_takes_at_most_twice_as_long_as_its_dependencies(package, record_property):
    """In processor time, as other processes share the machine."""
    code = """
        import json, time

        start = time.process_time()
        import array_api_compat, numpy
        between = time.process_time()
        import wtfarray
        print(json.dumps([between - start, time.process_time() - between]))
        """
    package.run(code)  # compiles
    times = [json.loads(package.run(code)) for _ in range(5)]
    below, own = (statistics.median(column) for column in zip(*times, strict=True))
    record_property("seconds of numpy and array-api-compat", below)
    record_property("seconds of wtfarray", own)
    assert own < 2.0 * below, f"{own:.3f} s after {below:.3f} s"


DOWNSTREAM = '''
"""A typed project that depends on wtfarray."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import wtfarray as wtf

Floats = NDArray[np.float64]


class Model:
    """Non-negative atoms of histograms."""

    def __init__(self, atoms: int, loss: wtf.Loss) -> None:
        self.atoms = atoms
        self.loss = loss
        self.fitted: wtf.Factorisation | None = None

    def fit(self, X: Floats, rho: float | Sequence[float] = 1e-2) -> "Model":
        self.fitted = wtf.nmf(X, self.atoms, self.loss, rho=rho, rng=0, callback=self.seen)
        return self

    def seen(self, state: wtf.FitState) -> bool:
        assert_type(state.objective, float)
        return state.gap < 1e-3

    def transform(self, X: Floats) -> Floats:
        assert self.fitted is not None
        coefficients: Floats = self.fitted.project(X, tol=1e-6)
        return coefficients


def bounds(fit: wtf.Factorisation) -> tuple[float, float]:
    assert_type(fit.history, list[wtf.Record])
    assert_type(fit.converged, bool)
    assert_type(fit.factors, list[Any])
    return fit.objective, fit.objective + fit.gap


def several(X: Floats, path: Path) -> wtf.Factorisation:
    costs = wtf.grid_cost(4, 5)
    loss = wtf.Wasserstein(costs, eps=0.1, lam=1.0)
    value: Floats
    gradient: Floats
    value, gradient = wtf.wasserstein(X, X, loss)
    both = wtf.LossSum(loss, wtf.KullbackLeibler())
    fits = [
        wtf.cp(X, 2, both, constraints=("rows", "columns", None), weights="learned"),
        wtf.tucker(X, (2, 2, 2), wtf.Frobenius(), init="nnsvd", max_iter=3),
    ]
    fits[0].save(path)
    weights, factors = fits[0]
    found = wtf.lbfgs(lambda x: (x @ x, 2.0 * x), np.ones(3))
    assert_type(found, wtf.OptimizeResult)
    return wtf.load(path)


def mistakes(X: Floats) -> None:
    """Each must be found: a comment that ignores nothing is an error too."""
    wtf.cp(X, "2", wtf.Frobenius())  # type: ignore[arg-type]
    wtf.cp(X, 2)  # type: ignore[call-arg]
    wtf.cp(X, 2, wtf.Frobenius(), toll=1e-3)  # type: ignore[call-arg]
    wtf.cp(X, 2, wtf.Frobenius(), constraints=("row", None, None))  # type: ignore[arg-type]
    wtf.Wasserstein(X, eps="small")  # type: ignore[arg-type]
    wtf.nmf(X, 2, wtf.Frobenius()).objectives  # type: ignore[attr-defined]
'''


def test_types_hold_in_another_project(package, tmp_path):
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed; the dependency group `test` has it")
    (tmp_path / "downstream.py").write_text(DOWNSTREAM, encoding="utf-8")
    # array-api-compat names them all in its types, and they are large.
    others = ",".join(f"{name}.*" for name in sorted({"dask", "ndonnx", "sparse"} | OPTIONAL))
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\n[mypy-{others}]\nfollow_imports = skip\n", encoding="utf-8"
    )
    command(
        *("mypy", "--strict", "--config-file", "mypy.ini", "--python-executable", package.python),
        *("--cache-dir", tmp_path / "cache", "downstream.py"),
        cwd=tmp_path,
    )
