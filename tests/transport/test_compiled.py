"""The compiled kernel against the kernel of NumPy."""

import math

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._transport.kernels import GibbsKernel

jax = pytest.importorskip("jax", reason="JAX is not installed; the jax session has it")

import jax.numpy as jnp  # noqa: E402

from wtfarray._transport.compiled import CompiledKernel  # noqa: E402


@pytest.fixture(autouse=True)
def only_on_jax(backend):
    if backend.name != "jax":
        pytest.skip("compiled loops are JAX's: tested in the jax session")


@pytest.mark.parametrize("eps", [1.0, 1e-4])
def test_compiled_kernel_agrees_with_numpy_despite_underflow(eps):
    """At 1e-4 the plain products are 0 almost everywhere."""
    costs = tuple(wtf.grid_cost(3, 4))
    kernel = GibbsKernel.of(costs, eps)
    compiled = CompiledKernel(
        *(tuple(map(jnp.asarray, costs)), eps, tuple(map(jnp.asarray, kernel.matrices)), True)
    )
    logs = np.random.default_rng(0).normal(scale=1e3, size=(2, 3, 4))
    logs[0, 1, :] = -math.inf
    logs[1, :, :] = -math.inf
    for name in ("log_apply", "log_apply_adjoint"):
        found = jax.jit(getattr(compiled, name))(jnp.asarray(logs))
        np.testing.assert_allclose(to_numpy(found), getattr(kernel, name)(logs), rtol=1e-13)
