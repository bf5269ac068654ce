"""Problems in float32 whose kernel products are computed in float64."""

from __future__ import annotations

from dataclasses import dataclass, fields

from wtfarray._arrays.namespace import array_namespace, has_float64
from wtfarray._arrays.typing import Array
from wtfarray._transport.banded import map_cost
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.problem import Marginal, TransportProblem


@dataclass(frozen=True, eq=False, repr=False)
class DoubleProductsProblem(TransportProblem):
    """
    A problem in float32 whose kernel products are computed in float64.

    float32 holds numbers down to 1e-38, and at small eps every sample has smaller ones in f or K f.
    In the range of float64 plain products rarely underflow, and are several times as fast as the
    log domain.
    """

    double: TransportProblem | None = None
    """The same problem in float64."""

    def marginal(
        self, g: Array, *, safe: bool, masked: bool = True
    ) -> tuple[Marginal, Array, Array]:
        """As `TransportProblem.marginal`; a denominator stays in float64."""
        if safe or self.double is None:
            return super().marginal(g, safe=safe, masked=masked)
        xp = array_namespace(g)
        wide = xp.astype(g, self.double.data.dtype)
        found, logs, _ = self.double.marginal(wide, safe=False, masked=masked)
        q, top, logs = (xp.astype(a, g.dtype) for a in (found.q, found.top, logs))
        return Marginal(q, found.lost, found.denominator, top), logs, top


def with_double_products(problem: TransportProblem) -> DoubleProductsProblem | None:
    """The problem with products in float64; None if it is in float64, or has no such type."""
    xp = array_namespace(problem.data)
    if problem.data.dtype != xp.float32 or not has_float64(problem.data):
        return None
    costs = tuple(
        map_cost(lambda c: xp.astype(c, xp.float64), cost) for cost in problem.kernel.costs
    )
    kernel = GibbsKernel.of(costs, problem.kernel.eps)
    data = xp.astype(problem.data, xp.float64)
    double = TransportProblem.of(
        data, kernel, problem.lam, problem.order, problem.missing, problem.source_lam
    )
    known = {field.name: getattr(problem, field.name) for field in fields(TransportProblem)}
    return DoubleProductsProblem(**known, double=double)
