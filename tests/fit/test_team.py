"""One fit of several processes: equal to that of one, and never a hang."""

import math
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, to_numpy
from teams import (
    GRID_LOSS,
    TIMEOUT,
    assert_alike,
    images,
    quietly,
    relative_differences,
    team_fit,
    traced,
)

import wtfarray as wtf
from wtfarray._fit.team import Interrupts
from wtfarray._transport import anderson
from wtfarray.distributed import run_threads, threads

pytestmark = quietly


@pytest.fixture(autouse=True)
def accurate_secants(monkeypatch):
    """
    Keep secants in float64.

    Rounding of float32 secants grows from step to step, by any change of the data by 1e-16 as well.
    """
    monkeypatch.setattr(anderson, "STORED", "float64")


def check_equal(array, function, X, cuts, *args, sample_weight=None, **options):
    """The first ten steps are those of one process, and all ranks have the same bits."""
    options = {"rng": 0, "last": 10, **options}
    weights = {} if sample_weight is None else {"sample_weight": array(sample_weight)}
    one = traced(function, array(X), *args, **weights, **options)
    team = team_fit(array, function, X, cuts, *args, sample_weight=sample_weight, **options)
    assert relative_differences(one, team[0]).max() <= 1e-11
    assert_alike(team)
    rows = np.concatenate([to_numpy(trace.fit.factors[0]) for trace in team])
    assert rows.shape == tuple(one.fit.factors[0].shape)
    return one, team


def test_every_library(array):
    one, team = check_equal(array, wtf.cp, images(10), [5], 2, GRID_LOSS)
    rows = np.concatenate([to_numpy(trace.fit.factors[0]) for trace in team])
    np.testing.assert_allclose(rows, to_numpy(one.fit.factors[0]), rtol=1e-6, atol=1e-9)


