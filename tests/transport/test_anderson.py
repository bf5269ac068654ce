"""Anderson acceleration: its steps against dense least squares, and what is known of samples."""

import math

import numpy as np
import pytest
from array_api_compat import is_writeable_array
from helpers import to_numpy

from wtfarray._transport import anderson
from wtfarray._transport.anderson import (
    DRIFT,
    RIDGE,
    accelerated,
    new_secants,
    predicted,
    put,
    reweighted,
    without,
)

SAMPLES, MEMORY, BINS, UNIT = 3, 4, 8, 0.3
DTYPES = ["float64", "float32"]
some_dtype = pytest.mark.parametrize("dtype", DTYPES)


def weights_of(seed=0):
    return np.random.default_rng(seed).uniform(0.1, 1.0, size=(SAMPLES, BINS))


def random_pairs(count, seed=1):
    """Moves and changes, (count, 2, N, m), of sizes that differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3.0, 3.0, size=(count, 1, SAMPLES, 1))
    return sizes * rng.normal(size=(count, 2, SAMPLES, BINS))


def residual_of(seed=2):
    return np.random.default_rng(seed).normal(size=(SAMPLES, BINS))


def flags(array, *values):
    return array(values) > 0


ALL, NONE = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)


def with_pairs(array, pairs, dtype="float64", usable=None, weights=None):
    """Secants after the given pairs, and what the last one added to the plain step."""
    weights = weights_of() if weights is None else weights
    secants, extra = new_secants(MEMORY, array(weights, dtype=dtype), UNIT), None
    residual = array(residual_of(), dtype=dtype)
    for k, pair in enumerate(pairs):
        move, change = (array(a, dtype=dtype) for a in pair)
        use = flags(array, *(ALL if usable is None else usable[k]))
        secants, extra = accelerated(
            secants, move, change, residual, use, flags(array, *NONE), math.inf
        )
    return secants, extra


def dense_steps(pairs, residual, weights, ridge, usable=None):
    """``sum_i c_i move_i``, c by least squares with a ridge on the scaled changes; (N, m)."""
    steps = np.zeros(residual.shape)
    for n in range(residual.shape[0]):
        use = [k for k in range(len(pairs)) if usable is None or usable[k][n]]
        root = np.sqrt(weights[n] / weights[n].sum()) / UNIT
        moves, changes = (pairs[use, part, n, :].T for part in (0, 1))
        matrix = root[:, None] * changes
        norms = np.linalg.norm(matrix, axis=0)
        # The ridge as further rows of the least squares problem.
        rows = np.concatenate([matrix / norms, math.sqrt(ridge) * np.eye(len(use))])
        right = np.concatenate([root * residual[n], np.zeros(len(use))])
        steps[n] = moves @ (np.linalg.lstsq(rows, right)[0] / norms)
    return steps


def contents(secants):
    """Everything that is known of the samples, as NumPy arrays (N, ...)."""
    names = ("moves", "changes", "scales", "inverse", "weights")
    return {name: to_numpy(getattr(secants, name)) for name in names}


class TestCoefficients:
    @some_dtype
    @pytest.mark.parametrize("count", [1, 3, 11])
    def test_least_squares_with_a_ridge(self, array, dtype, count):
        pairs = random_pairs(count)
        secants, extra = with_pairs(array, pairs, dtype)
        expected = dense_steps(pairs[-MEMORY:], residual_of(), weights_of(), RIDGE)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(to_numpy(extra), expected, rtol=0, atol=1e-4 * scale)
        again = predicted(secants, array(residual_of(), dtype=dtype), math.inf)
        np.testing.assert_allclose(to_numpy(again), to_numpy(extra), rtol=0, atol=1e-6 * scale)

    def test_larger_ridge_makes_shorter_steps(self, array):
        lengths = []
        for ridge in (RIDGE, 0.1, 10.0):
            secants = new_secants(MEMORY, array(weights_of()), UNIT, ridge)
            for pair in random_pairs(6):
                secants, extra = accelerated(
                    secants,
                    *map(array, (*pair, residual_of())),
                    *(flags(array, *ALL), flags(array, *NONE), math.inf),
                )
            expected = dense_steps(random_pairs(6)[-MEMORY:], residual_of(), weights_of(), ridge)
            atol = 1e-4 * np.abs(expected).max()
            np.testing.assert_allclose(to_numpy(extra), expected, rtol=0, atol=atol)
            forgotten = to_numpy(without(secants, flags(array, *ALL)).inverse)
            np.testing.assert_allclose(forgotten[1], np.eye(MEMORY) / (1.0 + ridge), rtol=1e-12)
            lengths.append(np.linalg.norm(to_numpy(extra)))
        assert lengths[0] > lengths[1] > lengths[2]

    @some_dtype
    def test_inverse_is_double_and_rings_are_single(self, xp, array, dtype):
        secants, extra = with_pairs(array, random_pairs(2), dtype)
        assert secants.inverse.dtype == xp.float64
        rings = (extra, secants.moves, secants.changes, secants.scales, secants.weights)
        assert all(ring.dtype == xp.float32 for ring in rings)

    @some_dtype
    def test_inverse_after_many_replacements(self, array, dtype):
        secants, _ = with_pairs(array, random_pairs(40), dtype)
        known = contents(secants)
        scaled = known["changes"].astype("float64") * known["scales"][:, :, None]
        gram = np.einsum("nim,njm,nm->nij", scaled, scaled, known["weights"])
        np.testing.assert_allclose(np.einsum("nii->ni", gram), 1.0, rtol=1e-5)
        expected = np.linalg.inv(gram + RIDGE * np.eye(MEMORY))
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(known["inverse"], expected, rtol=0, atol=atol)

    @some_dtype
    def test_dependent_pairs_stay_finite(self, array, dtype):
        """The same pair again and again: the Gram matrix is singular but for the ridge."""
        pairs = np.repeat(random_pairs(1), 30, axis=0)
        secants, extra = with_pairs(array, pairs, dtype)
        expected = dense_steps(pairs[:MEMORY], residual_of(), weights_of(), RIDGE)
        assert np.all(np.isfinite(to_numpy(secants.inverse)))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(to_numpy(extra), expected, rtol=0, atol=0.01 * scale)

    @pytest.mark.parametrize("double", [True, False])
    def test_errors_of_the_inverse_do_not_add_up(self, xp, array, monkeypatch, double):
        """Pairs that depend on each other, as rounding makes them at the solution."""
        if not double:
            monkeypatch.setattr(anderson, "has_float64", lambda _: False)
        rng = np.random.default_rng(4)
        weights = 10.0 ** rng.uniform(-5.0, 0.0, size=(SAMPLES, 2))
        secants = new_secants(8, array(weights, "float32"), UNIT)
        for _ in range(100):
            pair = array(1e-7 * rng.integers(-1, 2, size=(SAMPLES, 2)), "float32")
            residual = array(rng.normal(size=(SAMPLES, 2)), "float32")
            secants, extra = accelerated(
                secants, pair, pair, residual, flags(array, *ALL), flags(array, *NONE), math.inf
            )
            assert np.isfinite(to_numpy(extra)).all()
            diagonal = np.diagonal(to_numpy(secants.inverse), axis1=1, axis2=2)
            assert np.all((diagonal > 0.5) & (diagonal < 4.0 / RIDGE))
        assert secants.inverse.dtype == (xp.float64 if double else xp.float32)

    def test_unusable_pairs_do_not_count(self, array):
        pairs = random_pairs(6)
        usable = [ALL, (1.0, 0.0, 1.0), ALL, (0.0, 1.0, 1.0), ALL, (1.0, 1.0, 0.0)]
        _, extra = with_pairs(array, pairs, usable=usable)
        expected = dense_steps(
            pairs[-MEMORY:], residual_of(), weights_of(), RIDGE, usable=usable[-MEMORY:]
        )
        atol = 1e-4 * np.abs(expected).max()
        np.testing.assert_allclose(to_numpy(extra), expected, rtol=0, atol=atol)

    def test_pairs_without_change_are_not_used(self, array):
        """Not even if the caller says that they are usable."""
        pairs = random_pairs(3)
        pairs[1, 1, 0, :] = 0.0
        pairs[2, 1, 1, :] = 1e-25
        secants, extra = with_pairs(array, pairs)
        used = to_numpy(secants.scales)[:, :3] > 0
        np.testing.assert_array_equal(
            used, [[True, False, True], [True, True, False], [True, True, True]]
        )
        assert np.all(np.isfinite(to_numpy(extra)))

    def test_sample_without_weights_takes_plain_steps(self, array):
        weights = weights_of()
        weights[1] = 0.0
        _, extra = with_pairs(array, random_pairs(3), weights=weights)
        assert np.all(to_numpy(extra)[1] == 0.0)
        assert np.all(to_numpy(extra)[[0, 2]] != 0.0)

    def test_weights_need_not_be_normalised(self, array):
        steps = [
            to_numpy(with_pairs(array, random_pairs(3), weights=c * weights_of())[1])
            for c in (1.0, 1e6)
        ]
        np.testing.assert_allclose(steps[0], steps[1], rtol=1e-4)

    @pytest.mark.parametrize("size", [1e-6, 1e6])
    def test_units_do_not_matter(self, array, size):
        """Squares of tiny changes would underflow, were they not taken in units of phi."""
        expected = dense_steps(random_pairs(3), residual_of(), weights_of(), RIDGE)
        secants = new_secants(MEMORY, array(weights_of()), UNIT * size)
        residual = array(size * residual_of())
        for pair in random_pairs(3):
            move, change = (array(size * 1e-9 * a) for a in pair)
            secants, extra = accelerated(
                secants, move, change, residual, flags(array, *ALL), flags(array, *NONE), math.inf
            )
        atol = 1e-4 * np.abs(expected).max()
        np.testing.assert_allclose(to_numpy(extra) / size, expected, rtol=0, atol=atol)


class LinearProblem:
    """``A g = t`` in every sample; plain steps ``g + t - A g`` diverge."""

    def __init__(self):
        rng = np.random.default_rng(5)
        rotation = np.linalg.qr(rng.normal(size=(SAMPLES, MEMORY, MEMORY)))[0]
        self.A = np.zeros((SAMPLES, BINS, BINS))
        values = np.array([0.4, 0.9, 1.5, 3.5])
        small = (rotation * values) @ np.swapaxes(rotation, 1, 2)
        # As many unknowns as pairs: the other bins are decoupled, and solved by the plain step.
        self.A[:, :MEMORY, :MEMORY] = small
        self.A[:, MEMORY:, MEMORY:] = np.eye(BINS - MEMORY)
        self.target = rng.normal(size=(SAMPLES, BINS))
        self.solution = self.solve(self.target)

    def phi(self, g):
        return np.einsum("nij,nj->ni", self.A, g)

    def solve(self, target):
        return np.linalg.solve(self.A, target[:, :, None])[:, :, 0]

    def iterated(self, array, count, max_step=math.inf):
        """The secants, the last point and the next one after some accelerated steps."""
        secants = new_secants(MEMORY, array(np.ones((SAMPLES, BINS))), UNIT)
        g = np.zeros((SAMPLES, BINS))
        phi = self.phi(g)
        ahead = g + self.target - phi
        for _ in range(count):
            dg, dphi = ahead - g, self.phi(ahead) - phi
            g, phi = ahead, phi + dphi
            secants, extra = accelerated(
                secants,
                *map(array, (dg - dphi, dphi, self.target - phi)),
                flags(array, *ALL),
                flags(array, *NONE),
                max_step,
            )
            ahead = g + self.target - phi + to_numpy(extra)
        return secants, g, ahead


class TestLinearProblem:
    def test_solved_after_as_many_pairs_as_unknowns(self, array):
        problem = LinearProblem()
        errors = [
            np.abs(problem.iterated(array, count)[2] - problem.solution).max()
            for count in (MEMORY - 2, MEMORY + 1, MEMORY + 3)
        ]
        assert errors[0] > 1e-2
        assert errors[1] < 1e-2  # the ridge and single precision are felt
        assert errors[2] < 1e-5

    def test_pairs_stay_valid_when_the_target_moves(self, array):
        """A step for another target, which costs no evaluation, leads to its solution."""
        problem = LinearProblem()
        pairs = []
        for k in range(MEMORY):
            dg = np.zeros((SAMPLES, BINS))
            dg[:, k] = 1.0
            dphi = problem.phi(dg)
            pairs.append((dg - dphi, dphi))
        secants, _ = with_pairs(array, pairs, weights=np.ones((SAMPLES, BINS)))
        g = np.random.default_rng(6).normal(size=(SAMPLES, BINS))
        for target in (problem.target, problem.target[:, ::-1]):
            residual = target - problem.phi(g)
            extra = to_numpy(predicted(secants, array(residual), math.inf))
            expected = problem.solve(target)
            plain, ahead = (np.abs(g + residual + e - expected).max() for e in (0.0, extra))
            assert ahead < 30.0 * RIDGE * plain


class TestLengthAndSafeguard:
    def test_steps_are_no_longer_than_allowed(self, array):
        secants, _ = with_pairs(array, random_pairs(4))
        residual = array(residual_of())
        free = to_numpy(predicted(secants, residual, math.inf))
        lengths = np.abs(free).max(axis=1)
        most = 0.5 * float(lengths.min())
        for limit in (most, array(most)):
            short = to_numpy(predicted(secants, residual, limit))
            assert np.all(np.abs(short).max(axis=1) <= most * (1.0 + 1e-5))
            shares = short / free
            np.testing.assert_allclose(shares, shares[:, :1] * np.ones(BINS), rtol=1e-4)
        generous = to_numpy(predicted(secants, residual, 1e3 * float(lengths.max())))
        np.testing.assert_array_equal(generous[lengths > most], free[lengths > most])

    def test_sample_that_is_worse_goes_back(self, array):
        """The plain step plus minus the move is the plain step of the point before."""
        pairs = random_pairs(6)
        secants, _ = with_pairs(array, pairs[:-1])
        expected = to_numpy(with_pairs(array, pairs)[1])
        _, extra = accelerated(
            secants,
            *map(array, (*pairs[-1], residual_of())),
            flags(array, 1.0, 0.0, 1.0),
            flags(array, 0.0, 1.0, 0.0),
            1e-30,
        )
        found = to_numpy(extra)
        np.testing.assert_allclose(found[1], -pairs[-1, 0, 1], rtol=1e-6)
        assert np.all(np.abs(found[[0, 2]]) <= 1e-29)  # max_step holds for the others alone
        assert np.all(np.abs(expected[[0, 2]]) > 1e-29)

    def test_arrays_of_the_caller_are_not_touched(self, array):
        weights, residual = array(weights_of()), array(residual_of())
        secants = new_secants(MEMORY, weights, UNIT)
        given = [tuple(array(a) for a in pair) for pair in random_pairs(6)]
        for move, change in given:
            secants, extra = accelerated(
                secants, move, change, residual, flags(array, *ALL), flags(array, *NONE), math.inf
            )
            extra += 1.0
        for found, expected in zip(given, random_pairs(6), strict=True):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(to_numpy(a), b)
        np.testing.assert_array_equal(to_numpy(weights), weights_of())
        np.testing.assert_array_equal(to_numpy(residual), residual_of())

    def test_single_precision_arrays_of_the_caller_are_copied(self, array):
        """A cast to the dtype that they have may not be a view that is written later."""
        given = [tuple(array(a, dtype="float32") for a in pair) for pair in random_pairs(6)]
        secants = new_secants(MEMORY, array(weights_of(), dtype="float32"), UNIT)
        for move, change in given:
            secants, _ = accelerated(
                secants,
                *(move, change, array(residual_of(), dtype="float32")),
                *(flags(array, *ALL), flags(array, *NONE), math.inf),
            )
        for found, expected in zip(given, random_pairs(6), strict=True):
            np.testing.assert_array_equal(to_numpy(found[0]), expected[0].astype("float32"))
            np.testing.assert_array_equal(to_numpy(found[1]), expected[1].astype("float32"))


class TestForgetting:
    def test_new_secants_add_nothing(self, array):
        secants = new_secants(MEMORY, array(weights_of()), UNIT)
        extra = predicted(secants, array(residual_of()), math.inf)
        np.testing.assert_array_equal(to_numpy(extra), 0.0)

    def test_forgotten_samples_take_plain_steps(self, array):
        secants, _ = with_pairs(array, random_pairs(5))
        before = to_numpy(predicted(secants, array(residual_of()), math.inf))
        secants = without(secants, flags(array, 0.0, 1.0, 0.0))
        after = to_numpy(predicted(secants, array(residual_of()), math.inf))
        np.testing.assert_array_equal(after[1], 0.0)
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])

    def test_forgotten_samples_learn_anew(self, array):
        """As if the pairs before had never been."""
        pairs = random_pairs(7)
        secants, _ = with_pairs(array, pairs[:5])
        secants = without(secants, flags(array, 0.0, 1.0, 0.0))
        for pair in pairs[5:]:
            secants, extra = accelerated(
                secants,
                *map(array, (*pair, residual_of())),
                *(flags(array, *ALL), flags(array, *NONE), math.inf),
            )
        fresh = to_numpy(with_pairs(array, pairs[5:])[1])
        full = to_numpy(with_pairs(array, pairs)[1])
        found = to_numpy(extra)
        np.testing.assert_allclose(found[1], fresh[1], rtol=1e-4, atol=1e-6 * np.abs(fresh).max())
        np.testing.assert_allclose(found[[0, 2]], full[[0, 2]], rtol=1e-6)

    def test_same_weights_change_nothing(self, array):
        secants, _ = with_pairs(array, random_pairs(5))
        after = reweighted(secants, array(2.0 * weights_of()), UNIT)
        for name, values in contents(secants).items():
            np.testing.assert_array_equal(contents(after)[name], values, err_msg=name)

    def test_samples_whose_weights_changed_forget(self, array):
        """Weight that moves to bins that had little of it; a factor for all bins is no change."""
        weights = weights_of()
        weights[:, 0] = 1e-3
        secants, _ = with_pairs(array, random_pairs(5), weights=weights)
        moved = 5.0 * weights
        moved[1, 0] = 0.3 * moved[1].sum()
        after = reweighted(secants, array(moved), UNIT)
        known, before = contents(after), contents(secants)
        assert np.all(known["scales"][1] == 0.0)
        for name in ("scales", "inverse", "weights"):
            np.testing.assert_array_equal(known[name][[0, 2]], before[name][[0, 2]])
        expected = moved[1] / (moved[1].sum() * UNIT**2)
        np.testing.assert_allclose(known["weights"][1], expected, rtol=1e-6)
        extra = to_numpy(predicted(after, array(residual_of()), math.inf))
        assert np.all(extra[1] == 0.0)

    @pytest.mark.parametrize(("factor", "forgets"), [(0.9, False), (1.1, True)])
    def test_drift_decides(self, array, factor, forgets):
        """Weight w moved to one of m equal bins: the mean ratio is a quadratic function of w."""
        weights = np.ones((SAMPLES, BINS))
        secants, _ = with_pairs(array, random_pairs(2), weights=weights)
        # Shares (w, (1 - w)/(m - 1), ...): m (w^2 + (1 - w)^2 / (m - 1)) = ratio.
        ratio, m = factor * DRIFT, BINS
        w = (1.0 + math.sqrt((m - 1.0) * (ratio - 1.0))) / m
        weights[:, 0], weights[:, 1:] = w, (1.0 - w) / (m - 1.0)
        scales = to_numpy(reweighted(secants, array(weights), UNIT).scales)
        assert np.all((scales[:, :2] == 0.0) == forgets)


class TestPut:
    @pytest.mark.parametrize("slot", [0, 2])
    def test_replaces_one_row(self, array, slot):
        for shape in ((SAMPLES, MEMORY, BINS), (SAMPLES, MEMORY)):
            ring = array(np.zeros(shape))
            row = np.random.default_rng(0).normal(size=(SAMPLES, *shape[2:]))
            found = put(ring, slot, array(row))
            expected = np.zeros(shape)
            expected[:, slot] = row
            np.testing.assert_array_equal(to_numpy(found), expected)
            assert (found is ring) == is_writeable_array(ring)

    def test_other_rows_are_kept(self, array):
        old = np.random.default_rng(1).normal(size=(SAMPLES, MEMORY, BINS))
        found = to_numpy(put(array(old), 1, array(np.ones((SAMPLES, BINS)))))
        np.testing.assert_array_equal(found[:, [0, 2, 3]], old[:, [0, 2, 3]])
        np.testing.assert_array_equal(found[:, 1], 1.0)
