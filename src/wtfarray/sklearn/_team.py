"""Estimators of several processes."""

from __future__ import annotations

from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator

from wtfarray._arrays.host import to_host
from wtfarray._arrays.sums import Sums
from wtfarray._fit.team import check_same

LOCAL_PARAMETERS = ("random_state", "verbose", "comm")
"""Parameters that may differ between the processes of a team."""


def check_same_parameters(estimator: BaseEstimator, sums: Sums) -> None:
    """Refuse parameters of an estimator that differ between the processes."""
    shared = {k: v for k, v in estimator.get_params().items() if k not in LOCAL_PARAMETERS}
    check_same(sums, {k: _content(v) for k, v in shared.items()})


def _content(value: object) -> object:
    """A parameter in a form that can be compared between processes."""
    parts = value if isinstance(value, list | tuple) else [value]
    if any(is_array_api_obj(part) for part in parts):
        return b"".join(to_host(part).tobytes() for part in parts)
    return repr(value)
