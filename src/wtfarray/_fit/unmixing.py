"""Unmixing: the coefficients of known atoms, a convex problem with a certified solution."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.axes import Axis, check_all_labels, check_last_labels
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_nonnegative,
    common_namespace,
    follow,
    instance_of,
    one_of,
    positive_integer,
    positive_number,
    refuse_where,
)
from wtfarray._fit.mixtures import Mixtures
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.specification import is_sampled
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.labels import check_cost_labels
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint

RHO_SHARE = 1e-3
"""The default of rho, relative to eps: the bias that it adds is far below that of eps."""
RHO = 1e-5
"""The default of rho if no loss has an eps."""


@dataclass(frozen=True, eq=False, repr=False)
class Unmixing:
    """Samples as non-negative combinations of atoms."""

    coefficients: Array
    """(n, k + extra), or (k + extra,) of a single sample."""
    atoms: Array
    """The known atoms, then the learned ones: (k + extra, ...)."""
    objective: float
    """The loss and the weighted entropy, from below, of samples and atoms of mass one."""
    gap: float
    """
    How far the objective may be above its minimum, proven by duality.

    With extra atoms the problem is not convex, and it is the error of the objective.
    """
    converged: bool
    message: str
    n_iter: int

    def __repr__(self) -> str:
        """A summary: sizes, objective, gap and the message."""
        samples = 1 if self.coefficients.ndim == 1 else self.coefficients.shape[0]
        state = "converged" if self.converged else "NOT converged"
        return (
            f"<unmixing of {samples} samples into {self.atoms.shape[0]} atoms: objective "
            f"{self.objective:.6g}, gap {self.gap:.1e}, {state} after {self.n_iter} iterations>\n"
            f"{self.message}"
        )

    @property
    def shares(self) -> Array:
        """The share of each atom in the mass of the model, of the shape of the coefficients."""
        xp = array_namespace(self.coefficients)
        mass = self.coefficients * per_sample(self.atoms)
        total = xp.sum(mass, axis=-1, keepdims=True)
        return mass / xp.where(total > 0, total, 1.0)

    def to_tensor(self) -> Array:
        """The model of the samples, of their shape."""
        return array_namespace(self.atoms).tensordot(self.coefficients, self.atoms, axes=1)


def unmix(
    X: Array,
    /,
    atoms: Array,
    loss: Loss,
    *,
    rho: float | None = None,
    constraint: Constraint = None,
    extra: int = 0,
    rng: int | np.random.Generator | None = None,
    tol: float = 1e-9,
    max_iter: int = 1000,
    mask: Array | None = None,
    progress: bool = False,
) -> Unmixing:
    """
    Find how much of each known atom is in each sample.

    Minimises ``loss(X, C A) + rho E(C)`` over non-negative coefficients C, for the atoms A. This is
    a convex problem for each sample on its own. Samples and atoms are divided by their masses first
    (by their norms under a `Frobenius` loss without constraint), and the coefficients scaled back:
    they are proportional to the samples, whatever the units. A loss of your own is given samples
    and atoms as they are.

    Parameters
    ----------
    X : array (n, ...) or (...)
        Non-negative samples, or a single one.
    atoms : array (k, ...)
        Non-negative atoms, each of the shape of a sample and with a positive sum.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    rho : float, optional
        Weight of the entropy of the coefficients, which keeps them positive. By default one
        thousandth of the ``eps`` of a `Wasserstein` loss, and 1e-5 for others, times the mean
        square of the scaled samples under a `Frobenius` loss.
    constraint : {None, "rows"}
        "rows": the model has the mass of each sample, so that coefficients sum to one if all masses
        are one. None: its mass is free. Balanced transport (infinite ``lam``) needs "rows".
    extra : int
        Number of atoms that are learned beside the known ones. The problem is no longer convex, and
        needs several samples.
    rng : int or numpy.random.Generator
        Seed of the extra atoms.
    tol : float
        Tolerance on the relative decrease of the objective, at which the solver stops.
    max_iter : int
        Largest number of iterations.
    mask : array of bool, optional
        True where X was observed; the other entries are ignored.
    progress : bool
        Show a progress bar (needs tqdm).

    Returns
    -------
    Unmixing
        Coefficients, atoms, and the duality gap; it has converged if that is below one thousandth
        of the objective, or of ``eps`` times the mass if that is larger.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> at = np.arange(40)
    >>> atoms = np.stack([1 / (1 + ((at - c) / 2) ** 2) for c in (8, 20, 31)])
    >>> X = 0.7 * np.roll(atoms[0], 1) + 0.3 * np.roll(atoms[2], -1)  # shifted by one bin
    >>> loss = wtf.Wasserstein(wtf.grid_cost(40), eps=1e-2, lam=1.0)
    >>> found = wtf.unmix(X, atoms, loss)
    >>> found.coefficients.round(1) + 0.0, found.converged
    (array([0.7, 0. , 0.3]), True)
    """
    X, labels = without_labels("X", X)
    atoms, atom_labels = without_labels("atoms", atoms)
    xp = common_namespace(X=X)
    mask, mask_labels = without_labels("mask", mask)
    check_last_labels("mask", mask_labels, labels)
    mask = as_mask("mask", mask, X)
    X = as_nonnegative("X", observed(X, mask), xp)
    common_namespace(atoms=atoms)
    atoms = as_nonnegative("atoms", follow("atoms", atoms, xp, X.dtype, device_of(X)), xp)
    single = X.ndim == max(atoms.ndim - 1, 1)
    if single:
        X, mask = X[None, ...], None if mask is None else mask[None, ...]
    _check(X, atoms, loss, constraint)
    features = labels if single else labels[1:]
    check_all_labels("X", features, atom_labels[1:], "atoms", first=0 if single else 1)
    for axes in (features, atom_labels[1:]):
        check_cost_labels(loss, (Axis(), *axes) if axes else ())
    options = SolverOptions(
        tol=positive_number("tol", tol),
        max_iter=positive_integer("max_iter", max_iter),
        progress=progress,
    )
    extra = positive_integer("extra", extra, least=0)
    if constraint == "rows" and mask is not None:
        _refuse_partly_hidden(mask)
    given, mass, weights = X, per_sample(X), per_sample(atoms)
    if isinstance(loss, Frobenius) and constraint is None:
        mass, weights = (xp.sqrt(per_sample(array * array)) for array in (X, atoms))
    elif not all(
        isinstance(part, Wasserstein | KullbackLeibler | Frobenius) for part in losses_of(loss)
    ):
        mass, weights = xp.ones_like(mass), xp.ones_like(weights)  # other losses have a unit
    X = X / spread(xp.where(mass > 0, mass, 1.0), X)
    rho = _default_rho(loss, X) if rho is None else positive_number("rho", rho)
    known = xp.reshape(atoms / spread(weights, atoms), (atoms.shape[0], -1)).mT
    problem = Mixtures(X, known, loss, constraint, rho, mask)
    out_of_reach = problem.out_of_reach()
    if not extra:
        _refuse_out_of_reach(out_of_reach, given, loss, single=single)
    found = problem.unmix(options, blurred=bool(xp.any(out_of_reach)))
    if extra:
        found = problem.unmix_with_extra(found, extra, options, np.random.default_rng(rng))
        learned = xp.reshape(found.extra.mT, (extra, *atoms.shape[1:]))
        atoms, weights = xp.concat([atoms, learned]), xp.concat([weights, per_sample(learned)])
    coefficients = found.coefficients * mass[:, None] / weights[None, :]
    if not found.converged:
        warnings.warn(f"unmix: {found.message}", stacklevel=2)
    return Unmixing(
        coefficients=coefficients[0, :] if single else coefficients,
        atoms=atoms,
        objective=found.objective,
        gap=found.gap,
        converged=found.converged,
        message=found.message,
        n_iter=found.n_iter,
    )


def _refuse_out_of_reach(bad: Array, X: Array, loss: Loss, *, single: bool) -> None:
    """Refuse samples with mass that no combination of the atoms explains."""
    transports = any(isinstance(part, Wasserstein) for part in losses_of(loss))
    expected = "0 where all atoms are 0, or atoms that are positive everywhere"
    if transports:
        expected = "0 where no atom is at a finite cost, a larger reach, or a finite source_lam"
    refuse_where(bad[0, ...] if single else bad, "X", X[0, ...] if single else X, expected)


def _default_rho(loss: Loss, X: Array) -> float:
    """The default weight of the entropy, for samples in the unit in which they are fitted."""
    eps = [part.eps for part in losses_of(loss) if isinstance(part, Wasserstein)]
    if eps:
        return RHO_SHARE * max(eps)
    if isinstance(loss, Frobenius):  # the squared error of a model that explains nothing
        mean = float(array_namespace(X).mean(per_sample(X * X)))
        return RHO * mean if mean > 0 else RHO
    return RHO


def _refuse_partly_hidden(mask: Array) -> None:
    """Refuse to give the model the mass of samples of which only a part was observed."""
    xp = array_namespace(mask)
    axes = tuple(range(1, mask.ndim))
    hidden = xp.any(mask, axis=axes) & ~xp.all(mask, axis=axes)
    if bool(xp.any(hidden)):
        i = int(xp.argmax(xp.astype(hidden, xp.int64)))
        msg = (
            f"constraint is 'rows' and mask hides a part of sample {i}, whose mass is not known: "
            "expected constraint None, or samples that are observed whole or not at all"
        )
        raise ValueError(msg)


def _check(X: Array, atoms: Array, loss: Loss, constraint: Constraint) -> None:
    """Refuse atoms, losses and constraints that do not fit the samples."""
    xp = array_namespace(X)
    if atoms.ndim < 2 or tuple(X.shape[1:]) != tuple(atoms.shape[1:]):
        expected = ", ".join(map(str, ("k", *X.shape[1:])))
        msg = f"atoms has shape {tuple(atoms.shape)}: expected ({expected}), as the samples of X"
        raise ValueError(msg)
    empty = ~(per_sample(atoms) > 0)
    if bool(xp.any(empty)):
        k = int(xp.argmax(xp.astype(empty, xp.int64)))
        msg = f"atoms is 0 everywhere in atom {k}: expected a positive entry in every atom"
        raise ValueError(msg)
    instance_of("loss", loss, Loss, "a loss of wtfarray, or an object with value_and_gradient")
    one_of("constraint", constraint, (None, "rows"))
    if not is_sampled(loss, tuple(X.shape)):
        msg = "loss transports the first mode of X: expected samples along it, which it does not"
        raise ValueError(msg)
    balanced = (isinstance(p, Wasserstein) and math.isinf(p.lam) for p in losses_of(loss))
    if constraint is None and any(balanced):
        msg = "constraint is None and loss is balanced (lam = inf): expected 'rows' or a finite lam"
        raise ValueError(msg)
