"""Branches and loops that depend on the data: executed by Python, or compiled by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from wtfarray._arrays.typing import Array

State = TypeVar("State")
Result = TypeVar("Result")


class ControlFlow(Protocol):
    """Branches and loops of an algorithm that runs both in Python and compiled by JAX."""

    def decide(self, condition: Array) -> Any:
        """Convert a condition, (), to the form that `cond` takes, to read it only once."""

    def cond(
        self, condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]
    ) -> Result:
        """The result of one of two functions; both have the same structure."""

    def while_loop(
        self, cond_fun: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """Apply ``step`` while ``cond_fun`` holds."""


class HostControlFlow:
    """Branches and loops of Python: every condition is copied to the host."""

    def decide(self, condition: Array) -> bool:
        """Copy the condition to the host."""
        return bool(condition)

    def cond(
        self, condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]
    ) -> Result:
        """Call one of the two functions."""
        return if_true() if condition else if_false()

    def while_loop(
        self, cond_fun: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """Apply ``step`` while ``cond_fun`` holds."""
        while bool(cond_fun(state)):
            state = step(state)
        return state
