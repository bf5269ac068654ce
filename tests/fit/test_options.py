"""Options of a fit that are refused."""

import math

import numpy as np
import pytest
from fitting import LOSSES, RANKS, data, run, start
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
    "a number for callback": ({"callback": 5}, "callback is 5: expected a function"),
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
    def test_bad_argument_is_named_with_its_value(self, array, case):
        options, match = BAD[case]
        with pytest.raises((TypeError, ValueError), match=match):
            wtf.cp(array(data()), 2, LOSSES["unbalanced"], **(GOOD | options))

    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    def test_unknown_keyword_is_refused(self, model):
        with pytest.raises(TypeError, match=rf"{model}\(\).*'iterations': .*, max_iter,"):
            run(model, data(), RANKS[model], LOSSES["KL"], iterations=3)

    @numpy_only
    @pytest.mark.parametrize("model", ["tucker", "nmf"])
    def test_weights_are_an_option_of_cp_only(self, model):
        with pytest.raises(TypeError, match="weights"):
            run(model, data(), RANKS[model], LOSSES["KL"], weights="fixed")
