"""
Peak memory of fits to a sparse matrix, beside the size of the dense one.

usage: python benchmarks/sparse_memory.py [--samples 20000] [--features 1000] [--density 0.01]
    [--function nmf | coupled | rank_scan | estimator]

Needs SciPy, and scikit-learn for the estimator. The memory is what Python and NumPy allocate during
the fit, in MB of 1e6 bytes. Fits are stopped after a few steps, which reach the peak.
"""

import argparse
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

import wtfarray as wtf

FEW: dict[str, Any] = {"rng": 0, "max_iter": 3, "init": "random"}


def nmf(X: Any) -> object:
    """One data set."""
    return wtf.nmf(X, 3, wtf.KullbackLeibler(), **FEW)


def coupled(X: Any) -> object:
    """Two data sets, the halves of the features."""
    half = X.shape[1] // 2
    return wtf.coupled([X[:, :half], X[:, half:]], 3, [wtf.KullbackLeibler()] * 2, **FEW)


def rank_scan(X: Any) -> object:
    """Two ranks, with left-out samples."""
    return wtf.rank_scan(X, [1, 2], wtf.KullbackLeibler(), n_seeds=1, max_iter=3)


def estimator(X: Any) -> object:
    """The estimator, with a cost from the features."""
    from wtfarray.sklearn import WassersteinNMF

    model = WassersteinNMF(3, cost="cosine", eps=0.5, max_iter=1, init="random", random_state=0)
    return model.fit(X)


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    function.__name__: function for function in (nmf, coupled, rank_scan, estimator)
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=1_000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--function", choices=FUNCTIONS, default="nmf")
    options = parser.parse_args()
    shape = (options.samples, options.features)
    rng = np.random.default_rng(0)
    X = sparse.random_array(shape, density=options.density, rng=rng, format="csr")
    warnings.simplefilter("ignore")
    print("| X | MB of X | peak MB of the fit |\n|---|---|---|")
    stored = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 1e6
    for name, data, size in (
        ("sparse", X, stored),
        ("dense", X.toarray(), 8e-6 * shape[0] * shape[1]),
    ):
        tracemalloc.start()
        FUNCTIONS[options.function](data)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"| {name} | {size:.0f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
