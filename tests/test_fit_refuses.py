"""What a factorisation refuses."""

import math
import sys

import numpy as np
import pytest
from fitting import (
    LOSSES,
    RANKS,
    SHAPE,
    data,
    run,
    start,
    transport,
)
from helpers import numpy_only

import wtfarray as wtf

GOOD = {"rho": 0.02, "rng": 0}
BAD = {
    "unknown constraint": ({"constraints": ("rows", "cols", None)}, r"constraints\[1\] is 'cols'"),
    "too few constraints": ({"constraints": ("rows",)}, "constraints is .*expected 3"),
    "a word for constraints": ({"constraints": "rows"}, "constraints is 'rows'"),
    "rho zero": ({"rho": 0.0}, "rho is 0.0"),
    "rho negative": ({"rho": (0.1, -1.0, 0.1)}, r"rho\[1\] is -1.0"),
    "rho infinite": ({"rho": math.inf}, "rho is inf"),
    "too many rho": ({"rho": (0.1,) * 5}, "rho has 5 entries"),
    "a number for fixed": ({"fixed": 1}, "fixed is a int"),
    "a number for callback": ({"callback": 5}, "callback is a int"),
    "a number for checkpoint": ({"checkpoint": 5}, "checkpoint is 5"),
    "no such folder": ({"checkpoint": "nowhere/fit.npz"}, "checkpoint is 'nowhere/fit.npz'"),
    "a folder for checkpoint": ({"checkpoint": "."}, "checkpoint is '.'"),
    "unknown solver": ({"solver": "newton"}, "solver is 'newton'"),
    "unknown init": ({"init": "svd"}, "init is 'svd'"),
    "unknown weights": ({"weights": "free"}, "weights is 'free'"),
    "tol": ({"tol": 0.0}, "tol is 0.0"),
    "max_iter": ({"max_iter": 0}, "max_iter is 0"),
    "n_init": ({"n_init": 0}, "n_init is 0"),
    "batch": ({"batch": 0}, "batch is 0"),
    "fixed without init": ({"fixed": (1,)}, "init is None"),
    "fixed with a name": ({"fixed": (1,), "init": "kl"}, "init is 'kl'"),
    "fixed out of range": ({"fixed": (3,), "init": start("cp")}, "fixed is 3"),
    "all fixed": ({"fixed": (0, 1, 2), "init": start("cp")}, "fixed is"),
    "too few factors": ({"init": start("cp")[:2]}, "init .*expected .*3 factors"),
    "shape of a factor": ({"init": start("cp", rank=3)}, r"factor 0 of init has shape \(6, 3\)"),
    "negative factor": (
        {"init": [-start("cp")[0], *start("cp")[1:]]},
        r"factor 0 of init is -.* expected non-negative",
    ),
    "shape of sample_weight": ({"sample_weight": np.ones(5)}, r"sample_weight has shape \(5,\)"),
    "negative sample_weight": ({"sample_weight": -np.ones(6)}, "sample_weight is -1.0"),
    "checkpoint of many": ({"checkpoint": "some.npz", "n_init": 2}, "checkpoint .*n_init"),
    "checkpoint of dual": ({"checkpoint": "some.npz", "solver": "dual"}, "solver is 'dual'.*check"),
}


class TestRefused:
    @pytest.mark.parametrize("case", BAD)
    def test_arguments(self, array, case):
        options, match = BAD[case]
        with pytest.raises((TypeError, ValueError), match=match):
            wtf.cp(array(data()), 2, LOSSES["unbalanced"], **(GOOD | options))

    @numpy_only
    @pytest.mark.parametrize("rank", [0, -1, 1.5, True, "2"])
    def test_rank(self, rank):
        for fit in (wtf.cp, wtf.nmf):
            with pytest.raises((TypeError, ValueError), match="rank is"):
                fit(data(), rank, LOSSES["KL"])
        with pytest.raises((TypeError, ValueError), match=r"rank\[2\] is"):
            wtf.tucker(data(), (1, 1, rank), LOSSES["KL"])

    @numpy_only
    @pytest.mark.parametrize("rank", [2, (2, 2), (2,) * 4])
    def test_number_of_tucker_ranks(self, rank):
        with pytest.raises(ValueError, match=r"rank is .*expected 3"):
            wtf.tucker(data(), rank, LOSSES["KL"])

    @numpy_only
    def test_rows_of_a_core(self):
        with pytest.raises(ValueError, match=r"constraints\[3\] is 'rows'"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], constraints=(None, None, None, "rows"))

    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    def test_unknown_keyword(self, model):
        with pytest.raises(TypeError, match=rf"{model}\(\).*'iterations': .*, max_iter,"):
            run(model, data(), RANKS[model], LOSSES["KL"], iterations=3)

    @numpy_only
    @pytest.mark.parametrize("model", ["tucker", "nmf"])
    def test_weights_are_those_of_cp(self, model):
        with pytest.raises(TypeError, match="weights"):
            run(model, data(), RANKS[model], LOSSES["KL"], weights="fixed")

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize(
        "constraints",
        [(None, None), ("columns", "columns"), ("rows", None), ("rows", "rows"), ("all", "all")],
    )
    def test_balanced_without_conservation_of_mass(self, array, constraints, solver):
        with pytest.raises(ValueError, match=r"constraints is .*balanced .*finite lam"):
            wtf.nmf(
                array(data()), 2, LOSSES["balanced"], constraints=constraints, solver=solver, **GOOD
            )

    @numpy_only
    def test_balanced_with_samples_of_other_masses(self):
        with pytest.raises(ValueError, match="weighs"):
            wtf.nmf(data(mass=None), 2, LOSSES["balanced"], constraints=("rows", "columns"), **GOOD)

    @numpy_only
    def test_dual_of_a_sum(self):
        with pytest.raises(ValueError, match=r"solver is 'dual'.*sum of losses"):
            wtf.cp(data(), 2, LOSSES["sum"], solver="dual")

    @numpy_only
    def test_samples_that_are_transported_have_no_weight(self):
        with pytest.raises(ValueError, match="sample_weight"):
            wtf.cp(data(), 2, transport(shape=SHAPE), sample_weight=np.ones(6))

    @numpy_only
    @pytest.mark.parametrize("loss", ["KL", None])
    def test_loss(self, loss):
        with pytest.raises(TypeError, match="loss is"):
            wtf.cp(data(), 2, loss)

    @numpy_only
    def test_core_of_another_shape(self):
        _, factors = start("tucker")
        with pytest.raises(ValueError, match=r"init.* has shape \(3, 2, 2\)"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], init=(np.ones((3, 2, 2)), factors))

    @numpy_only
    def test_matrix_of_one_mode(self):
        with pytest.raises(ValueError, match="X has shape"):
            wtf.nmf(data()[0, 0], 2, LOSSES["KL"])

    @numpy_only
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda X: np.where(X[1, 2, 3] == X, -1.0, X), r"X is -1.0 at index \(1, 2, 3\)"),
            (lambda X: np.where(X[1, 2, 3] == X, np.nan, X), r"X is nan at index \(1, 2, 3\)"),
            (lambda X: X * 0.0, "X is zero everywhere"),
        ],
    )
    def test_data(self, change, match):
        with pytest.raises(ValueError, match=match):
            wtf.cp(change(data()), 2, LOSSES["unbalanced"])

    @numpy_only
    def test_progress_without_tqdm(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        with pytest.raises(ImportError, match="tqdm"):
            wtf.cp(data(), 2, LOSSES["KL"], progress=True)
