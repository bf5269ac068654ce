"""The differentiable loss for JAX: its gradients, transforms, reductions and refusals."""

import math
from functools import partial

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf

jax = pytest.importorskip("jax", reason="JAX is not installed; the jax session has it")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from wtfarray.jax import wasserstein_loss  # noqa: E402

LAMS = [1.0, math.inf]
# Compiling is what takes time: nearly every test has these shapes and settings.
LOSSES = {lam: wtf.Wasserstein(wtf.grid_cost(4), eps=0.2, lam=lam) for lam in LAMS}
each = partial(wasserstein_loss, tol=1e-12, reduction="none")


@pytest.fixture(autouse=True)
def only_on_jax(backend):
    if backend.name != "jax":
        pytest.skip("the loss of JAX is tested in the jax session")


def samples(lam, dtype="float64"):
    """Positive samples (3, 4), heavy enough for differences to leave balanced masses equal."""
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(5.0, 40.0, (3, 4)), rng.uniform(5.0, 40.0, (3, 4))
    if math.isinf(lam):
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    return jnp.asarray(X, dtype=dtype), jnp.asarray(Y, dtype=dtype)


def numpy_loss(X, Y, lam):
    return wtf.wasserstein(to_numpy(X), to_numpy(Y), LOSSES[lam], tol=1e-12)


STEPS = np.subtract.outer(np.arange(4.0), np.arange(4.0)) ** 2
BANDS = {
    lam: wtf.Wasserstein(np.where(STEPS <= 1, STEPS, math.inf), eps=0.2, lam=lam) for lam in LAMS
}


def banded(lam):
    """The first sample has unreachable bins, where a balanced Y is 0."""
    X = jnp.asarray([[3.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]])
    Y = jnp.asarray([[1.0, 2.0, 1.5, 0.5], [2.0, 2.0, 2.0, 4.0], [5.0, 4.0, 6.0, 5.0]])
    return X, Y.at[0, 2:].set(0.0) if math.isinf(lam) else Y


class TestInfiniteCosts:
    @pytest.mark.parametrize("lam", LAMS)
    def test_value_and_gradient_agree_with_numpy(self, lam):
        X, Y = banded(lam)
        values = each(X, Y, BANDS[lam])
        expected = wtf.wasserstein(to_numpy(X), to_numpy(Y), BANDS[lam], tol=1e-12)
        np.testing.assert_allclose(float(jnp.sum(values)), float(expected.value), rtol=1e-10)
        gradient = jax.jit(jax.grad(lambda Y: jnp.sum(each(X, Y, BANDS[lam]))))(Y)
        assert bool(jnp.all(jnp.isfinite(gradient)))
        if lam == 1.0:
            np.testing.assert_allclose(to_numpy(gradient), expected.gradient, atol=1e-5)
            assert gradient[0, 2:].tolist() == [1.0, 1.0]

    def test_limited_reach_is_an_infinite_cost(self):
        X, Y = banded(1.0)
        loss = wtf.Wasserstein(wtf.grid_cost(4, scale=None, reach=1.0), eps=0.2, lam=1.0)
        found, expected = (jax.jit(partial(each, loss=one))(X, Y) for one in (loss, BANDS[1.0]))
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), rtol=1e-10)

    def test_infeasible_samples_are_nan_when_traced(self):
        X, Y = banded(math.inf)
        far = jnp.asarray([[5.0, 5.0, 5.0, 5.0], [1.0, 4.0, 3.0, 2.0], [1.0, 1.0, 1.0, 17.0]])
        Y = jnp.where(jnp.arange(3)[:, None] == 2, far, Y)
        with pytest.raises(ValueError, match="Y cannot be reached from X"):
            wtf.wasserstein(to_numpy(X), to_numpy(Y), BANDS[math.inf], max_iter=200)
        # Found by a maximum flow: potentials that diverge would show it after many iterations.
        traced = jax.jit(lambda X, Y: each(X, Y, BANDS[math.inf], max_iter=2))
        assert jnp.isnan(traced(X, Y)).tolist() == [False, False, True]
        one_by_one = jax.vmap(lambda x, y: traced(x[None, :], y[None, :])[0])
        assert jnp.isnan(one_by_one(X, Y)).tolist() == [False, False, True]

    def test_components_of_unequal_mass_are_nan_when_traced(self):
        C = np.full((4, 4), math.inf)
        C[:2, :2] = C[2:, 2:] = 1.0
        X, Y = banded(math.inf)
        loss = wtf.Wasserstein(C, eps=0.2)
        values = jax.jit(lambda Y: each(X, Y, loss))(Y)
        assert jnp.isnan(values).tolist() == [False, True, True]
        expected = r"Y has mass 4\.0 in sample 1 on the connected component of bin"
        with pytest.raises(ValueError, match=expected):
            each(X, Y, loss)


