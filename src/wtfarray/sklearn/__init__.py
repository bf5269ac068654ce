"""Estimators for scikit-learn: `WassersteinNMF`, `WassersteinCP` and `WassersteinTucker`."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    msg = "wtfarray.sklearn needs scikit-learn: pip install 'wtfarray[sklearn]'"
    raise ModuleNotFoundError(msg, name=error.name) from error

from wtfarray.sklearn._estimators import WassersteinCP, WassersteinNMF, WassersteinTucker

__all__ = ["WassersteinCP", "WassersteinNMF", "WassersteinTucker"]
