"""Factorise non-negative matrices and tensors with a smoothed Wasserstein loss, on any array."""

from wtfarray._journal import FitState
from wtfarray._version import __version__
from wtfarray.costs import grid_cost, point_cost
from wtfarray.duals import BlockDual, Certificate, cp_dual, tucker_dual
from wtfarray.fit import cp, nmf, tucker
from wtfarray.legendre import entropy, entropy_conjugate
from wtfarray.losses import Frobenius, KullbackLeibler, Loss, LossSum, Wasserstein
from wtfarray.optimize import OptimizeResult, gradient_descent, lbfgs
from wtfarray.rank_selection import RankRecord, RankScan, rank_scan
from wtfarray.result import Factorisation, Record, load
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
    "Factorisation",
    "FitState",
    "Frobenius",
    "KullbackLeibler",
    "Loss",
    "LossSum",
    "OptimizeResult",
    "RankRecord",
    "RankScan",
    "Record",
    "TransportResult",
    "Wasserstein",
    "__version__",
    "cp",
    "cp_dual",
    "cp_to_tensor",
    "entropy",
    "entropy_conjugate",
    "fold",
    "gradient_descent",
    "grid_cost",
    "lbfgs",
    "load",
    "mode_product",
    "mode_products",
    "nmf",
    "point_cost",
    "rank_scan",
    "tucker",
    "tucker_dual",
    "tucker_to_tensor",
    "unfold",
    "wasserstein",
]
