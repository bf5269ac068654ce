"""The estimators for scikit-learn: its own checks, the laws of their parameters, mini-batches."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import wtfarray as wtf
from wtfarray.sklearn import WassersteinCP, WassersteinNMF, WassersteinTucker

ROOT = Path(__file__).parent.parent
ESTIMATORS = [WassersteinNMF, WassersteinCP, WassersteinTucker]
FAST = {"eps": 0.2, "tol": 1e-3, "random_state": 0}


@pytest.fixture(scope="module", autouse=True)
def _numpy_only(backend):
    if backend.name != "numpy":
        pytest.skip("what comes from scikit-learn is NumPy's, but for dispatch: tested with NumPy")


def bumps(n=24, size=16, seed=0, jitter=0.05):
    """Mixtures of three bumps, each a little elsewhere in every sample."""
    rng = np.random.default_rng(seed)
    x = (np.arange(size) + 0.5) / size
    shares = rng.dirichlet(np.full(3, 0.5), n)
    X = np.zeros((n, size))
    for j, (centre, width) in enumerate([(0.2, 0.08), (0.5, 0.1), (0.8, 0.06)]):
        bump = np.exp(-(((x - centre - rng.normal(0, jitter, (n, 1))) / width) ** 2))
        X += shares[:, [j]] * bump / bump.sum(axis=1, keepdims=True)
    return X


def images(n=12, size=6, seed=0):
    """Samples with two modes: mixtures of two bumps, each a little elsewhere in every sample."""
    rng = np.random.default_rng(seed)
    x = (np.arange(size) + 0.5) / size
    share = rng.uniform(size=(n, 1, 1))
    X = np.zeros((n, size, size))
    for part, centre in ((share, (0.3, 0.3)), (1.0 - share, (0.7, 0.6))):
        down, across = (
            np.exp(-(((x - c - rng.normal(0, 0.05, (n, 1))) / 0.15) ** 2)) for c in centre
        )
        bump = down[:, :, None] * across[:, None, :]
        X += part * bump / bump.sum(axis=(1, 2), keepdims=True)
    return X


def data_of(cls, **options):
    return bumps(**options) if cls is WassersteinNMF else images(**options)


def objective(model, X):
    """What the documentation says is minimised, at the best coefficients, and the loss in it."""
    coefficients, atoms = model.transform(X), model.components_
    value, _ = wtf.wasserstein(X, model.inverse_transform(coefficients), model.loss_)
    least, _ = model.loss_.conjugate(X, np.zeros_like(X))
    loss = float(value + least) / X.shape[0]
    return (
        loss
        + model.rho_coefs * float(wtf.entropy(coefficients)[0]) / X.shape[0]
        + model.rho_atoms * float(wtf.entropy(atoms)[0]) / atoms.shape[0]
    ), loss


# The data of the checks have two or three features: a smoothing to match makes them fast.
@parametrize_with_checks([cls(eps=0.5, tol=1e-3) for cls in ESTIMATORS])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", params=ESTIMATORS, ids=lambda cls: cls.__name__)
def fitted(request):
    X = data_of(request.param)
    return request.param(2, **FAST).fit(X), X


class TestFitted:
    def test_shapes(self, fitted):
        model, X = fitted
        W = model.transform(X)
        assert W.shape == (X.shape[0], 2)
        assert model.components_.shape == (2, *X.shape[1:])
        assert model.inverse_transform(W).shape == X.shape
        assert model.n_features_in_ == X.shape[1]
        assert model.n_iter_ > 1
        assert list(model.get_feature_names_out()) == [
            f"{type(model).__name__.lower()}{k}" for k in range(2)
        ]

    def test_masses(self, fitted):
        model, X = fitted
        W = model.transform(5.0 * X)
        np.testing.assert_allclose(W.sum(axis=1), 5.0 * X.reshape(len(X), -1).sum(axis=1))
        np.testing.assert_allclose(W, 5.0 * model.transform(X), rtol=1e-4, atol=1e-4)
        if not isinstance(model, WassersteinTucker):
            np.testing.assert_allclose(model.components_.reshape(2, -1).sum(axis=1), 1.0)

    def test_empty_samples_have_no_coefficients(self, fitted):
        model, X = fitted
        some = np.concatenate([np.zeros_like(X[:1]), X[:3], np.zeros_like(X[:1])])
        W = model.transform(some)
        assert not np.any(W[[0, 4]])
        np.testing.assert_allclose(W[1:4], model.transform(X[:3]), rtol=1e-6)
        assert not np.any(model.transform(np.zeros_like(X[:2])))
        assert model.score(some) == pytest.approx(model.score(X[:3]), rel=1e-4)

    def test_samples_do_not_depend_on_each_other(self, fitted):
        model, X = fitted
        alone = np.concatenate([model.transform(X[i : i + 1]) for i in range(4)])
        np.testing.assert_allclose(model.transform(X)[:4], alone, atol=1e-4)

    def test_components_are_worth_more_than_the_mean(self, fitted):
        model, X = fitted
        one = clone(model).set_params(n_components=1).fit(X)
        assert model.score(X) > 0.9 * one.score(X)

    def test_pickle(self, fitted):
        model, X = fitted
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.transform(X[:3]), model.transform(X[:3]))

    def test_factors_make_the_components(self, fitted):
        model, _ = fitted
        if isinstance(model, WassersteinCP):
            made = np.einsum("ir,jr->rij", *model.factors_)
        elif isinstance(model, WassersteinTucker):
            made = np.einsum("rab,ia,jb->rij", model.core_, *model.factors_)
        else:
            pytest.skip("a matrix model has no factors beside its components")
        np.testing.assert_allclose(model.components_, made)


class TestLibrary:
    def test_solution_is_that_of_nmf(self):
        X = bumps()
        model = WassersteinNMF(3, eps=0.1, tol=1e-6, random_state=0).fit(X)
        loss = wtf.Wasserstein(wtf.grid_cost(16), eps=0.1, lam=10.0)
        n, r = X.shape[0], 3
        rho = (model.rho_coefs, model.rho_atoms * n / r)
        start = (model.transform(X), model.components_.T)
        fit = wtf.nmf(X, 3, loss, rho=rho, init=start, constraints=("rows", "columns"))
        np.testing.assert_allclose(fit.factors[1].T, model.components_, atol=2e-3)
        assert model.reconstruction_err_ == pytest.approx(-model.score(X), rel=1e-3)
        least = float(loss.conjugate(X, np.zeros_like(X))[0])
        assert (fit.objective + least) / n == pytest.approx(objective(model, X)[0], rel=1e-3)

    def test_atoms_of_shifted_bumps(self):
        X = bumps(n=40, jitter=0.02)
        model = WassersteinNMF(3, random_state=0, n_init=2).fit(X)
        centres = sorted(model.components_ @ ((np.arange(16) + 0.5) / 16))
        np.testing.assert_allclose(centres, [0.2, 0.5, 0.8], atol=0.05)


class TestParametersKeepTheirMeaning:
    def test_with_the_number_of_samples(self):
        X = bumps(n=12)
        rng = np.random.default_rng(0)
        # Not exact copies: those would be taken for one sample with a weight.
        many = np.concatenate([X * rng.uniform(1 - 1e-9, 1 + 1e-9, X.shape) for _ in range(4)])
        few, more = (
            WassersteinNMF(2, eps=0.1, rho_atoms=0.02, tol=1e-6, random_state=0).fit(Z)
            for Z in (X, many)
        )
        order = [np.argsort(m.components_ @ np.arange(16)) for m in (few, more)]
        atoms = [m.components_[o] for m, o in zip((few, more), order, strict=True)]
        np.testing.assert_allclose(atoms[0], atoms[1], atol=2e-3)
        assert objective(few, X)[0] == pytest.approx(objective(more, many)[0], abs=1e-4)

    def test_with_the_number_of_features(self):
        fine = bumps(n=12, size=64)
        coarse = fine.reshape(12, 32, 2).sum(axis=2)
        models = [
            WassersteinNMF(2, eps=0.1, rho_atoms=0.02, tol=1e-6, random_state=0).fit(Z)
            for Z in (coarse, fine)
        ]
        atoms = [models[0].components_, models[1].components_.reshape(2, 32, 2).sum(axis=2)]
        atoms = [a[np.argsort(a @ np.arange(32))] for a in atoms]
        assert np.abs(atoms[0] - atoms[1]).sum(axis=1).max() < 0.05
        assert models[0].score(coarse) == pytest.approx(models[1].score(fine), rel=0.05)

    def test_with_the_unit_of_the_cost(self):
        X = bumps()
        cost = wtf.grid_cost(16, scale=None)[0]
        losses = [WassersteinNMF(cost=c, **FAST).fit(X).loss_ for c in ("sqeuclidean", 2.0 * cost)]
        np.testing.assert_allclose(losses[0].costs[0], losses[1].costs[0], rtol=1e-12)

    def test_with_the_scale_of_the_data(self):
        X = bumps()
        scales = 2.0 ** np.random.default_rng(1).integers(-8, 8, (X.shape[0], 1))
        plain, scaled = (WassersteinNMF(**FAST).fit(Z) for Z in (X, scales * X))
        np.testing.assert_array_equal(plain.components_, scaled.components_)


class TestSampleWeight:
    def test_weights_are_repetitions(self):
        X = images()
        counts = np.arange(12) % 3
        weighted = WassersteinCP(**FAST).fit(X, sample_weight=counts)
        repeated = WassersteinCP(**FAST).fit(np.repeat(X, counts, axis=0)[::-1])
        np.testing.assert_allclose(weighted.components_, repeated.components_, rtol=1e-6)
        assert weighted.n_samples_seen_ == repeated.n_samples_seen_ == counts.sum()
        assert weighted.score(X, sample_weight=counts) == pytest.approx(
            weighted.score(np.repeat(X, counts, axis=0)), rel=1e-6
        )

    def test_the_solution_weighs_entropies_too(self):
        # At the solution, the coefficients of fit are those of transform, whatever the weight.
        X = bumps(n=12)
        weights = np.where(np.arange(12) < 6, 20.0, 1.0)
        model = WassersteinNMF(2, eps=0.2, tol=1e-6, random_state=0).fit(X, sample_weight=weights)
        score = model.score(X, sample_weight=weights)
        assert model.reconstruction_err_ == pytest.approx(-score, rel=1e-3)

    def test_mean_of_the_score(self):
        X = bumps()
        model = WassersteinNMF(**FAST).fit(X)
        parts = model.score(X[:6]), model.score(X[6:])
        weights = np.repeat([3.0, 1.0], [6, 18])
        mean = (parts[0] + parts[1]) / 2
        assert model.score(X, sample_weight=weights) == pytest.approx(mean, rel=1e-4)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (np.ones(3), r"sample_weight has shape \(3,\): expected \(24,\)"),
            (-np.ones(24), "sample_weight is -1.0 at index .*: expected non-negative"),
            (np.full(24, np.nan), "sample_weight is nan"),
            (np.zeros(24), "sample_weight is zero everywhere"),
        ],
    )
    def test_bad_weights(self, weights, message):
        with pytest.raises(ValueError, match=message):
            WassersteinNMF().fit(bumps(), sample_weight=weights)


class TestCost:
    def test_grid_of_the_features(self):
        X = images()
        points = np.stack(np.meshgrid(np.arange(6), np.arange(6), indexing="ij"), axis=-1)
        dense = wtf.point_cost(points.reshape(36, 2).astype(float))
        options = [
            {"grid_shape": (6, 6)},
            {"cost": list(wtf.grid_cost(6, 6))},
            {"cost": dense},
        ]
        models = [WassersteinNMF(**FAST, **o).fit(X.reshape(12, 36)) for o in options]
        models.append(WassersteinCP(**FAST, cost=dense).fit(X))
        assert [len(model.loss_.costs) for model in models] == [2, 2, 1, 1]
        for model in models:
            grid = X.reshape(12, 36) if model is models[2] else X
            least, blurred = model.loss_.conjugate(grid, np.zeros_like(grid))
            if model is models[0]:
                expected = least, blurred
            assert least == pytest.approx(expected[0], rel=1e-9)
            np.testing.assert_allclose(blurred.reshape(X.shape), expected[1], rtol=1e-9)

    def test_names_differ(self):
        losses = [
            WassersteinNMF(cost=c, **FAST).fit(bumps()).loss_ for c in ("sqeuclidean", "cityblock")
        ]
        assert losses[0].costs[0][0, 2] == pytest.approx(4 * losses[0].costs[0][0, 1])
        assert losses[1].costs[0][0, 2] == pytest.approx(2 * losses[1].costs[0][0, 1])

    def test_size_of_a_line_as_a_numpy_integer(self):
        a, b = (WassersteinNMF(grid_shape=n, **FAST).fit(bumps()) for n in (np.int64(16), None))
        np.testing.assert_array_equal(a.components_, b.components_)

    def test_balanced(self):
        model = WassersteinNMF(lam=np.inf, **FAST).fit(3.0 * bumps())
        np.testing.assert_allclose(model.transform(bumps()[:4]).sum(axis=1), 1.0)

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"cost": "other"}, "cost is 'other': expected one of 'sqeuclidean', 'cityblock'"),
            ({"cost": np.ones((3, 3))}, r"costs\[0\] has shape \(3, 3\): expected \(16, 16\)"),
            ({"grid_shape": (5, 5)}, r"X has 16 features, .* \(5, 5\)"),
            ({"cost": [np.eye(4), np.eye(5)]}, r"X has 16 features, .* \(4, 5\)"),
            ({"cost": [np.eye(16)], "grid_shape": (4, 4)}, "cost has 1 matrices: expected 2"),
            ({"eps": 0.0}, "eps is 0.0: expected a positive number"),
            ({"lam": -1.0}, "lam is -1.0: expected a positive number or inf"),
            ({"rho_coefs": 0.0}, "rho_coefs is 0.0: expected a positive number"),
            ({"rho_atoms": np.inf}, "rho_atoms is inf: expected a positive number"),
            ({"tol": 0.0}, "tol is 0.0"),
            ({"max_iter": 0}, "max_iter is 0: expected a positive integer"),
            ({"n_init": 0}, "n_init is 0"),
            ({"n_components": 0}, "n_components is 0"),
            ({"init": "best"}, "init is 'best': expected one of"),
            ({"init": np.ones((16, 2))}, r"(?s)init is array.*: expected one of"),
            ({"cost": np.eye(16).tolist()}, r"cost\[0\] is a list: expected an array"),
        ],
    )
    def test_bad_parameters(self, parameters, message):
        with pytest.raises((TypeError, ValueError), match=message):
            WassersteinNMF(**parameters).fit(bumps())

    def test_bad_parameters_of_tucker(self):
        with pytest.raises(ValueError, match=r"n_components is \(2, 2\): expected .* 3 of them"):
            WassersteinTucker((2, 2)).fit(images())
        with pytest.raises(ValueError, match="lam is inf: expected a finite number"):
            WassersteinTucker(lam=np.inf).fit(images())


class TestInput:
    def test_other_shape(self, fitted):
        model, X = fitted
        with pytest.raises(ValueError, match=r"features|expected"):
            model.transform(X[:, :-1])
        with pytest.raises(ValueError, match=r"X has shape \(3, 5\): expected \(n, 2\)"):
            model.inverse_transform(np.ones((3, 5)))

    def test_other_size_of_a_later_mode(self):
        model = WassersteinCP(**FAST).fit(images())
        with pytest.raises(ValueError, match=r"X has shape \(12, 6, 5\): expected \(n, 6, 6\)"):
            model.transform(images()[:, :, :-1])

    def test_all_empty(self):
        with pytest.raises(ValueError, match="X has no sample with both mass and weight"):
            WassersteinNMF().fit(np.zeros((4, 5)))

    def test_not_converged(self):
        with pytest.warns(ConvergenceWarning, match="max_iter = 1: increase it"):
            WassersteinNMF(3, max_iter=1, random_state=0).fit(bumps())


class TestScikitLearn:
    def test_pandas_output(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(bumps(), columns=[f"bin{k}" for k in range(16)])
        model = WassersteinNMF(**FAST).set_output(transform="pandas").fit(frame)
        assert list(model.transform(frame).columns) == ["wassersteinnmf0", "wassersteinnmf1"]
        assert list(model.feature_names_in_) == list(frame.columns)

    def test_pipeline_and_search(self):
        X = bumps(n=40, jitter=0.02)
        labels = X[:, :6].sum(axis=1) > 0.3
        pipeline = make_pipeline(WassersteinNMF(3, **FAST), LogisticRegression(C=100.0))
        assert pipeline.fit(X, labels).score(X, labels) > 0.9
        search = GridSearchCV(WassersteinNMF(**FAST), {"n_components": [1, 3]}, cv=2).fit(X)
        assert search.best_params_ == {"n_components": 3}
        assert search.best_score_ < 0

    def test_search_over_tensors(self):
        search = GridSearchCV(WassersteinCP(**FAST), {"rho_atoms": [1e-3, 10.0]}, cv=2)
        search.fit(images())
        assert search.best_params_ == {"rho_atoms": 1e-3}


class TestPartialFit:
    @pytest.mark.parametrize("seed", range(3))
    def test_converges_to_the_full_fit(self, seed):
        X = bumps(n=32, seed=seed)
        best, loss = objective(WassersteinNMF(3, eps=0.1, random_state=0).fit(X), X)
        model = WassersteinNMF(3, eps=0.1, random_state=0).partial_fit(X[:8])
        # Two per cent of the objective, or of the loss in it if that is less.
        allowed = 0.02 * min(abs(best), loss)
        assert objective(model, X)[0] - best > allowed
        rng = np.random.default_rng(seed)
        for _ in range(3):
            for some in np.split(rng.permutation(32), 4):
                model.partial_fit(X[some])
        assert objective(model, X)[0] - best < allowed
        assert model.n_samples_seen_ == 104

    @pytest.mark.parametrize("cls", [WassersteinCP, WassersteinTucker])
    def test_tensors(self, cls):
        X = images(n=24)
        full = cls(2, eps=0.2, random_state=0).fit(X)
        model = cls(2, eps=0.2, random_state=0)
        for _ in range(3):
            for i in (0, 8, 16):
                model.partial_fit(X[i : i + 8])
        assert model.score(X) > 1.02 * full.score(X)

    def test_goes_on_from_a_fit(self):
        X = bumps()
        model = WassersteinNMF(**FAST).fit(X)
        before = model.components_
        model.partial_fit(X[:4])
        assert model.n_samples_seen_ == 28
        moved = np.abs(model.components_ - before).sum()
        assert 0 < moved < np.abs(clone(model).fit(X[:4]).components_ - before).sum()

    def test_other_shape(self):
        model = WassersteinNMF(**FAST).partial_fit(bumps())
        with pytest.raises(ValueError, match="15 features"):
            model.partial_fit(bumps()[:, :-1])
        with pytest.raises(ValueError, match="n_components is 3: expected that of the first"):
            model.set_params(n_components=3).partial_fit(bumps())


def test_documentation_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