@pytest.mark.parametrize("lam", LAMS)
class TestGradient:
    def test_check_grads_passes_in_both_arguments(self, lam):
        check_grads(
            lambda X, Y: each(X, Y, LOSSES[lam]),
            samples(lam),
            order=1,
            modes=("fwd", "rev"),
            eps=1e-5,
            rtol=1e-5,
        )

    def test_gradient_agrees_with_numpy(self, lam):
        X, Y = samples(lam)
        values = each(X, Y, LOSSES[lam])
        gradient = jax.grad(lambda Y: jnp.sum(each(X, Y, LOSSES[lam])))(Y)
        expected = numpy_loss(X, Y, lam)
        assert float(jnp.sum(values)) == pytest.approx(float(expected.value), rel=1e-11)
        np.testing.assert_allclose(to_numpy(gradient), expected.gradient, rtol=1e-6, atol=1e-6)

    def test_second_derivatives_are_refused(self, lam):
        X, Y = samples(lam)

        def f(Y):
            return wasserstein_loss(X, Y, LOSSES[lam])

        for twice in (
            jax.hessian(f),
            jax.jacrev(jax.jacrev(f)),
            jax.jacfwd(jax.jacfwd(f)),
            jax.jit(jax.grad(lambda Y: jnp.sum(jax.grad(f)(Y)))),
        ):
            with pytest.raises(NotImplementedError, match="first derivatives only"):
                twice(Y)


def test_compiled_loss_agrees_and_bad_samples_are_nan():
    X, Y = samples(1.0)

    def both(X, Y):
        (_, values), gradient = jax.value_and_grad(summed, has_aux=True)(Y, X)
        return values, gradient

    def summed(Y, X):
        values = each(X, Y, LOSSES[1.0])
        return jnp.sum(values), values

    compiled = jax.jit(both)
    found, expected = compiled(X, Y), both(X, Y)
    np.testing.assert_allclose(to_numpy(found[0]), to_numpy(expected[0]), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(found[1]), to_numpy(expected[1]), rtol=1e-6, atol=1e-9)
    # Compiled code cannot raise: the loss of a bad sample is NaN, the others keep theirs.
    bad = Y.at[1, 2].set(-1.0)
    with pytest.raises(ValueError, match=r"Y is -1\.0 at index \(1, 2\)"):
        each(X, bad, LOSSES[1.0])
    values, gradient = compiled(X, bad)
    assert jnp.isnan(values).tolist() == [False, True, False]
    assert jnp.isnan(gradient).tolist() == [[i == 1] * 4 for i in range(3)]
    assert jnp.isnan(compiled(0.0 * X, Y)[0]).all()
    with pytest.raises(ValueError, match=r"X has shape \(0, 4\): expected at least one mode"):
        compiled(X[:0], Y[:0])
    kept = to_numpy(values)[[0, 2]]
    np.testing.assert_allclose(kept, to_numpy(expected[0])[[0, 2]], rtol=1e-10)