@numpy_only
class TestEqual:
    @pytest.mark.parametrize("cuts", [[7], [1, 12], [5, 5], [0, 20]])
    def test_shards_of_any_size(self, array, cuts):
        one, team = check_equal(array, wtf.cp, images(), cuts, 3, GRID_LOSS)
        counts = [trace.fit.history[-1].evaluations for trace in (one, team[0])]
        assert abs(counts[0] - counts[1]) <= 1  # a mean, rounded up on each rank

    @pytest.mark.parametrize("init", ["random", "nnsvd", "kl"])
    def test_tucker_and_starts(self, array, init):
        check_equal(array, wtf.tucker, images(), [9, 11], (2, 3, 3), GRID_LOSS, init=init)

    @pytest.mark.parametrize("first", [None, "rows", "columns", "all"])
    def test_constraints(self, array, first):
        loss = wtf.KullbackLeibler()
        constraints = (first, "columns")
        check_equal(array, wtf.nmf, images(), [9, 11], 3, loss, constraints=constraints)

    def test_sum_of_losses_with_sample_weights(self, array):
        weights = np.random.default_rng(1).uniform(0.0, 2.0, 24)
        loss = wtf.LossSum(GRID_LOSS, wtf.Frobenius())
        check_equal(array, wtf.cp, images(), [9, 11], 3, loss, sample_weight=weights)

    def test_given_factors_and_a_fixed_one(self):
        rng = np.random.default_rng(1)
        factors = [rng.uniform(0.1, 1.0, shape) for shape in ((24, 3), (6, 3), (6, 3))]
        one = traced(wtf.cp, images(), 3, GRID_LOSS, init=factors, fixed=(1,), last=10)

        def fit(comm):
            rows = [np.split(factors[0], [9])[comm.rank], *factors[1:]]
            mine = np.split(images(), [9])[comm.rank]
            options = {"init": rows, "fixed": (1,), "last": 10, "comm": comm}
            return traced(wtf.cp, mine, 3, GRID_LOSS, **options)

        team = run_threads(fit, 2, timeout=TIMEOUT)
        assert relative_differences(one, team[0]).max() <= 1e-11
        assert_alike(team)

    def test_batches_whole_and_cut(self, array, monkeypatch):
        """Batches of 5 samples, of which some are on two ranks."""
        set_thresholds(monkeypatch, cached_entries=5 * 36)
        check_equal(array, wtf.cp, images(), [7, 18], 3, GRID_LOSS)
        check_equal(array, wtf.cp, images(), [7, 18], 3, GRID_LOSS, batch=4)

    def test_newton(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(12), eps=1e-3, lam=1.0)
        check_equal(array, wtf.nmf, images(shape=(12,)), [9, 11], 3, loss)

    @pytest.mark.parametrize("cuts", [[3, 12], [0, 12]])
    def test_balanced(self, array, cuts):
        loss = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05)
        check_equal(array, wtf.cp, images(), cuts, 3, loss)

    @pytest.mark.parametrize(
        ("lam", "source_lam"), [(10.0, math.inf), (math.inf, math.inf), (10.0, 5.0)]
    )
    def test_debiased(self, array, lam, source_lam):
        """Also a rank without samples, and weights."""
        cost = wtf.grid_cost(6, 6)
        loss = wtf.Wasserstein(cost, eps=0.05, lam=lam, debias=True, source_lam=source_lam)
        check_equal(array, wtf.cp, images(), [5, 5], 3, loss)
        if source_lam < math.inf:
            return  # weights do not concern it
        weights = np.linspace(0.5, 2.0, 24)
        check_equal(array, wtf.cp, images(), [7], 3, loss, sample_weight=weights)

    def test_coarse_grid(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.05, lam=10.0)
        check_equal(array, wtf.cp, images(8, (32, 32), 0.3), [2, 5], 2, loss, last=25)

    @pytest.mark.parametrize("init", ["kl", "nnsvd"])
    def test_missing_entries_on_some_ranks(self, init):
        rng = np.random.default_rng(1)
        mask = rng.uniform(size=(24, 6, 6)) > 0.2
        mask[12:] = True
        options = {"rng": 0, "last": 10, "init": init}
        one = traced(wtf.cp, images(), 3, GRID_LOSS, mask=mask, **options)

        def fit(comm):
            mine, seen = (np.split(a, [5, 12])[comm.rank] for a in (images(), mask))
            return traced(wtf.cp, mine, 3, GRID_LOSS, mask=seen, comm=comm, **options)

        team = run_threads(fit, 3, timeout=TIMEOUT)
        assert relative_differences(one, team[0]).max() <= 1e-11
        assert_alike(team)

    @pytest.mark.parametrize(
        "loss", [GRID_LOSS, wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05), wtf.Frobenius()]
    )
    def test_dual_solver(self, array, loss):
        """A sweep has hundreds of steps: it differs as one does whose X is changed by 1e-16."""
        options = {"rng": 0, "solver": "dual", "last": 1}
        weights = np.linspace(0.5, 2.0, 24)
        one = traced(wtf.cp, images(), 2, loss, sample_weight=weights, **options)
        team = team_fit(array, wtf.cp, images(), [1, 13], 2, loss, sample_weight=weights, **options)
        assert relative_differences(one, team[0], 1).max() <= 5e-3
        assert_alike(team)

    def test_several_starts(self, array):
        options = {"n_init": 3, "last": 40, "max_iter": 10}
        check_equal(array, wtf.cp, images(), [9, 11], 3, GRID_LOSS, **options)

    def test_own_loss(self, array):
        class Huber:
            def value_and_gradient(self, X, Y):
                root = np.sqrt(1.0 + (Y - X) ** 2)
                return np.sum(root - 1.0, axis=1), (Y - X) / root

            def __repr__(self):
                return "Huber()"

        check_equal(array, wtf.nmf, images(shape=(12,)), [9, 11], 3, Huber(), rho=1e-4)

    def test_one_process_is_bitwise_as_without_team(self):
        (comm,) = threads(1)
        alone, team = (
            wtf.cp(images(), 3, GRID_LOSS, rng=0, max_iter=20, comm=c) for c in (None, comm)
        )
        assert all(np.array_equal(a, b) for a, b in zip(alone.factors, team.factors, strict=True))
        assert alone.objective == team.objective
        assert comm.messages == 0

    def test_without_a_seed_all_ranks_start_alike(self, array):
        assert_alike(team_fit(array, wtf.cp, images(), [9], 2, GRID_LOSS, last=5, rng=None))

    def test_escape_from_a_saddle_point(self, array):
        """A small fit that has converged is perturbed, by all ranks alike."""
        X = images(8, (8,), 0.5)
        team = team_fit(array, wtf.nmf, X, [3], 2, wtf.KullbackLeibler(), rng=0)
        one = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0)
        assert team[0].fit.objective == pytest.approx(one.objective, rel=1e-5)
        assert_alike(team)


