"""Smooth unconstrained minimisation of `fun(x) -> (value, gradient)` for any array type."""

from wtfarray._optimize.accelerated import gradient_descent
from wtfarray._optimize.lbfgs import lbfgs
from wtfarray._optimize.result import OptimizeRecord, OptimizeResult, OptimizeState

__all__ = ["OptimizeRecord", "OptimizeResult", "OptimizeState", "gradient_descent", "lbfgs"]