def test_vmap_agrees_with_a_loop():
    X, Y = samples(1.0)
    one = jax.value_and_grad(lambda y, x: each(x, y, LOSSES[1.0]))
    values, gradients = jax.vmap(one)(Y, X)
    np.testing.assert_allclose(to_numpy(values), to_numpy(each(X, Y, LOSSES[1.0])), rtol=1e-10)
    expected = jax.grad(lambda Y: jnp.sum(each(X, Y, LOSSES[1.0])))(Y)
    np.testing.assert_allclose(to_numpy(gradients), to_numpy(expected), rtol=1e-5, atol=1e-5)


def test_softmax_that_underflows_has_a_finite_gradient_in_float32():
    """A softmax that underflows, and zeros in the data, transported along the first mode."""
    rng = np.random.default_rng(1)
    X = rng.gamma(1.0, size=(4, 3)) * (rng.uniform(size=(4, 3)) < 0.7)
    X /= X.sum(axis=0, keepdims=True)
    X, logits = X.astype("float32"), rng.normal(size=(4, 3)).astype("float32")
    logits[1, 2] = -2000.0
    loss = wtf.Wasserstein(wtf.grid_cost(4), eps=0.1, modes=(0,))

    def f(logits, X):
        Y = jax.nn.softmax(logits, axis=0)
        return wasserstein_loss(X, Y, loss, reduction="mean"), Y

    (value, Y), (in_logits, in_X) = jax.jit(jax.value_and_grad(f, argnums=(0, 1), has_aux=True))(
        jnp.asarray(logits), jnp.asarray(X)
    )
    assert value.dtype == in_logits.dtype == jnp.float32
    assert float(Y[1, 2]) == float(in_logits[1, 2]) == 0
    expected = wtf.wasserstein(X, to_numpy(Y), loss)
    assert float(value) == pytest.approx(float(expected.value) / 3, rel=1e-4)
    through = to_numpy(Y) * np.where(to_numpy(Y) > 0, expected.gradient, 0.0) / 3
    through -= to_numpy(Y) * through.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(to_numpy(in_logits), through, atol=1e-3)
    assert bool(jnp.all(jnp.isfinite(in_X)))
    assert float(jnp.max(jnp.where(X == 0, in_X, -jnp.inf))) < float(
        jnp.min(jnp.where(X > 0, in_X, jnp.inf))
    )


def test_gradient_of_an_empty_sample_is_lam():
    X, Y = samples(1.0)
    X = X.at[1].set(0.0)
    value, gradient = jax.value_and_grad(lambda Y: jnp.sum(each(X, Y, LOSSES[1.0])))(Y)
    expected = numpy_loss(X, Y, 1.0)
    assert float(value) == pytest.approx(float(expected.value), rel=1e-11)
    np.testing.assert_allclose(to_numpy(gradient)[1], np.ones(4))  # lam


def test_reductions_are_sum_and_mean_of_the_samples():
    X, Y = samples(1.0)
    values = each(X, Y, LOSSES[1.0])
    assert values.shape == (3,)
    for name, reduce in (("sum", jnp.sum), ("mean", jnp.mean)):
        found = wasserstein_loss(X, Y, LOSSES[1.0], tol=1e-12, reduction=name)
        assert float(found) == pytest.approx(float(reduce(values)), rel=1e-14)


def test_costs_may_be_jax_arrays():
    """They are read before tracing, because they cannot be read inside a trace."""
    X, Y = samples(1.0)
    loss = wtf.Wasserstein(jnp.asarray(wtf.grid_cost(4)[0]), eps=0.2, lam=1.0)
    traced = jax.make_jaxpr(lambda Y: each(X, Y, loss))(Y)
    assert str(traced.jaxpr) == str(jax.make_jaxpr(lambda Y: each(X, Y, LOSSES[1.0]))(Y).jaxpr)
    assert bool(jnp.all(each(X, Y, loss) == each(X, Y, LOSSES[1.0])))


