"""Factorise non-negative matrices and tensors with a smoothed Wasserstein loss, on any array."""

from wtfarray._version import __version__
from wtfarray.costs import grid_cost, point_cost
from wtfarray.duals import BlockDual, Certificate, cp_dual, tucker_dual
from wtfarray.legendre import entropy, entropy_conjugate
from wtfarray.losses import Frobenius, KullbackLeibler, Loss, Wasserstein
from wtfarray.optimize import OptimizeResult, gradient_descent, lbfgs
from wtfarray.sinkhorn import TransportResult, wasserstein
from wtfarray.tensor import (
    cp_to_tensor,
    fold,
    mode_product,
    mode_products,
    tucker_to_tensor,
    unfold,
)

__all__ = [
    "BlockDual",
    "Certificate",
    "Frobenius",
    "KullbackLeibler",
    "Loss",
    "OptimizeResult",
    "TransportResult",
    "Wasserstein",
    "__version__",
    "cp_dual",
    "cp_to_tensor",
    "entropy",
    "entropy_conjugate",
    "fold",
    "gradient_descent",
    "grid_cost",
    "lbfgs",
    "mode_product",
    "mode_products",
    "point_cost",
    "tucker_dual",
    "tucker_to_tensor",
    "unfold",
    "wasserstein",
]
