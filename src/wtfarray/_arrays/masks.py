"""Missing entries: masks that are True where the data were observed."""

from array_api_compat import device as device_of
from array_api_compat import is_numpy_array

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import common_namespace


def as_mask(
    name: str, mask: Array | None, X: Array, like: str = "X", *, shared: bool = False
) -> Array | None:
    """
    Return a mask in the shape of X, with its library and device; None if every entry is observed.

    A NumPy mask is converted to the library of X. ``like`` is the name of X in messages. If
    several processes share the samples, ``shared``, nothing may be observed of those of this one.
    """
    if mask is None:
        return None
    xp = array_namespace(X)
    if isinstance(mask, bool):
        msg = f"{name} is {mask}: expected an array of bool, True where {like} was observed"
        raise TypeError(msg)
    space = common_namespace(**{name: mask})
    if not space.isdtype(mask.dtype, "bool"):
        msg = f"{name} has dtype {mask.dtype}: expected bool, True where {like} was observed"
        raise TypeError(msg)
    if is_numpy_array(mask):
        mask = xp.asarray(mask.copy(), device=device_of(X))
    common_namespace(**{like: X, name: mask})
    shape = tuple(X.shape)
    if not broadcasts(tuple(mask.shape), shape):
        msg = f"{name} has shape {tuple(mask.shape)}: expected one that broadcasts to {shape}"
        if tuple(mask.shape) == shape[:1]:
            index = ", ".join([":", *("None" for _ in shape[1:])])
            msg += f"; {name}[{index}] hides whole samples"
        raise ValueError(msg)
    if bool(xp.all(mask)):
        return None
    if not shared and not bool(xp.any(mask)):
        msg = f"{name} is False everywhere: expected at least one entry of {like} to be observed"
        raise ValueError(msg)
    # A copy, because a broadcast array would share its memory with the argument.
    return xp.broadcast_to(mask, shape) & xp.ones(shape, dtype=xp.bool, device=device_of(X))


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` broadcasts to exactly the shape ``full``."""
    last = full[len(full) - len(shape) :]
    fits = all(n in (1, m) for n, m in zip(shape, last, strict=False))
    return len(shape) <= len(full) and fits


def observed(array: Array, mask: Array | None) -> Array:
    """The array with 0 where the mask is False, whatever stands there."""
    if mask is None:
        return array
    xp = array_namespace(array)
    return xp.where(mask, array, xp.zeros_like(array))


def filled_with_means(X: Array, mask: Array, sums: Sums = ALONE) -> Array:
    """
    Data with the missing entries replaced: by the mean of the same entry in the other samples.

    If no sample has it, by the mean of all observed entries. For initialisations only.
    """
    xp = array_namespace(X)
    weights = xp.astype(mask, X.dtype)
    counts = sums.over(weights, 0)
    totals = sums.over(observed(X, mask), 0)
    mean = xp.sum(totals) / xp.sum(counts)
    means = xp.where(counts > 0, totals / xp.where(counts > 0, counts, 1.0), mean)
    return xp.where(mask, X, means)
