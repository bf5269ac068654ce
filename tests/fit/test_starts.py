"""Where a fit starts: non-negative SVD, multiplicative steps, random and feasible blocks."""

import numpy as np
import pytest
from fitting import LOSSES, RANKS, SHAPE, data, run, start, transport
from helpers import numpy_only, set_thresholds, to_numpy
from stored_data import Sliceable

import wtfarray as wtf
from wtfarray._fit import starts
from wtfarray._fit.specification import specify
from wtfarray._fit.starts import FLOOR, feasible, kl_steps, random_blocks, scale_to_mass
from wtfarray._models.models import CPModel, TuckerModel


def low_rank(rank=2, seed=0):
    """Non-negative data of exact rank, and their factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(1.0, size=(n, rank)) for n in SHAPE]
    return wtf.cp_to_tensor(factors), factors


def kl(X, Y):
    return float(np.sum(np.where(X > 0, X * np.log(np.where(X > 0, X, 1.0) / Y), 0.0) - X + Y))


MODELS = {
    "cp": (CPModel(3, learns_weights=False), [(n, 2) for n in SHAPE]),
    "weights": (CPModel(3, learns_weights=True, scale=4.0), [*((n, 2) for n in SHAPE), (2,)]),
    "tucker": (TuckerModel(3), [*((n, 2) for n in SHAPE), (2, 2, 2)]),
}


def specified(X, loss=None, mask=None, chunk=None):
    """An NMF of rank 2, whose default rho and constraints do not matter here."""
    rest = {"constraints": None, "weights": None, "fixed": (), "sample_weight": None}
    loss = loss or transport(shape=X.shape[1:])
    return specify("nmf", X, 2, loss, rho=0.01, mask=mask, chunk=chunk, **rest)


class TestKlStart:
    def sweeps(self, monkeypatch, spec):
        """How many sweeps of updates a start takes, and the blocks that it finds."""
        counted = []

        def count(*args, steps, **options):
            counted.append(steps)
            return kl_steps(*args, steps=steps, **options)

        monkeypatch.setattr(starts, "kl_steps", count)
        blocks = starts.start_on_grid(spec, "kl", np.random.default_rng(0)).blocks
        return sum(counted), blocks

    @numpy_only
    @pytest.mark.parametrize("noise", [0.0, 0.3])
    def test_sweeps_go_on_until_they_gain_little(self, monkeypatch, noise):
        """Noise, or data of rank 2, in which the relative gain stays large."""
        rng = np.random.default_rng(3)
        X = rng.dirichlet([1.0, 1.0], 12) @ rng.dirichlet(np.ones(8), 2)
        X = X * rng.gamma(1.0 / noise, noise, X.shape) if noise else X
        spec = specified(X)
        sweeps, blocks = self.sweeps(monkeypatch, spec)
        assert 20 < sweeps < 300
        again = kl_steps(spec.model, X, blocks, spec.constraints, spec.free, steps=10)
        before, after = (kl(X, wtf.cp_to_tensor(b)) for b in (blocks, again))
        assert before - after <= 2e-4 * max(before, 0.01 * X.sum())

    @numpy_only
    def test_sweeps_are_few_without_transport_and_for_large_data(self, monkeypatch):
        X = np.random.default_rng(3).gamma(1.0, size=(12, 8))
        assert self.sweeps(monkeypatch, specified(X, wtf.Frobenius()))[0] == 20
        set_thresholds(monkeypatch, sweep_entries=95)
        assert self.sweeps(monkeypatch, specified(X))[0] == 20

    @numpy_only
    def test_data_in_files_start_as_those_in_memory(self, monkeypatch):
        X = np.random.default_rng(3).gamma(1.0, size=(12, 8))
        found = [
            self.sweeps(monkeypatch, s) for s in (specified(X), specified(Sliceable(X), chunk=4))
        ]
        assert found[0][0] == found[1][0] > 20
        for a, b in zip(found[0][1], found[1][1], strict=True):
            np.testing.assert_allclose(a, b)

    @numpy_only
    def test_missing_entries_do_not_count(self, monkeypatch):
        rng = np.random.default_rng(3)
        X, mask = rng.gamma(1.0, size=(12, 8)), rng.random((12, 8)) < 0.8
        found = [self.sweeps(monkeypatch, specified(x, mask=mask)) for x in (X, X + 5.0 * ~mask)]
        assert found[0][0] == found[1][0]
        for a, b in zip(found[0][1], found[1][1], strict=True):
            np.testing.assert_allclose(a, b)


class TestKlSteps:
    @pytest.mark.parametrize("model", MODELS)
    def test_divergence_never_increases(self, array, model):
        """Every block in turn, unconstrained: each update is a majorisation step."""
        model, shapes = MODELS[model]
        X = np.random.default_rng(0).gamma(1.0, size=SHAPE)
        X[2] = 0.0
        X[:, 1, 3] = 0.0
        blocks = random_blocks(shapes, np.random.default_rng(1), array(X))
        constraints = (None,) * len(shapes)
        values = [kl(X, to_numpy(model.tensor(blocks)))]
        for _ in range(6):
            for k in range(len(shapes)):
                blocks = kl_steps(model, array(X), blocks, constraints, (k,), steps=1)
                values.append(kl(X, to_numpy(model.tensor(blocks))))
        assert (np.diff(values) <= 1e-6 * values[0]).all()  # the floor counts for that much
        assert values[-1] < 0.8 * values[0]

    @pytest.mark.parametrize("constraint", ["rows", "columns", "all"])
    def test_constraints_hold(self, array, constraint):
        model, shapes = MODELS["cp"]
        X = array(low_rank()[0])
        blocks = random_blocks(shapes, np.random.default_rng(1), X)
        blocks = kl_steps(model, X, blocks, (None, constraint, None), (0, 1, 2), steps=3)
        axis = {"rows": 1, "columns": 0, "all": None}[constraint]
        np.testing.assert_allclose(to_numpy(blocks[1]).sum(axis=axis), 1.0, rtol=1e-12)

    def test_low_rank_data_are_recovered(self, array):
        X, _ = low_rank(rank=1)
        model = CPModel(3, learns_weights=False)
        blocks = random_blocks([(n, 1) for n in SHAPE], np.random.default_rng(1), array(X))
        blocks = kl_steps(model, array(X), blocks, (None,) * 3, (0, 1, 2), steps=3)
        np.testing.assert_allclose(to_numpy(model.tensor(blocks)), X, rtol=1e-6)

    def test_fixed_blocks_are_unchanged(self, array):
        model, shapes = MODELS["cp"]
        X = array(low_rank()[0])
        blocks = random_blocks(shapes, np.random.default_rng(1), X)
        before = [to_numpy(b) for b in blocks]
        after = kl_steps(model, X, blocks, (None, "columns", "columns"), (0,))
        for k in range(3):
            assert (to_numpy(blocks[k]) == before[k]).all()
            assert (to_numpy(after[k]) == before[k]).all() == (k > 0)


class TestFeasible:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("constraint", [None, "rows", "columns", "all"])
    def test_zeros_are_raised_to_the_floor_and_groups_normalised(self, array, constraint, dtype):
        block = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 5.0]])
        found = to_numpy(feasible(array(block, dtype), constraint))
        assert (found > 0).all()
        axis = {None: None, "rows": 1, "columns": 0, "all": None}[constraint]
        mean = block.mean(axis=axis, keepdims=True)
        expected = np.maximum(block, FLOOR * mean)
        if constraint is not None:
            expected = expected / expected.sum(axis=axis, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    @pytest.mark.parametrize("constraint", [None, "rows", "columns", "all"])
    def test_group_of_zeros_becomes_uniform(self, array, constraint):
        found = to_numpy(feasible(array(np.zeros((2, 3))), constraint))
        assert (found > 0).all()
        assert np.ptp(found) == 0.0

    def test_input_is_untouched(self, array):
        block = array(np.zeros((2, 3)))
        feasible(block, "rows")
        assert (to_numpy(block) == 0).all()


class TestRandom:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_blocks_agree_on_every_library(self, array, dtype):
        shapes = [(3, 2), (2, 2, 4), (5,)]
        like = array([1.0], dtype)
        found = random_blocks(shapes, np.random.default_rng(3), like)
        rng = np.random.default_rng(3)
        for block, shape in zip(found, shapes, strict=True):
            assert block.dtype == like.dtype
            assert (to_numpy(block) == rng.uniform(0.05, 1.0, shape).astype(dtype)).all()

    def test_blocks_have_the_mass_of_the_data(self, array):
        model, shapes = MODELS["cp"]
        X = array(low_rank()[0])
        blocks = random_blocks(shapes, np.random.default_rng(1), X)
        scaled = scale_to_mass(model, X, blocks, (1,))
        assert to_numpy(model.tensor(scaled)).sum() == pytest.approx(to_numpy(X).sum())
        assert scaled[0] is blocks[0]
        assert scale_to_mass(model, X, blocks, ())[1] is blocks[1]


class TestInit:
    @numpy_only
    @pytest.mark.parametrize("init", ["kl", "random", "nnsvd"])
    @pytest.mark.parametrize("model", RANKS)
    def test_every_named_start_reaches_the_best_objective(self, model, init):
        fit = run(model, data(), RANKS[model], LOSSES["unbalanced"], rho=0.02, rng=0, init=init)
        best = run(model, data(), RANKS[model], LOSSES["unbalanced"], rho=0.02, rng=0, n_init=3)
        assert fit.converged
        assert fit.objective == pytest.approx(best.objective, rel=0.01)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_zeros_of_a_given_start_can_grow(self, solver):
        A, B = start("nmf", (5, 8))
        A[0, 0] = B[3, 1] = 0.0
        kept = A.copy(), B.copy()
        options = {"rho": 0.02, "solver": solver}
        loss = transport(shape=(8,))
        fit = wtf.nmf(data((5, 8)), 2, loss, init=[A, B], **options)
        assert fit.factors[0][0, 0] > 1e-3
        assert fit.factors[1][3, 1] > 1e-3
        assert (kept[0] == A).all()
        assert (kept[1] == B).all()