@numpy_only
class TestProjection:
    FIT = wtf.cp(images(12), 2, GRID_LOSS, rng=0, tol=1e-4)

    def project(self, cuts, fit=FIT, **options):
        def run(comm):
            mine = np.split(images(9, seed=3), cuts)[comm.rank]
            return fit.projection(mine, comm=comm, **options)

        return run_threads(run, len(cuts) + 1, timeout=TIMEOUT)

    @pytest.mark.parametrize("cuts", [[4], [0, 8]])
    def test_is_that_of_one_process(self, cuts):
        one = self.FIT.projection(images(9, seed=3))
        team = self.project(cuts)
        rows = np.concatenate([found.factors[0] for found in team])
        np.testing.assert_allclose(rows, one.factors[0], atol=1e-4)
        for found in team:
            assert found.converged
            assert found.objective == team[0].objective == pytest.approx(one.objective, abs=1e-6)
            assert (found.gap, found.message) == (team[0].gap, team[0].message)

    @pytest.mark.filterwarnings("ignore:project. stopped:UserWarning")
    def test_rank_that_does_not_converge_is_known_to_all(self):
        for found in self.project([4], max_iter=1):
            assert not found.converged
            assert "max_iter = 1" in found.message

    def test_samples_that_depend_on_each_other_are_refused(self):
        constraints = ("columns", "columns")
        fit = wtf.nmf(images(12), 2, wtf.KullbackLeibler(), rng=0, constraints=constraints)
        with pytest.raises(ValueError, match="comm was given, but the first factor"):
            self.project([4], fit)

    def test_bad_samples_on_one_rank(self):
        def run(comm):
            mine = images(4)[:, : 6 - comm.rank]
            self.FIT.project(mine, comm=comm)

        with pytest.raises(ValueError, match=r"X has shape \(4, 5, 6\)"):
            run_threads(run, 2, timeout=20.0)


@numpy_only
class TestFaults:
    def failure(self, fit, size=3):
        """The errors of all ranks, which have to come soon."""
        team, errors = threads(size, timeout=20.0), []

        def run(comm):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                fit(comm)
            errors.append((comm.rank, caught.value))

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(size) as pool:
            list(pool.map(run, team))
        return [error for _, error in sorted(errors, key=lambda pair: pair[0])]

    def fit(self, comm, **options):
        mine = np.array_split(images(), comm.size)[comm.rank]
        options = {"rng": 0, "max_iter": 10, "comm": comm, **options}
        return wtf.cp(mine, 2, options.pop("loss", GRID_LOSS), **options)

    def test_bad_data_on_one_rank(self):
        def fit(comm):
            mine = np.array_split(images(), comm.size)[comm.rank].copy()
            if comm.rank == 1:
                mine[2, 1, 0] = math.nan
            wtf.cp(mine, 2, GRID_LOSS, comm=comm)

        first, second, third = self.failure(fit)
        assert isinstance(second, ValueError)
        assert "nan at index (2, 1, 0)" in str(second)
        for error in (first, third):
            assert "rank 1 has failed: ValueError: X is nan at index (2, 1, 0)" in str(error)

    def test_team_can_be_used_after_bad_arguments(self):
        def fit(comm):
            with pytest.raises((ValueError, RuntimeError), match="rho"):
                self.fit(comm, rho=-1.0)
            return self.fit(comm)

        assert len(run_threads(fit, 2, timeout=20.0)) == 2

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("rho", (1e-2, 2e-2)),
            ("tol", (1e-6, 1e-5)),
            ("rng", (0, 1)),
            ("init", ("kl", "random")),
            ("loss", (GRID_LOSS, wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.1, lam=10.0))),
            ("constraints", (None, ("rows", "columns", None))),
        ],
    )
    def test_different_arguments_are_refused_by_name(self, name, values):
        errors = self.failure(lambda comm: self.fit(comm, **{name: values[comm.rank]}), 2)
        assert all(f"{name} differs from that of rank 0" in str(error) for error in errors)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {
                    "solver": "online",
                    "checkpoint": "state",
                    "constraints": ("rows", *["columns"] * 2),
                },
                "solver is 'online', which does not support a checkpoint of several processes",
            ),
            (
                {"solver": "dual", "constraints": ("columns",) * 3},
                "solver is 'dual', which does not support comm with the constraint 'columns'",
            ),
            ({"loss": wtf.Wasserstein(wtf.grid_cost(12, 6, 6), 0.1)}, "transports the first mode"),
        ],
    )
    def test_unsupported_options_are_refused_by_name(self, options, message):
        for error in self.failure(lambda comm: self.fit(comm, **options), 2):
            assert message in str(error)
            assert "comm" in str(error)

    def test_unknown_option_of_one_rank_ends_all(self):
        def fit(comm):
            self.fit(comm, **({"toll": 1e-3} if comm.rank == 1 else {}))

        first, second = self.failure(fit, 2)
        assert isinstance(second, TypeError)
        assert "rank 1 has failed: TypeError: cp() has no option 'toll'" in str(first)

    def test_comm_of_another_kind(self):
        with pytest.raises(TypeError, match=r"comm is a int: expected .* distributed"):
            wtf.cp(images(), 2, GRID_LOSS, comm=3)

    def test_all_zero_on_every_rank(self):
        errors = self.failure(lambda comm: wtf.cp(np.zeros((4, 6, 6)), 2, GRID_LOSS, comm=comm), 2)
        assert all("X is zero everywhere" in str(error) for error in errors)

    def test_error_in_a_loss_of_one_rank(self):
        class Breaks:
            calls = 0

            def value_and_gradient(self, X, Y):
                Breaks.calls += 1
                if X.shape[0] == 9 and Breaks.calls > 5:
                    msg = "the disk is full"
                    raise OSError(msg)
                return np.sum((Y - X) ** 2, axis=1), 2.0 * (Y - X)

            def __repr__(self):
                return "Breaks()"

        def fit(comm):
            mine = np.split(images(shape=(12,)), [9])[comm.rank]
            wtf.nmf(mine, 2, Breaks(), rng=0, comm=comm)

        first, second = self.failure(fit, 2)
        assert isinstance(first, OSError)
        assert str(second) == "rank 0 has failed: OSError: the disk is full"

    def test_callback_of_one_rank_ends_all(self):
        def stop(state):
            return state.n_iter == 4

        def fit(comm):
            return self.fit(comm, callback=stop if comm.rank == 1 else None)

        fits = run_threads(fit, 3, timeout=20.0)
        assert [(fit.n_iter, fit.stopped) for fit in fits] == [(4, True)] * 3

    def test_interrupt_of_one_rank_interrupts_all(self):
        def interrupt(state):
            if state.n_iter == 4:
                raise KeyboardInterrupt

        def fit(comm):
            return self.fit(comm, callback=interrupt if comm.rank == 1 else None)

        fits = run_threads(fit, 2, timeout=20.0)
        assert all("interrupted" in fit.message for fit in fits)
        assert np.array_equal(fits[0].factors[1], fits[1].factors[1])


