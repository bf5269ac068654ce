"""Matrix factorisation of AnnData and MuData objects (``pip install 'wtfarray[anndata]'``)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis
from wtfarray._arrays.containers import is_a
from wtfarray._arrays.host import to_host
from wtfarray._arrays.sparse import divided_rows, is_sparse, to_csr
from wtfarray._arrays.validation import instance_of, negative_advice
from wtfarray._fit import factorise
from wtfarray._fit.coupled import coupled
from wtfarray._fit.coupled_result import CoupledFactorisation
from wtfarray._fit.result import Factorisation
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.feature_costs import feature_cost

__all__ = ["nmf"]

EPS, LAM = 0.05, 10.0
"""Parameters of the default loss, in units of the mean cost."""


def nmf(
    data: Any,
    /,
    rank: int,
    loss: Loss | Mapping[str, Loss] | None = None,
    *,
    layer: str | None = None,
    use_highly_variable: bool | None = None,
    normalise: bool = True,
    weights: Mapping[str, float] | None = None,
    key: str = "wtf",
    **options: Any,
) -> Factorisation | CoupledFactorisation:
    """
    Factorise cells x features, and write the result into the object.

    Of an AnnData, the coefficients of the cells are written to ``obsm["X_wtf"]``, the atoms to
    ``varm["wtf"]`` (0 for features that were not used), and what was fitted to ``uns["wtf"]``. The
    modalities of a MuData are fitted by `wtfarray.coupled`, with shared coefficients in its
    ``obsm["X_wtf"]``, and atoms in ``varm["wtf"]`` of each modality.

    Parameters
    ----------
    data : anndata.AnnData or mudata.MuData
        Non-negative data, dense or sparse. A large sparse matrix is never made dense as a whole.
        Empty cells are left out, with a warning, and get coefficients of 0. Cells that a modality
        of a MuData lacks, or that are empty there, are missing entries of it.
    rank : int
        Number of components.
    loss : Loss, or a mapping from modality to Loss, optional
        By default the Wasserstein loss with the cosine distance between features as their cost, see
        `wtfarray.feature_cost`, eps = 0.05 and lam = 10.
    layer : str, optional
        The layer with the data; by default ``X``.
    use_highly_variable : bool, optional
        Use the features marked in ``var["highly_variable"]`` only; by default if there are such
        marks.
    normalise : bool
        Divide every cell by its sum over the features that are used.
    weights : mapping from modality to float, optional
        The weight of the loss of each modality of a MuData, by default 1.
    key : str
        The name under which the result is written.
    **options
        As for `wtfarray.nmf`, for a MuData as for `wtfarray.coupled`.

    Returns
    -------
    Factorisation or CoupledFactorisation
        The fit, with the names of cells and features.

    Examples
    --------
    >>> from wtfarray import anndata as wad
    >>> fit = wad.nmf(adata, 10, rng=0)  # doctest: +SKIP
    >>> adata.obsm["X_wtf"].shape  # doctest: +SKIP
    (2700, 10)
    """
    if is_a(data, "mudata", "MuData") or hasattr(data, "mod"):
        return _nmf_of_modalities(
            data, rank, loss, layer, use_highly_variable, weights, key, options, normalise=normalise
        )
    instance_of("key", key, str, "a str")
    if weights is not None:
        msg = "weights was given, but data is an AnnData: expected a MuData"
        raise ValueError(msg)
    if isinstance(loss, Mapping):
        msg = "loss is a mapping, but data is an AnnData: expected one loss"
        raise TypeError(msg)
    used = _used_features("data", data, use_highly_variable)
    X, filled = _matrix("data", data, layer, used, normalise=normalise)
    if not filled.all():
        X = X[np.flatnonzero(filled)]
        msg = (
            f"nmf: {int((~filled).sum())} of {filled.size} cells have no counts of the features "
            "that are used: they are left out, and get coefficients of 0"
        )
        warnings.warn(msg, stacklevel=2)
    cells = Axis("cell", _names(data.obs_names[filled]))
    axes = (cells, Axis("feature", _names(data.var_names[used])))
    chosen = _default_loss(X) if loss is None else loss
    fit = factorise.nmf(X, rank, chosen, **{"axes": axes, **options})
    data.obsm[f"X_{key}"] = _of_all(to_host(fit.factors[0]), filled)
    data.varm[key] = _of_all(to_host(fit.factors[1]), used)
    data.uns[key] = _facts(fit, layer, used, normalise=normalise)
    return fit


def _nmf_of_modalities(
    data: Any,
    rank: int,
    loss: Loss | Mapping[str, Loss] | None,
    layer: str | None,
    use_highly_variable: bool | None,  # noqa: FBT001
    weights: Mapping[str, float] | None,
    key: str,
    options: dict[str, Any],
    *,
    normalise: bool,
) -> CoupledFactorisation:
    """The coupled factorisation of the modalities of a MuData."""
    modalities = dict(data.mod)
    losses: dict[str, Any]
    losses = dict(loss) if isinstance(loss, Mapping) else dict.fromkeys(modalities, loss)
    shares = dict(weights or {})
    for what, given in (("loss", losses), ("weights", shares)):
        unknown = set(given) - set(modalities)
        if unknown:
            expected = ", ".join(map(repr, modalities))
            msg = f"{what} names the modality {min(unknown)!r}: expected some of {expected}"
            raise ValueError(msg)
    cells = {name: i for i, name in enumerate(data.obs_names)}
    arrays, masks, axes, used = [], [], [], {}
    for name, part in modalities.items():
        used[name] = _used_features(f"data[{name!r}]", part, use_highly_variable)
        X, filled = _matrix(f"data[{name!r}]", part, layer, used[name], normalise=normalise)
        place = np.asarray([cells[cell] for cell in part.obs_names], dtype=np.intp)
        seen = np.zeros((len(cells), 1), dtype=bool)
        seen[place[filled]] = True
        arrays.append(_in_order(X, place, len(cells)))
        masks.append(None if seen.all() else seen)
        labels = _names(part.var_names[used[name]])
        axes.append((Axis("cell", _names(data.obs_names)), Axis("feature", labels)))
        if losses.get(name) is None:
            losses[name] = _default_loss(X)
    dtype = np.result_type(*(array.dtype for array in arrays))
    fit = coupled(
        [array if array.dtype == dtype else array.astype(dtype) for array in arrays],
        rank,
        [losses[name] for name in modalities],
        weights=[shares.get(name, 1.0) for name in modalities],
        mask=masks,
        **{"axes": axes, **options},
    )
    seen = np.any([np.ones((len(cells), 1)) if mask is None else mask for mask in masks], axis=0)
    data.obsm[f"X_{key}"] = np.where(seen, to_host(fit.coefficients), 0.0)
    for (name, part), atoms in zip(modalities.items(), fit.fits, strict=True):
        part.varm[key] = _of_all(to_host(atoms.factors[1]), used[name])
        part.uns[key] = _facts(atoms, layer, used[name], normalise=normalise)
    return fit


def _used_features(
    name: str,
    data: Any,
    use_highly_variable: bool | None,  # noqa: FBT001
) -> NDArray[np.bool_]:
    """Which features are fitted."""
    for attribute in ("obs_names", "var_names", "var", "obsm", "varm", "uns", "layers"):
        if not hasattr(data, attribute):
            msg = f"{name} is a {type(data).__name__}: expected an AnnData or a MuData"
            raise TypeError(msg)
    marked = "highly_variable" in data.var
    if use_highly_variable and not marked:
        msg = f"{name} has no var['highly_variable']: expected marks, or use_highly_variable=False"
        raise ValueError(msg)
    if marked and use_highly_variable is not False:
        used = _marks(f"{name}.var['highly_variable']", data.var["highly_variable"])
        if not used.any():
            msg = f"{name} has no feature marked in var['highly_variable']: expected at least one"
            raise ValueError(msg)
        return used
    return np.ones(len(data.var_names), dtype=bool)


def _marks(name: str, column: Any) -> NDArray[np.bool_]:
    """A column of marks as bool; refuse text and missing marks, which would all count as True."""
    values = np.asarray(column)
    if values.dtype.kind not in "biuf":
        flags = [isinstance(value, (bool, np.bool_)) for value in values]
        if not all(flags):
            wrong = values[flags.index(False)]
            msg = f"{name} has the entry {wrong!r}: expected True or False for every feature"
            raise TypeError(msg)
    missing = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    if missing:
        msg = (
            f"{name} is NaN for {missing} features: expected True or False for every feature, for "
            "example by fillna(False)"
        )
        raise ValueError(msg)
    return values.astype(bool)


def _matrix(
    name: str, data: Any, layer: str | None, used: NDArray[np.bool_], *, normalise: bool
) -> tuple[Any, NDArray[np.bool_]]:
    """The features that are used, sparse if they are stored so; and which cells are not empty."""
    if layer is not None and layer not in data.layers:
        expected = ", ".join(map(repr, data.layers)) or "None, there are no layers"
        msg = f"layer is {layer!r}, which {name} does not have: expected {expected}"
        raise ValueError(msg)
    stored = data.X if layer is None else data.layers[layer]
    if stored is None:
        expected = ", ".join(map(repr, data.layers)) or "data in X"
        msg = f"{name}.X is None: expected a layer, {expected}"
        raise ValueError(msg)
    X = stored[:, np.flatnonzero(used)]
    if is_sparse(X):
        X = to_csr(X)
        mass = X @ np.ones(X.shape[1])
    else:
        X = np.ascontiguousarray(X)  # sums then round as for the plain array
        X = X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
        mass = X.sum(axis=1)
    _refuse_negative(f"{name}.X" if layer is None else f"{name}.layers[{layer!r}]", X)
    filled = ~(mass == 0)  # also of cells with bad entries, which the fit refuses
    if normalise:
        divisors = np.where(mass > 0, mass, 1)
        X = divided_rows(X, divisors) if is_sparse(X) else X / divisors[:, None]
    return X, filled


def _refuse_negative(name: str, X: Any) -> None:
    """Refuse data that were centred, such as z-scores, or that have small negative noise."""
    values = X.data if is_sparse(X) else X
    if not (values < 0).any():
        return
    msg = (
        f"{name} has negative entries: expected counts or other data of at least 0, which may be "
        f"in another layer; {negative_advice('X', np.nan_to_num(values))}"
    )
    raise ValueError(msg)


def _in_order(X: Any, place: NDArray[np.intp], cells: int) -> Any:
    """The cells at their places among all cells, sparse if X is; zero for those that are not."""
    if np.array_equal(place, np.arange(cells)):
        return X
    if is_sparse(X):
        # An empty row is appended, for the cells that X does not have.
        X.resize((X.shape[0] + 1, X.shape[1]))
        rows = np.full(cells, X.shape[0] - 1)
        rows[place] = np.arange(place.size)
        return X[rows]
    whole = np.zeros((cells, X.shape[1]), dtype=X.dtype)
    whole[place] = X
    return whole


def _default_loss(X: Any) -> Wasserstein:
    return Wasserstein(feature_cost(X, "cosine"), EPS, LAM)


def _names(index: Any) -> list[str]:
    return [str(name) for name in index]


def _of_all(rows: NDArray[np.float64], used: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The rows of the cells or features that were used, and 0 for the others."""
    if used.all():
        return rows
    whole = np.zeros((used.size, rows.shape[1]), dtype=rows.dtype)
    whole[used] = rows
    return whole


def _facts(
    fit: Factorisation, layer: str | None, used: NDArray[np.bool_], *, normalise: bool
) -> dict[str, Any]:
    """What was fitted, in types that files of AnnData can hold."""
    return {
        "loss": repr(fit.loss),
        "rank": int(fit.factors[0].shape[1]),
        "layer": layer or "X",
        "features": int(used.sum()),
        "normalise": normalise,
        "objective": fit.objective,
        "gap": fit.gap,
        "converged": fit.converged,
        "message": fit.message,
    }
