"""Starts given by the caller: TensorLy's decompositions, earlier fits, plain factors."""

import numpy as np
import pytest
import tensorly as tl
from array_api_compat import is_jax_namespace
from fitting import LOSSES, RANKS, SHAPE, data, fit_few, run, start, transport
from helpers import assert_close, numpy_only, to_numpy, without_escape
from tensorly.decomposition import non_negative_parafac, non_negative_tucker, parafac

import wtfarray as wtf
from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.specification import specify

pytestmark = without_escape

DIMENSIONS = (6, 4, 5)


LOSS = wtf.KullbackLeibler()


FITS = {"cp": wtf.cp, "tucker": wtf.tucker, "nmf": wtf.nmf}


RANK_OF = {"cp": 2, "tucker": (2, 2, 3), "nmf": 2}


def histograms(seed=0):
    """Samples of mass one, (6, 4, 5)."""
    return np.random.default_rng(seed).dirichlet(np.ones(20), 6).reshape(DIMENSIONS)


def decompose(model, seed=0):
    """A decomposition by TensorLy, with its own weights and scales."""
    X = histograms()
    if model == "tucker":
        return non_negative_tucker(tl.tensor(X), rank=(2, 2, 3), n_iter_max=5, random_state=seed)
    X = X.reshape(6, 20) if model == "nmf" else X
    found = non_negative_parafac(
        tl.tensor(X), rank=2, n_iter_max=5, random_state=seed, normalize_factors=True
    )
    assert not np.allclose(found.weights, 1.0)
    return found


def set_up_for(X, model, **options):
    defaults = {"rho": 0.01, "constraints": None, "weights": None, "fixed": ()}
    defaults |= {"sample_weight": None}
    return specify(model, X, RANK_OF[model], LOSS, **(defaults | options))


def placed(array, decomposition):
    """The decomposition with the arrays of the library under test."""
    head, factors = decomposition
    return type(decomposition)((array(head), [array(factor) for factor in factors]))


CONSTRAINTS = {
    "cp": [None, (None, "columns", "columns"), ("columns",) * 3, ("rows", "columns", "all")],
    "tucker": [None, (None,) * 3, ("columns", "columns", "columns", "all")],
    "nmf": [None, (None, "columns"), ("columns", "columns"), ("columns", None)],
}


