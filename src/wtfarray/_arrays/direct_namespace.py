"""A namespace of array_api_compat in which some functions are replaced."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from wtfarray._arrays.typing import Namespace


def direct_namespace(
    wrapped: Namespace, functions: Mapping[str, Any], of_linalg: Mapping[str, Any]
) -> Namespace:
    """The namespace ``wrapped``, with other ``functions``, also in its part ``linalg``."""
    linalg = _with(wrapped.linalg, of_linalg)
    return _with(wrapped, {**functions, "linalg": linalg})


def _with(module: Any, functions: Mapping[str, Any]) -> ModuleType:
    found = ModuleType(module.__name__, module.__doc__)
    vars(found).update(vars(module))
    vars(found).update(functions)
    return found