@numpy_only
class TestInterrupts:
    def test_a_signal_is_held_back_and_reported_once(self):
        interrupts, before = Interrupts(), signal.getsignal(signal.SIGINT)
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            assert interrupts()
            assert not interrupts()
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_second_signal_acts_at_once(self):
        interrupts = Interrupts()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
        try:
            with interrupts.held():
                signal.raise_signal(signal.SIGINT)
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)


@numpy_only
def test_messages_of_a_step():
    """As docs/scaling.md states: no message of an inner iteration if no batch is on two ranks."""
    X = images(128, (16, 16))
    loss = wtf.Wasserstein(wtf.grid_cost(16, 16), eps=0.02, lam=10.0)

    def fit(comm, steps):
        mine = np.split(X, 2)[comm.rank]
        sizes, total = Counter(), comm.sum

        def counted(array):
            sizes[array.size] += 1
            return total(array)

        comm.sum = counted
        options = {"init": "kl", "max_iter": steps, "tol": 1e-12, "comm": comm}
        found = wtf.nmf(mine, 5, loss, rng=0, **options)
        return sizes, found.n_iter

    (few, first), _ = run_threads(lambda comm: fit(comm, 2), 2)
    (many, last), _ = run_threads(lambda comm: fit(comm, 12), 2)
    steps, sizes = last - first, many - few
    assert steps == 10
    evaluations = sizes[256 * 5 + 11]
    assert steps <= evaluations <= steps + 2
    assert sizes[1] == evaluations
    assert sizes[881] == sizes[2 * 1026 + 3] == steps
    assert sizes[2 * 1026] <= 2 * steps
    assert set(sizes) == {1, 256 * 5 + 11, 881, 2 * 1026, 2 * 1026 + 3}


@numpy_only
def test_dask_array_is_refused_with_the_lines_that_load_shards():
    class Array:
        __module__ = "dask.array.core"

    with pytest.raises(TypeError, match=r"X is a Array of dask(?s:.*)shard = (?s:.*)comm=comm"):
        wtf.nmf(Array(), 2, GRID_LOSS)


SHARDED = """
import jax, numpy as np, wtfarray as wtf
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("samples",))
X = jax.device_put(jax.numpy.ones((8, 6)), NamedSharding(mesh, PartitionSpec("samples")))
wtf.nmf(X, 2, wtf.KullbackLeibler())
"""


def test_array_of_several_devices_is_refused_and_comm_named(backend):
    if backend.name != "jax":
        pytest.skip("only JAX divides arrays among devices")
    flags = "--xla_force_host_platform_device_count=4"
    run = subprocess.run(
        [sys.executable, "-c", SHARDED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert "X is divided among 4 devices" in run.stderr
    assert "comm" in run.stderr
