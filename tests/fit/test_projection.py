"""New samples on the atoms of a fit: a convex problem, one sample independent of the others."""

import warnings

import numpy as np
import pytest
from array_api_compat import (
    array_namespace,
    device,
    is_array_api_strict_namespace,
    is_jax_namespace,
)
from fitting import assert_same_factors, objective_of, unfinished
from helpers import numpy_only, set_thresholds, to_numpy, without_escape
from saved_fits import in_library

import wtfarray as wtf
from wtfarray._fit import driver, projection
from wtfarray._fit.projection import mass_advice
from wtfarray._fit.sample_groups import groups_of_similar_mass

pytestmark = without_escape

SHAPE = (6, 5, 4)


RANKS = {"cp": 2, "tucker": (2, 2, 2), "nmf": 2}


COSTS = wtf.grid_cost(*SHAPE[1:])


LOSSES = {
    "unbalanced": wtf.Wasserstein(COSTS, 0.2, 5.0),
    "balanced": wtf.Wasserstein(COSTS, 0.2),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
    "sum": wtf.LossSum(
        wtf.Wasserstein(COSTS[0], 0.3, 5.0, modes=(1,)),
        wtf.Wasserstein(COSTS[1], 0.3, 2.0, modes=(2,)),
    ),
}


# No constraints of a Tucker model with samples conserve mass.
PAIRS = [(m, n) for m in RANKS for n in LOSSES if (m, n) != ("tucker", "balanced")]


RHO = 0.02


def data(samples=6, seed=0, mass=1.0):
    """Positive data; ``mass`` of each sample, or None for samples of different masses."""
    X = np.random.default_rng(seed).gamma(1.0, size=(samples, *SHAPE[1:])) + 0.01
    return X if mass is None else X * mass / X.sum(axis=(1, 2), keepdims=True)


def fitted(model, name, X=None, **options):
    options = {"rho": RHO, "rng": 0, "tol": 1e-9} | options
    return getattr(wtf, model)(data() if X is None else X, RANKS[model], LOSSES[name], **options)


