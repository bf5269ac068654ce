"""Unmixing against a direct minimisation, laws of its solution, and its refusals."""

import math

import numpy as np
import pytest
from helpers import numpy_only, to_numpy

import wtfarray as wtf

BINS = 24


def line(centre, width=1.5):
    return 1.0 / (1.0 + ((np.arange(BINS) - centre) / width) ** 2)


def atoms():
    return np.stack([line(c) / line(c).sum() for c in (5.0, 12.0, 18.0)])


def mixtures(count=3, seed=0):
    """Mixtures of shifted atoms, of different masses, and their coefficients."""
    rng = np.random.default_rng(seed)
    mixed = rng.dirichlet(np.ones(3), count) * rng.uniform(0.5, 3.0, (count, 1))
    shifted = [[line(c + rng.normal(0, 0.5)) for c in (5.0, 12.0, 18.0)] for _ in range(count)]
    parts = np.asarray(shifted)
    parts /= parts.sum(axis=2, keepdims=True)
    return np.einsum("ij,ijk->ik", mixed, parts), mixed


LOSS = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.02, lam=2.0)
LOSSES = {
    "wasserstein": LOSS,
    "frobenius": wtf.Frobenius(),
    "kullback-leibler": wtf.KullbackLeibler(),
    "sum": wtf.LossSum(LOSS, wtf.KullbackLeibler()),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def objective(X, coefficients, loss, rho):
    """The loss plus the weighted entropy, of one sample of mass one."""
    model = (coefficients @ atoms())[None, :]
    parts = loss.losses if isinstance(loss, wtf.LossSum) else (loss,)
    total = 0.0
    for part in parts:
        if isinstance(part, wtf.Wasserstein):
            total += float(wtf.wasserstein(X[None, :], model, part, tol=1e-10).value)
        else:
            total += float(np.sum(part.value_and_gradient(X[None, :], model)[0]))
    return total + rho * float(wtf.entropy(coefficients)[0])


def test_coefficients_are_those_of_the_mixture(array):
    X, expected = mixtures()
    found = wtf.unmix(array(X), array(atoms()), LOSS, tol=1e-7)
    assert found.converged
    assert to_numpy(found.coefficients).shape == (3, 3)
    np.testing.assert_allclose(to_numpy(found.coefficients), expected, atol=0.2)
    model = to_numpy(found.coefficients) @ atoms()
    np.testing.assert_allclose(to_numpy(found.to_tensor()), model, rtol=1e-12)


@numpy_only
class TestOptimality:
    @every_loss
    @pytest.mark.parametrize("constraint", [None, "rows"])
    def test_no_other_coefficients_are_better(self, loss, constraint):
        """By more than the gap, which is small."""
        X, _ = mixtures(1)
        x, rho = X[0] / X[0].sum(), 1e-3
        found = wtf.unmix(x, atoms(), loss, rho=rho, constraint=constraint)
        assert found.gap <= 1e-4 * abs(found.objective)
        best = objective(x, found.coefficients, loss, rho)
        assert best == pytest.approx(found.objective, abs=found.gap + 1e-9)
        rng = np.random.default_rng(0)
        for size in (1e-3, 1e-2, 1e-1) * 3:
            other = found.coefficients * np.exp(size * rng.normal(size=3))
            other = other / other.sum() if constraint else other
            assert objective(x, other, loss, rho) >= best - found.gap - 1e-9

    def test_gap_bounds_the_error_of_an_early_stop(self):
        X, _ = mixtures(2)
        exact = wtf.unmix(X, atoms(), LOSS)
        with pytest.warns(UserWarning, match="unmix: stopped after max_iter = 2"):
            early = wtf.unmix(X, atoms(), LOSS, max_iter=2)
        assert not early.converged
        assert 0 < early.objective - exact.objective <= early.gap

    @pytest.mark.parametrize("loss", [LOSS, wtf.KullbackLeibler()], ids=["transport", "kl"])
    def test_samples_are_independent(self, loss):
        X, _ = mixtures(4)
        together = wtf.unmix(X, atoms(), loss).coefficients
        apart = [wtf.unmix(x, atoms(), loss).coefficients for x in X]
        np.testing.assert_allclose(together, apart, atol=2e-4)

    @pytest.mark.parametrize("loss", [LOSS, wtf.KullbackLeibler()], ids=["transport", "kl"])
    def test_units_do_not_matter(self, loss):
        X, _ = mixtures(2)
        plain = wtf.unmix(X, atoms(), loss).coefficients
        scales = np.asarray([[1e6], [1e-3]])
        scaled = wtf.unmix(X * scales, atoms() * 50.0, loss).coefficients
        np.testing.assert_allclose(scaled * 50.0 / scales, plain, rtol=1e-6)

    def test_balanced_model_has_the_mass_of_the_samples(self):
        X, _ = mixtures(2)
        loss = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.02)
        found = wtf.unmix(X, atoms(), loss, constraint="rows")
        assert found.converged
        np.testing.assert_allclose(found.coefficients.sum(axis=1), X.sum(axis=1), rtol=1e-12)
        np.testing.assert_allclose(found.shares.sum(axis=1), 1.0, rtol=1e-12)

    def test_empty_samples_have_no_coefficients(self):
        X, _ = mixtures(2)
        X[1] = 0.0
        found = wtf.unmix(X, atoms(), LOSS).coefficients
        np.testing.assert_array_equal(found[1], 0.0)
        assert found[0].sum() > 0

    def test_entries_that_were_not_observed_are_ignored(self):
        X, expected = mixtures(1)
        mask = np.ones(BINS, dtype=bool)
        mask[10:14] = False
        spoiled = np.where(mask, X[0], 100.0)
        found = wtf.unmix(spoiled, atoms(), LOSS, mask=mask)
        np.testing.assert_allclose(found.coefficients, expected[0], atol=0.3)

    def test_samples_may_have_several_modes(self):
        rng = np.random.default_rng(0)
        grid = rng.dirichlet(np.ones(20), 2).reshape(2, 4, 5)
        loss = wtf.Wasserstein(wtf.grid_cost(4, 5), eps=0.02, lam=2.0)
        X = np.tensordot(np.asarray([[0.3, 0.7], [0.8, 0.2]]), grid, axes=1)
        found = wtf.unmix(X, grid, loss)
        assert found.to_tensor().shape == X.shape
        single = wtf.unmix(X[0], grid, loss)
        assert single.to_tensor().shape == (4, 5)
        np.testing.assert_allclose(single.coefficients, found.coefficients[0], atol=1e-4)

    def test_limited_reach_is_an_infinite_cost(self):
        X, _ = mixtures(1)
        (cost,) = wtf.grid_cost(BINS, reach=4.0)
        found = [
            wtf.unmix(X, atoms(), wtf.Wasserstein(c, 0.02, 2.0)).coefficients
            for c in (cost, cost.to_dense())
        ]
        np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@numpy_only
