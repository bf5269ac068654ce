"""
Peak memory of a fit to a sparse matrix, beside the size of the dense one.

usage: python benchmarks/sparse_memory.py [--samples 20000] [--features 1000] [--density 0.01]

Needs SciPy. The memory is what Python and NumPy allocate during the fit, in MB of 1e6 bytes.
"""

import argparse
import tracemalloc
import warnings

import numpy as np
from scipy import sparse

import wtfarray as wtf


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=1_000)
    parser.add_argument("--density", type=float, default=0.01)
    options = parser.parse_args()
    shape = (options.samples, options.features)
    rng = np.random.default_rng(0)
    X = sparse.random_array(shape, density=options.density, rng=rng, format="csr")
    warnings.simplefilter("ignore")  # three steps are enough to reach the peak
    print("| X | MB of X | peak MB of the fit |\n|---|---|---|")
    stored = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 1e6
    for name, data, size in (
        ("sparse", X, stored),
        ("dense", X.toarray(), 8e-6 * shape[0] * shape[1]),
    ):
        tracemalloc.start()
        wtf.nmf(data, 3, wtf.KullbackLeibler(), rng=0, max_iter=3, init="random")
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"| {name} | {size:.0f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