class TestRefused:
    def test_arrays_of_other_libraries_are_refused(self):
        with pytest.raises(TypeError, match="X is a list: expected a JAX array"):
            wasserstein_loss([[1.0] * 4] * 3, jnp.ones((3, 4)), LOSSES[1.0])

    def test_unknown_reduction_is_refused(self):
        with pytest.raises(ValueError, match="reduction is 'max': expected one of"):
            wasserstein_loss(*samples(1.0), LOSSES[1.0], reduction="max")

    def test_unequal_masses_are_refused(self):
        with pytest.raises(ValueError, match="expected the same mass"):
            wasserstein_loss(*samples(1.0), LOSSES[math.inf])

    def test_other_shapes_and_dtypes_are_refused_when_traced(self):
        X, Y = samples(1.0)
        with pytest.raises(ValueError, match=r"Y has shape \(4,\): expected \(3, 4\)"):
            jax.jit(lambda Y: wasserstein_loss(X, Y, LOSSES[1.0]))(Y[0])
        with pytest.raises(TypeError, match="expected one dtype"):
            jax.jit(lambda Y: wasserstein_loss(X, Y, LOSSES[1.0]))(Y.astype("float32"))
        with pytest.raises(ValueError, match=r"costs\[0\] has shape \(4, 4\): expected \(3, 3\)"):
            jax.jit(lambda Y: wasserstein_loss(Y, Y, LOSSES[1.0]))(Y[:, :3])

    def test_models_that_jax_takes_for_zero_are_refused(self):
        X, Y = samples(1.0, "float32")
        Y = np.array(Y)
        Y[0, 1] = 1e-39
        with pytest.raises(ValueError, match=r"Y is 1.*e-39 at index \(0, 1\).*JAX takes smaller"):
            wasserstein_loss(X, jnp.asarray(Y), LOSSES[1.0])

    def test_other_losses_are_refused(self):
        with pytest.raises(TypeError, match="loss is a Frobenius: expected Wasserstein"):
            wasserstein_loss(*samples(1.0), wtf.Frobenius())


@pytest.mark.parametrize("lam", LAMS)
class TestPotential:
    """Warm starts between the steps of a training loop, eager and compiled."""

    def test_value_and_gradient_are_those_of_a_cold_start(self, lam):
        X, Y = samples(lam)

        def summed(Y, g):
            values, g = each(X, Y, LOSSES[lam], potential=g, return_potential=True)
            return jnp.sum(values), g

        both = jax.value_and_grad(summed, has_aux=True)
        (cold, g), expected = both(Y, None)
        assert g.shape == Y.shape
        for start in (g, jnp.zeros_like(Y), 1e200 * Y):
            for evaluate in (both, jax.jit(both)):
                (warm, _), gradient = evaluate(Y, start)
                assert float(warm) == pytest.approx(float(cold), rel=1e-10)
                np.testing.assert_allclose(to_numpy(gradient), to_numpy(expected), atol=1e-4)

    def test_solution_takes_one_iteration(self, lam):
        """After one iteration, from elsewhere, the lower bound is not yet tight."""
        X, Y = samples(lam)
        values, g = each(X, Y, LOSSES[lam], return_potential=True)
        one = partial(wasserstein_loss, X, Y, LOSSES[lam], max_iter=1, tol=1e-8)
        exact = float(jnp.sum(values))
        assert float(one(potential=g)) == pytest.approx(exact, rel=1e-9)
        assert float(one(potential=0.0 * g)) < exact - 1e-5 * abs(exact)

    def test_no_gradient_flows_through_the_potential(self, lam):
        X, Y = samples(lam)

        def f(g, Y):
            value, new = wasserstein_loss(
                X, Y, LOSSES[lam], tol=1e-12, potential=g, return_potential=True
            )
            return value + jnp.sum(new)

        in_potential, in_Y = jax.grad(f, argnums=(0, 1))(0.1 * Y, Y)
        assert not in_potential.any()
        expected = jax.grad(lambda Y: jnp.sum(each(X, Y, LOSSES[lam])))(Y)
        np.testing.assert_allclose(to_numpy(in_Y), to_numpy(expected), atol=1e-4)


