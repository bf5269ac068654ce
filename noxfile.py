#!/usr/bin/env python3
# /// script
# dependencies = ["nox>=2025.2.9"]
# ///
"""Everything that is checked: ``nox`` runs lint, tests and docs; ``nox -l`` lists the sessions.

Environments are kept and brought up to date; ``nox -R`` skips the installation as well.
Words after ``--`` go to the tool that the session runs: ``nox -s "tests(torch)" -- -x -k lbfgs``.
"""

import shutil
import sys

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

PYPROJECT = nox.project.load_toml("pyproject.toml")
BACKENDS = ["numpy", "strict", "torch", "jax"]


def install(session: nox.Session, *groups: str, extra: str = "", group: str = "") -> None:
    """Install the checkout with an extra and dependency groups, at the pinned versions."""
    names = [*groups, group] if group else groups
    packages = nox.project.dependency_groups(PYPROJECT, *names) if names else ()
    target = f"-e.[{extra}]" if extra else "-e."
    # Most of the installed modules are never imported. The first import compiles the others, and
    # keeps the result even where the environment asks Python not to.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.install("--no-compile", "-c", "constraints.txt", target, *packages)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, imports between layers, spelling, workflows and the project's layout."""
    install(session, group="lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("mypy", "noxfile.py")
    session.run("lint-imports", "--no-cache", "--no-logo")
    session.run("typos")
    session.run("zizmor", "--offline", "--quiet", "--persona", "pedantic", ".")
    session.run("repo-review", ".")


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """Run the tests on one array library."""
    # Numba's machine code serves arrays in the memory of the processor; strict ones never.
    extra = {"numpy": "fast", "torch": "fast,torch", "jax": "fast,jax"}.get(backend, "")
    if backend == "numpy" and sys.platform == "linux":
        # CuPy imports with no GPU: enough to look up the names that the library uses.
        extra += ",cuda12"
    # Containers of other packages hold NumPy's arrays: tested with them only.
    containers = ["containers"] if backend == "numpy" else []
    install(session, *containers, extra=extra, group="test")
    # Python warns when it compiles POT, and in the tests a warning is an error: so before them.
    code = "import compileall, importlib.util as u; compileall.compile_dir(%s, quiet=2)"
    session.run("python", "-c", code % "u.find_spec('ot').submodule_search_locations[0]")
    # The arrays of the tests are small: threads would only wait for each other.
    env = {"OMP_NUM_THREADS": "1"}
    options = ["--numprocesses", "2", "--backend", backend]
    if backend == "jax":
        # Much of the time goes into compilation: the workers share what they compile, and keep it
        # for the next run. An entry that one worker reads while the other writes it is compiled
        # again.
        env |= {
            "JAX_COMPILATION_CACHE_DIR": str((session.cache_dir / "jax").absolute()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        # Each operation is compiled for each shape and dtype and runs a few times: code that is not
        # optimised, from the emitters that take least time, is compiled in about half the time.
        env |= {
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
        }
        # The tests of a file have shapes in common: one worker compiles for them.
        options += ["--dist", "loadfile"]
        for action in ("reading", "writing"):
            options += ["-W", f"ignore:Error {action} persistent compilation cache:UserWarning"]
    session.run("pytest", *options, *session.posargs, env=env)


@nox.session
def distributed(session: nox.Session) -> None:
    """Run fits of two processes, by MPI (mpich) and by torch.distributed (gloo)."""
    install(session, extra="mpi,torch", group="test")
    session.install("-c", "constraints.txt", "mpich")
    env = {"OMP_NUM_THREADS": "1"}
    session.run("pytest", "--backend", "numpy", "tests/distributed", *session.posargs, env=env)
    script = "examples/distributed.py"
    mpiexec = ("mpiexec", "-n", "2", "python", "-m", "mpi4py")
    session.run(*mpiexec, script, "--quick", env=env)
    session.run("torchrun", "--nproc-per-node", "2", script, "--quick", env=env)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    install(session, extra="sklearn", group="docs")
    session.run(
        "sphinx-build",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "docs",
        "docs/_build/html",
        *session.posargs,
    )


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Run the demonstration and draw its picture."""
    install(session, extra="plot,progress")
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session(default=False)
def examples(session: nox.Session) -> None:
    """Run one experiment of the paper: ``nox -s examples -- faces --quick``."""
    if not session.posargs:
        session.error("name an experiment: three_mode, stacked_images, faces or spectra")
    name, *options = session.posargs
    torch = "torch" in options or "--reference" in options
    install(session, extra="examples,torch" if torch else "examples")
    if "--reference" in options:
        session.install("-c", "constraints.txt", "tensorly")
    session.run("python", f"examples/{name}.py", *options)


@nox.session(default=False)
def campaign(session: nox.Session) -> None:
    """Try random problems against an oracle: ``nox -s campaign -- --minutes 20 --seed 0``."""
    options = session.posargs
    names = {"numba": "fast", "torch": "torch", "jax": "jax"}
    extra = next((extra for name, extra in names.items() if name in options), "")
    install(session, extra=extra, group="test")
    env = {"OMP_NUM_THREADS": "1"}
    if extra == "jax":
        env |= {
            "JAX_COMPILATION_CACHE_DIR": str((session.cache_dir / "jax").absolute()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    session.run("python", "-m", "campaign", *options, env=env)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests on CuPy and on torch's CUDA device."""
    if shutil.which("nvidia-smi") is None:
        session.skip("no NVIDIA GPU: nvidia-smi was not found")
    install(session, extra="cuda12,torch", group="test")
    session.run("pytest", "--backend", "cupy", *session.posargs)
    session.run("pytest", "--backend", "torch-cuda", *session.posargs)


if __name__ == "__main__":
    nox.main()
