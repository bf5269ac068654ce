"""What a fit returns, and its conversion to TensorLy."""

import sys

import numpy as np
import pytest
import tensorly as tl
from helpers import numpy_only, to_numpy
from saved_fits import LOSSES, RANKS, SHAPE, data, short_fit

import wtfarray as wtf


class TestFactorisation:
    @pytest.mark.parametrize("model", RANKS)
    def test_fit_unpacks_and_its_tensor_is_that_of_the_factors(self, array, model):
        fit = short_fit(model, array(data()))
        head, factors = fit
        assert factors is fit.factors
        assert head is (fit.core if model == "tucker" else fit.weights)
        assert (fit.core is None) == (model != "tucker")
        assert (fit.weights is None) == (model == "tucker")
        A = [to_numpy(factor) for factor in factors]
        letters = "abc"[: len(A)]
        if model == "tucker":
            expected = np.einsum("abc,ia,jb,kc->ijk", to_numpy(head), *A)
        else:
            terms = ",".join(f"{letter}r" for letter in letters)
            expected = np.einsum(f"r,{terms}->{letters}", to_numpy(head), *A).reshape(SHAPE)
        np.testing.assert_allclose(to_numpy(fit.to_tensor()), expected, rtol=1e-12)

    @numpy_only
    def test_repr_states_model_rank_objective_and_convergence(self):
        assert repr(short_fit("cp", data())).startswith("<cp of 6 x 5 x 4, rank 2: objective ")
        text = repr(short_fit("tucker", data()))
        assert "rank (2, 3, 2)" in text
        assert "NOT converged after 2 iterations" in text
        assert "increase it" in text
        done = wtf.nmf(data(), 2, LOSSES["KL"], rng=0)
        assert ", converged after" in repr(done)
        assert f"{done.objective:.6g}" in repr(done)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_history_has_one_record_per_iteration_and_the_final_gap(self, solver):
        fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0, solver=solver)
        assert len(fit.history) == fit.n_iter + 1
        assert all(isinstance(record, wtf.Record) for record in fit.history)
        for name in ("time", "evaluations"):
            values = [getattr(record, name) for record in fit.history]
            assert values == sorted(values)
            assert values[0] > 0
        assert all(record.gap >= 0 for record in fit.history)
        last = fit.history[-1]
        assert last.gap == fit.gap
        assert last.objective == pytest.approx(fit.objective, abs=fit.gap + 1e-9)


DIMENSIONS = (6, 4, 5)


LOSS = wtf.KullbackLeibler()


FITS = {"cp": wtf.cp, "tucker": wtf.tucker, "nmf": wtf.nmf}


RANK_OF = {"cp": 2, "tucker": (2, 2, 3), "nmf": 2}


def histograms(seed=0):
    """Samples of mass one, (6, 4, 5)."""
    return np.random.default_rng(seed).dirichlet(np.ones(20), 6).reshape(DIMENSIONS)


class TestToTensorly:
    @pytest.mark.parametrize("model", FITS)
    def test_converted_fit_is_a_converged_start(self, backend, array, model):
        if backend.name == "jax":
            pytest.skip("compiling takes long: left to the faster backends")
        fit = FITS[model](array(histograms()), RANK_OF[model], LOSS, rng=0)
        converted = fit.to_tensorly()
        kind = tl.tucker_tensor.TuckerTensor if model == "tucker" else tl.cp_tensor.CPTensor
        assert type(converted) is kind
        again = FITS[model](array(histograms()), RANK_OF[model], LOSS, init=converted)
        assert again.n_iter <= 10
        assert again.objective <= fit.objective + 1e-6 * abs(fit.objective)

    @pytest.mark.parametrize("model", FITS)
    def test_tensor_of_the_conversion_is_that_of_the_fit(self, model):
        fit = FITS[model](histograms(), RANK_OF[model], LOSS, rng=0)
        tensor = fit.to_tensorly().to_tensor()
        np.testing.assert_allclose(tensor.reshape(DIMENSIONS), fit.to_tensor(), rtol=1e-12)

    def test_learned_weights_are_converted(self):
        fit = wtf.cp(histograms(), 2, LOSS, constraints=("columns",) * 3, rng=0)
        assert (fit.to_tensorly().weights == fit.weights).all()

    def test_missing_tensorly_is_an_import_error(self, monkeypatch):
        fit = wtf.cp(histograms(), 2, LOSS, rng=0)
        monkeypatch.setitem(sys.modules, "tensorly.cp_tensor", None)
        with pytest.raises(ImportError, match=r"pip install 'wtfarray\[tensorly\]'"):
            fit.to_tensorly()
