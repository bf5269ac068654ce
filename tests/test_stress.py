"""Hard data and extreme parameters: a fit stays finite, or says why it cannot work."""

import math
import re
import warnings
from dataclasses import dataclass

import numpy as np
from array_api_compat import is_array_api_strict_namespace, is_jax_namespace, is_numpy_namespace
from helpers import to_numpy
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import wtfarray as wtf

CONSTRAINTS = [None, "rows", "columns", "all"]
# How a fit may end early; nothing else may be warned of.
UNFINISHED = r"(cp|tucker|nmf): .*(max_iter|choose a larger eps|rounding errors, .* use float64)"
REFUSED = r"conserve mass|give each sample its mass"


@dataclass(frozen=True)
class Case:
    """A fit to try, printed as it is if it fails."""

    model: str
    shape: tuple
    rank: object
    moved: int
    """Number of transported modes, the last ones."""
    kind: str
    eps: float
    lam: float
    rho: float
    dtype: str
    solver: str
    init: str | None
    constraints: tuple | None
    normalised: bool
    seed: int

    def data(self):
        """Degenerate or extreme data."""
        rng = np.random.default_rng(self.seed)
        X = rng.gamma(1.0, size=self.shape)
        if self.kind == "zero samples":
            X[: self.shape[0] // 2] = 0.0
        elif self.kind == "one pixel":
            X = np.zeros(self.shape)
            for i in range(self.shape[0]):
                X[(i, *(rng.integers(n) for n in self.shape[1:]))] = 1.0
        elif self.kind == "one corner":
            X = np.zeros(self.shape)
            X[(slice(None), *(0 for _ in self.shape[1:]))] = 1.0
        elif self.kind == "counts":
            X = rng.poisson(1000.0 * X / X.sum()).astype(float)
        elif self.kind == "constant":
            X = np.ones(self.shape)
        if not X.any():
            X.flat[0] = 1.0
        if self.normalised:
            over = tuple(range(1, X.ndim)) if self.moved < X.ndim else None
            mass = X.sum(axis=over, keepdims=True)
            X = X / np.where(mass > 0, mass, 1.0)
        return X

    def fit(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(*self.shape[-self.moved :]), self.eps, self.lam)
        options = {"init": self.init, "constraints": self.constraints, "solver": self.solver}
        return getattr(wtf, self.model)(
            array(self.data(), self.dtype),
            self.rank,
            loss,
            rho=self.rho,
            rng=0,
            max_iter=5 if self.solver == "envelope" else 2,
            **options,
        )


def powers(low, high):
    """Numbers whose logarithm is uniform, the ends among them."""
    return st.one_of(
        st.sampled_from([10.0**low, 10.0**high]), st.floats(low, high).map(lambda x: 10.0**x)
    )


@st.composite
def cases(draw, shapes=None, solver=None):
    model = draw(st.sampled_from(["cp", "tucker", "nmf"]))
    if shapes is None:
        modes = draw(st.integers(2 if model == "nmf" else 1, 5))
        shape = tuple(draw(st.integers(1, 6 if modes < 3 else 3)) for _ in range(modes))
    else:
        shape = draw(st.sampled_from(shapes))
    rank = draw(st.integers(1, 1 if shapes else max(shape) + 2))
    blocks = 2 if model == "nmf" else len(shape)
    if model == "tucker":
        rank = tuple(min(rank, 4) if draw(st.booleans()) else 1 for _ in shape)
    return Case(
        model=model,
        shape=shape,
        rank=rank,
        moved=1 if shapes else draw(st.integers(1, len(shape))),
        kind=draw(
            st.sampled_from(
                ["positive", "zero samples", "one pixel", "one corner", "counts", "constant"]
            )
        ),
        eps=draw(powers(-4, 0)),
        lam=draw(st.one_of(powers(-1, 4), st.just(math.inf))),
        rho=draw(powers(-6, 0)),
        dtype="float64" if shapes else draw(st.sampled_from(["float32", "float64"])),
        solver=solver or draw(st.sampled_from(["envelope", "envelope", "dual"])),
        init=draw(st.sampled_from([None, "kl", "random", "nnsvd"])),
        constraints=draw(
            st.none() | st.tuples(*(st.sampled_from(CONSTRAINTS) for _ in range(blocks)))
        ),
        normalised=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def check(case, array):
    """Check that a fit is finite and feasible; return False if a balanced loss was refused."""
    note(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=UNFINISHED)
        try:
            fit = case.fit(array)
        except ValueError as error:
            if math.isinf(case.lam) and re.search(REFUSED, str(error)):
                return False
            raise
    assert math.isfinite(fit.objective)
    assert math.isfinite(fit.gap)
    scale = max(abs(fit.objective), case.eps * case.data().sum())
    rounding = 1e-5 if case.dtype == "float32" else 1e-11
    assert fit.gap >= -rounding * scale
    assert all(math.isfinite(record.objective) for record in fit.history)
    assert not np.isnan(to_numpy(fit.dual)).any()
    assert np.isfinite(to_numpy(fit.to_tensor())).all()
    blocks = [*fit.factors, fit.core if fit.core is not None else fit.weights]
    assert all(np.isfinite(to_numpy(block)).all() for block in blocks)
    assert all((to_numpy(block) >= 0).all() for block in blocks)
    for factor, constraint in zip(fit.factors, fit.constraints, strict=False):
        if constraint is not None:
            axis = {"rows": 1, "columns": 0, "all": None}[constraint]
            np.testing.assert_allclose(to_numpy(factor).sum(axis=axis), 1.0, rtol=10 * rounding)
    return True


def budget(xp):
    """
    How many examples, and of which shapes.

    NumPy, whose overflow and invalid values are warnings, gets most of them. JAX compiles each
    operation for each shape, for 20 s or so: a single shape there.
    """
    if is_numpy_namespace(xp):
        return 40, None
    if is_jax_namespace(xp):
        return 4, [(2, 3)]
    return (4 if is_array_api_strict_namespace(xp) else 12), None


def test_any_fit_is_finite_and_feasible(xp, array):
    examples, shapes = budget(xp)
    fitted = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # to shrink an example would take too long
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(shapes, "envelope" if shapes else None))
    def run(case):
        fitted.append(check(case, array))

    run()
    assert 4 * sum(fitted) >= len(fitted) >= examples
