"""Functions of arrays that JAX compiles as a whole; other libraries execute them as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from array_api_compat import is_jax_array

from wtfarray._arrays.typing import Array

__all__ = ["compiled"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_COMPILES: dict[type, bool] = {}


def compiled(
    *, array: int = 0, static: tuple[str, ...] = (), donated: tuple[str, ...] = ()
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """
    Let JAX compile a function, once for the shapes and dtypes of its arguments.

    Executed operation by operation, each is compiled and dispatched on its own. Within a function
    that is being compiled, and for other libraries, the function itself is called.

    Parameters
    ----------
    array : int
        The position of an argument that is an array, or a list of arrays; its library decides.
    static : tuple of str
        Names of arguments that are no arrays: hashable, and compiled in.
    donated : tuple of str
        Names of arguments that the caller does not use again: JAX may overwrite them.

    Returns
    -------
    callable
        A decorator of functions that depend on nothing but their arguments. These are arrays,
        numbers, or tuples, lists and named tuples of them. Others have an attribute ``traceable``,
        the same object in a form that JAX takes.

    Examples
    --------
    >>> import numpy as np
    >>> @compiled(static=("power",))
    ... def sum_of_powers(x, *, power):
    ...     return (x**power).sum()
    >>> float(sum_of_powers(np.asarray([1.0, 2.0]), power=2))
    5.0
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        jitted: Callable[..., Result] | None = None

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            nonlocal jitted
            deciding: Any = args[array]
            if isinstance(deciding, list):
                deciding = deciding[0]
            if not _compiles(deciding):
                return function(*args, **kwargs)
            if jitted is None:
                jitted = _jitted(function, static, donated)
            return jitted(*(getattr(a, "traceable", a) for a in args), **kwargs)

        return call

    return decorate


def _jitted(
    function: Callable[..., Result], static: tuple[str, ...], donated: tuple[str, ...]
) -> Callable[..., Result]:
    import jax  # only if arrays of JAX are used

    result: Callable[..., Result] = jax.jit(
        function, static_argnames=static, donate_argnames=donated
    )
    return result


def _compiles(x: Array) -> bool:
    """Whether x is an array of JAX that holds numbers: no stand-in within a function."""
    kind = type(x)
    found = _COMPILES.get(kind)
    if found is None:
        found = is_jax_array(x)
        if found:
            import jax

            found = not isinstance(x, jax.core.Tracer)
        _COMPILES[kind] = found
    return found
