"""Masks of data that are read in chunks: in memory, or stored beside the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_array_api_obj

from wtfarray._arrays.masks import broadcasts
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array


class StoredMask:
    """
    True where data of a given shape were observed, read a few samples at a time.

    ``source`` is an array, or anything that has a shape and a dtype and can be sliced. It
    broadcasts against the shape of the data.
    """

    def __init__(self, source: Any, shape: tuple[int, ...]) -> None:
        if not all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__")):
            msg = f"mask is a {type(source).__name__}: expected an array of bool, or a stored one"
            raise TypeError(msg)
        if "bool" not in str(source.dtype):
            msg = f"mask has dtype {source.dtype}: expected bool, True where X was observed"
            raise TypeError(msg)
        found = tuple(int(n) for n in source.shape)
        if not broadcasts(found, shape):
            msg = f"mask has shape {found}: expected one that broadcasts to {shape}"
            raise ValueError(msg)
        self._source = source
        self._shape = shape
        self._has_samples = len(found) == len(shape) and found[0] == shape[0]

    def read(self, rows: slice, like: Array) -> Array:
        """Which entries of some samples were observed, in the library and on the device of X."""
        source = self._source
        if self._has_samples:
            part = source[rows]
        else:  # as large as a sample at the most
            part = source[0 : source.shape[0]] if source.shape else source[...]
        xp = array_namespace(like)
        if not is_array_api_obj(part) or isinstance(part, np.ndarray):
            part = xp.asarray(np.array(part, dtype=bool), device=device_of(like))
        shape = (rows.stop - rows.start, *self._shape[1:])
        # A copy, because a broadcast array would share its memory with the argument.
        everywhere = xp.ones(shape, dtype=xp.bool, device=device_of(like))
        return xp.broadcast_to(part, shape) & everywhere
