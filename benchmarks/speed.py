"""
How fast fits are, in one table, beside an older version and the paper's code.

usage: python benchmarks/speed.py [ROW ...] [--baseline PATH] [--reference PATH] [--data FOLDER]

benchmarks/README.md says what each row measures.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import _speed_costs
import _speed_fits
from _problems import Figures, Line, Row, Setting, SkippedError

import wtfarray as wtf

HERE = Path(__file__).resolve().parent.parent
ROWS = {row.name: row for row in (*_speed_fits.ROWS, *_speed_costs.ROWS)}
NO_MACHINE_CODE = {"NUMBA_DISABLE_JIT": "1"}
HEAD = ("what", "baseline", "now", "baseline / now", "to reach")
WIDTHS = (60, 9, 9, 14, 25)


def work(order: str) -> None:
    """Measure one row with the version that is imported here, and print the figures as JSON."""
    task = json.loads(order)
    source = Path(wtf.__file__).resolve()
    if not source.is_relative_to(task["checkout"]):
        msg = f"the version to measure is in {task['checkout']}, and {source} was imported"
        raise RuntimeError(msg)
    try:
        figures = ROWS[task["row"]].measure(Setting(**task["setting"]), task["before"])
    except (SkippedError, ModuleNotFoundError) as reason:
        figures = {"skipped": str(reason)}
    print(json.dumps(figures))


def measure(
    checkout: Path,
    row: Row,
    setting: Setting,
    before: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Figures:
    """Measure one row with the version of a checkout, in a process of its own."""
    checkout = checkout.resolve()
    order = {
        "checkout": str(checkout),
        "row": row.name,
        "setting": asdict(setting),
        "before": dict(before),
    }
    paths = [str(checkout / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, __file__, "--work", json.dumps(order)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"skipped": f"failed with status {done.returncode}, see above", "failed": True}
    return json.loads(done.stdout.splitlines()[-1])


def text(figures: Mapping[str, Any] | None, line: Line) -> str:
    """A figure as the table shows it: empty if it was not measured."""
    if figures is None or line.key not in figures:
        return ""
    value = figures[line.key]
    return "never" if value is None else format(value, line.form)


def ratio(baseline: Mapping[str, Any] | None, now: Mapping[str, Any], line: Line) -> str:
    """The figure of the baseline divided by ours, where both are there and that says anything."""
    before, after = (baseline or {}).get(line.key), now.get(line.key)
    if not line.compared or before is None or not after:
        return ""
    return f"{before / after:.2f}"


def print_cells(cells: Sequence[str]) -> None:
    """One line of the table, as Markdown."""
    padded = (
        cell.ljust(width) if k in {0, len(cells) - 1} else cell.rjust(width)
        for k, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    )
    print("| " + " | ".join(padded) + " |", flush=True)


def print_row(row: Row, baseline: Figures | None, now: Figures) -> None:
    """All lines of a row, or why there are none."""
    for name, figures in (("baseline", baseline), ("now", now)):
        if figures is not None and "skipped" in figures:
            print_cells((f"{row.name}, {name}: {figures['skipped']}", "", "", "", ""))
    for line in row.lines:
        cells = text(baseline, line), text(now, line)
        if any(cells):
            print_cells((line.what, *cells, ratio(baseline, now, line), line.target))


def print_machine(setting: Setting) -> None:
    """Where and with what the figures were measured."""
    versions = []
    for package in ("numpy", "torch", "jax", "POT", "numba"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"Python {platform.python_version()}, {', '.join(versions)};")
    print(f"{os.cpu_count()} processors, OMP_NUM_THREADS {threads}; ", end="")
    print(f"fits on {setting.backend} in {setting.dtype}; {setting.clock} clock")
    if NO_MACHINE_CODE.items() <= os.environ.items():
        print("machine code is turned off")
    if setting.quick:
        print("--quick: the data are smaller than the lines say, and the figures mean nothing")


def selected(names: Sequence[str]) -> list[Row]:
    """The rows of these names; the part before a colon stands for all that begin with it."""
    unknown = [n for n in names if n not in ROWS and not any(r.startswith(f"{n}:") for r in ROWS)]
    if unknown:
        msg = f"no row is called {unknown[0]}: expected some of {', '.join(ROWS)}"
        raise SystemExit(msg)
    wanted = [
        row for name, row in ROWS.items() if {name, name.split(":", maxsplit=1)[0]} & {*names}
    ]
    return wanted if names else list(ROWS.values())


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default all")
    baselines = parser.add_mutually_exclusive_group()
    baselines.add_argument("--baseline", type=Path, help="a checkout of an older version")
    baselines.add_argument(
        "--machine-code", action="store_true", help="the baseline is this version without Numba"
    )
    parser.add_argument("--reference", help="a checkout of the paper's code, for the row images")
    parser.add_argument("--data", help="folder of the npz files, for faces, three-mode and bare")
    parser.add_argument("--backend", choices=("numpy", "torch", "jax"), default="numpy")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--quick", action="store_true", help="small data, to try the script")
    parser.add_argument("--seconds", type=float, default=150.0, help="limit of the faces")
    parser.add_argument("--steps", type=int, help="max_iter of the rows jax, torch and operations")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--work", metavar="ORDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work)
        return
    setting = Setting(**{f.name: getattr(arguments, f.name) for f in fields(Setting)})
    rows = selected(arguments.rows)
    print("$ python benchmarks/speed.py", *sys.argv[1:])
    print_machine(setting)
    print()
    print_cells(HEAD)
    print("|" + "|".join("-" * (width + 2) for width in WIDTHS) + "|", flush=True)
    failed = False
    for row in rows:
        baseline = None
        if arguments.baseline is not None:
            baseline = measure(arguments.baseline, row, setting, {})
        elif arguments.machine_code:
            baseline = measure(HERE, row, setting, {}, NO_MACHINE_CODE)
        now = measure(HERE, row, setting, baseline or {})
        print_row(row, baseline, now)
        failed |= any("failed" in (figures or {}) for figures in (baseline, now))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
