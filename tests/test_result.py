"""What a fit returns, how it is kept on disk, and how a fit that was stopped goes on."""

import math
import os
import warnings

import numpy as np
import pytest
from array_api_compat import array_namespace, device, is_jax_namespace, is_numpy_namespace
from helpers import numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._fit import result

SHAPE = (6, 5, 4)
RANKS = {"cp": 2, "tucker": (2, 3, 2), "nmf": 2}
COSTS = wtf.grid_cost(*SHAPE[1:])
LOSSES = {
    "unbalanced": wtf.Wasserstein(COSTS, 0.2, 5.0),
    "balanced": wtf.Wasserstein(COSTS, 0.2),
    "one dense cost": wtf.Wasserstein(wtf.point_cost(np.arange(20.0)), 0.2, 5.0, modes=((1, 2),)),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
    "sum": wtf.LossSum(wtf.Wasserstein(COSTS[0], 0.3, 5.0, modes=(1,)), wtf.Frobenius()),
}


def data(seed=0):
    X = np.random.default_rng(seed).gamma(1.0, size=SHAPE) + 0.01
    return X / X.sum(axis=(1, 2), keepdims=True)


def short_fit(model, X, name="KL", **options):
    """Few iterations; their warning is tested elsewhere."""
    options = {"rho": 0.02, "rng": 0, "max_iter": 2, "tol": 1e-14} | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model}: stopped after max_iter")
        return getattr(wtf, model)(X, RANKS[model], LOSSES[name], **options)


class TestFactorisation:
    @pytest.mark.parametrize("model", RANKS)
    def test_unpacks_and_multiplies_out(self, array, model):
        fit = short_fit(model, array(data()))
        head, factors = fit
        assert factors is fit.factors
        assert head is (fit.core if model == "tucker" else fit.weights)
        assert (fit.core is None) == (model != "tucker")
        assert (fit.weights is None) == (model == "tucker")
        A = [to_numpy(factor) for factor in factors]
        letters = "abc"[: len(A)]
        if model == "tucker":
            expected = np.einsum("abc,ia,jb,kc->ijk", to_numpy(head), *A)
        else:
            terms = ",".join(f"{letter}r" for letter in letters)
            expected = np.einsum(f"r,{terms}->{letters}", to_numpy(head), *A).reshape(SHAPE)
        np.testing.assert_allclose(to_numpy(fit.to_tensor()), expected, rtol=1e-12)

    @numpy_only
    def test_repr_says_what_matters(self):
        assert repr(short_fit("cp", data())).startswith("<cp of 6 x 5 x 4, rank 2: objective ")
        text = repr(short_fit("tucker", data()))
        assert "rank (2, 3, 2)" in text
        assert "NOT converged after 2 iterations" in text
        assert "increase it" in text
        done = wtf.nmf(data(), 2, LOSSES["KL"], rng=0)
        assert ", converged after" in repr(done)
        assert f"{done.objective:.6g}" in repr(done)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_history(self, solver):
        fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0, solver=solver)
        assert len(fit.history) == fit.n_iter + 1
        assert all(isinstance(record, wtf.Record) for record in fit.history)
        for name in ("time", "evaluations"):
            values = [getattr(record, name) for record in fit.history]
            assert values == sorted(values)
            assert values[0] > 0
        assert all(record.gap >= 0 for record in fit.history)
        last = fit.history[-1]
        assert last.gap == fit.gap
        assert last.objective == pytest.approx(fit.objective, abs=fit.gap + 1e-9)


