"""The online solver: near the joint solver, from files, resumed, and what it refuses."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from fitting import data, planted, transport
from helpers import to_numpy
from stored_data import Sliceable
from teams import TIMEOUT

import wtfarray as wtf
from wtfarray._fit import online, online_batches, restarts
from wtfarray.distributed import run_threads

SHAPE = (40, 12)


def mixtures(samples=SHAPE[0], bins=SHAPE[1], seed=0):
    """Mixtures of two bumps, each sample moved a little."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 1.0, bins)
    shares = rng.dirichlet([0.5, 0.5], samples)
    centres = np.array([0.25, 0.75]) + 0.04 * rng.normal(size=(samples, 2))
    X = np.einsum("nk,nkb->nb", shares, np.exp(-(((x - centres[..., None]) / 0.12) ** 2)))
    return X / X.sum(axis=1, keepdims=True)


def loss():
    return transport(shape=(12,), eps=0.05)


def fitted(X, model=wtf.nmf, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model.__name__}: (after|stopped)")
        return model(X, 2, loss(), **{"solver": "online", "rng": 0, "batch": 8, **options})


@pytest.fixture(autouse=True)
def small_first_fit(monkeypatch):
    settings = online.OnlineSettings(first=16, first_starts=1, last_batch=16)
    monkeypatch.setattr(online, "SETTINGS", settings)
    monkeypatch.setattr(online_batches, "RUN", 4)


def test_objective_is_near_that_of_the_joint_solver(array):
    X = mixtures()
    joint = wtf.nmf(X, 2, loss(), rng=0)
    fit = fitted(array(X))
    assert abs(fit.objective - joint.objective) < 0.02 * abs(joint.objective)
    assert fit.factors[0].shape == (40, 2)
    assert fit.gap < 1e-3 * abs(fit.objective)
    np.testing.assert_allclose(to_numpy(fit.factors[1]).sum(axis=0), 1.0, rtol=1e-10)


@pytest.mark.usefixtures("on_numpy")
class TestOnline:
    def test_more_passes_come_closer(self):
        X = mixtures()
        joint = wtf.nmf(X, 2, loss(), rng=0)
        found = [fitted(X, max_iter=passes).objective - joint.objective for passes in (1, 4)]
        assert found[1] < 5e-3 * abs(joint.objective)
        assert found[1] < found[0]

    def test_objective_is_certified(self):
        X = mixtures()
        fit = fitted(X)
        value = wtf.wasserstein(X, fit.to_tensor(), loss(), tol=1e-9).value
        pairs = zip(fit.rho, fit.factors, strict=True)
        entropies = sum(rho * float(np.sum(a * np.log(a) - a)) for rho, a in pairs)
        assert fit.objective <= value + entropies + 1e-9
        assert fit.objective + fit.gap >= value + entropies - 1e-9

    def test_files_are_read_in_runs(self):
        source = Sliceable(mixtures())
        fit = fitted(source, chunk=16)
        assert abs(fit.objective - fitted(mixtures()).objective) < 0.02 * abs(fit.objective)
        runs = {stop - start for start, stop in source.read}
        assert 4 in runs
        assert fit.dual.shape == SHAPE

    def test_each_pass_uses_every_sample_once(self):
        source = Sliceable(mixtures())
        fitted(source, chunk=40, max_iter=2)
        runs = [start for start, stop in source.read if stop - start == 4]
        counts = np.unique(runs, return_counts=True)[1]
        assert counts.sum() == 4 + 2 * 10  # those of the first fit, and two passes
        assert set(counts.tolist()) == {2, 3}

    def test_cp_and_weights(self):
        X, factors = planted("cp")
        weights = np.linspace(0.5, 2.0, X.shape[0])
        options = {"rng": 0, "sample_weight": weights, "init": factors}
        joint = wtf.cp(X, 2, transport(), **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="cp: after")
            fit = wtf.cp(X, 2, transport(), solver="online", max_iter=8, batch=3, **options)
        assert abs(fit.objective - joint.objective) < 0.02 * abs(joint.objective)

    def test_loose_tolerance_is_met_and_a_strict_one_is_not(self):
        assert fitted(mixtures(), tol=0.5).converged
        with pytest.warns(UserWarning, match="after max_iter = 1 passes the objective is not"):
            fit = wtf.nmf(mixtures(), 2, loss(), rng=0, solver="online", batch=8, tol=1e-12)
        assert not fit.converged

    def test_callback_sees_every_batch_and_ends_the_fit(self):
        states = []
        fit = fitted(mixtures(), callback=lambda state: states.append(state) or len(states) == 3)
        assert [state.n_iter for state in states] == [1, 2, 3]
        assert all(state.level == math.inf for state in states)
        assert states[0].blocks()[0].shape == (40, 2)
        assert not fit.converged
        assert "stopped by the callback" in fit.message

    def test_resumed_fit_is_bit_equal_to_one_never_stopped(self, tmp_path):
        path = tmp_path / "state"
        expected = fitted(mixtures(), max_iter=2)
        options = {"max_iter": 2, "checkpoint": path}
        fitted(mixtures(), callback=lambda state: state.n_iter == 7, **options)
        assert path.exists()
        fit = fitted(mixtures(), **options)
        assert fit.objective == expected.objective
        np.testing.assert_array_equal(fit.factors[0], expected.factors[0])

    def test_checkpoint_of_another_fit_is_refused(self, tmp_path):
        path = tmp_path / "state"
        fitted(mixtures(), checkpoint=path, callback=lambda _: True)
        with pytest.raises(ValueError, match="different data or arguments"):
            fitted(mixtures(seed=1), checkpoint=path)

    def test_same_seed_gives_the_same_fit(self):
        first, second = (fitted(mixtures(), rng=3) for _ in range(2))
        np.testing.assert_array_equal(first.factors[1], second.factors[1])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"loss": wtf.KullbackLeibler()}, "losses other than one Wasserstein loss"),
            ({"loss": transport(debias=True)}, "losses other than one Wasserstein loss"),
            ({"loss": transport(shape=(6, 5, 4))}, "transport of the first mode"),
            ({"constraints": ("columns", "columns", "columns")}, "constraints"),
            ({"n_init": 2}, "n_init = 2"),
            ({"mask": np.arange(120).reshape(6, 5, 4) > 3}, "a mask"),
            ({"init": [np.ones((n, 2)) for n in (6, 5, 4)], "fixed": (1,)}, "fixed factors"),
        ],
        ids=["KL", "debias", "whole", "constraints", "n_init", "mask", "fixed"],
    )
    def test_what_is_not_supported_is_named(self, options, message):
        with pytest.raises(ValueError, match=f"solver is 'online', which does not .*{message}"):
            wtf.cp(data(), 2, solver="online", **{"loss": transport(), **options})

    def test_tucker_is_refused(self):
        with pytest.raises(ValueError, match="does not support a Tucker model"):
            wtf.tucker(data(), (2, 2, 2), transport(), solver="online")


