"""Stacks of samples from tensors and back."""

import warnings

import numpy as np
import pytest
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from fitting import entropy, spare_jax
from helpers import assert_close, numpy_only, to_numpy, without_escape
from own_losses import LeastSquares, PseudoHuber, Total

import wtfarray as wtf
from wtfarray._arrays.samples import stack, unstack

pytestmark = without_escape

FROB = wtf.Frobenius()


class TestStack:
    def test_unstack_is_the_inverse_of_stack(self, array):
        X = np.random.default_rng(2).exponential(size=(3, 4, 5))
        loss = wtf.Wasserstein([np.ones((5, 5)), np.ones((3, 3))], 0.1, modes=(2, 0))
        bound = loss.bind(array(X))
        assert_close(stack(bound, array(X)), array(np.transpose(X, (1, 2, 0))), rtol=0)
        assert_close(unstack(bound, stack(bound, array(X)), X.shape), array(X), rtol=0)


def histograms(shape=(6, 5, 4), seed=0):
    X = np.random.default_rng(seed).gamma(1.0, size=shape) + 0.05
    return X / X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)


RANKS = {"nmf": 2, "cp": 2, "tucker": (2, 2, 2)}
OPTIONS = {"rho": 0.01, "rng": 0, "tol": 1e-6}


class TestOwnLoss:
    """A loss of the user's own, through the protocol alone."""

    def test_everything_with_the_method_is_a_loss(self):
        losses = [wtf.Frobenius(), wtf.KullbackLeibler(), LeastSquares(), Total()]
        losses += [wtf.Wasserstein(wtf.grid_cost(4), 0.1), wtf.LossSum(LeastSquares())]
        assert all(isinstance(loss, wtf.Loss) for loss in losses)
        assert not isinstance(object(), wtf.Loss)

    @pytest.mark.parametrize("model", RANKS)
    def test_fit_equals_that_of_the_same_loss_of_the_library(self, xp, array, model):
        if model == "tucker":
            spare_jax(xp)
        X, fit = array(histograms()), getattr(wtf, model)
        own, library = (fit(X, RANKS[model], loss, **OPTIONS) for loss in (LeastSquares(), FROB))
        assert own.converged
        assert own.n_iter == library.n_iter
        assert own.objective == pytest.approx(library.objective, rel=1e-12)
        assert own.gap == 0.0
        for a, b in zip(own.factors, library.factors, strict=True):
            assert_close(a, b, rtol=1e-7, atol=1e-10)
        assert_close(own.dual, library.dual, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("model", RANKS)
    def test_fit_of_a_loss_that_the_library_lacks_is_stationary(self, xp, array, model):
        """The objective is that of the definition, and small changes of a block do not lower it."""
        spare_jax(xp)
        X, loss = histograms(), PseudoHuber()
        fit = getattr(wtf, model)(array(X), RANKS[model], loss, **OPTIONS | {"tol": 1e-9})
        assert fit.converged
        blocks = [to_numpy(block) for block in fit.factors]
        core = None if fit.core is None else to_numpy(fit.core)
        others = 0.0 if core is None else 0.01 * entropy(core)

        def objective(blocks):
            Y = wtf.cp_to_tensor(blocks) if core is None else wtf.tucker_to_tensor(core, blocks)
            value = loss.value_and_gradient(X, Y.reshape(X.shape))[0].sum()
            return value + 0.01 * sum(map(entropy, blocks)) + others

        best = objective(blocks)
        assert fit.objective == pytest.approx(best, rel=1e-10)
        rng = np.random.default_rng(1)
        for k, block in enumerate(blocks):
            for _ in range(3):
                moved = block * np.exp(0.05 * rng.normal(size=block.shape))
                moved /= moved.sum(axis=1 if k == 0 else 0, keepdims=True)
                changed = [*blocks[:k], moved, *blocks[k + 1 :]]
                assert objective(changed) > best - 1e-7 * abs(best)

    def test_projection_equals_that_of_the_same_loss_of_the_library(self, array):
        X, new = array(histograms()), array(histograms((3, 5, 4), seed=1))
        own, library = (wtf.nmf(X, 2, loss, **OPTIONS) for loss in (LeastSquares(), FROB))
        found, expected = own.projection(new, tol=1e-7), library.projection(new, tol=1e-7)
        assert found.converged
        assert found.objective == pytest.approx(expected.objective, rel=1e-9)
        assert_close(found.factors[0], expected.factors[0], rtol=1e-5, atol=1e-7)

    def test_rank_scan_takes_it(self, xp, array):
        spare_jax(xp)
        X = array(histograms((5, 4)))
        own, library = (
            wtf.rank_scan(X, [1, 2], loss, n_seeds=1, rho=1e-2, tol=1e-3)
            for loss in (LeastSquares(), FROB)
        )
        assert [record.rank for record in own.records] == [1, 2]
        for a, b in zip(own.records, library.records, strict=True):
            assert a.objective == pytest.approx(b.objective, rel=1e-6)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_receives_arrays_of_the_data(self, xp, array, device, dtype):
        """Library, dtype, shape and device are those of X; no entry is negative."""
        if dtype == "float32":
            spare_jax(xp)
        X, seen = array(histograms(), dtype), []

        class Watching(LeastSquares):
            def value_and_gradient(self, X, Y):
                seen.append((X, Y))
                return super().value_and_gradient(X, Y)

        fit = wtf.nmf(X, 2, Watching(), rho=0.01, rng=0, tol=1e-3)
        assert seen
        for first, second in seen:
            assert (to_numpy(first) == to_numpy(X)).all()
            assert array_namespace(second) is array_namespace(X)
            assert second.dtype == X.dtype
            assert second.shape == X.shape
            assert device_of(second) == device
            assert (to_numpy(second) >= 0).all()
        assert fit.factors[0].dtype == X.dtype

    @numpy_only
    def test_value_of_all_samples_together_is_enough(self):
        own, total = (
            wtf.cp(histograms(), 2, loss, **OPTIONS) for loss in (LeastSquares(), Total())
        )
        assert total.objective == pytest.approx(own.objective, rel=1e-12)
        with pytest.raises(ValueError, match=r"Total\.value_and_gradient .* expected .*\(6,\)"):
            wtf.cp(histograms(), 2, Total(), sample_weight=np.ones(6), **OPTIONS)

    def test_sample_weights_multiply_it(self, array):
        X, weights = array(histograms()), array([1.0, 2.0, 0.5, 1.0, 3.0, 0.0])
        own, library = (
            wtf.nmf(X, 2, loss, sample_weight=weights, **OPTIONS) for loss in (LeastSquares(), FROB)
        )
        plain = wtf.nmf(X, 2, LeastSquares(), **OPTIONS)
        assert own.objective == pytest.approx(library.objective, rel=1e-10)
        assert_close(own.factors[1], library.factors[1], rtol=1e-6, atol=1e-9)
        assert abs(own.objective - plain.objective) > 1e-3 * abs(plain.objective)
        # The dual variable is the gradient of the weighted loss; the objective is by definition.
        rest = to_numpy(own.to_tensor()) - histograms()
        scale = to_numpy(weights)[:, None, None]
        np.testing.assert_allclose(to_numpy(own.dual), scale * rest, rtol=1e-9, atol=1e-12)
        entropies = 0.01 * sum(map(entropy, own.factors))
        expected = 0.5 * np.sum(scale * rest**2) + entropies
        assert own.objective == pytest.approx(expected, rel=1e-10)

    def test_sum_with_transport(self, xp, array):
        spare_jax(xp)
        X, transport = array(histograms((4, 5))), wtf.Wasserstein(wtf.grid_cost(5), 0.2, 5.0)
        options = OPTIONS | {"tol": 1e-3}
        own, library = (
            wtf.nmf(X, 2, wtf.LossSum(transport, loss), **options)
            for loss in (LeastSquares(), FROB)
        )
        assert own.converged
        assert own.objective == pytest.approx(library.objective, rel=1e-9)
        alone = wtf.nmf(X, 2, transport, **options)
        assert own.objective > alone.objective

    @numpy_only
    @pytest.mark.parametrize("fit", [wtf.nmf, wtf.cp])
    def test_block_descent_refuses_it_by_name(self, fit):
        with pytest.raises(
            ValueError, match=r"solver is 'dual'.*LeastSquares.*expected 'envelope'"
        ):
            fit(histograms(), 2, LeastSquares(), solver="dual")

    @numpy_only
    def test_its_errors_are_raised(self):
        class Broken:
            def value_and_gradient(self, *_):
                msg = "of the loss itself"
                raise RuntimeError(msg)

        with pytest.raises(RuntimeError, match="of the loss itself"):
            wtf.nmf(histograms(), 2, Broken(), rng=0)

    @numpy_only
    @pytest.mark.parametrize("again", [False, True])
    def test_fit_is_resumed_from_a_checkpoint(self, tmp_path, again):
        """With the same loss, or with an equal one as a new process has it."""
        path = tmp_path / "fit.npz"
        options = OPTIONS | {"checkpoint": path, "tol": 1e-9}
        loss = LeastSquares()
        with pytest.warns(UserWarning, match="stopped by the callback"):
            wtf.cp(histograms(), 2, loss, callback=lambda s: s.n_iter == 10, **options)
        assert path.exists()
        rest = wtf.cp(histograms(), 2, LeastSquares() if again else loss, **options)
        whole = wtf.cp(histograms(), 2, loss, **OPTIONS | {"tol": 1e-9})
        assert rest.converged
        assert rest.objective == pytest.approx(whole.objective, rel=1e-9)


class TestWhatItReturns:
    """Mistakes are named, with what was expected."""

    def refused(self, X, change, message):
        class Mistaken(LeastSquares):
            def value_and_gradient(self, X, Y):
                return change(*super().value_and_gradient(X, Y))

        with pytest.raises(ValueError, match=f"Mistaken.value_and_gradient returned {message}"):
            wtf.nmf(X, 2, Mistaken(), rng=0)

    def test_values_of_another_shape(self, array):
        X = array(histograms())
        expected = r": expected an array of shape \(6,\) or \(\)"
        self.refused(X, lambda v, g: (v[:3], g), r"values of shape \(3,\)" + expected)
        self.refused(X, lambda v, g: (v[:, None], g), r"values of shape \(6, 1\)" + expected)
        self.refused(X, lambda v, g: (float(v[0]), g), "values of float" + expected)
        self.refused(X, lambda v, g: (g, v), r"values of shape \(6, 5, 4\)" + expected)

    def test_gradient_of_another_shape(self, array):
        X = array(histograms())
        expected = r": expected an array of shape \(6, 5, 4\)"
        self.refused(X, lambda v, g: (v, g[:2, ...]), r"gradient of shape \(2, 5, 4\)" + expected)
        self.refused(X, lambda v, _: (v, v), r"gradient of shape \(6,\)" + expected)
        self.refused(X, lambda v, _: (v, None), "gradient of NoneType" + expected)

    def test_another_dtype(self, xp, array):
        X = array(histograms())
        low = xp.float32
        message = "of dtype .*float32: expected .*float64, that of X"
        self.refused(X, lambda v, g: (xp.astype(v, low), g), f"values {message}")
        self.refused(X, lambda v, g: (v, xp.astype(g, low)), f"gradient {message}")

    @numpy_only
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_fit_of_a_gradient_that_is_not_finite_has_not_converged(self, bad):
        class Mistaken(LeastSquares):
            def value_and_gradient(self, X, Y):
                values, gradient = super().value_and_gradient(X, Y)
                return values, gradient + bad

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="nmf: |invalid value|overflow")
                converged = wtf.nmf(histograms(), 2, Mistaken(), rng=0).converged
        except ValueError as error:
            assert "Mistaken.value_and_gradient" in str(error)  # noqa: PT017
        else:
            assert not converged

    @numpy_only
    @pytest.mark.parametrize("answer", [None, 3.0, (np.ones(6),), (np.ones(6),) * 3])
    def test_no_pair(self, answer):
        class Mistaken:
            def value_and_gradient(self, *_):
                return answer

        with pytest.raises((TypeError, ValueError), match="Mistaken"):
            wtf.nmf(histograms(), 2, Mistaken(), rng=0)

    @numpy_only
    @pytest.mark.parametrize("loss", [None, "frobenius", LeastSquares, 3, lambda X, Y: X - Y])
    def test_what_is_no_loss_is_refused(self, loss):
        with pytest.raises(TypeError, match="loss is"):
            wtf.nmf(histograms(), 2, loss)


