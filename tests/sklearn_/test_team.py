"""Estimators of several processes."""

import numpy as np
import pytest
from helpers import numpy_only
from sklearn.base import clone
from teams import TIMEOUT, images

from wtfarray.distributed import run_threads, threads
from wtfarray.sklearn import CoupledWassersteinNMF, WassersteinCP, WassersteinNMF

pytestmark = numpy_only
OPTIONS = {"eps": 0.05, "random_state": 0, "tol": 1e-5}


@pytest.mark.parametrize("kind", [WassersteinNMF, WassersteinCP])
def test_components_are_those_of_one_process(kind):
    X = images(20, (8,), 0.5) if kind is WassersteinNMF else images(20, (4, 4), 0.5)
    weights = np.linspace(0.5, 2.0, 20)
    one = kind(2, **OPTIONS).fit(X, sample_weight=weights)

    def fit(comm):
        mine, own = (np.split(a, [7])[comm.rank] for a in (X, weights))
        model = kind(2, comm=comm, **OPTIONS).fit(mine, sample_weight=own)
        return model, model.transform(mine)

    team = run_threads(fit, 2, timeout=TIMEOUT)
    first, second = (model for model, _ in team)
    assert np.array_equal(first.components_, second.components_)
    assert first.reconstruction_err_ == second.reconstruction_err_
    assert first.n_samples_seen_ == pytest.approx(weights.sum())
    # The order of the samples, and so the random start, is another: compare what was reached.
    assert first.reconstruction_err_ == pytest.approx(one.reconstruction_err_, rel=0.05)
    assert [rows.shape for _, rows in team] == [(7, 2), (13, 2)]


def test_coupled_components_are_those_of_one_process():
    X = np.hstack([images(20, (8,), 0.5), images(20, (6,), 0.7)])
    X[3, :8] = np.nan
    weights = np.linspace(0.5, 2.0, 20)
    options = OPTIONS | {"blocks": (8, 6)}
    one = CoupledWassersteinNMF(2, **options).fit(X, sample_weight=weights)

    def fit(comm):
        mine, own = (np.split(a, [7])[comm.rank] for a in (X, weights))
        model = CoupledWassersteinNMF(2, comm=comm, **options).fit(mine, sample_weight=own)
        return model, model.transform(mine)

    team = run_threads(fit, 2, timeout=TIMEOUT)
    first, second = (model for model, _ in team)
    assert np.array_equal(first.components_, second.components_)
    assert first.fit_.objective == second.fit_.objective
    # Another order of the samples has another random start.
    assert first.score(X, sample_weight=weights) == pytest.approx(
        one.score(X, sample_weight=weights), rel=0.05
    )
    assert [rows.shape for _, rows in team] == [(7, 2), (13, 2)]


def test_costs_of_the_samples_of_one_process_are_refused():
    def fit(comm):
        X = np.hstack([images(6, (8,)), images(6, (6,))])
        model = CoupledWassersteinNMF(2, blocks=(8, 6), costs=["cosine"] * 2, comm=comm)
        model.fit(X)

    with pytest.raises((ValueError, RuntimeError), match="comm was given and costs is"):
        run_threads(fit, 2, timeout=20.0)


def test_parameters_have_to_be_the_same():
    def fit(comm):
        model = WassersteinNMF(2, lam=1.0 + comm.rank, comm=comm, eps=0.05)
        model.fit(images(6, (8,)))

    with pytest.raises((ValueError, RuntimeError), match="lam differs from that of rank 0"):
        run_threads(fit, 2, timeout=20.0)


def test_partial_fit_is_refused_by_name():
    comm, _ = threads(2)
    with pytest.raises(ValueError, match="comm was given, which partial_fit does not support"):
        WassersteinNMF(2, comm=comm).partial_fit(images(6, (8,)))


def test_clones_share_the_team():
    (comm,) = threads(1)
    assert clone(WassersteinNMF(2, comm=comm)).comm is comm