def test_bad_potentials_are_refused_and_are_nan_when_traced():
    X, Y = samples(1.0)
    bad = jnp.zeros_like(Y).at[1, 2].set(math.nan)
    with pytest.raises(ValueError, match=r"potential is nan at index \(1, 2\): expected finite"):
        each(X, Y, LOSSES[1.0], potential=bad)
    for other, error, message in (
        ([0.0], TypeError, "potential is a list: expected a JAX array"),
        (Y[:1], ValueError, r"potential has shape \(1, 4\): expected \(3, 4\)"),
        (Y.astype("float32"), TypeError, "potential has dtype float32 and X float64"),
    ):
        with pytest.raises(error, match=message):
            each(X, Y, LOSSES[1.0], potential=other)
    compiled = jax.jit(lambda g: each(X, Y, LOSSES[1.0], potential=g, return_potential=True))
    values, g = compiled(bad)
    assert jnp.isnan(values).tolist() == [False, True, False]
    assert not g[1].any()  # a valid start for the next step
    values, _ = compiled(g)
    assert bool(jnp.all(jnp.isfinite(values)))


@pytest.mark.parametrize("lam", LAMS)
def test_debiased_loss_agrees_with_numpy(lam):
    X, Y = samples(lam)
    loss = wtf.Wasserstein(wtf.grid_cost(4), 0.2, lam, debias=True)
    expected = wtf.wasserstein(to_numpy(X), to_numpy(Y), loss, tol=1e-12)
    found = jax.jit(partial(wasserstein_loss, loss=loss, tol=1e-10))
    value, gradient = jax.value_and_grad(found, argnums=1)(X, Y)
    assert float(value) == pytest.approx(float(expected.value), rel=1e-8)
    np.testing.assert_allclose(to_numpy(gradient), expected.gradient, atol=1e-4)
    assert float(found(X, X)) == pytest.approx(0.0, abs=1e-9)


def test_mass_out_of_reach_stays_behind():
    X, Y = (jnp.asarray(np.eye(4)[rows]) for rows in ([0, 1], [3, 1]))
    loss = wtf.Wasserstein(wtf.grid_cost(4, scale=None, reach=1.0), 0.2, 1.0, source_lam=0.5)
    expected = wtf.wasserstein(to_numpy(X), to_numpy(Y), loss)
    assert float(wasserstein_loss(X, Y, loss)) == pytest.approx(float(expected.value), rel=1e-6)


@pytest.mark.parametrize("debias", [False, True])
def test_relaxed_data_agree_with_numpy(debias):
    X, Y = samples(1.0)
    loss = wtf.Wasserstein(wtf.grid_cost(4), 0.2, 1.0, source_lam=0.5, debias=debias)
    expected = wtf.wasserstein(to_numpy(X), to_numpy(Y), loss, tol=1e-12)
    value, (in_X, in_Y) = jax.value_and_grad(partial(wasserstein_loss, tol=1e-12), (0, 1))(
        X, Y, loss
    )
    assert float(value) == pytest.approx(float(expected.value), rel=1e-9)
    np.testing.assert_allclose(to_numpy(in_Y), expected.gradient, atol=1e-5)
    change = 1e-4 * X
    values = [
        float(wtf.wasserstein(to_numpy(X + t * change), to_numpy(Y), loss, tol=1e-12).value)
        for t in (1.0, -1.0)
    ]
    assert float(jnp.sum(in_X * change)) == pytest.approx(0.5 * (values[0] - values[1]), rel=1e-5)
