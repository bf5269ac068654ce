"""Smooth unconstrained minimisation of `fun(x) -> (value, gradient)` for any array type."""

from wtfarray.optimize._accelerated import gradient_descent
from wtfarray.optimize._lbfgs import lbfgs
from wtfarray.optimize._result import OptimizeRecord, OptimizeResult, OptimizeState

__all__ = ["OptimizeRecord", "OptimizeResult", "OptimizeState", "gradient_descent", "lbfgs"]
