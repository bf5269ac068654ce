"""Branches and loops that depend on the data: taken on the host, or compiled by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from wtfarray._arrays.typing import Array

State = TypeVar("State")
Result = TypeVar("Result")


class ControlFlow(Protocol):
    """How an algorithm that is written once makes its decisions."""

    def decide(self, condition: Array) -> Any:
        """A condition, (), in the form that `cond` takes; reads it once where that is possible."""

    def cond(
        self, condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]
    ) -> Result:
        """One of two results, of the same structure."""

    def while_loop(
        self, goes_on: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """Step while ``goes_on``."""


class HostControlFlow:
    """Decisions by Python: every condition is read from the device."""

    def decide(self, condition: Array) -> bool:
        """Read the condition."""
        return bool(condition)

    def cond(
        self, condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]
    ) -> Result:
        """Compute the one that is chosen."""
        return if_true() if condition else if_false()

    def while_loop(
        self, goes_on: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """Step while ``goes_on``."""
        while bool(goes_on(state)):
            state = step(state)
        return state
