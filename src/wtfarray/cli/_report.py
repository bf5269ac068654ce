"""What the command line shows: progress with a way to stop, and tables."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import wtfarray as wtf


class Watch:
    """
    A progress bar that also turns the first Ctrl-C into a stop after the present step.

    Stopped in this way a fit writes its checkpoint, unless it is on its last steps, through kinks,
    which are done again. The second Ctrl-C ends the step.
    """

    def __init__(self, console: Console, title: str, total: int, *, visible: bool) -> None:
        self.interrupted = False
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("step {task.completed:.0f} of at most {task.total:.0f}{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (visible and console.is_terminal),
        )
        self._task = self._progress.add_task(title, total=total, state="")
        self._before: Any = None

    def step(self, state: wtf.FitState) -> bool:
        """Show a step; True once the fit is to end. This is the fit's callback."""
        rough = "" if state.level == 1.0 else " (rough)"
        text = f", objective {state.objective:.6g}, gap {state.gap:.1e}{rough}"
        self._progress.update(self._task, completed=state.n_iter, state=text)
        return self.interrupted

    def _stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._console.print("stopping after this step; press Ctrl-C again to stop at once")

    def __enter__(self) -> Watch:
        self._before = signal.signal(signal.SIGINT, self._stop)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        signal.signal(signal.SIGINT, self._before)


def summary(fit: wtf.Factorisation, *written: Path) -> Table:
    """What a fit is, how good, and which files were written."""
    rank: object = fit.factors[0].shape[1]
    if fit.core is not None:
        rank = ", ".join(str(factor.shape[1]) for factor in fit.factors)
    seconds = fit.history[-1].time if fit.history else 0.0
    return table(
        [
            ("model", f"{fit.kind}, rank {rank}"),
            ("data", " x ".join(map(str, fit.shape))),
            ("loss", repr(fit.loss)),
            ("rho", ", ".join(f"{rho:g}" for rho in fit.rho)),
            ("constraints", ", ".join(str(constraint).lower() for constraint in fit.constraints)),
            ("objective", f"{fit.objective:.8g}"),
            ("duality gap", f"{fit.gap:.2g}"),
            ("converged", "yes" if fit.converged else "no"),
            ("why it ended", fit.message),
            ("iterations", str(fit.n_iter)),
            ("time", f"{seconds:.1f} s"),
            *(("written", str(path)) for path in written),
        ]
    )


def table(rows: Iterable[tuple[str, str]]) -> Table:
    """Two columns, names and values."""
    found = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    found.add_column(style="bold", no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in rows:
        found.add_row(name, Text(value))  # as text, for a path may look like markup
    return found
