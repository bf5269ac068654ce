"""The differentiable loss for torch: its gradients, transforms, reductions and refusals."""

import math

import numpy as np
import pytest

import wtfarray as wtf

torch = pytest.importorskip("torch", reason="torch is not installed; the torch session has it")

from wtfarray.torch import wasserstein_loss  # noqa: E402

LAMS = [1.0, math.inf]
# torch's own, where forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")


@pytest.fixture(autouse=True)
def only_on_torch(backend):
    if not backend.name.startswith("torch"):
        pytest.skip("the loss of torch is tested in the torch session")


def tensors(device, lam, shape=(2, 4), dtype=torch.float64, seed=0):
    """Positive samples, heavy enough for differences of 1e-6 to leave balanced masses equal."""
    rng = np.random.default_rng(seed)
    X, Y = rng.uniform(0.5, 4.0, shape), rng.uniform(0.5, 4.0, shape)
    if math.isinf(lam):
        Y *= X.sum(axis=-1, keepdims=True) / Y.sum(axis=-1, keepdims=True)
    return (torch.asarray(A, dtype=dtype, device=device) for A in (X, Y))


def loss_of(lam, n=4, eps=0.2):
    return wtf.Wasserstein(wtf.grid_cost(n), eps=eps, lam=lam)


class TestGradient:
    @pytest.mark.parametrize("lam", LAMS)
    def test_gradcheck_passes_in_both_arguments(self, device, lam):
        X, Y = tensors(device, lam, (2, 3))
        loss = loss_of(lam, n=3, eps=0.5)
        assert torch.autograd.gradcheck(
            lambda X, Y: wasserstein_loss(X, Y, loss, tol=1e-13, reduction="none"),
            (X.requires_grad_(), Y.requires_grad_()),
            check_forward_ad=True,
            check_batched_grad=True,
        )

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradcheck_passes_for_the_debiased_loss(self, device, lam):
        X, Y = tensors(device, lam, (2, 3))
        loss = wtf.Wasserstein(wtf.grid_cost(3), 0.5, lam, debias=True)
        assert torch.autograd.gradcheck(
            lambda X, Y: wasserstein_loss(X, Y, loss, tol=1e-13, reduction="none"),
            (X.requires_grad_(), Y.requires_grad_()),
            atol=1e-4,
        )
        assert float(wasserstein_loss(X, X, loss).detach()) < 1e-9

    @pytest.mark.parametrize("debias", [False, True])
    def test_gradcheck_passes_if_mass_may_stay_behind(self, device, debias):
        X, Y = tensors(device, 1.0, (2, 3))
        loss = wtf.Wasserstein(wtf.grid_cost(3), 0.5, 1.0, source_lam=0.7, debias=debias)
        assert torch.autograd.gradcheck(
            lambda X, Y: wasserstein_loss(X, Y, loss, tol=1e-13, reduction="none"),
            (X.requires_grad_(), Y.requires_grad_()),
        )

    def test_gradcheck_passes_along_other_modes(self, device):
        X, Y = tensors(device, 1.0, (3, 1, 2))
        loss = wtf.Wasserstein(wtf.grid_cost(2, 3), eps=0.5, lam=1.0, modes=(2, 0))
        assert torch.autograd.gradcheck(
            lambda Y: wasserstein_loss(X, Y, loss, tol=1e-13, reduction="none"), Y.requires_grad_()
        )

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradient_agrees_with_wasserstein(self, device, lam):
        X, Y = tensors(device, lam)
        loss = loss_of(lam)
        value = wasserstein_loss(X, Y.requires_grad_(), loss, tol=1e-9)
        value.backward()
        expected = wtf.wasserstein(X, Y, loss, tol=1e-9)
        torch.testing.assert_close(value.detach(), expected.value)
        torch.testing.assert_close(Y.grad, expected.gradient)

    def test_balanced_gradient_in_y_is_orthogonal_to_y(self, device):
        X, Y = tensors(device, math.inf)
        X.requires_grad_()
        Y.requires_grad_()
        value = wasserstein_loss(X, Y, loss_of(math.inf), tol=1e-12)
        value.backward()
        orthogonal = (Y.grad * Y).sum(dim=1)
        torch.testing.assert_close(orthogonal, torch.zeros_like(orthogonal))
        # Multiplying both by s adds m eps log s to s times the value: this gives <X, gradient>.
        mass = X.detach().sum()
        found = (X.grad * X).sum().detach()
        torch.testing.assert_close(found, value.detach() + 0.2 * mass)

    def test_gradient_scales_with_the_weight_of_a_sample(self, device):
        X, Y = tensors(device, 1.0)
        Y.requires_grad_()
        weights = torch.asarray([2.0, -3.0], dtype=torch.float64, device=device)
        values = wasserstein_loss(X, Y, loss_of(1.0), tol=1e-9, reduction="none")
        (weighted,) = torch.autograd.grad((weights * values).sum(), Y)
        (plain,) = torch.autograd.grad(wasserstein_loss(X, Y, loss_of(1.0), tol=1e-9), Y)
        torch.testing.assert_close(weighted, weights[:, None] * plain)

    def test_no_graph_is_recorded_for_constant_input(self, device):
        X, Y = tensors(device, 1.0)
        assert not wasserstein_loss(X, Y, loss_of(1.0)).requires_grad


