"""
Errors of concentrations next to those of least squares, on trilinear data whose truth is known.

usage: python benchmarks/concentrations.py [--samples N ...] [--noise SHARE] [--seeds N]

Three components with overlapping spectra of 16 and 12 points, Gaussian noise of 1 % of the mean
entry. The table has the error of the concentrations, divided by that of TensorLy's
`non_negative_parafac_hals`: at the default arguments, and at the minimum with hardly any entropy (a
thousandth of the default `rho`, `tol` 1e-10), which is what the loss can reach. Needs TensorLy.
"""

import argparse
import itertools
import time
import warnings

import numpy as np

import wtfarray as wtf

RANK = 3


def trilinear(samples: int, seed: int, noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    """Data (samples, 16, 12) and the concentrations (samples, 3), for spectra of sum one."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(2.0, size=(samples, RANK)) + 0.1]
    for n in (16, 12):
        centre = (rng.permutation(RANK) + 0.5 + rng.uniform(-0.15, 0.15, RANK)) / RANK
        width = 0.2 + 0.1 * rng.random(RANK)
        spectra = np.exp(-(((np.linspace(0, 1, n)[:, None] - centre) / width) ** 2))
        factors.append(spectra / spectra.sum(axis=0))
    X = wtf.cp_to_tensor(factors)
    return np.clip(X + noise * X.mean() * rng.normal(size=X.shape), 0, None), factors[0]


def error(found: np.ndarray, truth: np.ndarray) -> float:
    """Relative error of the concentrations, under the best order of the components."""
    orders = itertools.permutations(range(RANK))
    best = min(np.linalg.norm(found[:, order] - truth) for order in orders)
    return float(best / np.linalg.norm(truth))


def least_squares(X: np.ndarray) -> np.ndarray:
    """The concentrations of hierarchical alternating least squares."""
    from tensorly.decomposition import non_negative_parafac_hals

    fit = non_negative_parafac_hals(X, RANK, n_iter_max=1000, init="svd", tol=1e-9)
    found = fit.factors[0] * fit.weights
    for factor in fit.factors[1:]:
        found = found * factor.sum(axis=0)
    return found


def losses(shape: tuple[int, ...]) -> dict[str, wtf.Loss]:
    """The losses of the table."""
    cost = wtf.grid_cost(*shape)
    transport = {
        f"Wasserstein, eps {eps:g}": wtf.Wasserstein(cost, eps=eps, lam=10.0)
        for eps in (0.005, 0.02, 0.05)
    }
    return {"squared error": wtf.Frobenius(), "KL": wtf.KullbackLeibler(), **transport}


def fitted(X: np.ndarray, loss: wtf.Loss, **options: object) -> tuple[wtf.Factorisation, float]:
    """The fit, whose first factor holds the concentrations, and seconds of CPU time."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit = wtf.cp(X, RANK, loss, rng=0, constraints=(None, "columns", "columns"), **options)
    return fit, time.process_time() - begin


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--samples", type=int, nargs="+", default=[5, 20, 200])
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=3, help="data sets for each size; medians")
    options = parser.parse_args(arguments)
    print(f"{'loss':<24}{'samples':>8}{'default':>9}{'minimum':>9}{'steps':>7}{'seconds':>9}")
    for samples in options.samples:
        rows: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(options.seeds):
            X, truth = trilinear(samples, 1000 * seed + samples, options.noise)
            unit = error(least_squares(X), truth)
            for name, loss in losses(X.shape[1:]).items():
                fit, seconds = fitted(X, loss)
                rho = [1e-3 * r for r in fit.rho]
                best, _ = fitted(X, loss, rho=rho, tol=1e-10, max_iter=5000)
                ratios = [error(f.factors[0], truth) / unit for f in (fit, best)]
                rows.setdefault(name, []).append((*ratios, fit.n_iter, seconds))
        for name, found_rows in rows.items():
            default, minimum, steps, seconds = np.median(found_rows, axis=0)
            line = f"{name:<24}{samples:>8}{default:>9.2f}{minimum:>9.2f}"
            print(f"{line}{steps:>7.0f}{seconds:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
