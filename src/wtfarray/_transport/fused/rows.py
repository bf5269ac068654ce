"""Rows of arrays that hold no reference to them: threads would wait for each other to count it."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


@intrinsic
def row(_context: Any, array: Any, _index: Any) -> Any:
    """``array[index]`` of an array in C order, which has to outlive it; nothing is checked."""
    kind = types.Array(array.dtype, array.ndim - 1, "C")

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = make_array(signature.args[0])(context, builder, arguments[0])
        index = context.cast(builder, arguments[1], signature.args[1], types.intp)
        shape = cgutils.unpack_tuple(builder, whole.shape)
        strides = cgutils.unpack_tuple(builder, whole.strides)
        start = cgutils.pointer_add(
            builder, whole.data, builder.mul(index, strides[0]), whole.data.type
        )
        part = make_array(kind)(context, builder)
        populate_array(
            part,
            data=start,
            shape=cgutils.pack_array(builder, shape[1:]),
            strides=cgutils.pack_array(builder, strides[1:]),
            itemsize=whole.itemsize,
            meminfo=None,
        )
        return part._getvalue()  # noqa: SLF001 -- so that Numba's own code has it

    return kind(array, types.intp), code