def short_fit(array, model, name, dtype="float64"):
    """A fit of few iterations, which has atoms although it has not converged."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model}: stopped after max_iter")
        return fitted(model, name, array(data(), dtype), max_iter=2)


def entropy(a):
    return float(np.sum(a * np.log(a) - a))


@numpy_only
class TestLaws:
    @pytest.mark.parametrize(("model", "name"), PAIRS)
    def test_training_data_project_to_the_fitted_coefficients(self, model, name):
        fit = fitted(model, name)
        atol = 5e-4 if model == "tucker" else 1e-4
        np.testing.assert_allclose(fit.project(data()), fit.factors[0], atol=atol)

    @pytest.mark.parametrize(("model", "name"), PAIRS)
    def test_samples_are_projected_independently(self, model, name):
        fit, X = fitted(model, name, tol=1e-5, rho=RHO / 4), data(5, seed=1)
        together = fit.project(X)
        alone = np.concatenate([fit.project(X[i : i + 1]) for i in range(5)])
        np.testing.assert_allclose(alone, together, atol=3e-5)
        assert np.ptp(together[:, 0]) > 1e-3

    @pytest.mark.parametrize("mass", [1.0, None])
    @pytest.mark.parametrize(("model", "name"), [pair for pair in PAIRS if pair[1] != "sum"])
    def test_objective_attains_the_optimum_of_the_block_dual(self, model, name, mass):
        if mass is None and name == "balanced":
            pytest.skip("balanced: the samples must weigh what the model does")
        fit, X, loss = (
            fitted(model, name, data(mass=mass), tol=1e-5),
            data(7, 1, mass),
            LOSSES[name],
        )
        found = fit.project(X)
        assert fit.constraints[0] == ("rows" if mass else None)
        s = fit.references[0]  # the factor is found in this unit, its entropy is s E(A / s)
        options = {"rho": RHO * s, "constraint": fit.constraints[0]}
        factors = [np.ones((7, 2)), s * fit.factors[1], *fit.factors[2:]]
        if model == "tucker":
            dual = wtf.tucker_dual(X, fit.core, factors, 0, loss, **options)
        elif model == "cp":
            dual = wtf.cp_dual(X, factors, 0, loss, **options)
        else:
            pixels = loss
            if isinstance(loss, wtf.Wasserstein):
                cost = (COSTS[0][:, None, :, None] + COSTS[1][None, :, None, :]).reshape(20, 20)
                pixels = wtf.Wasserstein(cost, loss.eps, loss.lam)
            dual = wtf.cp_dual(X.reshape(7, 20), factors, 0, pixels, **options)
        best = wtf.lbfgs(dual.safe_value_and_gradient, dual.start(), gtol=1e-9, max_iter=5000)
        certificate = dual.certificate(best.x)
        assert certificate.gap < 1e-7 * abs(certificate.lower)
        Y = dual.model(found / s).reshape(X.shape)
        value = objective(X, Y, loss) + RHO * s * entropy(found / s)
        assert value == pytest.approx(certificate.lower, rel=1e-6)

    def test_balanced_coefficients_sum_to_one(self):
        found = fitted("nmf", "balanced").project(data(3, seed=2))
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)

    def test_learned_weights_belong_to_the_atoms(self):
        """They multiply the atoms, not the coefficients."""
        X = data(mass=None)
        fit = fitted("cp", "KL", X, constraints=("columns",) * 3)
        assert fit.weights.sum() == pytest.approx(X.sum())
        np.testing.assert_allclose(fit.project(X), fit.factors[0], atol=1e-4)

    def test_loaded_fit_gives_equal_coefficients(self, tmp_path):
        fit = fitted("cp", "unbalanced", tol=1e-5)
        fit.save(tmp_path / "fit.npz")
        X = data(3, seed=4)
        assert (wtf.load(tmp_path / "fit.npz").project(X) == fit.project(X)).all()

    def test_coefficients_close_to_zero_reach_the_optimum(self):
        """Coefficients that the first steps bring close to zero must be able to grow."""
        x = np.arange(24.0)

        def bumps(n, seed):
            rng = np.random.default_rng(seed)
            shares = rng.dirichlet(np.full(3, 0.4), n)
            places = np.asarray([4.0, 12.0, 20.0]) + rng.normal(0, 0.8, (n, 3))
            X = np.einsum("nj,njx->nx", shares, np.exp(-(((x - places[..., None]) / 2) ** 2)))
            return X / X.sum(axis=1, keepdims=True)

        loss = wtf.Wasserstein(wtf.grid_cost(24), eps=0.05, lam=10.0)
        fit = wtf.nmf(bumps(40, 0), 3, loss, rho=(1e-3, 1e-2), rng=0)
        X = bumps(80, 1)[:24]
        dual = wtf.cp_dual(
            X,
            [fit.factors[0][:1].repeat(24, 0), fit.factors[1]],
            0,
            loss,
            rho=1e-3,
            constraint="rows",
        )
        exact = dual.certificate(
            wtf.lbfgs(dual.value_and_gradient, dual.start(), max_iter=20_000).x
        ).factor
        np.testing.assert_allclose(fit.project(X), exact, atol=2e-4)
        alone = np.concatenate([fit.project(X[i : i + 1]) for i in range(8)])
        np.testing.assert_allclose(alone, exact[:8], atol=2e-4)

    def test_light_samples_do_not_depend_on_each_other_in_single_precision(self):
        """The entropy of the atoms, a constant, is 1e5 times what is minimised."""
        rng = np.random.default_rng(1)
        X, new = (rng.gamma(1.0, size=(n, 6)) for n in (4, 3))
        new *= 1e-7 / new.sum(axis=1, keepdims=True)
        loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.01, lam=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fit = wtf.nmf(X.astype("float32"), 3, loss, rho=1e-3, rng=0, max_iter=20)
        new = new.astype("float32")
        together = fit.project(new)
        alone = np.concatenate([fit.project(new[i : i + 1]) for i in range(len(new))])
        np.testing.assert_allclose(alone, together, rtol=0, atol=1e-2 * together.max())

    def test_coefficients_do_not_depend_on_much_heavier_samples(self):
        fit = fitted("nmf", "unbalanced", data(mass=None), tol=1e-5)
        X = data(4, seed=1)
        alone = fit.project(X[:1])
        for heavy in (1e3, 1e8):
            together = fit.project(X * np.asarray([1.0, heavy, 0.0, heavy])[:, None, None])
            np.testing.assert_allclose(together[:1], alone, atol=1e-4)

    def test_empty_sample_gets_coefficients_close_to_zero(self):
        X = data(3, seed=1, mass=None)
        X[1] = 0.0
        fit = fitted("nmf", "unbalanced", data(mass=None), tol=1e-5)
        found = fit.project(X)
        assert np.isfinite(found).all()
        assert found[1].sum() < 1e-2 * found[0].sum()


def objective(X, Y, loss):
    if isinstance(loss, wtf.Wasserstein):
        return float(wtf.wasserstein(X, Y, loss, tol=1e-11, max_iter=20_000).value)
    if isinstance(loss, wtf.Frobenius):
        return 0.5 * float(np.sum((X - Y) ** 2))
    return float(np.sum(X * np.log(X / Y) - X + Y))


class TestEveryLibrary:
    @pytest.mark.parametrize("samples", [1, 9])
    @pytest.mark.parametrize(("model", "name"), PAIRS)
    def test_agrees_with_numpy(self, xp, array, model, name, samples):
        if is_jax_namespace(xp) and (name != "KL" or samples == 9):
            pytest.skip("JAX compiles every shape: one loss and size is enough")
        if is_array_api_strict_namespace(xp) and samples == 1:
            pytest.skip("a fit takes seconds: one size is enough")
        X = data(samples, seed=1)
        fit = short_fit(np.array, model, name)
        expected = fit.project(X, tol=1e-6)
        # The same atoms: those of two short fits agree only roughly.
        found = in_library(fit, array, "float64").project(array(X), tol=1e-6)
        assert found.shape == (samples, 2)
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("model", RANKS)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_namespace_dtype_and_device_are_kept(self, xp, array, model, dtype):
        if is_jax_namespace(xp) and dtype == "float32" and model != "nmf":
            pytest.skip("JAX compiles every shape and dtype: one model is enough")
        X = array(data(3, seed=1), dtype)
        found = short_fit(array, model, "KL", dtype).project(X, tol=1e-5)
        assert array_namespace(found) is array_namespace(X)
        assert found.dtype == X.dtype
        assert device(found) == device(X)

    @numpy_only
    @pytest.mark.parametrize("name", ["unbalanced", "balanced", "KL", "Frobenius", "sum"])
    def test_float32_agrees_with_float64(self, array, name):
        fit, X = fitted("cp", name, tol=1e-5), data(3, seed=1)
        low, high = (fit.project(array(X, dtype), tol=1e-5) for dtype in ("float32", "float64"))
        assert low.dtype == np.float32
        np.testing.assert_allclose(low, high, atol=2e-3)

    def test_inputs_are_untouched(self, array):
        X = array(data(3, seed=1))
        before = to_numpy(X)
        short_fit(array, "cp", "KL").project(X, tol=1e-5)
        assert (to_numpy(X) == before).all()


def histograms(n, m, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(m), n)


@numpy_only
class TestFewBins:
    ATOMS = np.random.default_rng(7).dirichlet(np.full(5, 0.5), 3).T

    def fit(self, X, rho):
        loss = wtf.Wasserstein(wtf.grid_cost(5), 2e-3)
        init = [np.full((len(X), 3), 1 / 3), self.ATOMS]
        with unfinished():  # the atoms are given: the coefficients are those of the projection
            return wtf.nmf(X, 3, loss, rho=rho, init=init, fixed=(1,), tol=1e-9, max_iter=1)

    @pytest.mark.parametrize("rho", [2e-4, 1e-2])
    @pytest.mark.parametrize("seed", range(2))
    def test_objective_attains_the_dual_bound(self, seed, rho):
        """The problem is convex: its dual bounds the objective of all samples from below."""
        X = histograms(4, 5, seed)
        fit = self.fit(X, rho)
        loss = fit.loss
        rows = fit.project(X)
        excess = size = 0.0
        for row, x in zip(rows, X, strict=True):
            dual = wtf.cp_dual(
                x[None, :], [row[None, :], fit.factors[1]], 0, loss, rho=rho, constraint="rows"
            )
            found = wtf.lbfgs(
                *(dual.value_and_gradient, dual.start()),
                max_iter=5000,
                gtol=1e-10,
                safe_fun=dual.safe_value_and_gradient,
            )
            lower = dual.certificate(found.x).lower
            model = row[None, :] @ fit.factors[1].T
            result = wtf.wasserstein(x[None, :], model / model.sum(), loss, tol=1e-10)
            objective = float(result.value) + rho * float(wtf.entropy(row)[0])
            excess, size = excess + objective - lower, size + max(abs(lower), loss.eps)
        assert excess <= 1e-6 * size

    def test_samples_are_projected_independently(self):
        X = histograms(5, 5, 3)
        fit = self.fit(X, 2e-4)
        together = fit.project(X)
        alone = np.concatenate([fit.project(x[None, :]) for x in X])
        assert_same_factors([together], [alone], rtol=0.0, atol=1e-4)


def enclosed(X, found):
    """Whether the objective from the definition lies between objective and objective + gap."""
    true = objective_of(X, found)
    slack = 1e-9 * max(abs(true), 1.0)
    return found.objective - slack <= true <= found.objective + found.gap + slack


class TestProjection:
    @numpy_only
    @pytest.mark.parametrize(("model", "name"), PAIRS)
    def test_objective_and_gap_enclose_that_of_the_factors(self, model, name):
        fit, X = fitted(model, name, tol=1e-5), data(4, seed=1)
        found = fit.projection(X)
        assert found.converged
        assert enclosed(X, found)
        assert found.gap <= 1e-3 * max(abs(found.objective), 0.2 * 4)

    @numpy_only
    @pytest.mark.parametrize("model", ["cp", "nmf"])
    @pytest.mark.parametrize("name", ["unbalanced", "KL"])
    def test_learned_weights_count_in_the_objective(self, model, name):
        constraints = ("columns",) * (3 if model == "cp" else 2)
        fit = fitted(model, name, data(mass=None), tol=1e-5, constraints=constraints)
        assert len(fit.rho) == len(fit.factors) + 1
        X = data(6, seed=1, mass=None)
        found = fit.projection(X)
        assert found.weights is fit.weights
        assert enclosed(X, found)

    @numpy_only
    def test_each_block_has_the_rho_of_the_fit(self):
        fit = fitted("tucker", "KL", rho=(0.01, 0.02, 0.03, 0.04), tol=1e-5)
        X = data(3, seed=1)
        assert enclosed(X, fit.projection(X))

    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    @pytest.mark.parametrize("name", ["unbalanced", "KL"])
    def test_samples_of_very_different_mass_keep_their_order(self, model, name):
        """They are solved in groups, from the lightest to the heaviest."""
        fit = fitted(model, name, data(mass=None), tol=1e-5)
        X = data(5, seed=1) * np.asarray([1e4, 1.0, 0.0, 1e-4, 2.0])[:, None, None]
        found = fit.projection(X)
        assert found.converged
        assert found.shape == X.shape
        assert tuple(found.dual.shape) == X.shape
        assert enclosed(X, found)
        mass = found.to_tensor().sum(axis=(1, 2))
        assert np.argsort(mass).tolist() in ([2, 3, 1, 4, 0], [3, 2, 1, 4, 0])
        for i in (0, 1, 3, 4):  # an empty sample alone is refused
            alone = fit.projection(X[i : i + 1])
            np.testing.assert_allclose(
                found.factors[0][i], alone.factors[0][0], rtol=1e-2, atol=1e-4 * mass[i]
            )
            np.testing.assert_allclose(found.dual[i], alone.dual[0], atol=2e-2)
        assert len(found.history) == 1  # there is no common history of the groups
        groups = [fit.projection(X[group]) for group in groups_of_similar_mass(X.sum(axis=(1, 2)))]
        assert len(groups) > 2
        gap = sum(group.gap for group in groups)
        assert found.gap == pytest.approx(gap, rel=1e-6, abs=0.0)
        assert (gap > 0) == (name == "unbalanced")

    @numpy_only
    def test_samples_of_small_loss_are_projected_as_alone(self):
        """The mass of one sample is not that of any model, which costs 500 times as much."""
        constraints = ("rows", "all", "all")
        loss = wtf.Wasserstein(COSTS, 0.2, 1e4)
        fit = wtf.cp(data(), 3, loss, rho=0.2, rng=0, tol=1e-5, constraints=constraints)
        X = data(4, seed=1) * np.asarray([1.0, 1.5, 1.0, 1.0])[:, None, None]
        found = fit.projection(X, tol=1e-5)
        alone = [fit.projection(X[i : i + 1], tol=1e-5) for i in range(4)]
        assert found.converged
        assert alone[1].objective > 500 * abs(alone[0].objective)
        for i in (0, 2, 3):
            np.testing.assert_allclose(found.factors[0][i], alone[i].factors[0][0], atol=1e-5)

    @numpy_only
    @pytest.mark.parametrize("masses", [[1.0, 1.0, 1.0], [1.0, 1e4, 1e-4]])
    @pytest.mark.parametrize("model", ["cp", "tucker"])
    def test_history_ends_with_the_objective(self, model, masses):
        fit = fitted(model, "unbalanced", data(mass=None), tol=1e-5)
        found = fit.projection(data(3, seed=1) * np.asarray(masses)[:, None, None])
        assert found.history[-1].objective == pytest.approx(found.objective, rel=1e-9)
        assert found.history[-1].gap == pytest.approx(found.gap)

    @pytest.mark.parametrize("model", RANKS)
    def test_project_gives_its_first_factor(self, array, model):
        fit, X = short_fit(array, model, "KL"), array(data(3, seed=1))
        found, coefficients = (f(X, tol=1e-5) for f in (fit.projection, fit.project))
        assert (to_numpy(found.factors[0]) == to_numpy(coefficients)).all()
        assert all(a is b for a, b in zip(found.factors[1:], fit.factors[1:], strict=True))
        assert found.core is fit.core
        assert found.weights is fit.weights

    @numpy_only
    def test_describes_the_new_samples(self):
        fit, X = fitted("cp", "unbalanced", tol=1e-5), data(4, seed=1)
        found = fit.projection(X)
        assert isinstance(found, wtf.Factorisation)
        assert (found.kind, found.rho, found.constraints) == ("cp", fit.rho, fit.constraints)
        assert found.loss is fit.loss
        assert found.shape == X.shape
        assert found.to_tensor().shape == X.shape
        assert not found.stopped
        assert found.n_iter > 0
        assert "converged after" in repr(found)
        assert fit.shape == SHAPE  # of the fit itself nothing changes
        gradient = wtf.wasserstein(X, found.to_tensor(), fit.loss).gradient
        np.testing.assert_allclose(found.dual, gradient, atol=1e-3)

    @numpy_only
    def test_can_be_saved_and_projected_on_again(self, tmp_path):
        fit, X = fitted("nmf", "unbalanced", tol=1e-5), data(4, seed=1)
        fit.projection(X).save(tmp_path / "new.npz")
        again = wtf.load(tmp_path / "new.npz")
        assert again.shape == X.shape
        np.testing.assert_array_equal(again.project(X), fit.project(X))

    @numpy_only
    def test_too_few_iterations_are_told_and_warned_of(self):
        fit = short_fit(np.array, "cp", "unbalanced")
        with pytest.warns(UserWarning, match="project: .*max_iter") as caught:
            found = fit.projection(data(3, seed=1), max_iter=1)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert not found.converged
        assert "max_iter" in found.message


class TestMassOfNewSamples:
    """Coefficients that sum to one cannot give the model another mass."""

    @numpy_only
    @pytest.mark.parametrize("method", ["project", "projection"])
    @pytest.mark.parametrize("mass", [500.0, 1e-3])
    def test_raw_counts_are_warned_of(self, method, mass):
        fit = fitted("nmf", "unbalanced", tol=1e-4)
        assert fit.constraints[0] == "rows"
        X = data(3, seed=1)
        X[1] *= mass
        message = (
            f"project: sample 1 of X has mass {mass:.3g}, .*the model has mass 1: .*divide each"
        )
        with pytest.warns(UserWarning, match=message) as caught:
            getattr(fit, method)(X, tol=1e-4)
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_every_library_warns(self, array):
        fit = short_fit(array, "cp", "KL")
        with pytest.warns(UserWarning, match="sample 0 of X has mass 300"):
            fit.project(array(300.0 * data(3, seed=1)), tol=1e-4)

    @numpy_only
    def test_normalised_and_empty_samples_are_not(self):
        """Warnings are errors."""
        fit, X = fitted("nmf", "unbalanced", tol=1e-4), data(3, seed=1)
        fit.project(X, tol=1e-4)
        fit.project(X * np.asarray([1.9, 0.0, 0.6])[:, None, None], tol=1e-4)

    @numpy_only
    def test_fit_with_free_coefficients_does_not_warn(self):
        fit = fitted("nmf", "unbalanced", data(mass=None), tol=1e-4)
        assert fit.constraints[0] is None
        assert fit.projection(500.0 * data(3, seed=1), tol=1e-4).converged

    @numpy_only
    def test_range_of_the_atoms_is_named(self):
        atoms = np.asarray([[1.0, 2.0], [0.0, 1.0]])
        advice = mass_advice(np.asarray([1.0, 3.0, 7.0, 9.0]), atoms)
        assert "sample 2 of X has mass 7" in advice
        assert "the model has mass 1 to 3" in advice
        assert mass_advice(np.asarray([0.0, 0.5, 6.0]), atoms) is None


@numpy_only
@pytest.mark.parametrize("seed", [119, 153])
def test_samples_of_very_different_mass_are_projected_as_alone_in_float32(monkeypatch, seed):
    set_thresholds(monkeypatch, most_sweeps=20)  # atoms of which the objectives are comparable
    rng = np.random.default_rng(seed)
    n, samples, rank = (int(rng.integers(*ends)) for ends in ((4, 14), (3, 9), (2, 4)))
    X = rng.dirichlet(np.full(n, 0.3), samples)
    mass = 10.0 ** rng.uniform(-4, 4, (samples, 1))
    lam, eps, rho = (10.0 ** rng.uniform(*ends) for ends in ((-3, 4), (-3.5, 0), (-5, 0)))
    loss = wtf.Wasserstein(wtf.grid_cost(n), eps=eps, lam=lam)
    new = (rng.dirichlet(np.full(n, 0.3), samples) * mass).astype("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = wtf.nmf((X * mass).astype("f4"), rank, loss, rho=rho, rng=0, max_iter=20)
        together = fit.project(new)
        alone = np.concatenate([fit.project(new[i : i + 1]) for i in range(samples)])
    assert np.all(np.abs(together - alone) <= 0.05 * alone.max(axis=1, keepdims=True))


@numpy_only
def test_groups_of_samples_share_the_work_of_a_small_projection(monkeypatch):
    """Bins many eps apart and masses from 1e-8 to 1e8: each group alone takes much work."""
    set_thresholds(monkeypatch, small_work=1000)
    loss = wtf.Wasserstein(wtf.grid_cost(8), eps=1e-3, lam=10.0)
    X = histograms(9, 8, 0)
    works = []

    def solve(*args, **options):
        found = driver.solve(*args, **options)
        works.append(found.work)
        return found

    monkeypatch.setattr(projection, "solve", solve)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = wtf.nmf(X, 3, loss, rho=1e-3, rng=0, max_iter=3)
        found = fit.projection(X * 10.0 ** np.arange(-8.0, 10.0, 2.0)[:, None], tol=1e-9)
    assert not found.converged
    assert "very many evaluations" in found.message
    assert len(works) == 9
    assert max(works) < sum(works) < 5 * 1000