@numpy_only
class TestKeywords:
    LOSS = wtf.Wasserstein(wtf.grid_cost(5, 4), 0.2, 5.0)

    @pytest.mark.parametrize("model", RANKS)
    def test_rank_and_loss_of_a_fit(self, model):
        X, fit, rank = histograms(), getattr(wtf, model), RANKS[model]
        options = {"rng": 0, "tol": 1e-3}
        named = fit(X, rank=rank, loss=self.LOSS, **options)
        swapped = fit(X, loss=self.LOSS, rank=rank, **options)
        plain = fit(X, rank, self.LOSS, **options)
        assert named.objective == swapped.objective == plain.objective

    @pytest.mark.parametrize("model", RANKS)
    def test_missing_ones_are_named(self, model):
        with pytest.raises(TypeError, match="loss"):
            getattr(wtf, model)(histograms(), rank=RANKS[model])
        with pytest.raises(TypeError, match="rank"):
            getattr(wtf, model)(histograms(), loss=self.LOSS)

    def test_ranks_and_loss_of_a_scan(self):
        X, loss = histograms((8, 5)), wtf.Wasserstein(wtf.grid_cost(5), 0.2, 5.0)
        options = {"n_seeds": 1, "held_out": None, "tol": 1e-3}
        named = wtf.rank_scan(X, ranks=[1, 2], loss=loss, **options)
        plain = wtf.rank_scan(X, [1, 2], loss, **options)
        assert [r.objective for r in named.records] == [r.objective for r in plain.records]

    def test_loss_of_a_value(self):
        X, Y = histograms(), histograms(seed=1)
        named, plain = wtf.wasserstein(X, Y, loss=self.LOSS), wtf.wasserstein(X, Y, self.LOSS)
        assert float(named.value) == float(plain.value)
