"""Several data sets with shared coefficients."""

import math

import numpy as np
import pytest
from coupled_data import OPTIONS, RANK, SIZES, N, data, line, losses
from fitting import entropy, loss_of
from helpers import numpy_only, to_numpy

import wtfarray as wtf


def assert_order_free(found, truth, atol):
    """Whether coefficients are the truth, whatever the order of the components."""
    errors = [np.abs(found[:, list(p)] - truth).max() for p in ((0, 1), (1, 0))]
    assert min(errors) < atol


@numpy_only
class TestFit:
    @pytest.mark.parametrize("lam", [10.0, math.inf])
    def test_the_objective_is_certified(self, lam):
        """From the definition: weighted losses and the entropies of all blocks."""
        (X, Z), truth = data()
        fit = wtf.coupled([X, Z], RANK, losses(lam), weights=[1.0, 3.0], **OPTIONS)
        assert fit.converged
        A, (B, C) = fit
        expected = loss_of(X, A @ B.T, line(lam)) + 3.0 * loss_of(Z, A @ C.T, wtf.KullbackLeibler())
        expected += 1e-2 * sum(map(entropy, (A, B, C)))
        assert fit.objective - 1e-8 <= expected <= fit.objective + fit.gap + 1e-8
        for block, axis in ((A, 1), (B, 0), (C, 0)):
            np.testing.assert_allclose(block.sum(axis=axis), 1.0)
        assert_order_free(A, truth, 0.15)

    @pytest.mark.parametrize("unit", [1.0, 1e4])
    def test_components_may_differ_in_mass_between_data_sets(self, unit):
        """One is five times as bright in the second data set; whatever the unit of both."""
        rng = np.random.default_rng(2)
        A = rng.gamma(2.0, size=(N, RANK))
        A[0, 0] = A[1, 1] = 0.0  # pure samples and bins: the factors are unique
        B, C = (rng.dirichlet(np.full(n, 2.0), RANK).T for n in (SIZES[0], 8))
        for atoms in (B, C):
            atoms[0, 0] = atoms[1, 1] = 0.0
            atoms /= atoms.sum(axis=0)  # noqa: PLW2901
        X, Z = A @ B.T, A @ (C * [5.0, 1.0]).T
        kl = wtf.KullbackLeibler()
        fit = wtf.coupled([unit * X, unit * Z], RANK, [kl, kl], rng=0, max_iter=1000)
        assert fit.converged
        assert fit.fits[0].constraints == (None, "columns")
        _, (first, second) = fit
        np.testing.assert_allclose(first.sum(axis=0), 1.0)
        masses = np.sort(second.sum(axis=0))
        assert masses[1] / masses[0] == pytest.approx(5.0, rel=0.02)
        np.testing.assert_allclose(fit.fits[1].to_tensor(), unit * Z, rtol=0.05, atol=0.02 * unit)

    def test_one_data_set_is_a_matrix_factorisation(self):
        (X, _), _ = data()
        start = [np.random.default_rng(1).uniform(0.1, 1.0, (n, RANK)) for n in (N, SIZES[0])]
        alone = wtf.nmf(X, RANK, line(), init=start, rho=1e-2, tol=1e-8)
        fit = wtf.coupled([X], RANK, [line()], init=start, rho=1e-2, tol=1e-8)
        assert fit.objective == pytest.approx(alone.objective, rel=1e-5)
        np.testing.assert_allclose(fit.coefficients, alone.factors[0], atol=2e-2)

    def test_each_fit_is_that_of_its_data_set(self):
        (X, Z), _ = data((1.0, 50.0))
        fit = wtf.coupled([X, Z], RANK, losses(), **OPTIONS)
        assert fit.converged
        first, second = fit.fits
        assert first.factors[0] is second.factors[0]
        np.testing.assert_allclose(second.to_tensor(), Z, atol=2.0)
        np.testing.assert_allclose(second.weights, 50.0)
        assert fit.coefficients.sum() / N == pytest.approx(1.0, rel=0.05)
        assert first.dual.shape == X.shape
        expected = loss_of(X, first.to_tensor(), line())
        expected += 1e-2 * sum(map(entropy, first.factors))
        assert first.objective - 1e-8 <= expected <= first.objective + first.gap + 1e-8

    def test_samples_that_a_data_set_lacks(self):
        (X, Z), truth = data()
        lacks = np.arange(N) >= 9
        spoilt = np.where(lacks[:, None], np.nan, X)
        fit = wtf.coupled([spoilt, Z], RANK, losses(), mask=[~lacks[:, None], None], **OPTIONS)
        assert fit.converged
        assert fit.fits[0].constraints == ("rows", "columns")
        # The other data set says what they are.
        assert_order_free(fit.coefficients, truth, 0.15)
        np.testing.assert_allclose(fit.fits[0].to_tensor()[lacks].sum(axis=1), 1.0)
        balanced = wtf.coupled(
            [spoilt, Z], RANK, losses(math.inf), mask=[~lacks[:, None], None], **OPTIONS
        )
        assert balanced.converged

    def test_samples_that_all_data_sets_lack_are_left_out(self):
        (X, Z), _ = data()
        kept = np.arange(N) != 4
        masks = [np.ones((N, 1), dtype=bool) for _ in (X, Z)]
        masks[0][[2, 4]], masks[1][[4, 5]] = False, False
        few = [mask[kept] for mask in masks]
        fit = wtf.coupled([X, Z], RANK, losses(), mask=masks, **OPTIONS)
        alone = wtf.coupled([X[kept], Z[kept]], RANK, losses(), mask=few, **OPTIONS)
        assert fit.objective == alone.objective
        assert np.array_equal(fit.coefficients[kept], alone.coefficients)
        np.testing.assert_allclose(fit.coefficients[4], alone.coefficients.mean(axis=0))
        assert fit.fits[1].factors[0] is fit.coefficients
        assert fit.fits[0].to_tensor().shape == X.shape
        again = wtf.coupled([X, Z], RANK, losses(), mask=masks, init=fit, rng=0, tol=1e-2)
        assert again.coefficients.shape == fit.coefficients.shape
        found = fit.project([X, Z], mask=masks)
        assert np.array_equal(found[kept], fit.project([X[kept], Z[kept]], mask=few))
        np.testing.assert_allclose(found[4], fit.coefficients.mean(axis=0))

    def test_missing_entries(self):
        (X, Z), truth = data()
        mask = np.random.default_rng(0).random(X.shape) < 0.8
        fit = wtf.coupled(
            [np.where(mask, X, np.nan), Z], RANK, losses(), mask=[mask, None], **OPTIONS
        )
        assert fit.converged
        assert_order_free(fit.coefficients, truth, 0.2)

    def test_tensors_and_sums_of_losses(self):
        rng = np.random.default_rng(0)
        X, Z = rng.dirichlet(np.ones(12), N).reshape(N, 4, 3), rng.dirichlet(np.ones(5), N)
        loss = wtf.LossSum(wtf.Wasserstein(wtf.grid_cost(4, 3), 0.1, 5.0), wtf.Frobenius())
        fit = wtf.coupled([X, Z], RANK, [loss, wtf.Frobenius()], **OPTIONS)
        assert fit.converged
        assert fit.fits[0].to_tensor().shape == X.shape

    @pytest.mark.parametrize("init", ["nnsvd", "random", "fit"])
    def test_initialisations(self, init):
        (X, Z), _ = data()
        plain = wtf.coupled([X, Z], RANK, losses(), **OPTIONS)
        fit = wtf.coupled(
            [X, Z], RANK, losses(), **{**OPTIONS, "init": plain if init == "fit" else init}
        )
        assert fit.objective == pytest.approx(plain.objective, rel=1e-3)

    def test_labels_and_weights(self):
        (X, Z), _ = data()
        species = wtf.Axis("species", list("abcdef"))
        labels = {"axes": [None, ["sample", species]], "weights": np.array([1.0, 2.0])}
        fit = wtf.coupled([X, Z], RANK, losses(), **labels, **OPTIONS)
        assert fit.fits[1].axis(1) == species
        assert fit.fits[0].axes == ()
        plain = wtf.coupled([X, Z], RANK, losses(), weights=[1.0, 2.0], **OPTIONS)
        assert np.array_equal(plain.coefficients, fit.coefficients)

    def test_fixed_atoms_weights_and_starts(self):
        (X, Z), _ = data()
        plain = wtf.coupled([X, Z], RANK, losses(), n_init=2, **OPTIONS)
        fixed = wtf.coupled(
            [X, Z],
            RANK,
            losses(),
            init=plain,
            fixed=[1],
            sample_weight=np.linspace(0.5, 1.5, N),
            **OPTIONS,
        )
        np.testing.assert_array_equal(fixed.fits[0].factors[1], plain.fits[0].factors[1])
        assert fixed.converged

    def test_checkpoints(self, tmp_path):
        (X, Z), _ = data()
        path = tmp_path / "state.npz"
        with pytest.warns(UserWarning, match="callback"):
            wtf.coupled(
                [X, Z],
                RANK,
                losses(),
                checkpoint=path,
                callback=lambda state: state.n_iter == 12,
                **OPTIONS,
            )
        with pytest.raises(ValueError, match=r"checkpoint .* different data"):
            wtf.coupled([X, Z], RANK, losses(), checkpoint=path, weights=[1.0, 2.0], **OPTIONS)
        fit = wtf.coupled([X, Z], RANK, losses(), checkpoint=path, **OPTIONS)
        assert fit.converged

    def test_it_costs_what_the_parts_cost(self):
        """Each evaluation of the joint objective is one of each part: nothing is solved twice."""
        (X, Z), _ = data()
        fit = wtf.coupled([X, Z], RANK, losses(), **OPTIONS)
        alone = wtf.nmf(X, RANK, line(), **OPTIONS)
        per_step = [f.history[-1].evaluations / f.n_iter for f in (fit, alone)]
        assert per_step[0] <= 2.0 * per_step[1] + 2.0  # one of them in closed form

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"X": np.ones((N, 3))}, "X is a ndarray: expected a list"),
            ({"losses": [line()]}, "losses has 1 entries: expected 2, one per data set"),
            ({"weights": [1.0]}, "weights has 1 entries: expected 2"),
            ({"weights": [1.0, 0.0]}, r"weights\[1\] is 0.0"),
            (
                {"X": [np.ones((N, 10)), np.ones((3, 6))]},
                r"X\[1\] has shape \(3, 6\): exp",
            ),
            ({"axes": [None]}, "axes has 1 entries: expected a list of 2, for each data set"),
            (
                {"axes": [None, ["sample", wtf.Axis("species", ["a"])]]},
                r"axes\[1\]\[1\] has 1 values: expected 6, the size of mode 1",
            ),
            (
                {"mask": [np.arange(10) > 3, None], "losses": losses(math.inf)},
                r"mask\[0\] hides some bins of a sample, and losses\[0\] is balanced",
            ),
            ({"mask": [None, np.ones((N, 6))]}, r"mask\[1\] has dtype float64"),
            ({"rho": (1.0, 2.0)}, "rho has 2 entries: expected a number, or 3 of them"),
            ({"constraints": ("rows",)}, "constraints is .*: expected 3 entries"),
            ({"solver": "dual"}, r"coupled\(\) has no option 'solver'"),
            (
                {"X": [np.ones((N, 10)), np.ones((N, 6))], "losses": losses(math.inf)},
                r"losses\[0\] is balanced .* mass one",
            ),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments, message):
        (X, Z), _ = data()
        given = {"X": [X, Z], "losses": losses()} | arguments
        with pytest.raises((TypeError, ValueError), match=message):
            wtf.coupled(given.pop("X"), RANK, given.pop("losses"), **given)


def test_every_library(array):
    (X, Z), _ = data()
    options = {**OPTIONS, "max_iter": 2, "tol": 1e-14}
    with pytest.warns(UserWarning, match="coupled: stopped after max_iter"):
        fit = wtf.coupled([array(X), array(Z)], RANK, losses(), **options)
    with pytest.warns(UserWarning, match="coupled: stopped after max_iter"):
        reference = wtf.coupled([X, Z], RANK, losses(), **options)
    assert fit.objective == pytest.approx(reference.objective, rel=1e-7)
    np.testing.assert_allclose(to_numpy(fit.coefficients), reference.coefficients, rtol=1e-4)
