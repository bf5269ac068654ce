"""The array library under test: ``pytest --backend NAME`` and the fixtures that follow it."""

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import array_api_compat
import hypothesis
import numpy as np
import pytest

MODULES = {
    "numpy": "numpy",
    "strict": "array_api_strict",
    "torch": "torch",
    "jax": "jax.numpy",
    "cupy": "cupy",
    "torch-cuda": "torch",
}

hypothesis.settings.register_profile("dev", deadline=None, max_examples=25)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=25, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@dataclass(frozen=True)
class Backend:
    """An array library on one of its devices; `missing` says why it cannot run here."""

    name: str
    xp: Any = None
    device: Any = None
    missing: str = ""


def load(name: str) -> list[Backend]:
    """Return the devices to test of the backend called `name`."""
    try:
        module = importlib.import_module(MODULES[name])
    except ImportError as error:
        msg = f"--backend {name}: {error}"
        raise pytest.UsageError(msg) from error
    if name == "cupy":
        try:
            module.cuda.runtime.getDeviceCount()
        except module.cuda.runtime.CUDARuntimeError as error:
            return [Backend(name, missing=f"no GPU for CuPy: {error}")]
    if name == "torch-cuda" and not module.cuda.is_available():
        return [Backend(name, missing="no GPU for torch: torch.cuda.is_available() is false")]
    if name == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    if name == "strict":
        module.set_array_api_strict_flags(api_version="2024.12")
        return [
            Backend("strict", module, module.Device("CPU_DEVICE")),
            Backend("strict-device1", module, module.Device("device1")),
        ]
    one = module.ones(1, device="cuda") if name == "torch-cuda" else module.ones(1)
    return [Backend(name, array_api_compat.array_namespace(one), array_api_compat.device(one))]


BACKENDS = pytest.StashKey[list[Backend]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help=f"array library to test: {', '.join(MODULES)} (repeat or separate by commas; "
        "default: numpy)",
    )


def pytest_configure(config: pytest.Config) -> None:
    given = ",".join(config.getoption("--backend") or ["numpy"])
    names = list(dict.fromkeys(given.split(",")))
    if unknown := [name for name in names if name not in MODULES]:
        msg = f"--backend {unknown[0]}: unknown, expected one of {', '.join(MODULES)}"
        raise pytest.UsageError(msg)
    config.stash[BACKENDS] = [backend for name in names for backend in load(name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize(
            "backend",
            [
                pytest.param(
                    backend,
                    id=backend.name,
                    marks=[pytest.mark.skip(reason=backend.missing)] if backend.missing else [],
                )
                for backend in metafunc.config.stash[BACKENDS]
            ],
            indirect=True,
            scope="session",
        )


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the backend under test."""
    return request.param


@pytest.fixture(scope="session")
def xp(backend: Backend) -> Any:
    """Return the array namespace under test."""
    return backend.xp


@pytest.fixture(scope="session")
def device(backend: Backend) -> Any:
    """Return the device under test."""
    return backend.device


@pytest.fixture(scope="session")
def array(backend: Backend) -> Callable[..., Any]:
    """Return a function that copies values into an array of the namespace and device under test."""

    def make(values: Any, dtype: str = "float64") -> Any:
        return backend.xp.asarray(np.array(values, dtype=dtype), device=backend.device)

    return make


MOST_COMPILED = 1000
"""Operations that JAX may have compiled since its caches were last cleared."""


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> list[str]:
    """Return a list that grows by one with each operation that JAX compiles."""
    events: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            events.append(event)

    if any(backend.name == "jax" for backend in pytestconfig.stash[BACKENDS]):
        importlib.import_module("jax.monitoring").register_event_duration_secs_listener(listen)
    return events


@pytest.fixture(scope="module", autouse=True)
def clear_compiled(compiled: list[str]) -> Iterator[None]:
    """
    Clear JAX's caches after some files.

    JAX keeps more than a megabyte for each operation that it has compiled for a shape, and the more
    it keeps, the longer it takes to compile the next.
    """
    yield
    if len(compiled) > MOST_COMPILED:
        importlib.import_module("jax").clear_caches()
        compiled.clear()


@pytest.fixture
def on_numpy(xp: Any) -> None:
    """
    Skip all libraries but NumPy.

    A fit takes seconds on array-api-strict, and JAX compiles every shape it meets. What every
    library has to do is tested on all of them; a law of the solution, or what does not depend on
    the library, is tested on one.
    """
    if not array_api_compat.is_numpy_namespace(xp):
        pytest.skip("does not depend on the library: tested with NumPy")


@pytest.fixture
def no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    End small fits without the attempts to leave a saddle point, which take most of their time.

    For tests of what is done with a fit, or with its data. Tests of the fit itself do not use it.
    """
    from helpers import set_thresholds

    set_thresholds(monkeypatch, escape_entries=0)
