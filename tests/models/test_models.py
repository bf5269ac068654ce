"""Models as linear maps of one block: forward, adjoint, and all blocks together."""

import sys

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensors import TIGHT, every_shape, normal, uniform_factors

import wtfarray as wtf
from wtfarray._models.models import (
    CPModel,
    PartlyKnownModel,
    TuckerModel,
    core_block,
    cp_block,
    cp_weights_block,
    tucker_block,
)


def assert_adjoint(block, array, seed):
    """Check ``<U, forward(A)> = <adjoint(U), A>`` for non-negative fixed blocks."""
    A, U = normal(block.shape, seed), normal(block.model_shape, seed + 1)
    image, dual = to_numpy(block.forward(array(A))), to_numpy(block.adjoint(array(U)))
    assert image.shape == U.shape
    assert dual.shape == A.shape
    size = np.sum(np.abs(U) * to_numpy(block.forward(array(np.abs(A)))))
    assert abs(np.sum(U * image) - np.sum(dual * A)) <= TIGHT * size


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


seeds = st.integers(0, 1000)


few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=2 if "jax" in sys.modules else 20,
    suppress_health_check=[HealthCheck.differing_executors],
)


class TestCpBlock:
    @few
    @given(shape=sizes, rank=st.integers(1, 6), weighted=st.booleans(), seed=seeds)
    @example(shape=[2, 1, 3], rank=4, weighted=True, seed=0)
    def test_xi_is_the_adjoint_of_the_model_in_one_factor(self, array, shape, rank, weighted, seed):
        factors = [array(f) for f in uniform_factors(shape, [rank] * len(shape), seed)]
        weights = array(np.arange(1.0, rank + 1)) if weighted else None
        model = wtf.cp_to_tensor(factors, weights)
        for mode, factor in enumerate(factors):
            block = cp_block(factors, mode, weights)
            assert_adjoint(block, array, seed)
            assert_close(block.forward(factor), model, rtol=TIGHT)

    def test_adjoint_does_not_depend_on_the_factor_itself(self, array):
        factors = [array(f) for f in uniform_factors((3, 4, 5), [2, 2, 2])]
        other = [factors[0], array(normal((4, 2))), factors[2]]
        U = array(normal((3, 4, 5)))
        assert_close(cp_block(other, 1).adjoint(U), cp_block(factors, 1).adjoint(U), rtol=0)


class TestCpWeightsBlock:
    @few
    @given(shape=sizes, rank=st.integers(1, 6), scale=st.sampled_from([1.0, 2.5]), seed=seeds)
    def test_adjoint_of_the_model_in_the_weights(self, array, shape, rank, scale, seed):
        factors = [array(f) for f in uniform_factors(shape, [rank] * len(shape), seed)]
        block = cp_weights_block(factors, scale)
        assert_adjoint(block, array, seed)
        weights = array(normal(rank, seed))
        model = wtf.cp_to_tensor(factors, weights * scale)
        assert_close(block.forward(weights), model, rtol=TIGHT, atol=TIGHT)


