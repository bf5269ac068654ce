"""Names for types that the Array API standard leaves to each library."""

from typing import Any, TypeAlias

Array: TypeAlias = Any
DType: TypeAlias = Any
Device: TypeAlias = Any
Namespace: TypeAlias = Any