class TestExtra:
    def test_finds_the_atom_that_was_not_given(self):
        rng = np.random.default_rng(0)
        missing = line(9.0, 0.8) / line(9.0, 0.8).sum()
        mixed = rng.dirichlet(np.ones(4), 12)
        X = mixed @ np.concatenate([atoms(), missing[None, :]])
        found = wtf.unmix(X, atoms(), LOSS, extra=1, rng=0, tol=1e-6)
        assert found.atoms.shape == (4, BINS)
        np.testing.assert_array_equal(found.atoms[:3], atoms())
        assert int(np.argmax(found.atoms[3])) == 9
        without = wtf.unmix(X, atoms(), LOSS)
        errors = [
            np.abs(f.coefficients[:, :3] - mixed[:, :3]).sum(1).mean() for f in (found, without)
        ]
        assert errors[0] < 0.7 * errors[1]
        assert found.objective < without.objective

    def test_a_seed_gives_the_same_atoms(self):
        X, _ = mixtures(5)
        first, second = (
            wtf.unmix(X, atoms(), LOSS, extra=2, rng=3, tol=1e-3).atoms for _ in range(2)
        )
        assert first.shape == (5, BINS)
        np.testing.assert_array_equal(first, second)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"atoms": np.ones((2, 5))}, r"atoms has shape \(2, 5\): expected \(k, 24\)"),
            ({"atoms": np.zeros((2, BINS))}, "atoms is 0 everywhere in atom 0"),
            ({"atoms": -np.ones((2, BINS))}, r"atoms is -1.0 at index \(0, 0\)"),
            ({"atoms": np.full((2, BINS), np.nan)}, r"atoms is nan at index \(0, 0\)"),
            ({"X": np.full((1, BINS), -1.0)}, r"X is -1.0 at index \(0, 0\)"),
            ({"X": np.ones(5)}, r"atoms has shape \(3, 24\): expected \(k, 5\)"),
            ({"rho": 0.0}, "rho is 0.0: expected a positive number"),
            ({"extra": -1}, "extra is -1: expected an integer of at least 0"),
            ({"constraint": "columns"}, "constraint is 'columns': expected one of None, 'rows'"),
            ({"loss": wtf.Wasserstein(wtf.grid_cost(BINS), 0.1)}, "constraint is None and loss is"),
            ({"loss": "frobenius"}, "loss is a str: expected a loss"),
            ({"loss": wtf.Wasserstein(wtf.grid_cost(5), 0.1, 1.0)}, r"costs\[0\] has shape"),
            ({"tol": -1.0}, "tol is -1.0: expected a positive number"),
            ({"mask": np.ones(3, dtype=bool)}, r"mask has shape \(3,\)"),
        ],
    )
    @numpy_only
    def test_other_arguments_are_refused(self, change, match):
        arguments = {"X": mixtures(1)[0], "atoms": atoms(), "loss": LOSS, **change}
        with pytest.raises((TypeError, ValueError), match=match):
            wtf.unmix(arguments.pop("X"), **arguments)

    @numpy_only
    def test_loss_along_the_samples_is_refused(self):
        loss = wtf.Wasserstein(wtf.grid_cost(3), 0.1, 1.0, modes=(0,))
        with pytest.raises(ValueError, match="loss transports the first mode of X"):
            wtf.unmix(np.ones((3, BINS)), atoms(), loss)

    @numpy_only
    def test_summary_names_the_sizes(self):
        found = wtf.unmix(mixtures(2)[0], atoms(), wtf.Frobenius())
        assert repr(found).startswith("<unmixing of 2 samples into 3 atoms: objective ")
        assert math.isfinite(found.gap)