class TestSave:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("model", RANKS)
    def test_round_trip_is_bit_equal(self, xp, array, device, tmp_path, model, dtype):
        fit = short_fit(model, array(data(), dtype))
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz", xp=xp, device=device)
        assert_same_fit(loaded, fit)

    @numpy_only
    @pytest.mark.parametrize("name", LOSSES)
    def test_every_loss(self, tmp_path, name):
        fit = short_fit("nmf", data(), name)
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz")
        assert_same_fit(loaded, fit)
        assert repr(loaded.loss) == repr(fit.loss)
        again, expected = (
            short_fit("nmf", data(), init=f, name=name).objective for f in (loaded, fit)
        )
        assert again == expected
        X = data(1)
        assert objective(X, loaded) == objective(X, fit)

    def test_across_libraries(self, xp, array, device, tmp_path):
        """Written by one library, read by NumPy, written again, read by the first."""
        fit = short_fit("cp", array(data()))
        fit.save(tmp_path / "fit.npz")
        plain = wtf.load(tmp_path / "fit.npz")
        assert all(isinstance(factor, np.ndarray) for factor in plain.factors)
        plain.save(tmp_path / "again.npz")
        assert_same_fit(wtf.load(tmp_path / "again.npz", xp=xp, device=device), fit)

    def test_loaded_atoms_serve_data_of_either_precision(self, xp, array, device, tmp_path):
        short_fit("cp", array(data())).save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz", xp=xp, device=device)
        X = array(data(1), "float32")
        assert loaded.project(X, tol=1e-4).dtype == X.dtype

    @numpy_only
    def test_no_pickle(self, tmp_path):
        short_fit("cp", data(), "unbalanced").save(tmp_path / "fit.npz")
        with np.load(tmp_path / "fit.npz", allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)
            assert {"factor_0", "factor_1", "factor_2", "weights", "header"} <= set(stored.files)

    @numpy_only
    def test_suffix_is_added(self, tmp_path):
        short_fit("cp", data()).save(tmp_path / "fit")
        assert [path.name for path in tmp_path.iterdir()] == ["fit.npz"]
        short_fit("cp", data()).save(str(tmp_path / "fit.npz"))
        assert [path.name for path in tmp_path.iterdir()] == ["fit.npz"]

    @numpy_only
    @pytest.mark.skipif(os.name != "posix", reason="other systems have no such permissions")
    def test_who_may_read_the_file_is_left_to_the_system(self, tmp_path):
        path, other = tmp_path / "fit.npz", tmp_path / "other"
        short_fit("cp", data()).save(path)
        other.touch()
        assert path.stat().st_mode == other.stat().st_mode

    @numpy_only
    @pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
    @pytest.mark.parametrize("step", ["write", "replace"])
    def test_a_write_that_fails_leaves_the_old_file(self, tmp_path, monkeypatch, step, error):
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        before = path.read_bytes()

        def half(stream, **arrays):
            stream.write(b"half")
            raise error

        def fail(*args):
            raise error

        if step == "write":
            monkeypatch.setattr(result.np, "savez", half)
        else:
            monkeypatch.setattr(result.Path, "replace", fail)
        with pytest.raises(type(error)):
            short_fit("cp", data(1)).save(path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["fit.npz"]  # noqa: PTH208


def objective(X, fit):
    """A number that the loss, its costs and the model decide."""
    if isinstance(fit.loss, wtf.Wasserstein) and not math.isinf(fit.loss.lam):
        return float(wtf.wasserstein(X, fit.to_tensor(), fit.loss).value)
    return float(fit.to_tensor().sum())


def assert_same_fit(found, expected):
    """Bit by bit."""
    for name in ("kind", "objective", "gap", "converged", "message", "n_iter", "history", "rho"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.constraints == expected.constraints
    assert found.shape == expected.shape
    assert type(found.loss) is type(expected.loss)
    for name in ("core", "weights"):
        assert (getattr(found, name) is None) == (getattr(expected, name) is None)
    blocks = [(found.dual, expected.dual), *zip(found.factors, expected.factors, strict=True)]
    blocks += [(a, b) for a, b in zip(found, expected, strict=True) if a is not found.factors]
    for a, b in blocks:
        assert array_namespace(a) is array_namespace(b)
        assert a.dtype == b.dtype
        assert device(a) == device(b)
        assert (to_numpy(a) == to_numpy(b)).all()


OTHER = {
    "data": {"X": data(1)},
    "rank": {"rank": 3},
    "eps": {"loss": wtf.Wasserstein(COSTS, 0.3, 5.0)},
    "cost": {"loss": wtf.Wasserstein([c * 2.0 for c in COSTS], 0.2, 5.0)},
    "rho": {"rho": 0.03},
    "constraints": {"constraints": (None, "columns", "columns")},
    "seed": {"rng": 1},
    "seed of numpy": {"rng": np.int64(1)},
    "generator": {"rng": np.random.default_rng(0)},
    "sample_weight": {"sample_weight": np.arange(1.0, 7.0)},
    "init": {"init": "nnsvd"},
    "weights": {"weights": "fixed"},
}


class TestCheckpoint:
    def stopped(self, X, path, steps, name="unbalanced", **options):
        with pytest.warns(UserWarning, match="stopped by the callback"):
            return wtf.cp(
                X,
                2,
                LOSSES[name],
                rho=0.02,
                rng=0,
                checkpoint=path,
                callback=lambda state: state.n_iter == steps,
                **options,
            )

    @pytest.mark.parametrize("name", ["unbalanced", "balanced", "KL", "sum"])
    @pytest.mark.parametrize("steps", [10, 20])
    def test_goes_on_to_the_same_end(self, xp, array, tmp_path, name, steps):
        """The state is written every ten steps, so that a stop there changes nothing."""
        if not is_numpy_namespace(xp) and (name, steps) != ("KL", 10):
            pytest.skip("one loss is enough: the others take long")
        X, options = array(data()), {"rho": 0.02, "rng": 0, "tol": 1e-9}
        whole = wtf.cp(X, 2, LOSSES[name], checkpoint=tmp_path / "whole.npz", **options)
        assert whole.n_iter > steps
        path = tmp_path / "part.npz"
        self.stopped(X, path, steps, name, tol=1e-9)
        assert path.exists()
        rest = wtf.cp(X, 2, LOSSES[name], checkpoint=path, **options)
        assert rest.converged
        assert rest.n_iter == whole.n_iter
        assert rest.objective == whole.objective
        for a, b in zip(rest.factors, whole.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()
        found, expected = ([r.objective for r in f.history] for f in (rest, whole))
        assert found == expected

    @numpy_only
    @pytest.mark.parametrize("steps", [1, 7])
    def test_goes_on_from_any_step(self, tmp_path, steps):
        path = tmp_path / "fit.npz"
        part = self.stopped(data(), path, steps)
        seen = []
        rest = wtf.cp(
            data(),
            2,
            LOSSES["unbalanced"],
            rho=0.02,
            rng=0,
            checkpoint=path,
            callback=lambda state: seen.append(state.n_iter),
        )
        assert seen[0] == steps + 1
        assert rest.objective < part.objective
        assert rest.history[:steps] == part.history[:steps]
        assert rest.history[-1].time > part.history[-2].time
        plain = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert rest.objective == pytest.approx(plain.objective, rel=1e-5)

    @numpy_only
    def test_goes_on_within_the_coarse_levels(self, tmp_path):
        X = np.random.default_rng(3).dirichlet(np.ones(12), 6)
        loss = wtf.Wasserstein(wtf.grid_cost(12), 0.005, 5.0)
        options = {"init": "random", "rng": 0}
        whole = wtf.nmf(X, 2, loss, checkpoint=tmp_path / "whole.npz", **options)
        path, levels = tmp_path / "part.npz", []

        def stop(state):
            levels.append(state.level)
            return state.n_iter == 10

        with pytest.warns(UserWarning, match="stopped by the callback"):
            wtf.nmf(X, 2, loss, checkpoint=path, callback=stop, **options)
        assert levels[-1] > 1.0
        rest = wtf.nmf(X, 2, loss, checkpoint=path, **options)
        assert rest.objective == whole.objective
        assert rest.n_iter == whole.n_iter

    @numpy_only
    def test_a_killed_fit_goes_on(self, tmp_path):
        """Whatever ends the process, the last file is whole."""
        path = tmp_path / "fit.npz"

        def kill(state):
            if state.n_iter == 15:
                raise MemoryError

        options = {"rho": 0.02, "rng": 0, "tol": 1e-9}
        with pytest.raises(MemoryError):
            wtf.cp(data(), 2, LOSSES["unbalanced"], checkpoint=path, callback=kill, **options)
        whole = wtf.cp(
            data(), 2, LOSSES["unbalanced"], checkpoint=tmp_path / "whole.npz", **options
        )
        rest = wtf.cp(data(), 2, LOSSES["unbalanced"], checkpoint=path, **options)
        assert rest.objective == whole.objective
        assert rest.n_iter == whole.n_iter

    @numpy_only
    def test_removed_when_the_fit_has_converged(self, tmp_path):
        path = tmp_path / "fit.npz"
        fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0, tol=1e-9, checkpoint=path)
        assert fit.converged
        assert fit.n_iter > 10
        assert list(tmp_path.iterdir()) == []

    @numpy_only
    def test_no_pickle(self, tmp_path):
        self.stopped(data(), tmp_path / "fit.npz", 3)
        with np.load(tmp_path / "fit.npz", allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)

    @numpy_only
    @pytest.mark.parametrize("what", OTHER)
    def test_of_another_fit_is_refused(self, tmp_path, what):
        path = tmp_path / "fit.npz"
        self.stopped(data(), path, 3)
        before = path.read_bytes()
        options = {"X": data(), "rank": 2, "loss": LOSSES["unbalanced"], "rho": 0.02, "rng": 0}
        options |= OTHER[what]
        arguments = [options.pop(name) for name in ("X", "rank", "loss")]
        with pytest.raises(ValueError, match=r"checkpoint .*fit.npz.* other"):
            wtf.cp(*arguments, checkpoint=path, **options)
        assert path.read_bytes() == before

    def test_every_library(self, xp, array, tmp_path):
        if is_jax_namespace(xp):
            pytest.skip("JAX compiles every shape: the round trip of the state is tested above")
        path = tmp_path / "fit.npz"
        X = array(data(), "float32")
        self.stopped(X, path, 3, "KL")
        rest = wtf.cp(X, 2, LOSSES["KL"], rho=0.02, rng=0, checkpoint=path)
        assert rest.factors[0].dtype == X.dtype
        assert device(rest.factors[0]) == device(X)


def not_a_fit(path):
    """A file of something else, or a fit that was cut off."""
    if path.suffix == ".npy":
        np.save(path, np.ones(3))
    elif path.name == "other.npz":
        np.savez(path, np.ones(3))
    elif path.name == "empty.npz":
        path.touch()
    else:
        short_fit("cp", data()).save(path)
        path.write_bytes(path.read_bytes()[: 1000 if path.name == "half.npz" else None])
    return path


@numpy_only
@pytest.mark.parametrize("name", ["array.npy", "other.npz", "empty.npz", "half.npz"])
def test_load_refuses_a_file_of_something_else(tmp_path, name):
    with pytest.raises(ValueError, match=f"path is .*{name}.*expected a file that `save`"):
        wtf.load(not_a_fit(tmp_path / name))


@numpy_only
@pytest.mark.parametrize("name", ["array.npy", "other.npz", "empty.npz", "half.npz", "fit.npz"])
def test_checkpoint_refuses_a_file_of_something_else(tmp_path, name):
    path = not_a_fit(tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"checkpoint is .*{name}.*expected a file that a fit"):
        wtf.cp(data(), 2, LOSSES["KL"], rho=0.02, rng=0, checkpoint=path)
    assert path.read_bytes() == before