@pytest.mark.filterwarnings("ignore:nmf. (after|stopped|interrupted):UserWarning")
@pytest.mark.usefixtures("on_numpy")
class TestSeveralProcesses:
    """Batches are those of one process, of which each process has its own samples."""

    OPTIONS = {"solver": "online", "rng": 0, "batch": 8}  # noqa: RUF012

    def team(self, cuts, X=None, kind=np.asarray, **options):
        X = mixtures() if X is None else X

        def fit(comm):
            mine = kind(np.split(X, cuts)[comm.rank])
            return wtf.nmf(mine, 2, loss(), comm=comm, **self.OPTIONS, **options)

        fits = run_threads(fit, len(cuts) + 1, timeout=TIMEOUT)
        for other in fits[1:]:
            assert np.array_equal(fits[0].factors[1], other.factors[1])
            assert (fits[0].objective, fits[0].message) == (other.objective, other.message)
        return fits

    def test_several_starts_of_the_first_fit(self, monkeypatch):
        """The team keeps the best one together."""
        monkeypatch.setattr(online, "SETTINGS", replace(online.SETTINGS, first_starts=2))
        starts, best_of = [], restarts.best_of

        def counted(count, *args):
            starts.append(count)
            return best_of(count, *args)

        monkeypatch.setattr(restarts, "best_of", counted)
        one, team = fitted(mixtures()), self.team([13])
        assert starts == [2, 2, 2]
        assert team[0].objective == pytest.approx(one.objective, rel=2e-3)

    @pytest.mark.parametrize("cuts", [[13], [0, 5]])
    def test_fit_is_that_of_one_process(self, cuts):
        """But for the order of the samples of a batch; also a process without samples."""
        one, team = fitted(mixtures()), self.team(cuts)
        rows = np.concatenate([fit.factors[0] for fit in team])
        np.testing.assert_allclose(rows, one.factors[0], atol=0.02)
        np.testing.assert_allclose(team[0].factors[1], one.factors[1], atol=5e-3)
        assert team[0].objective == pytest.approx(one.objective, rel=2e-3)
        assert team[0].converged == one.converged

    def test_weights_and_given_factors(self):
        X, factors = planted("cp")
        weights = np.linspace(0.5, 2.0, X.shape[0])
        options = {"rng": 0, "solver": "online", "max_iter": 3, "batch": 3, "tol": 0.5}

        def fit(comm):
            mine = slice(0, 3) if comm.rank == 0 else slice(3, None)
            init = [factors[0][mine], *factors[1:]]
            given = {"init": init, "sample_weight": weights[mine], "comm": comm}
            return wtf.cp(X[mine], 2, transport(), **given, **options)

        one = wtf.cp(X, 2, transport(), init=factors, sample_weight=weights, **options)
        for found in run_threads(fit, 2, timeout=TIMEOUT):
            assert found.objective == pytest.approx(one.objective, rel=1e-3)

    def test_files(self):
        """Runs of a file that the boundary of two processes cuts are read by both."""
        team = self.team([18], kind=Sliceable, chunk=16)
        assert team[0].objective == pytest.approx(fitted(mixtures()).objective, rel=0.02)
        assert [fit.dual.shape for fit in team] == [(18, 12), (22, 12)]

    def test_callback_and_interrupt_of_one_process_end_all(self):
        def fit(comm, action):
            def callback(state):
                return action() if comm.rank == 1 and state.n_iter == 2 else None

            mine = np.split(mixtures(), 2)[comm.rank]
            return wtf.nmf(mine, 2, loss(), comm=comm, callback=callback, **self.OPTIONS)

        def interrupt():
            raise KeyboardInterrupt

        for action, word in ((lambda: True, "stopped by the callback"), (interrupt, "interrupted")):
            fits = run_threads(lambda comm, act=action: fit(comm, act), 2, timeout=TIMEOUT)
            assert all(word in found.message and found.n_iter == 2 for found in fits)
