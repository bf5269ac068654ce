"""Estimators for scikit-learn: matrix, CP and Tucker models, and several data sets together."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    msg = "wtfarray.sklearn needs scikit-learn: pip install 'wtfarray[sklearn]'"
    raise ModuleNotFoundError(msg, name=error.name) from error

from wtfarray.sklearn._coupled import CoupledWassersteinNMF
from wtfarray.sklearn._estimators import WassersteinCP, WassersteinNMF, WassersteinTucker

__all__ = ["CoupledWassersteinNMF", "WassersteinCP", "WassersteinNMF", "WassersteinTucker"]
