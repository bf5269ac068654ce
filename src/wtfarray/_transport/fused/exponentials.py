"""exp and log of one number, in a form that the compiler turns into vector instructions."""

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wtfarray._transport.fused.machine_code import ordered_machine_code

LOWEST = -708.0
"""exp is 0 below this: the results are no normal numbers."""
HIGHEST = 709.0
"""exp of more than this is that of this."""

LOG2_E = 1.0 / math.log(2.0)
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""Their sum is log 2; the first has 32 bits, so that its products with small integers are exact."""
ONE_BITS, MANTISSA_BITS = 0x3FF0000000000000, 0x000FFFFFFFFFFFFF
HALF_ROOT_BITS = 0x3FE6A09E667F3BCD
"""The bits of 1, those of a mantissa, and those of the root of 1/2."""
SMALLEST_NORMAL, TWO_54, LN2 = 2.0**-1022, 2.0**54, math.log(2.0)


@intrinsic
def bits_of(_context, _x):  # type: ignore[no-untyped-def]
    """The bits of a float64 as an integer."""

    def code(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), code


@intrinsic
def from_bits(_context, _x):  # type: ignore[no-untyped-def]
    """The float64 of which the bits are given."""

    def code(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), code


@ordered_machine_code
def exp(x: float) -> float:
    """``exp(x)`` for ``x <= 709``, to one unit in the last place."""
    bounded = min(max(x, LOWEST), HIGHEST)
    whole = math.floor(bounded * LOG2_E + 0.5)
    r = bounded - whole * LN2_HIGH
    r = r - whole * LN2_LOW
    # The Taylor series at 0: |r| <= log(2) / 2.
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    value = p * from_bits(types.uint64(types.int32(whole) + types.int32(1023)) << types.uint64(52))
    return value if x >= LOWEST else 0.0


@ordered_machine_code
def log(x: float) -> float:
    """``log(x)`` of a positive normal number, to one unit in the last place."""
    # x = 2^k (1 + f), with 1 + f between the root of 1/2 and that of 2.
    bits = bits_of(x) + types.uint64(ONE_BITS - HALF_ROOT_BITS)
    k = float(types.int32(bits >> types.uint64(52)) - types.int32(1023))
    f = from_bits((bits & types.uint64(MANTISSA_BITS)) + types.uint64(HALF_ROOT_BITS)) - 1.0
    # log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f): FreeBSD's e_log.c.
    s = f / (2.0 + f)
    z = s * s
    R = 1.479819860511658591e-01
    R = R * z + 1.531383769920937332e-01
    R = R * z + 1.818357216161805012e-01
    R = R * z + 2.222219843214978396e-01
    R = R * z + 2.857142874366239149e-01
    R = R * z + 3.999999999940941908e-01
    R = R * z + 6.666666666666735130e-01
    R = R * z
    half = 0.5 * f * f
    return k * LN2_HIGH - ((half - (s * (half + R) + k * LN2_LOW)) - f)


@ordered_machine_code
def log_of_any(x: float) -> float:
    """``log(x)`` of a positive number that may be below the smallest normal one."""
    return log(x) if x >= SMALLEST_NORMAL else log(x * TWO_54) - 54.0 * LN2