class TestInfiniteCosts:
    def samples(self, device, lam):
        """Samples with unreachable bins; balanced, Y can be reached from X within the band."""
        X = torch.asarray([[3.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
        Y = torch.asarray([[1.0, 2.0, 1.5, 0.5], [2.0, 2.0, 2.0, 4.0]], dtype=torch.float64)
        if math.isinf(lam):
            Y[0, 2:] = 0.0
        steps = torch.arange(4.0, dtype=torch.float64)
        cost = (steps[:, None] - steps[None, :]) ** 2
        cost[cost > 1.0] = math.inf
        return X.to(device), Y.to(device), wtf.Wasserstein(cost.to(device), eps=0.2, lam=lam)

    @pytest.mark.parametrize("lam", LAMS)
    def test_value_and_gradient_agree_with_wasserstein(self, device, lam):
        X, Y, loss = self.samples(device, lam)
        X.requires_grad_(), Y.requires_grad_()
        value = wasserstein_loss(X, Y, loss, tol=1e-13)
        value.backward()
        expected = wtf.wasserstein(X.detach(), Y.detach(), loss, tol=1e-13)
        assert value.item() == pytest.approx(float(expected.value), rel=1e-12)
        assert bool(torch.isfinite(X.grad).all())
        assert bool(torch.isfinite(Y.grad).all())
        if lam == 1.0:
            torch.testing.assert_close(Y.grad, expected.gradient, rtol=1e-6, atol=1e-6)
            assert Y.grad[0, 2:].tolist() == [1.0, 1.0]
        else:
            assert bool((Y.grad[0, 2:] > 100.0).all())  # as good as infinite

    def test_gradcheck_passes_with_unreachable_bins(self, device):
        X, Y, loss = self.samples(device, 1.0)
        assert torch.autograd.gradcheck(
            lambda Y: wasserstein_loss(X, Y, loss, tol=1e-13, reduction="none"),
            Y.requires_grad_(),
            atol=1e-5,
        )

    def test_components_of_unequal_mass_are_refused(self, device):
        X, Y, _ = self.samples(device, math.inf)
        cost = torch.full((4, 4), math.inf, dtype=torch.float64, device=device)
        cost[:2, :2] = cost[2:, 2:] = 1.0
        expected = r"Y has mass 4\.0 in sample 0 on the connected component of bin"
        with pytest.raises(ValueError, match=expected):
            wasserstein_loss(X[1:], Y[1:], wtf.Wasserstein(cost, eps=0.2))


class TestTransforms:
    @pytest.mark.parametrize("lam", LAMS)
    def test_func_grad_agrees_with_wasserstein(self, device, lam):
        X, Y = tensors(device, lam)
        found = torch.func.grad(lambda Y: wasserstein_loss(X, Y, loss_of(lam), tol=1e-9))(Y)
        expected = wtf.wasserstein(X, Y, loss_of(lam), tol=1e-9).gradient
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("modes", [None, (0,), (-1,)])
    def test_vmap_agrees_with_a_loop(self, device, modes):
        X, Y = tensors(device, 1.0, (3, 2, 2) if modes is None else (3, 4, 2))
        loss = wtf.Wasserstein(wtf.grid_cost(4 if modes == (0,) else 2), 0.2, 1.0, modes)

        def both(x, y):
            gradient, value = torch.func.grad_and_value(
                lambda y: wasserstein_loss(x, y, loss, tol=1e-12)
            )(y)
            return value, gradient

        values, gradients = torch.func.vmap(both)(X, Y)
        looped = [both(x, y) for x, y in zip(X, Y, strict=True)]
        torch.testing.assert_close(values, torch.stack([value for value, _ in looped]))
        expected = torch.stack([gradient for _, gradient in looped])
        torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-5)

    def test_vmap_may_run_over_the_prediction_alone(self, device):
        X, Y = tensors(device, 1.0)
        found = torch.func.vmap(
            lambda y: wasserstein_loss(X[0], y, loss_of(1.0), tol=1e-12), in_dims=1
        )(Y.T)
        expected = [wasserstein_loss(X[0], y, loss_of(1.0), tol=1e-12) for y in Y]
        torch.testing.assert_close(found, torch.stack(expected))


def twice_by_autograd(f, Y):
    Y = Y.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(Y), Y, create_graph=True)
    return torch.autograd.grad(first.sum(), Y)


SECOND = {
    "autograd": twice_by_autograd,
    "functional": torch.autograd.functional.hessian,
    "reverse": lambda f, Y: torch.func.jacrev(torch.func.jacrev(f))(Y),
    "forward over reverse": lambda f, Y: torch.func.hessian(f)(Y),
    "forward": lambda f, Y: torch.func.jacfwd(torch.func.jacfwd(f))(Y),
}


@pytest.mark.parametrize("method", SECOND)
def test_second_derivative_is_refused(device, method):
    X, Y = tensors(device, 1.0)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        SECOND[method](lambda Y: wasserstein_loss(X, Y, loss_of(1.0)), Y)


class TestReduction:
    def test_reductions_are_sum_and_mean_of_the_samples(self, device):
        X, Y = tensors(device, 1.0, (3, 2, 4))
        each = wasserstein_loss(X, Y, loss_of(1.0), reduction="none")
        assert each.shape == (3, 2)
        assert wasserstein_loss(X, Y, loss_of(1.0), reduction="sum") == each.sum()
        assert wasserstein_loss(X, Y, loss_of(1.0), reduction="mean") == each.mean()

    def test_unreduced_losses_agree_with_wasserstein(self, device):
        X, Y = tensors(device, 1.0)
        each = wasserstein_loss(X, Y, loss_of(1.0), tol=1e-12, reduction="none")
        for i in range(2):
            alone = wtf.wasserstein(X[i], Y[i], loss_of(1.0), tol=1e-12).value
            torch.testing.assert_close(each[i], alone)

    def test_loss_without_sample_modes_is_a_scalar(self, device):
        X, Y = tensors(device, 1.0, (4,))
        assert wasserstein_loss(X, Y, loss_of(1.0), reduction="none").shape == ()


class TestZeros:
    @pytest.mark.parametrize("lam", [1.0, 10.0, math.inf])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_softmax_that_underflows_has_a_finite_gradient(self, device, lam, dtype):
        logits = torch.asarray([[0.0, 1.0, -2000.0, 0.5]], dtype=dtype, device=device)
        logits.requires_grad_()
        Y = torch.softmax(logits, dim=1)
        assert Y[0, 2] == 0
        X = torch.asarray([[0.0, 0.5, 0.25, 0.25]], dtype=dtype, device=device)
        wasserstein_loss(X, Y, loss_of(lam)).backward()
        assert bool(torch.all(torch.isfinite(logits.grad)))
        assert logits.grad[0, 2] == 0
        assert bool(torch.any(logits.grad != 0))

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradient_at_zero_is_the_limit_from_above(self, device, lam):
        X, _ = tensors(device, lam)
        least = torch.finfo(torch.float64).smallest_normal
        gradients = []
        for small in (0.0, least):
            Y = X.clone()
            Y[:, 1] += Y[:, 0] - small
            Y[:, 0] = small
            Y.requires_grad_()
            wasserstein_loss(X, Y, loss_of(lam), tol=1e-12).backward()
            gradients.append(Y.grad)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradient_in_zeros_of_the_data_is_finite_and_smallest(self, device, lam):
        X, Y = tensors(device, lam)
        X[:, 1] += X[:, 0]
        X[:, 0] = 0.0
        X.requires_grad_()
        wasserstein_loss(X, Y, loss_of(lam)).backward()
        assert bool(torch.all(torch.isfinite(X.grad)))
        assert bool(torch.all(X.grad[:, 0] < X.grad[:, 1:].min(dim=1).values))

    def test_gradient_of_an_empty_sample_is_lam(self, device):
        X, Y = tensors(device, 1.0)
        X[0] = 0.0
        Y.requires_grad_()
        wasserstein_loss(X, Y, loss_of(1.0)).backward()
        torch.testing.assert_close(Y.grad[0], torch.ones_like(Y.grad[0]))  # lam


class TestRefused:
    def test_arrays_of_other_libraries_are_refused(self):
        with pytest.raises(TypeError, match="X is a ndarray: expected a torch tensor"):
            wasserstein_loss(np.ones((2, 4)), np.ones((2, 4)), loss_of(1.0))

    def test_unknown_reduction_is_refused(self, device):
        with pytest.raises(ValueError, match="reduction is 'max': expected one of"):
            wasserstein_loss(*tensors(device, 1.0), loss_of(1.0), reduction="max")

    def test_negative_prediction_is_refused(self, device):
        X, Y = tensors(device, 1.0)
        Y[1, 2] = -1.0
        Y.requires_grad_()
        with pytest.raises(ValueError, match=r"Y is -1\.0 at index \(1, 2\)"):
            wasserstein_loss(X, Y, loss_of(1.0))

    def test_unequal_masses_are_refused(self, device):
        X, Y = tensors(device, 1.0)
        with pytest.raises(ValueError, match="expected the same mass"):
            wasserstein_loss(X, Y, loss_of(math.inf))

    def test_mixed_dtypes_are_refused(self, device):
        X, Y = tensors(device, 1.0)
        with pytest.raises(TypeError, match="expected one dtype"):
            wasserstein_loss(X, Y.to(torch.float32), loss_of(1.0))

    def test_other_losses_are_refused(self, device):
        with pytest.raises(TypeError, match="loss is a Frobenius: expected Wasserstein"):
            wasserstein_loss(*tensors(device, 1.0), wtf.Frobenius())

    def test_too_few_iterations_warn(self, device):
        with pytest.warns(UserWarning, match="increase `max_iter`"):
            wasserstein_loss(*tensors(device, 1.0), loss_of(1.0), tol=1e-14, max_iter=1)

    def test_inputs_are_untouched(self, device):
        X, Y = tensors(device, 1.0)
        before = X.clone(), Y.clone()
        wasserstein_loss(X, Y.requires_grad_(), loss_of(1.0)).backward()
        assert torch.equal(X, before[0])
        assert torch.equal(Y, before[1])


class TestPotential:
    """Warm starts between the steps of a training loop."""

    @pytest.mark.parametrize("lam", LAMS)
    def test_value_and_gradients_are_those_of_a_cold_start(self, device, lam):
        X, Y = tensors(device, lam)
        X.requires_grad_()
        Y.requires_grad_()
        loss = loss_of(lam)
        before = Y.detach() * 1.02 if lam == 1.0 else X.detach()
        _, g = wasserstein_loss(X, before, loss, tol=1e-12, return_potential=True)
        cold = wasserstein_loss(X, Y, loss, tol=1e-12)
        warm = wasserstein_loss(X, Y, loss, tol=1e-12, potential=g)
        torch.testing.assert_close(warm, cold, rtol=1e-10, atol=0.0)
        expected = torch.autograd.grad(cold, (X, Y))
        for found, other in zip(torch.autograd.grad(warm, (X, Y)), expected, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("lam", LAMS)
    def test_potential_of_a_step_saves_iterations_in_the_next(self, device, lam, monkeypatch):
        counted = []
        original = wtf.Wasserstein.solve

        def solve(*arguments, **options):
            counted.append(original(*arguments, **options))
            return counted[-1]

        monkeypatch.setattr(wtf.Wasserstein, "solve", solve)
        X, Y = tensors(device, lam, (4, 32))
        loss = loss_of(lam, n=32, eps=0.01)
        _, g = wasserstein_loss(X, Y, loss, return_potential=True)
        Y = Y * (1.0 + 1e-3 * torch.sin(torch.arange(32.0, device=device)))
        if math.isinf(lam):
            Y = Y * X.sum(dim=1, keepdim=True) / Y.sum(dim=1, keepdim=True)
        wasserstein_loss(X, Y, loss)
        wasserstein_loss(X, Y, loss, potential=g)
        _, cold, warm = (solution.n_iter for solution in counted)
        assert warm <= 0.75 * cold

    def test_potential_is_that_of_wasserstein(self, device):
        X, Y = tensors(device, 1.0)
        _, g = wasserstein_loss(X, Y, loss_of(1.0), tol=1e-9, return_potential=True)
        expected = wtf.wasserstein(X, Y, loss_of(1.0), tol=1e-9).potential
        assert g.shape == Y.shape
        torch.testing.assert_close(g, expected)

    def test_no_gradient_flows_through_the_potential(self, device):
        X, Y = tensors(device, 1.0)
        g = torch.zeros_like(Y).requires_grad_()
        value, new = wasserstein_loss(
            X, Y.requires_grad_(), loss_of(1.0), potential=g, return_potential=True
        )
        assert not new.requires_grad
        assert torch.autograd.grad(value, g, allow_unused=True) == (None,)

    def test_same_arguments_give_the_same_result(self, device):
        X, Y = tensors(device, 1.0)
        first = wasserstein_loss(X, Y, loss_of(1.0), return_potential=True)
        wasserstein_loss(X, Y, loss_of(1.0), potential=first[1])
        again = wasserstein_loss(X, Y, loss_of(1.0), return_potential=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

    @pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, 0, None)])
    def test_vmap_maps_potentials(self, device, in_dims):
        X, Y = tensors(device, 1.0, (3, 2, 4))
        start = torch.zeros_like(X) if in_dims[2] == 0 else torch.zeros_like(X[0])

        def both(x, y, g):
            return wasserstein_loss(
                x, y, loss_of(1.0), tol=1e-12, potential=g, return_potential=True
            )

        values, potentials = torch.func.vmap(both, in_dims=in_dims)(X, Y, start)
        for k in range(3):
            value, g = both(X[k], Y[k], torch.zeros_like(X[k]))
            torch.testing.assert_close(values[k], value)
            torch.testing.assert_close(potentials[k], g, rtol=1e-5, atol=1e-5)

    def test_func_grad_returns_the_potential_as_auxiliary_output(self, device):
        X, Y = tensors(device, 1.0)

        def both(Y):
            return wasserstein_loss(X, Y, loss_of(1.0), tol=1e-9, return_potential=True)

        gradient, g = torch.func.grad(both, has_aux=True)(Y)
        expected = wtf.wasserstein(X, Y, loss_of(1.0), tol=1e-9)
        torch.testing.assert_close(gradient, expected.gradient)
        torch.testing.assert_close(g, expected.potential)

    def test_bad_potentials_are_refused(self, device):
        X, Y = tensors(device, 1.0)
        for bad, error, message in (
            (Y.tolist(), TypeError, "potential is a list: expected a torch tensor"),
            (Y[:1], ValueError, r"potential has shape \(1, 4\): expected \(2, 4\)"),
            (Y.to(torch.float32), TypeError, "potential has dtype torch.float32 and X torch.float"),
            (Y * math.nan, ValueError, r"potential is nan at index \(0, 0\) and at 7 more places"),
        ):
            with pytest.raises(error, match=message):
                wasserstein_loss(X, Y, loss_of(1.0), potential=bad)
        with pytest.raises(ValueError, match="return_potential is 'yes': expected one of"):
            wasserstein_loss(X, Y, loss_of(1.0), return_potential="yes")
