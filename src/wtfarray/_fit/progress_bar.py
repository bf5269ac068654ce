"""An optional progress bar."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class ProgressBar:
    """A tqdm bar that shows objective and gap; does nothing unless ``visible``."""

    def __init__(self, description: str, *, visible: bool, total: int | None = None) -> None:
        self._bar: Any = None
        if not visible:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            msg = "progress=True needs tqdm: pip install 'wtfarray[progress]'"
            raise ImportError(msg) from None
        self._bar = tqdm(desc=description, total=total, unit="it", dynamic_ncols=True)

    def step(self, objective: float, gap: float) -> None:
        """Advance by one iteration."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"objective {objective:.6g}, gap {gap:.1e}", refresh=False)
            self._bar.update()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
