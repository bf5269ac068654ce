"""Output of the command line: a progress bar that handles Ctrl-C, and tables."""

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
    A progress bar; the first Ctrl-C stops the fit after the current step.

    A fit stopped in this way writes its checkpoint, except during prox-linear steps, which are
    repeated when the fit continues. A second Ctrl-C interrupts the current step.
    """

    def __init__(self, console: Console, title: str, total: int | None, *, visible: bool) -> None:
        self.interrupted = False
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("step {task.completed:.0f}{task.fields[of]}{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (visible and console.is_terminal),
        )
        of = "" if total is None else f" of at most {total}"
        self._task = self._progress.add_task(title, total=total, state="", of=of)
        self._previous_handler: Any = None

    def step(self, state: wtf.FitState) -> bool:
        """The callback of the fit: show a step; True ends the fit after a Ctrl-C."""
        rough = "" if state.level == 1.0 else " (rough)"
        text = f", objective {state.objective:.6g}, gap {state.gap:.1e}{rough}"
        self._progress.update(self._task, completed=state.n_iter, state=text)
        return self.interrupted

    def _stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._console.print("stopping after this step; press Ctrl-C again to stop at once")

    def __enter__(self) -> Watch:
        self._previous_handler = signal.signal(signal.SIGINT, self._stop)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        signal.signal(signal.SIGINT, self._previous_handler)


def summary(fit: wtf.Factorisation, *written: Path) -> Table:
    """A table of model, loss, objective and convergence, and of the files written."""
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
            ("message", fit.message),
            ("iterations", str(fit.n_iter)),
            ("time", f"{seconds:.1f} s"),
            *(
                (f"mode {k}", axis.describe())
                for k, axis in enumerate(fit.axes)
                if axis.title or axis.values
            ),
            *(("written", str(path)) for path in written),
        ]
    )


def table(rows: Iterable[tuple[str, str]]) -> Table:
    """A table with two columns, names and values."""
    found = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    found.add_column(style="bold", no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in rows:
        found.add_row(name, Text(value))  # as text, because a path may look like markup
    return found
