"""The coefficients of known atoms against other ones, and the gap that certifies them."""

import numpy as np
import pytest
from helpers import numpy_only
from known_atoms import BINS, LOSS, LOSSES, atoms, mixtures

import wtfarray as wtf

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def objective(X, coefficients, loss, rho, basis=None):
    """The loss plus the weighted entropy, of one sample of mass one."""
    model = (coefficients @ (atoms() if basis is None else basis))[None, :]
    parts = loss.losses if isinstance(loss, wtf.LossSum) else (loss,)
    total = 0.0
    for part in parts:
        if isinstance(part, wtf.Wasserstein):
            total += float(wtf.wasserstein(X[None, :], model, part, tol=1e-10).value)
        else:
            total += float(np.sum(part.value_and_gradient(X[None, :], model)[0]))
    return total + rho * float(wtf.entropy(coefficients)[0])


@numpy_only
class TestOptimality:
    @every_loss
    @pytest.mark.parametrize("constraint", [None, "rows"])
    def test_no_other_coefficients_are_better(self, loss, constraint):
        """By more than the gap, which is small."""
        X, _ = mixtures(1)
        x, rho = X[0] / X[0].sum(), 1e-3
        found = wtf.unmix(x, atoms(), loss, rho=rho, constraint=constraint)
        assert found.gap <= 1e-4 * abs(found.objective)
        coefficients, basis = found.coefficients, atoms()
        if isinstance(loss, wtf.Frobenius) and constraint is None:  # samples and atoms of norm one
            norms, norm = np.linalg.norm(basis, axis=1), np.linalg.norm(x)
            x, basis, coefficients = x / norm, basis / norms[:, None], coefficients * norms / norm
        best = objective(x, coefficients, loss, rho, basis)
        assert best == pytest.approx(found.objective, abs=found.gap + 1e-9)
        rng = np.random.default_rng(0)
        for size in (1e-3, 1e-2, 1e-1) * 3:
            other = coefficients * np.exp(size * rng.normal(size=3))
            other = other / other.sum() if constraint else other
            assert objective(x, other, loss, rho, basis) >= best - found.gap - 1e-9

    def test_gap_bounds_the_error_of_an_early_stop(self):
        X, _ = mixtures(2)
        exact = wtf.unmix(X, atoms(), LOSS)
        with pytest.warns(UserWarning, match="unmix: stopped after max_iter = 2"):
            early = wtf.unmix(X, atoms(), LOSS, max_iter=2)
        assert not early.converged
        assert 0 < early.objective - exact.objective <= early.gap

    @pytest.mark.parametrize("debias", [False, True])
    def test_kinks_are_certified(self, debias):
        """Bins are many eps apart, and the gradient hardly changes until it jumps."""
        X, _ = mixtures(2)
        loss = wtf.Wasserstein(wtf.grid_cost(BINS, scale=None), 0.02, 20.0, debias=debias)
        found = wtf.unmix(X, atoms(), loss)
        assert found.converged
        other = wtf.unmix(X, atoms(), loss, tol=1e-12)
        assert abs(other.objective - found.objective) <= found.gap + other.gap
