"""Functions of arrays that JAX compiles as a whole; other libraries execute them as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from array_api_compat import is_jax_array

from wtfarray._arrays.typing import Array

__all__ = ["argument", "compiled", "register"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

_COMPILES: dict[type, bool] = {}
_UNREGISTERED: list[Callable[[], None]] = []
"""Registrations that wait until JAX is used."""


def compiled(
    *, array: int = 0, static: tuple[str, ...] = (), donated: tuple[str, ...] = ()
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """
    Let JAX compile a function, once for the shapes and dtypes of its arguments.

    Executed operation by operation, each is compiled and dispatched on its own. Within a function
    that is being compiled, for other libraries, and if an argument has a true attribute
    ``has_effects``, as what sends messages or reads files, the function itself is called.

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
        numbers, tuples, lists and named tuples of them, or objects of a class with the decorator
        `argument`. Others have an attribute ``traceable``, the same object in a form that JAX
        takes.

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
            if not _compiles(deciding) or any(map(_has_effects, (*args, *kwargs.values()))):
                return function(*args, **kwargs)
            if jitted is None:
                jitted = _jitted(function, static, donated)
            return jitted(*(getattr(a, "traceable", a) for a in args), **kwargs)

        return call

    return decorate


def argument(
    *, static: tuple[str, ...] = (), special: Mapping[str, float] | None = None
) -> Callable[[Class], Class]:
    """
    Let functions that are `compiled` take objects of a dataclass; a decorator of the class.

    Parameters
    ----------
    static : tuple of str
        Fields that are no arrays or numbers: hashable, and compiled in.
    special : mapping of str to float, optional
        Numbers that are compiled in if they have the given value, as where a simpler formula holds
        for it. In the function any other value is not a float but what stands for it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @argument(static=("power",))
    ... @dataclass(frozen=True)
    ... class Monomial:
    ...     factor: float
    ...     power: int
    """

    def decorate(cls: Class) -> Class:
        _UNREGISTERED.append(lambda: register(cls, static=static, special=special))
        return cls

    return decorate


def register(
    cls: type, *, static: tuple[str, ...] = (), special: Mapping[str, float] | None = None
) -> None:
    """Let ``jax.jit`` take and return objects of a dataclass; for the arguments see `argument`."""
    import jax  # only if arrays of JAX are used

    names = [field.name for field in fields(cls)]
    special = dict(special or {})
    if not special:
        data = [name for name in names if name not in static]
        jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=list(static))
        return

    def is_compiled_in(name: str, value: object) -> bool:
        return name in static or (isinstance(value, float) and value == special.get(name))

    def flatten(item: Any) -> tuple[list[Any], tuple[Any, ...]]:
        children, constants = [], []
        for name in names:
            value = getattr(item, name)
            if is_compiled_in(name, value):
                constants.append((name, value))
            else:
                children.append(value)
        return children, tuple(constants)

    def unflatten(constants: tuple[Any, ...], children: list[Any]) -> Any:
        known = dict(constants)
        rest = (name for name in names if name not in known)
        return cls(**known, **dict(zip(rest, children, strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)


def _jitted(
    function: Callable[..., Result], static: tuple[str, ...], donated: tuple[str, ...]
) -> Callable[..., Result]:
    import jax

    while _UNREGISTERED:
        _UNREGISTERED.pop()()
    result: Callable[..., Result] = jax.jit(
        function,
        static_argnames=static,
        donate_argnames=donated,
        compiler_options=compiler_options(),
    )
    return result


@functools.cache
def compiler_options() -> dict[str, bool]:
    """
    Options with which XLA takes half the time to compile for a CPU.

    The emitters of fused loops are the older ones. The code is as fast, up to a few per cent.
    """
    import jax

    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except RuntimeError:  # this version of XLA does not know them
        return {}
    return options


def _has_effects(item: object) -> bool:
    """Whether what a function does with this argument is more than to compute."""
    return bool(getattr(item, "has_effects", False))


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
