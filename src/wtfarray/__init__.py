"""Non-negative matrix and tensor factorisation with a smoothed Wasserstein loss."""

from wtfarray._arrays.axes import Axis
from wtfarray._fit.coupled import coupled
from wtfarray._fit.coupled_result import CoupledFactorisation
from wtfarray._fit.factorise import cp, nmf, tucker
from wtfarray._fit.journal import FitState, Record
from wtfarray._fit.loading import load
from wtfarray._fit.rank_records import RankRecord, RankScan
from wtfarray._fit.rank_scan import rank_scan
from wtfarray._fit.result import Factorisation
from wtfarray._fit.unmixing import Unmixing, unmix
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.protocol import Loss, MaskedLoss
from wtfarray._losses.value import TransportResult, wasserstein
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import entropy, entropy_conjugate
from wtfarray._models.tensor import (
    cp_to_tensor,
    fold,
    mode_product,
    mode_products,
    tucker_to_tensor,
    unfold,
)
from wtfarray._optimize import OptimizeResult, gradient_descent, lbfgs
from wtfarray._solvers.block_dual import BlockDual, Certificate, cp_dual, tucker_dual
from wtfarray._transport.banded import BandedCost
from wtfarray._transport.costs import grid_cost, point_cost
from wtfarray._transport.feature_costs import feature_cost
from wtfarray._version import __version__

__all__ = [
    "Axis",
    "BandedCost",
    "BlockDual",
    "Certificate",
    "CoupledFactorisation",
    "Factorisation",
    "FitState",
    "Frobenius",
    "KullbackLeibler",
    "Loss",
    "LossSum",
    "MaskedLoss",
    "OptimizeResult",
    "RankRecord",
    "RankScan",
    "Record",
    "TransportResult",
    "Unmixing",
    "Wasserstein",
    "__version__",
    "coupled",
    "cp",
    "cp_dual",
    "cp_to_tensor",
    "entropy",
    "entropy_conjugate",
    "feature_cost",
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
    "unmix",
    "wasserstein",
]
