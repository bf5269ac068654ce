"""Losses in closed form against torch's derivatives."""

import array_api_compat
import numpy as np
import pytest
from helpers import assert_close
from oracles import random_data, random_dual

import wtfarray as wtf


@pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.KullbackLeibler()], ids=repr)
class TestConjugates:
    def test_gradient_agrees_with_torch_autograd(self, array, xp, loss):
        if not array_api_compat.is_torch_namespace(xp):
            pytest.skip("torch's own derivative needs --backend torch")
        rng = np.random.default_rng(0)
        X, U = array(random_data(rng)), array(random_dual(rng, 1.0)).requires_grad_()
        if isinstance(loss, wtf.Frobenius):
            value = xp.sum(X * U + 0.5 * U**2)
        else:
            value = -xp.sum(X * xp.log(1 - U))
        value.backward()
        result, gradient = loss.conjugate(X, U.detach())
        assert_close(result, value.detach(), rtol=1e-13)
        assert_close(gradient, U.grad, rtol=1e-13)
