"""Labels of the modes of an array: names, values of the bins, and units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.validation import instance_of

Label = float | int | str


@dataclass(frozen=True)
class Axis:
    """
    The labels of one mode.

    Parameters
    ----------
    name : str, optional
        What the mode counts, for example "wavelength".
    values : sequence of numbers or of str, optional
        One label per bin: wavelengths, names of features. Dates become text.
    unit : str, optional
        The unit of the values, for example "nm".

    Examples
    --------
    >>> import wtfarray as wtf
    >>> axis = wtf.Axis("wavelength", [400, 410, 420], "nm")
    >>> axis.title, axis.values
    ('wavelength [nm]', (400, 410, 420))
    """

    name: str | None = None
    values: tuple[Label, ...] | None = None
    unit: str | None = None

    def __init__(
        self,
        name: str | None = None,
        values: Sequence[Label] | NDArray[Any] | None = None,
        unit: str | None = None,
    ) -> None:
        for what, text in (("name", name), ("unit", unit)):
            if text is not None:
                instance_of(f"the {what} of an axis", text, str, "a str or None")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", None if values is None else labels_of(values))
        object.__setattr__(self, "unit", unit)

    @property
    def title(self) -> str | None:
        """The name with the unit, as for an axis of a figure; None if there is neither."""
        if self.name is None:
            return None if self.unit is None else f"[{self.unit}]"
        return self.name if self.unit is None else f"{self.name} [{self.unit}]"

    @property
    def positions(self) -> NDArray[np.float64] | None:
        """The values as increasing or decreasing numbers, (n,); None if they are not."""
        if self.values is None:
            return None
        try:
            numbers = np.asarray([float(value) for value in self.values])
        except ValueError:
            return None
        steps = np.diff(numbers)
        ordered = bool((steps > 0).all() or (steps < 0).all())
        return numbers if ordered and bool(np.isfinite(numbers).all()) else None

    def describe(self) -> str:
        """Name and range of the values, in one line."""
        name = self.name or "values"
        if self.values is None:
            return self.title or "no labels"
        unit = "" if self.unit is None else f" {self.unit}"
        first, last = self.values[0], self.values[-1]
        if self.positions is not None:
            return f"{name}, {first} to {last}{unit}"
        return f"{name}, {first!r} to {last!r}{unit}"


def labels_of(values: Any) -> tuple[Label, ...]:
    """The labels of an index or a sequence: all numbers, or all text."""
    array = values if isinstance(values, np.ndarray) else None
    if array is None:
        if isinstance(values, str):
            msg = f"the values of an axis are the str {values!r}: expected one label per bin"
            raise TypeError(msg)
        array = np.empty(len(values), dtype=object)
        array[:] = list(values)
    if array.ndim != 1:
        msg = f"the values of an axis have shape {array.shape}: expected one label per bin"
        raise ValueError(msg)
    if array.dtype.kind == "M":
        return tuple(np.datetime_as_string(array, unit="auto").tolist())
    found = array.tolist()
    if all(_is_number(value) for value in found):
        return tuple(int(v) if isinstance(v, Integral) else float(v) for v in found)
    return tuple(_text(value) for value in found)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: object) -> str:
    if isinstance(value, tuple):  # a label of several levels
        return " / ".join(map(str, value))
    return str(value)


def checked_axes(
    given: object, found: tuple[Axis, ...], shape: tuple[int, ...], name: str = "axes"
) -> tuple[Axis, ...]:
    """
    The labels of data of this shape: those given by the user, else those found with the data.

    Empty if there are none at all. ``name`` is that of the argument, for messages.
    """
    axes = found or (Axis(),) * len(shape)
    if given is not None:
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(shape):
            count = len(given) if isinstance(given, Sequence) else type(given).__name__
            msg = f"{name} is {given!r} ({count}): expected {len(shape)} entries, one for each mode"
            raise ValueError(msg)
        axes = tuple(_checked(f"{name}[{k}]", e, axes[k]) for k, e in enumerate(given))
    for k, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        if axis.values is not None and len(axis.values) != size:
            count = len(axis.values)
            msg = f"{name}[{k}] has {count} values: expected {size}, the size of mode {k}"
            raise ValueError(msg)
    return axes if any(axis != Axis() for axis in axes) else ()


def _checked(name: str, entry: object, found: Axis) -> Axis:
    if entry is None:
        return found
    if isinstance(entry, str):
        return Axis(entry, found.values, found.unit)
    instance_of(name, entry, Axis, "an Axis, the name of a mode, or None")
    assert isinstance(entry, Axis)
    return entry


def check_labels(name: str, found: Axis, mode: int, expected: Axis, whose: str) -> None:
    """Refuse labels other than those that the same mode has elsewhere; none agree with all."""
    if found.values is None or expected.values is None or found.values == expected.values:
        return
    pairs = zip(found.values, expected.values, strict=False)
    differing = (i for i, (a, b) in enumerate(pairs) if not _same(a, b))
    first = next(differing, None)
    if first is None:
        return
    msg = (
        f"{name} has the label {found.values[first]!r} at index {first} of mode {mode}, where "
        f"{whose} has {expected.values[first]!r}: expected the same labels in the same order"
    )
    raise ValueError(msg)


def check_all_labels(
    name: str, found: Sequence[Axis], expected: Sequence[Axis], whose: str, first: int = 0
) -> None:
    """As `check_labels` for several modes, from ``first`` on; without labels all agree."""
    pairs = zip(found, expected, strict=True) if found and expected else ()
    for k, (labels, others) in enumerate(pairs):
        check_labels(name, labels, first + k, others, whose)
    check_order(name, found, expected, whose, first)


def check_order(
    name: str, found: Sequence[Axis], expected: Sequence[Axis], whose: str, first: int = 0
) -> None:
    """Refuse modes in another order: one with the name that another mode has elsewhere."""
    names = [axis.name for axis in expected]
    for k, (labels, others) in enumerate(zip(found, expected, strict=False)):
        if labels.name is None or labels.name == others.name or labels.name not in names:
            continue
        msg = (
            f"{name} has the mode {labels.name!r} in place {first + k}, where {whose} has "
            f"{others.name!r}: expected the modes in the same order"
        )
        raise ValueError(msg)


def check_last_labels(
    name: str, found: Sequence[Axis], expected: Sequence[Axis], whose: str = "X"
) -> None:
    """
    As `check_all_labels` for an array that broadcasts: its modes are the last ones.

    A mode of one bin agrees with all.
    """
    first = len(expected) - len(found)
    if not found or first < 0:
        return
    last = expected[first:]
    for k, (labels, others) in enumerate(zip(found, last, strict=True)):
        if labels.values is None or len(labels.values) > 1:
            check_labels(name, labels, first + k, others, whose)
    check_order(name, found, last, whose, first)


def _same(a: Label, b: Label) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return str(a) == str(b)
    return math.isclose(a, b, rel_tol=1e-9)
