"""Functions that JAX compiles as a whole, and that other libraries execute as they are."""

from dataclasses import dataclass

import array_api_compat
import numpy as np
import pytest
from helpers import to_numpy

from wtfarray._arrays.compilation import argument, compiled


@pytest.fixture
def counted():
    """A decorated function, and a list that grows when its Python code runs."""
    runs = []

    @compiled(array=1, static=("power",))
    def scaled(factor, x, *, power):
        runs.append(type(x))
        return factor * x**power

    return scaled, runs


def test_result_is_that_of_the_function(array, counted):
    scaled, _ = counted
    for factor, power in ((2.0, 1), (3.0, 2), (4.0, 2)):
        found = scaled(factor, array([1.0, 2.0]), power=power)
        np.testing.assert_allclose(to_numpy(found), factor * np.asarray([1.0, 2.0]) ** power)


def test_only_jax_compiles(xp, array, counted):
    """Numbers are arguments of the compiled function; static arguments compile another one."""
    scaled, runs = counted
    for factor in (2.0, 3.0, 4.0):
        scaled(factor, array([1.0, 2.0]), power=2)
    on_jax = array_api_compat.is_jax_namespace(xp)
    assert len(runs) == (1 if on_jax else 3)
    scaled(2.0, array([1.0, 2.0]), power=3)
    assert len(runs) == (2 if on_jax else 4)


def test_function_within_a_compiled_one_is_executed(xp, array, counted):
    scaled, runs = counted

    @compiled()
    def outer(x):
        return scaled(2.0, x, power=2) + 1.0

    np.testing.assert_allclose(to_numpy(outer(array([1.0, 2.0]))), [3.0, 9.0])
    assert len(runs) == 1
    if array_api_compat.is_jax_namespace(xp):
        outer(array([3.0, 4.0]))
        assert len(runs) == 1


def test_objects_are_passed_in_their_traceable_form(xp, array):
    class Box:
        traceable = 2.0

    @compiled()
    def form_of(x, box):
        return x * (box if not isinstance(box, Box) else 1.0)

    on_jax = array_api_compat.is_jax_namespace(xp)
    assert float(form_of(array([1.5]), Box())[0]) == (3.0 if on_jax else 1.5)


@argument(static=("power",), special={"factor": 1.0})
@dataclass(frozen=True)
class Monomial:
    factor: float
    power: int


def test_objects_are_arguments_with_their_numbers(xp, array):
    """Another number compiles nothing; another static field does, and a special number."""
    kinds = []

    @compiled()
    def value(x, monomial):
        plain = isinstance(monomial.factor, float) and monomial.factor == 1.0
        kinds.append(plain)
        power = x**monomial.power
        return power if plain else power * monomial.factor

    x, on_jax = array([1.0, 2.0]), array_api_compat.is_jax_namespace(xp)
    for factor in (2.0, 3.0, 4.0):
        found = to_numpy(value(x, Monomial(factor, 2)))
        np.testing.assert_allclose(found, factor * np.asarray([1.0, 4.0]))
    assert kinds == [False] * (1 if on_jax else 3)
    kinds.clear()
    np.testing.assert_allclose(to_numpy(value(x, Monomial(1.0, 2))), [1.0, 4.0])
    np.testing.assert_allclose(to_numpy(value(x, Monomial(2.0, 3))), [2.0, 16.0])
    assert kinds == [True, False]
