"""Why a solver stopped."""

from __future__ import annotations

from enum import Enum


class StopReason(Enum):
    """Why a solver stopped; the value is the template of its message."""

    TOLERANCE = "the objective fell by less than tol = {tol:g} in {steps}"
    STATIONARY = "to first order no step can decrease the objective"
    STUCK = "no further decrease could be found"
    ROUNDING = (
        "rounding errors, of the size of lam times the mass, may hide a further decrease: use "
        "float64, or a smaller lam"
    )
    ITERATIONS = "stopped after max_iter = {max_iter}: increase it or loosen `tol`"
    WORK = (
        "stopped after very many evaluations of the loss: choose {joint_solver}a larger eps, "
        "loosen `tol`, or continue with init set to this result"
    )
    UNSOLVED = "{subproblem} could not be solved: choose {alternatives}a larger eps"
    NOT_FINITE = "the objective or its gradient is not finite: check the loss, or start elsewhere"
    BATCHES = "the objective is within tol = {tol:g} of what the last batches reach on their own"
    PASSES = (
        "after max_iter = {max_iter} passes the objective is not within tol = {tol:g} of what the "
        "last batches reach on their own: increase max_iter or loosen `tol`"
    )
    CALLBACK = "stopped by the callback"
    INTERRUPTED = "interrupted: the best so far is returned"

    @property
    def is_optimal(self) -> bool:
        """Whether the solver could not decrease the objective further."""
        return self in (
            StopReason.TOLERANCE,
            StopReason.STATIONARY,
            StopReason.STUCK,
            StopReason.BATCHES,
        )

    @property
    def is_blocked(self) -> bool:
        """Whether no decrease was found, possibly because of a kink of the objective."""
        return self in (StopReason.STUCK, StopReason.UNSOLVED)

    @property
    def by_caller(self) -> bool:
        """Whether the callback or an interrupt ended the solve."""
        return self in (StopReason.CALLBACK, StopReason.INTERRUPTED)

    def message(self, solver: str, tol: float, max_iter: int, *, has_dual: bool = True) -> str:
        """
        The message for ``solver``, "envelope", "dual" or "online".

        ``has_dual`` says whether ``solver="dual"`` supports the loss.
        """
        joint = solver != "dual"
        alternatives = "solver='envelope', a larger rho or "
        if joint:
            alternatives = "solver='dual' or " if has_dual else ""
        return self.value.format(
            tol=tol,
            max_iter=max_iter,
            steps="three steps" if joint else "a sweep",
            subproblem="an inner problem" if joint else "a block",
            alternatives=alternatives,
            joint_solver="" if joint else "solver='envelope' or ",
        )