class TestTensorly:
    @pytest.mark.parametrize(
        ("model", "constraints"),
        [(model, constraints) for model, several in CONSTRAINTS.items() for constraints in several],
    )
    def test_tensor_is_kept_up_to_the_constraints(self, array, model, constraints):
        """Up to the constraints: samples of mass one, or a total mass of one."""
        decomposition = decompose(model)
        setup = set_up_for(array(histograms()), model, constraints=constraints)
        blocks = [to_numpy(b) for b in given_blocks(setup, placed(array, decomposition))]
        factors, last = blocks[: setup.modes], blocks[setup.modes :]
        for factor, constraint in zip(factors, setup.constraints, strict=False):
            if constraint == "columns":
                np.testing.assert_allclose(factor.sum(axis=0), 1.0)
        if model == "tucker":
            found = wtf.tucker_to_tensor(last[0], factors)
        else:
            found = wtf.cp_to_tensor(factors, *last)
        np.testing.assert_allclose(found, decomposition.to_tensor(), rtol=1e-10, atol=1e-15)

    def test_tensor_is_kept_with_fixed_weights(self, array):
        decomposition = decompose("cp")
        constraints = (None, "columns", "columns")
        setup = set_up_for(array(histograms()), "cp", constraints=constraints, weights="fixed")
        blocks = given_blocks(setup, placed(array, decomposition))
        expected = array(decomposition.to_tensor())
        assert_close(setup.model.tensor(blocks), expected, rtol=1e-10, atol=1e-15)

    def test_fixed_factors_are_unchanged(self, array):
        decomposition = decompose("nmf")
        setup = set_up_for(array(histograms()), "nmf", constraints=("columns", None), fixed=(1,))
        _, held = given_blocks(setup, placed(array, decomposition))
        assert_close(held, array(decomposition.factors[1]), rtol=0, atol=0)

    @pytest.mark.parametrize("model", FITS)
    def test_fit_starts_below_the_objective_of_a_random_start(self, backend, array, model):
        """The first objective from TensorLy's decomposition is below that of a random start."""
        if backend.name == "jax":
            pytest.skip("compiling takes long: left to the faster backends")
        decomposition = decompose(model)
        kept = [factor.copy() for factor in decomposition.factors]
        first = {}
        for name, init in {"tensorly": placed(array, decomposition), "random": "random"}.items():
            objectives = []
            with pytest.warns(UserWarning, match="stopped by the callback"):
                FITS[model](
                    *(array(histograms()), RANK_OF[model], LOSS),
                    rho=1e-4,
                    init=init,
                    rng=0,
                    callback=lambda state, seen=objectives: seen.append(state.objective) or True,
                )
            first[name] = objectives[0]
        assert first["tensorly"] < first["random"]
        for factor, before in zip(decomposition.factors, kept, strict=True):
            assert (factor == before).all()

    def test_numpy_arrays_follow_the_data(self, array):
        setup = set_up_for(array(histograms()), "cp")
        for block in given_blocks(setup, decompose("cp")):
            assert_close(block, array(to_numpy(block)))

    def test_column_of_zeros_gives_finite_blocks(self, array):
        weights, factors = decompose("cp")
        factors[1][:, 0] = 0.0
        setup = set_up_for(array(histograms()), "cp")
        blocks = given_blocks(setup, placed(array, tl.cp_tensor.CPTensor((weights, factors))))
        assert all(np.isfinite(to_numpy(block)).all() for block in blocks)

    def test_negative_entries_are_refused(self, array):
        signed = parafac(
            tl.tensor(histograms()), rank=2, n_iter_max=5, init="random", random_state=1
        )
        signed.factors[1][2, 1] = -0.5
        signed.factors[1][:2, :] = 0.0
        signed.factors[0][...] = np.abs(signed.factors[0])
        with pytest.raises(
            ValueError, match=r"factor 1 of init is -0\.5 at index \(2, 1\).* non-neg"
        ):
            wtf.cp(array(histograms()), 2, LOSS, init=placed(array, signed))

    def test_negative_weights_are_refused(self, array):
        weights, factors = decompose("cp")
        with pytest.raises(ValueError, match=r"the weights of init is -.*non-negative"):
            wtf.cp(
                array(histograms()), 2, LOSS, init=(array(-weights), [array(f) for f in factors])
            )

    def test_decomposition_of_another_rank_is_refused(self, array):
        with pytest.raises(ValueError, match=r"factor 0 of init has shape \(6, 2\): .*\(6, 3\)"):
            wtf.cp(array(histograms()), 3, LOSS, init=placed(array, decompose("cp")))

    def test_decomposition_of_another_kind_is_refused(self, array):
        with pytest.raises(ValueError, match=r"of init has shape"):
            wtf.cp(array(histograms()), 2, LOSS, init=placed(array, decompose("tucker")))


class TestFits:
    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    def test_fit_can_be_the_start_of_another(self, model):
        options = {"rho": 0.02}
        first = run(model, data(), RANKS[model], LOSSES["KL"], rng=0, **options)
        for init in (first, tuple(first)):
            again = run(model, data(), RANKS[model], LOSSES["KL"], init=init, **options)
            assert again.n_iter <= 10
            assert again.objective <= first.objective + 1e-9

    @numpy_only
    def test_learned_weights_are_used_as_a_start(self):
        X, loss = data(mass=None), transport(shape=SHAPE, eps=0.3)
        first = wtf.cp(X, 3, loss, rho=0.02, rng=0)
        kept = wtf.cp(X, 3, loss, rho=0.02, init=(first.weights, first.factors))
        assert kept.n_iter <= 10
        assert kept.objective == pytest.approx(first.objective, rel=1e-5)
        alone = wtf.cp(X, 3, loss, rho=0.02, init=first.factors)
        assert alone.objective == pytest.approx(first.objective, rel=1e-3)


class TestRefused:
    @numpy_only
    def test_core_of_another_shape_is_refused(self):
        _, factors = start("tucker")
        with pytest.raises(ValueError, match=r"init.* has shape \(3, 2, 2\)"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], init=(np.ones((3, 2, 2)), factors))


def test_fixed_factors_are_returned_as_they_are_used(xp, array):
    A, B = np.random.default_rng(0).dirichlet(np.ones(2), (2, 6))
    B[0, 0] = 1e-310
    X = array(np.random.default_rng(1).dirichlet(np.ones(6), 6))
    fit = fit_few("nmf", X, 2, LOSS, init=(array(A), array(B)), fixed=[1])
    found = to_numpy(fit.factors[1])
    assert found[0, 0] == (0.0 if is_jax_namespace(xp) else 1e-310)
