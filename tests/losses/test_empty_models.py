"""Models without mass in a sample that has some."""

import math

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sums import Sums
from wtfarray._losses.empty_models import has_empty_sample
from wtfarray._losses.selection import terms_of
from wtfarray._losses.source_term import SourceTerm
from wtfarray._models.models import CPModel
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray.distributed import run_threads


@pytest.mark.parametrize("empty", [None, 0, 3])
def test_a_sample_with_mass_must_not_be_empty(array, empty):
    """In the columns of its own data set, if there are several; a sample without mass may be."""
    X, Y = np.random.default_rng(0).dirichlet(np.ones(6), (2, 4))
    X[3] = 0.0
    if empty is not None:
        Y[empty] = 0.0
    (term,) = terms_of([wtf.Wasserstein(wtf.grid_cost(6), 0.1, 1.0)], array(X), None, None)
    assert has_empty_sample(term, array(Y)) == (empty == 0)
    both = np.concatenate([np.zeros((4, 2)), Y], axis=1)
    source = SourceTerm(term, slice(2, 8), None, (4, 6), 1.0)
    assert has_empty_sample(source, array(both)) == (empty == 0)


def test_other_losses_are_finite(array):
    X = np.random.default_rng(0).dirichlet(np.ones(6), 4)
    (term,) = terms_of([wtf.Frobenius()], array(X), None, None)
    assert not has_empty_sample(term, array(0.0 * X))


@numpy_only
def test_model_that_is_empty_on_one_rank_makes_the_loss_of_all_infinite():
    """All ranks know of it before they solve a batch together."""
    rng = np.random.default_rng(0)
    X, atoms = rng.dirichlet(np.ones(6), 8), rng.dirichlet(np.ones(6), 2).T
    rows = rng.uniform(0.5, 1.0, (8, 2))
    rows[6] = 0.0
    loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.1, lam=1.0)

    def found(X, rows, shards):
        terms, blocks = terms_of([loss], X, None, None, shards=shards), [rows, atoms]
        problem = FactorisationProblem(
            CPModel(2, learns_weights=False),
            terms,
            (1e-2, 1e-2),
            (None, "columns"),
            (0, 1),
            X.shape,
            shards=shards,
        )
        objective = JointObjective(problem, blocks)
        outcome = objective.evaluate(objective.pack(blocks), 1e-3)
        return outcome.point.value, outcome.converged

    def part(comm):
        mine = [np.split(array, 2)[comm.rank] for array in (X, rows)]
        return found(*mine, Shards(Sums(comm), (4, 4)))

    one = found(X, rows, WHOLE)
    assert one == (math.inf, False)
    assert run_threads(part, 2, timeout=20.0) == [one, one]
