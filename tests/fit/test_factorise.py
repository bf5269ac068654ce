"""The three factorisations on every array library."""

import numpy as np
import pytest
from array_api_compat import array_namespace, device, is_torch_namespace
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    RANKS,
    SHAPE,
    arrays_of,
    assert_same_factors,
    data,
    fit_few,
    problem,
    spare_jax,
    start,
)
from helpers import assert_close, numpy_only, to_numpy

import wtfarray as wtf


class TestEveryLibrary:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("model", RANKS)
    def test_namespace_dtype_and_device_are_kept(self, xp, array, model, dtype):
        if dtype == "float32" and model != "nmf":
            spare_jax(xp)
        X = array(data(), dtype)
        fit = fit_few(model, X, RANKS[model], LOSSES["unbalanced"], rng=0)
        for name, found in {**arrays_of(fit), "tensor": fit.to_tensor()}.items():
            assert array_namespace(found) is array_namespace(X), name
            assert found.dtype == X.dtype, name
            assert device(found) == device(X), name
        assert tuple(fit.to_tensor().shape) == SHAPE
        assert tuple(fit.dual.shape) == SHAPE

    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_factors_agree_with_numpy_from_the_same_start(self, xp, array, model, name):
        if name == "sum" or (model, name) == ("tucker", "balanced"):
            spare_jax(xp)
        X, rank, loss = problem(model, name)
        options = {"init": start(model), "rho": 0.02}
        expected = fit_few(model, X, rank, loss, **options)
        found = fit_few(model, array(X), rank, loss, **options)
        # Inner problems are solved loosely, with secants in single precision, rounded differently.
        inexact = name not in {"Frobenius", "KL"}
        tolerances = {"rtol": 1e-3, "atol": 1e-4} if inexact else {"rtol": 1e-6, "atol": 1e-7}
        for key, value in arrays_of(expected).items():
            assert_close(arrays_of(found)[key], array(value), **tolerances)
        rel = 1e-5 if inexact else 1e-10
        assert found.objective == pytest.approx(expected.objective, rel=rel)

    def test_minimum_agrees_with_numpy_from_the_same_start(self, array):
        X, factors = data(), start("cp")
        options = {"init": factors, "rho": 0.02, "tol": 1e-11}
        expected = wtf.cp(X, 2, LOSSES["unbalanced"], **options)
        found = wtf.cp(array(X), 2, LOSSES["unbalanced"], **options)
        assert found.objective == pytest.approx(expected.objective, rel=1e-8)
        assert_same_factors(found.factors, expected.factors, rtol=1e-4)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_same_seed_gives_bit_equal_factors(self, array, solver):
        X = array(data())
        first, second = (fit_few("cp", X, 2, LOSSES["KL"], rng=3, solver=solver) for _ in range(2))
        assert first.objective == second.objective
        for a, b in zip(first.factors, second.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_fixed_factors_are_unchanged(self, array, solver):
        factors = [array(f / f.sum(axis=0)) for f in start("cp")]
        kept = [to_numpy(f) for f in factors]
        fit = fit_few(
            "cp", array(data()), 2, LOSSES["KL"], init=factors, fixed=(1, -1), solver=solver
        )
        for k in (1, 2):
            assert (to_numpy(fit.factors[k]) == kept[k]).all()
        assert (to_numpy(fit.factors[0]) != kept[0]).any()

    def test_inputs_are_untouched(self, array):
        X, weight = array(data()), array(np.arange(1.0, 7.0))
        factors = [array(f) for f in start("cp")]
        given = [X, *factors, weight]
        before = [to_numpy(a) for a in given]
        fit_few("cp", X, 2, LOSSES["KL"], init=factors, sample_weight=weight)
        for a, b in zip(given, before, strict=True):
            assert (to_numpy(a) == b).all()

    @numpy_only
    def test_float32_finds_the_minimum_of_float64(self, array):
        for loss in (LOSSES["unbalanced"], LOSSES["KL"]):
            low, high = (
                wtf.cp(array(data(), dtype), 2, loss, rho=0.02, init=start("cp"))
                for dtype in ("float32", "float64")
            )
            assert low.objective == pytest.approx(high.objective, rel=1e-4)


class TestData:
    @numpy_only
    def test_integer_and_read_only_data_are_accepted(self):
        X = np.random.default_rng(0).integers(0, 9, SHAPE)
        X.flags.writeable = False
        fit = wtf.cp(X, 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.factors[0].dtype == np.float64
        same = wtf.cp(X.astype(float), 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.objective == same.objective

    def test_results_carry_no_autograd_graph(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        fit = fit_few("cp", array(data()).requires_grad_(), 2, LOSSES["KL"], rng=0)
        assert not any(found.requires_grad for found in arrays_of(fit).values())


@pytest.mark.parametrize("solver", ["envelope", "dual"])
def test_sample_of_weight_zero_counts_for_nothing_even_if_its_model_is_empty(array, solver):
    rng = np.random.default_rng(0)
    X, A, B = (rng.dirichlet(np.ones(n), m) for n, m in ((6, 5), (2, 5), (2, 6)))
    A[3] = 0.0
    weight, others = np.asarray([1.0, 2.0, 1.0, 0.0, 0.5]), np.asarray([0, 1, 2, 4])
    loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.1, lam=5.0)
    options = {"fixed": (0,), "constraints": (None, "columns"), "rho": 0.1, "solver": solver}

    def fit(rows):
        given, weights = [array(A[rows]), array(B)], array(weight[rows])
        return wtf.nmf(array(X[rows]), 2, loss, init=given, sample_weight=weights, **options)

    found, expected = fit(np.arange(5)), fit(others)
    assert found.converged
    assert found.objective == pytest.approx(expected.objective, rel=1e-6)
    assert_close(found.factors[1], expected.factors[1], rtol=1e-2)
    assert not np.any(to_numpy(found.dual)[3])