class TestTuckerBlock:
    @few
    @given(pairs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5))
    @example(pairs=[(2, 4), (1, 1), (3, 1)])
    def test_xi_is_the_adjoint_of_the_model_in_one_factor(self, array, pairs):
        shape, ranks = zip(*pairs, strict=True)
        factors = [array(f) for f in uniform_factors(shape, ranks)]
        core = array(np.random.default_rng(1).uniform(size=ranks))
        model = wtf.tucker_to_tensor(core, factors)
        for mode, factor in enumerate(factors):
            block = tucker_block(core, factors, mode)
            assert_adjoint(block, array, mode)
            assert_close(block.forward(factor), model, rtol=TIGHT)

    @pytest.mark.parametrize("shape", [(4,), (3, 5), (4, 1, 3)], ids=str)
    def test_superdiagonal_core_gives_the_cp_adjoint(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        weights = np.array([0.5, 2.0, 3.0])
        core = np.zeros((3,) * len(shape))
        core[(np.arange(3),) * len(shape)] = weights
        U = array(np.abs(normal(shape)))
        for mode in range(len(shape)):
            cp = cp_block(factors, mode, array(weights))
            assert_close(
                tucker_block(array(core), factors, mode).adjoint(U), cp.adjoint(U), rtol=TIGHT
            )


class TestCoreBlock:
    @few
    @given(pairs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5))
    @example(pairs=[(2, 4), (1, 1), (3, 1)])
    def test_omega_is_the_adjoint_of_the_model_in_the_core(self, array, pairs):
        shape, ranks = zip(*pairs, strict=True)
        factors = [array(f) for f in uniform_factors(shape, ranks)]
        block = core_block(factors, range(len(factors)))
        assert_adjoint(block, array, 0)
        core = array(np.random.default_rng(1).uniform(size=ranks))
        assert_close(block.forward(core), wtf.tucker_to_tensor(core, factors), rtol=TIGHT)

    def test_modes_of_the_core_may_be_permuted(self, array):
        factors = [array(f) for f in uniform_factors((3, 4, 5), (2, 3, 4))]
        core, order = normal((4, 2, 3)), (1, 2, 0)
        block = core_block(factors, order)
        assert block.shape == core.shape
        assert_adjoint(block, array, 0)
        model = wtf.tucker_to_tensor(array(core.transpose(order)), factors)
        assert_close(block.forward(array(core)), model, rtol=1e-13, atol=1e-13)

    @every_shape
    def test_diagonal_of_omega_is_the_adjoint_in_the_cp_weights(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        U = array(np.abs(normal(shape)))
        omega = to_numpy(core_block(factors, range(len(shape))).adjoint(U))
        diagonal = array(omega[(np.arange(3),) * len(shape)])
        assert_close(cp_weights_block(factors).adjoint(U), diagonal, rtol=TIGHT)


MODELS = {
    "cp": (CPModel(3, learns_weights=False), [(3, 2), (4, 2), (5, 2)]),
    "scaled cp": (CPModel(3, learns_weights=False, scale=2.5), [(3, 2), (4, 2), (5, 2)]),
    "cp with weights": (
        CPModel(3, learns_weights=True, scale=2.5),
        [(3, 2), (4, 2), (5, 2), (2,)],
    ),
    "matrix": (CPModel(2, learns_weights=False), [(3, 2), (4, 2)]),
    "tucker": (TuckerModel(3), [(3, 2), (4, 1), (5, 3), (2, 1, 3)]),
}


@pytest.mark.parametrize("name", MODELS)
class TestModels:
    def blocks(self, array, name):
        model, shapes = MODELS[name]
        rng = np.random.default_rng(0)
        return model, [array(rng.uniform(0.1, 1.0, shape)) for shape in shapes]

    def test_tensor_is_every_block_applied_forward(self, array, name):
        model, blocks = self.blocks(array, name)
        tensor = model.tensor(blocks)
        for k, block in enumerate(blocks):
            assert_close(model.block(blocks, k).forward(block), tensor, rtol=1e-13)

    def test_adjoints_are_those_of_the_blocks(self, array, name):
        model, blocks = self.blocks(array, name)
        dual = array(normal(tuple(block.shape[0] for block in blocks[: model.modes]), 3))
        adjoints = model.adjoints(dual, blocks)
        assert len(adjoints) == len(blocks)
        for k, found in enumerate(adjoints):
            expected = model.block(blocks, k).adjoint(dual)
            assert_close(found, expected, rtol=1e-11, atol=1e-13)

    def test_shapes_of_a_block_are_its_own_and_that_of_the_tensor(self, array, name):
        model, blocks = self.blocks(array, name)
        for k, block in enumerate(blocks):
            found = model.block(blocks, k)
            assert found.shape == tuple(block.shape)
            assert found.model_shape == tuple(model.tensor(blocks).shape)


class TestCpModel:
    def test_fixed_weights_are_all_equal_to_the_scale(self, array):
        model = CPModel(2, learns_weights=False, scale=0.5)
        blocks = [array(np.ones((3, 4))), array(np.ones((2, 4)))]
        assert_close(model.weights(blocks), array(np.full(4, 0.5)), rtol=0)

    def test_learned_weights_are_multiplied_by_the_scale(self, array):
        model = CPModel(1, learns_weights=True, scale=3.0)
        blocks = [array(np.ones((2, 2))), array([0.25, 0.75])]
        assert_close(model.weights(blocks), array([0.75, 2.25]), rtol=1e-15)
        assert_close(model.tensor(blocks), array([3.0, 3.0]), rtol=1e-15)


class TestPartlyKnownModel:
    def test_is_the_matrix_model_of_all_atoms(self, array):
        known, learned = (array(uniform_factors((5,), [r], r)[0]) for r in (3, 2))
        coefficients = array(uniform_factors((4,), [5])[0])
        model = PartlyKnownModel(known)
        blocks = [coefficients, learned]
        atoms = np.concatenate([to_numpy(known), to_numpy(learned)], axis=1)
        expected = to_numpy(coefficients) @ atoms.T
        np.testing.assert_allclose(to_numpy(model.tensor(blocks)), expected, rtol=1e-13)
        for k in range(2):
            assert_adjoint(model.block(blocks, k), array, k)
        dual = array(normal((4, 5), 3))
        for k, found in enumerate(model.adjoints(dual, blocks)):
            assert_close(found, model.block(blocks, k).adjoint(dual), rtol=1e-13)
