"""The tests of the estimators run in the session of NumPy, but for array API dispatch."""

import pytest


@pytest.fixture(autouse=True)
def fits_without_escape(no_escape):
    """How a fit leaves saddle points is not tested here."""


@pytest.fixture(scope="module")
def numpy_estimators(backend):
    if backend.name != "numpy":
        pytest.skip("what comes from scikit-learn is NumPy's, but for dispatch: tested with NumPy")


@pytest.fixture(scope="session")
def fitted_estimators():
    """By class, a fitted estimator and its data."""
    from estimators import ESTIMATORS, FAST, data_of

    return {cls: (cls(2, **FAST).fit(data_of(cls)), data_of(cls)) for cls in ESTIMATORS}


@pytest.fixture(params=["WassersteinNMF", "WassersteinCP", "WassersteinTucker"])
def fitted(request, numpy_estimators, fitted_estimators):
    """One of them."""
    (found,) = (pair for cls, pair in fitted_estimators.items() if cls.__name__ == request.param)
    return found
