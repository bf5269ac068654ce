"""Unmixing: laws of its solution, learned atoms, and refusals."""

import math

import numpy as np
import pytest
from helpers import numpy_only, to_numpy
from known_atoms import BINS, LOSS, atoms, line, mixtures

import wtfarray as wtf


def test_coefficients_are_those_of_the_mixture(array):
    X, expected = mixtures()
    found = wtf.unmix(array(X), array(atoms()), LOSS, tol=1e-7)
    assert found.converged
    assert to_numpy(found.coefficients).shape == (3, 3)
    np.testing.assert_allclose(to_numpy(found.coefficients), expected, atol=0.2)
    model = to_numpy(found.coefficients) @ atoms()
    np.testing.assert_allclose(to_numpy(found.to_tensor()), model, rtol=1e-12)


@numpy_only
class TestSolution:
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

    def test_small_eps_is_certified_if_entries_are_missing(self):
        """By the bound of first order: that of second order is divided by rho."""
        distance = np.abs(np.arange(40) - np.asarray([[8], [20]]))
        known = np.where(distance < 5, np.exp(-0.5 * distance**2.0), 0.0)
        X = 0.7 * known[0] + 0.3 * known[1] + 0.01
        mask = np.arange(40) >= 6
        loss = wtf.Wasserstein(wtf.grid_cost(40), 1e-4, 8.0)
        rough, exact = (
            wtf.unmix(X, known + 1e-9, loss, mask=mask, tol=tol) for tol in (1e-3, 1e-12)
        )
        assert rough.converged
        assert rough.gap < 1e-3 * abs(rough.objective)
        assert exact.objective <= rough.objective + rough.gap
        assert rough.objective <= exact.objective + exact.gap + rough.gap

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

    def test_background_may_stay_behind(self):
        X = (np.asarray([0.4, 0.6]) @ atoms()[:2])[None, :] + 0.2 * np.eye(BINS)[21]
        costs = wtf.grid_cost(BINS, scale=None)
        options = ({}, {"source_lam": 2.0})
        totals = [
            wtf.unmix(X, atoms()[:2], wtf.Wasserstein(costs, 0.02, 50.0, **each)).coefficients.sum()
            for each in options
        ]
        assert totals[0] == pytest.approx(1.2, abs=1e-3)
        # Small intensities x enter as x^k, k = 2 / 2.02, which adds up to x^-0.01, some 5 %.
        assert totals[1] == pytest.approx(1.0, abs=0.1)

    def test_debiased_loss_finds_the_mixture_exactly(self):
        """Where no line is displaced; the plain loss compares the atoms with blurred data."""
        mixed = np.asarray([[0.5, 0.2, 0.3]])
        options = {"eps": 0.05, "lam": 2.0}
        errors = []
        for debias in (True, False):
            loss = wtf.Wasserstein(wtf.grid_cost(BINS), **options, debias=debias)
            found = wtf.unmix(mixed @ atoms(), atoms(), loss)
            assert found.converged
            errors.append(np.abs(found.coefficients - mixed).sum())
        assert errors[0] < 2e-3
        assert errors[1] > 10 * errors[0]

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


def narrow(*centres):
    """Lines that are exactly 0 beyond three bins, of mass one."""
    shape = sum(np.maximum(0.0, 3.5 - np.abs(np.arange(BINS) - centre)) for centre in centres)
    return shape / shape.sum()


@numpy_only
class TestOutOfReach:
    COST = wtf.grid_cost(BINS, scale=None, reach=4.0)

    @pytest.mark.parametrize(
        ("loss", "advice"),
        [
            (wtf.Wasserstein(COST, 0.5, 20.0), "a larger reach, or a finite source_lam"),
            (wtf.KullbackLeibler(), "0 where all atoms are 0"),
        ],
        ids=["transport", "kl"],
    )
    def test_mass_that_no_atom_explains_is_refused(self, loss, advice):
        X = np.stack([narrow(5), 0.9 * narrow(5) + 0.1 * narrow(19)])
        known = np.stack([narrow(5), narrow(8)])
        with pytest.raises(ValueError, match=rf"X is .* at index \(1, 1\d\).*{advice}"):
            wtf.unmix(X, known, loss)
        with pytest.raises(ValueError, match=rf"X is .* at index \(1\d,\).*{advice}"):
            wtf.unmix(X[1], known, loss)

    @pytest.mark.parametrize("debias", [False, True])
    def test_a_whole_sample_may_stay_behind(self, debias):
        loss = wtf.Wasserstein(self.COST, 0.5, 20.0, source_lam=2.0, debias=debias)
        found = wtf.unmix(narrow(19), np.stack([narrow(5), narrow(8)]), loss)
        assert found.converged
        np.testing.assert_allclose(found.coefficients, 0.0, atol=1e-6)

    def test_it_may_stay_behind_at_a_price(self):
        loss = wtf.Wasserstein(self.COST, 0.02, 20.0, source_lam=20.0)
        X = 0.9 * narrow(5) + 0.1 * narrow(19)
        found = wtf.unmix(X, np.stack([narrow(5), narrow(8)]), loss)
        np.testing.assert_allclose(found.coefficients, [0.9, 0.0], atol=0.02)

    def test_extra_atoms_may_explain_it(self):
        shares = np.random.default_rng(0).dirichlet(np.ones(3), 6)
        known = np.stack([narrow(5), narrow(8)])
        X = shares @ np.concatenate([known, narrow(19)[None, :]])
        loss = wtf.Wasserstein(self.COST, 0.5, 20.0)
        found = wtf.unmix(X, known, loss, extra=1, rng=0, tol=1e-6)
        assert math.isfinite(found.objective)
        assert int(np.argmax(found.atoms[2])) == 19
        np.testing.assert_allclose(found.shares, shares, atol=0.1)


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
            ({"X": np.ones(5), "atoms": np.ones(5)}, r"shape \(5,\): expected \(k, 5\)"),
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


@pytest.mark.parametrize("constraint", [None, "rows"])
def test_squared_error_does_not_depend_on_the_unit(array, constraint):
    X, _ = mixtures(2)
    options = {"constraint": constraint}
    plain = to_numpy(wtf.unmix(array(X), array(atoms()), wtf.Frobenius(), **options).coefficients)
    tiny = wtf.unmix(array(1e-6 * X), array(atoms()), wtf.Frobenius(), **options)
    assert tiny.converged
    assert to_numpy(tiny.coefficients) == pytest.approx(1e-6 * plain, rel=1e-4, abs=1e-10)
    if constraint == "rows":
        assert plain.sum(axis=1) == pytest.approx(X.sum(axis=1), rel=1e-6)


def test_mass_of_a_sample_that_is_partly_hidden_is_refused():
    X, _ = mixtures(2)
    mask = np.ones(X.shape, bool)
    mask[1, :5] = False
    with pytest.raises(ValueError, match="mask hides a part of sample 1"):
        wtf.unmix(X, atoms(), LOSS, mask=mask, constraint="rows")
