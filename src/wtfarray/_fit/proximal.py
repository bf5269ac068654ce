"""Batches of samples: a proximal term stands for the samples that were seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wtfarray._arrays.typing import Array
from wtfarray._fit.specification import Specification
from wtfarray._solvers.problem import FactorisationProblem

PROXIMAL_WEIGHT = 0.03
"""
Weight of the proximal term per sample seen, as a fraction of eps.

With a larger weight, errors of the first batches decay slowly; with a smaller one, the atoms follow
every batch. Of 0.03, 0.1, 0.3 and 1 with the running mean, 0.03 came closest to the full fit on
shifted bumps.
"""


def proximal_problem(
    spec: Specification, previous: Sequence[Array], proximal: float
) -> FactorisationProblem:
    """
    The problem of a batch with a proximal term on the atoms, all blocks but the first.

    The samples seen before are replaced by ``proximal`` times the mean of KL(atom | previous atom),
    with ``proximal = PROXIMAL_WEIGHT eps`` times their mass, because the loss is eps strongly
    convex relative to the entropy. Steps then decrease like one over the number of samples seen: a
    stochastic proximal point method in the geometry of the entropy.
    """
    # rho E(A) + w KL(A|B) = (rho + w) H(A | B^(w / (rho + w))) + constant
    plain = spec.block_rho
    rho: list[float | Array] = [plain[0]]
    references: list[Array | None] = [None]
    for k, block in enumerate(previous, start=1):
        # The core has one slice per column of the sample factor.
        atoms = block.shape[1] if k < spec.modes else block.shape[0]
        weight = proximal / atoms
        rho.append(plain[k] + weight)
        references.append(block ** (weight / (plain[k] + weight)))
    return replace(spec.problem(), rho=tuple(rho), references=tuple(references))


def running_share(past: float) -> float:
    """
    The weight of the latest atoms in the running mean, after ``past`` batches of the same size.

    The atoms change with every batch. Their mean, which weights recent ones more (polynomial-decay
    averaging, Shamir and Zhang 2013), converges.
    """
    return 4.0 / (past + 4.0)
