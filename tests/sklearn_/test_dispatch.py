"""The estimators with array API dispatch: the arrays that go in come out."""

import os
import subprocess
import sys

import pytest


def run_with_dispatch(code):
    """Run code in a process of its own: SciPy looks at this variable once, when imported."""
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr


CHECKS = """
from sklearn.utils.estimator_checks import check_array_api_input, check_array_api_same_namespace
import wtfarray.sklearn

for name in {names!r}:
    model = getattr(wtfarray.sklearn, name)(eps=0.5, tol=1e-3)
    for dtype in ("float64", "float32"):
        check_array_api_input(
            name, model, {library!r}, dtype_name=dtype, device_name={device!r},
            check_values={values} and dtype == "float64", check_sample_weight=True,
        )
    check_array_api_same_namespace(name, model, {library!r}, {device!r})
"""

TORCH_OUT = """
import numpy as np, sklearn, torch
from wtfarray.sklearn import WassersteinCP

X = torch.asarray(np.random.default_rng(0).dirichlet(np.ones(36), 8).reshape(8, 6, 6))
with sklearn.config_context(array_api_dispatch=True):
    model = WassersteinCP(2, eps=0.2, random_state=0).fit(X, sample_weight=np.arange(8))
    model.partial_fit(X[:4])
    W = model.transform(X)
    back = model.inverse_transform(W)
    assert isinstance(model.score(X), float)
for found in (model.components_, *model.factors_, W, back):
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float64
assert back.shape == X.shape

start = WassersteinCP(2, eps=0.2, random_state=0, tol=1e-8)
expected = start.fit(X.numpy())
with sklearn.config_context(array_api_dispatch=True):
    found = sklearn.clone(start).fit(X)
for mine, theirs in zip(found.factors_, expected.factors_, strict=True):
    np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-3, atol=1e-4)
"""


def test_array_api_strict_in_array_api_strict_out(backend):
    if backend.name != "strict-device1":
        pytest.skip("one device is enough, in the session of array-api-strict")
    names = ["WassersteinTucker"]  # what it does includes what the others do
    run_with_dispatch(
        CHECKS.format(names=names, library="array_api_strict", device="device1", values=True)
    )


def test_torch_in_torch_out(backend):
    """Values agree with those of NumPy, but not to the digits that scikit-learn's check wants."""
    if backend.name != "torch":
        pytest.skip("torch is installed in its own session only")
    names = ["WassersteinNMF", "WassersteinCP", "WassersteinTucker"]
    run_with_dispatch(
        CHECKS.format(names=names, library="torch", device="cpu", values=False) + TORCH_OUT
    )
