"""The tests of the estimators run in the session of NumPy, but for array API dispatch."""

import pytest


@pytest.fixture(scope="module")
def numpy_estimators(backend):
    if backend.name != "numpy":
        pytest.skip("what comes from scikit-learn is NumPy's, but for dispatch: tested with NumPy")
