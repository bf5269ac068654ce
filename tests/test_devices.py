"""Where arrays live: devices, dtypes, graphs and memory that must not be written to."""

import dataclasses
import math

import numpy as np
import pytest
from array_api_compat import array_namespace, device, is_numpy_namespace, is_torch_namespace
from helpers import assert_close, to_numpy

import wtfarray as wtf
from wtfarray._arrays import host
from wtfarray._models.models import core_block, cp_block, cp_weights_block, tucker_block
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._optimize.scaled_curvature import ScaledCurvaturePairs

SHAPE = (3, 2, 4)


def parts(array, dtype="float64"):
    """Data, factors, weights and a core of total mass one."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        values = rng.gamma(1.0, size=shape)
        return array(values / values.sum(), dtype)

    return draw(*SHAPE), [draw(n, 2) for n in SHAPE], draw(2), draw(2, 2, 2)


def transport(lam=2.0):
    return wtf.Wasserstein(wtf.grid_cost(2, 4), 0.1, lam)


LOSSES = {
    "unbalanced": transport(),
    "balanced": transport(math.inf),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
}
BLOCKS = [("cp", 0), ("cp", 2), ("cp", "weights"), ("tucker", 1), ("tucker", "core")]


def build(array, model, block, loss, constraint=None, dtype="float64"):
    X, factors, weights, core = parts(array, dtype)
    if model == "tucker":
        return wtf.tucker_dual(X, core, factors, block, loss, rho=0.1, constraint=constraint)
    if block == "weights":
        return wtf.cp_dual(X, factors, block, loss, rho=0.1, constraint=constraint)
    return wtf.cp_dual(X, factors, block, loss, rho=0.1, constraint=constraint, weights=weights)


def everything(array, dtype="float64"):
    """Call every public function that takes arrays; return its name and the arrays it gives."""
    X, factors, weights, core = parts(array, dtype)
    M, costs = factors[0], [array(c, dtype) for c in wtf.grid_cost(2, 4)]
    unbalanced, balanced = wtf.Wasserstein(costs, 0.1, 2.0), wtf.Wasserstein(costs, 0.1)
    results = {
        "unfold": [wtf.unfold(X, 1)],
        "fold": [wtf.fold(wtf.unfold(X, 1), 1, SHAPE)],
        "mode_product": [wtf.mode_product(X, M.mT, 0)],
        "mode_products": [wtf.mode_products(X, [M.mT, factors[2].mT], (0, 2))],
        "cp_to_tensor": [wtf.cp_to_tensor(factors), wtf.cp_to_tensor(factors, weights)],
        "tucker_to_tensor": [wtf.tucker_to_tensor(core, factors)],
        "point_cost": [wtf.point_cost(M)],
        "entropy": wtf.entropy(X),
        "entropy_conjugate": [
            a for c in (None, "rows", "columns", "all") for a in wtf.entropy_conjugate(M, c)
        ],
    }
    for name, loss in {"W": unbalanced, "F": wtf.Frobenius(), "KL": wtf.KullbackLeibler()}.items():
        results[f"{name}.conjugate"] = loss.conjugate(X, -X)
    for name, loss in {"unbalanced": unbalanced, "balanced": balanced}.items():
        result = wtf.wasserstein(X, X, loss)
        results[name] = [*result, result.potential]
        result = wtf.wasserstein(X, X, loss, potential=result.potential)
        results[f"{name}, warm"] = [*result, result.potential]
    for (model, block), name in zip(BLOCKS, ["unbalanced", "Frobenius", "KL"] * 2, strict=False):
        dual = build(array, model, block, LOSSES[name], dtype=dtype)
        g = dual.start() + 0.1
        results[f"{model}_dual {block} {name}"] = [
            dual.start(),
            *dual.value_and_gradient(g),
            *dual.safe_value_and_gradient(g),
            dual.factor(g),
            dual.certificate(g).factor,
        ]
    dual = build(array, "cp", 0, unbalanced, dtype=dtype)
    for solver in (wtf.lbfgs, wtf.gradient_descent):
        result = solver(dual.safe_value_and_gradient, dual.start(), max_iter=2)
        results[solver.__name__] = [result.x, result.gradient]
    return results


class TestEveryFunction:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_namespace_dtype_and_device_are_kept(self, array, dtype):
        like = array([0.0], dtype)
        for name, arrays in everything(array, dtype).items():
            for k, found in enumerate(arrays):
                where = f"result {k} of {name}"
                assert array_namespace(found) is array_namespace(like), where
                assert found.dtype == like.dtype, where
                assert device(found) == device(like), where

    def test_inputs_may_be_read_only(self, xp, array):
        if not is_numpy_namespace(xp):
            pytest.skip("only NumPy arrays can be made read-only")

        def frozen(values, dtype="float64"):
            made = array(values, dtype)
            made.flags.writeable = False
            return made

        for name, arrays in everything(frozen).items():
            for found, expected in zip(arrays, everything(array)[name], strict=True):
                assert_close(found, expected, rtol=1e-14)

    def test_inputs_are_untouched(self, array):
        made = []

        def remember(values, dtype="float64"):
            made.append((array(values, dtype), np.array(values)))
            return made[-1][0]

        everything(remember)
        for found, before in made:
            np.testing.assert_array_equal(to_numpy(found), before)

    def test_results_carry_no_autograd_graph(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("only torch has graphs")

        def tracked(values, dtype="float64"):
            return array(values, dtype).requires_grad_()

        # The algebra is differentiable as it stands; what computes a gradient itself is not.
        plain = {"unfold", "fold", "mode_product", "mode_products"}
        plain |= {"cp_to_tensor", "tucker_to_tensor", "point_cost"}
        graphs = [
            f"result {k} of {name}"
            for name, arrays in everything(tracked).items()
            for k, found in enumerate(arrays)
            if name not in plain and found.requires_grad
        ]
        assert graphs == []

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
    def test_integers_and_bools_take_the_default_float(self, xp, array, dtype):
        X = array(np.arange(6).reshape(2, 3) > 1, dtype)
        default = xp.__array_namespace_info__().default_dtypes(device=device(X))["real floating"]
        floating = xp.astype(X, default)
        loss = wtf.Wasserstein(wtf.grid_cost(3), 0.1, 2.0)
        result = wtf.wasserstein(X, X, loss)
        assert result.gradient.dtype == default
        assert_close(result.value, wtf.wasserstein(floating, floating, loss).value)
        for found in (*wtf.entropy(X), wtf.point_cost(X)):
            assert found.dtype == default
        factors = [floating[:, :2], xp.ones_like(floating[:1, :2]) + floating[:, :2]]
        factors[1] = xp.concat([factors[1], factors[0][:1, :] + 1.0])
        dual = wtf.cp_dual(X, factors, 0, loss, rho=0.1)
        assert dual.start().dtype == default


def moved(thing, move):
    """A copy of nested frozen dataclasses and tuples with every tensor moved."""
    import torch

    if isinstance(thing, torch.Tensor):
        return move(thing)
    if isinstance(thing, tuple):
        return tuple(moved(one, move) for one in thing)
    if dataclasses.is_dataclass(thing):
        fields = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing) if f.init}
        return dataclasses.replace(thing, **{k: moved(v, move) for k, v in fields.items()})
    return thing


def moved_dual(array, model, block, loss, constraint, move):
    """A dual as it would have been built from tensors on another device."""
    dual = build(array, model, block, loss, constraint)
    _, factors, weights, core = parts(array)
    order = dual.bound.order
    factors = [move(factors[k]) for k in order]
    place = None if isinstance(block, str) else order.index(block)
    if block == "weights":
        rebuilt = cp_weights_block(factors)
    elif block == "core":
        rebuilt = core_block(factors, order)
    elif model == "cp":
        rebuilt = cp_block(factors, place, move(weights))
    else:
        rebuilt = tucker_block(move(core.permute(order)), factors, place)
    return dataclasses.replace(dual, bound=moved(dual.bound, move), block=rebuilt)


CONSTRAINTS = [(model, block, c) for model, block in BLOCKS for c in (None, "all")]
CONSTRAINTS += [("cp", 0, "rows"), ("cp", 2, "columns"), ("tucker", 1, "columns")]


@pytest.fixture
def torch(xp):
    if not is_torch_namespace(xp):
        pytest.skip("these devices are torch's")
    return pytest.importorskip("torch")


class TestOtherDevices:
    """No host synchronisation and no array on the wrong device, with no GPU at hand."""

    @pytest.mark.usefixtures("torch")
    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius", "KL"])
    @pytest.mark.parametrize(("model", "block", "constraint"), CONSTRAINTS)
    def test_block_dual_stays_on_the_meta_device(self, array, model, block, constraint, name):
        def move(tensor):
            return tensor.to("meta")

        dual = moved_dual(array, model, block, LOSSES[name], constraint, move)
        value, gradient = dual.value_and_gradient(dual.start())
        assert value.device.type == gradient.device.type == "meta"
        assert value.shape == ()
        assert gradient.shape == dual.start().shape
        assert dual.factor(dual.start()).device.type == "meta"

    @pytest.mark.usefixtures("torch")
    def test_balanced_block_dual_stays_on_the_meta_device(self, array):
        def move(tensor):
            return tensor.to("meta")

        dual = moved_dual(array, "cp", 0, LOSSES["balanced"], None, move)
        value, gradient = dual.value_and_gradient(dual.start())
        assert value.device.type == gradient.device.type == "meta"

    @pytest.mark.usefixtures("torch")
    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius", "KL"])
    @pytest.mark.parametrize(("model", "block", "constraint"), CONSTRAINTS)
    def test_block_dual_never_synchronises(self, array, model, block, constraint, name):
        dual = build(array, model, block, LOSSES[name], constraint)
        g = dual.start() + 0.1
        assert count_synchronisations(lambda: dual.value_and_gradient(g)) == 0

    @pytest.mark.usefixtures("torch")
    def test_synchronisations_are_counted(self, array):
        g = array([1.0, 2.0])
        assert count_synchronisations(lambda: (float(g[0]), bool(g[1] > 0))) == 2

    @pytest.mark.usefixtures("torch")
    @pytest.mark.parametrize(
        ("kind", "shape"),
        [(CurvaturePairs, (8, 3)), (ScaledCurvaturePairs, (4 * 5 + 5 * 5 + 4,))],
    )
    def test_lbfgs_direction_takes_one_host_transfer(self, array, monkeypatch, kind, shape):
        """All but the two-loop recursion on a few host numbers stays on the device."""
        shapes = []

        def to_host(x):
            assert x.device.type == "meta"
            shapes.append(tuple(x.shape))
            if x.ndim == 2:
                return np.eye(*x.shape) + 0.5
            products = [np.eye(4, 5) + 0.5, np.eye(5) + 0.5, np.ones(4)]
            return np.concatenate([np.ravel(product) for product in products])

        monkeypatch.setattr(host, "to_host", to_host)
        old, new = (
            Point(array(np.ones(7)).to("meta"), array(np.ones(7)).to("meta"), 1.0, 1.0, 7.0, 0.0)
            for _ in range(2)
        )
        pairs = kind(old, 4, 1e-16, array_namespace(old.x))
        for _ in range(6):
            pairs.update(old, new)
            direction, slope = pairs.direction(new)
            assert direction.device.type == "meta"
            assert direction.shape == (7,)
            assert type(slope) is float
        assert shapes == [shape] * 6  # one transfer a direction


def count_synchronisations(function):
    """How often the host waits for a value of the device."""
    from _torch_counts import TorchCounts

    with TorchCounts() as counts:
        function()
    return counts.synchronisations
