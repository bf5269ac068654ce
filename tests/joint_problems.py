"""Tiny factorisation problems as a solver sees them, and terms that misbehave on purpose."""

from dataclasses import replace

import numpy as np
from fitting import entropy, loss_of
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.exact_term import ExactTerm
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.selection import terms_of
from wtfarray._losses.term import TermValue
from wtfarray._models.models import CPModel, TuckerModel
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem

SHAPE, RANK, RHO = (3, 4), 2, 0.05
TRANSPORT = wtf.Wasserstein(wtf.grid_cost(4), 0.3, 2.0)
DISTANT = wtf.Wasserstein(wtf.grid_cost(4), 1e-2)
"""Few bins, many eps apart: the loss is nearly piecewise linear."""
LOSSES = {
    "Frobenius": wtf.Frobenius(),
    "transport": wtf.Wasserstein(wtf.grid_cost(4, 2), 0.2, 2.0),
    "sum": wtf.LossSum(
        wtf.Wasserstein(wtf.grid_cost(4), 0.3, 2.0, modes=(1,)), wtf.KullbackLeibler()
    ),
}
"""For problems of three modes."""
KINDS = ["cp", "learned", "tucker"]


def definition(problem, blocks, X, loss):
    """The objective, from the definition and with its own inner solution."""
    entropies = sum(r * entropy(b) for r, b in zip(problem.rho, blocks, strict=True))
    return loss_of(X, to_numpy(problem.tensor(blocks)), loss) + entropies


def samples(shape=SHAPE, seed=0):
    """Positive samples of mass one."""
    X = np.random.default_rng(seed).gamma(1.0, size=shape) + 0.05
    return X / X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)


def matrix_problem(array, loss=TRANSPORT, X=None, *, free=(0, 1), weights=None, rho=RHO):
    """A matrix model with rows of coefficients and columns of atoms, and blocks to start from."""
    X = samples() if X is None else X
    blocks = feasible_blocks(X.shape, RANK)
    terms = terms_of(losses_of(loss), array(X), None if weights is None else array(weights), None)
    problem = FactorisationProblem(
        CPModel(2, learns_weights=False), terms, (rho,) * 2, ("rows", "columns"), free, X.shape
    )
    return problem, [array(block) for block in blocks]


def feasible_blocks(shape, rank, seed=1):
    """Positive factors: rows of the first and columns of the others sum to one."""
    rng = np.random.default_rng(seed)
    first, *others = [rng.uniform(0.1, 1.0, (n, rank)) for n in shape]
    return [first / first.sum(axis=1, keepdims=True), *(f / f.sum(axis=0) for f in others)]


def tensor_problem(array, loss, kind, shape=(3, 4, 2)):
    """A model of three modes, "cp", "learned" weights or "tucker", and blocks of it."""
    rng, X = np.random.default_rng(2), samples(shape)
    blocks, constraints = feasible_blocks(shape, RANK), ("rows", "columns", "columns")
    model = CPModel(3, learns_weights=False)
    if kind == "tucker":
        blocks.append(rng.uniform(0.1, 1.0, (RANK,) * 3))
        model, constraints = TuckerModel(3), (*constraints, None)
    elif kind == "learned":
        blocks[0] /= blocks[0].sum(axis=0)
        blocks.append(rng.dirichlet(np.ones(RANK)))
        model = CPModel(3, learns_weights=True, scale=3.0)
        constraints = ("columns",) * 3 + ("all",)
    rho = tuple(RHO * (1 + k) for k in range(len(blocks)))
    terms = terms_of(losses_of(loss), array(X), None, None)
    free = tuple(range(len(blocks)))
    problem = FactorisationProblem(model, terms, rho, constraints, free, shape)
    return problem, [array(block) for block in blocks], X


class SlowTerm(ExactTerm):
    """
    A loss that is solved only by the n-th evaluation of one model in a row.

    Before that it returns a value that is too low, as an inner problem does, and says so.
    """

    def __init__(self, data, value_and_gradient, patience):
        super().__init__(data, value_and_gradient, None)
        self.patience = patience
        self.unsolved = 0
        self._model, self._count = None, 0

    def evaluate(self, model, tolerance, max_iter, *, ordinary=False):
        found = super().evaluate(model, tolerance, max_iter, ordinary=ordinary)
        host = to_numpy(model)
        same = self._model is not None and bool((host == self._model).all())
        self._model, self._count = host, self._count + 1 if same else 1
        if self._count >= self.patience:
            return found
        self.unsolved += 1
        return TermValue(found.value - 1.0, 0.0, 1.0, found.gradient, converged=False)


class WatchedObjective(JointObjective):
    """Keeps every evaluation with the states it began and ended with; some are made bad."""

    def __init__(self, problem, blocks, reject=lambda *_: False):
        super().__init__(problem, blocks)
        self.reject = reject
        self.seen = []

    def evaluate(self, x, tolerance, direction=None, measure=None):
        before = self.states()
        found = super().evaluate(x, tolerance, direction, measure)
        if self.reject(len(self.seen), x):
            found = replace(found, point=replace(found.point, value=found.point.value + 1e6))
        self.seen.append((x, before, found, self.states()))
        return found
