"""The problem of several data sets: shapes, scales, and the samples that each has."""

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._fit.coupled_specification import checked_sources, specify_coupled

X, Z = np.full((4, 3), 1 / 3), np.full((4, 2, 2), 5.0)


def spec(Xs=(X, Z), masks=None):
    sources = checked_sources(list(Xs), [wtf.Frobenius()] * len(Xs), None, masks)
    return specify_coupled(sources, 2, rho=0.1, constraints=None, free=(0, 1), sample_weight=None)


@numpy_only
class TestSpecifyCoupled:
    def test_data_stand_side_by_side(self):
        found = spec()
        assert found.X.shape == (4, 7)
        assert found.shapes == ((4, 2), (3, 2), (4, 2))
        assert found.constraints == (None, "columns", None)
        assert found.model.scales == (pytest.approx(1.0), pytest.approx(20.0))

    def test_samples_of_mass_one_need_no_scale(self):
        found = spec((X, Z / 20.0))
        assert found.constraints == ("rows", "columns", "columns")
        assert found.model.scales == (1.0, 1.0)

    def test_default_rho_does_not_depend_on_constraints_of_mass(self):
        options = {"rho": None, "free": (0, 1, 2), "sample_weight": None}
        sources = spec().sources
        free, fixed = (
            specify_coupled(sources, 2, constraints=(None, "columns", last), **options)
            for last in (None, "columns")
        )
        assert free.rho == pytest.approx(fixed.rho)
        assert free.model == fixed.model

    def test_lacking_samples_are_not_solved(self):
        mask = np.array([True, False, True, True])[:, None]
        found = spec((X, Z), [mask, None])
        first, second = found.sources
        assert first.samples().tolist() == [0, 2, 3]
        assert second.samples() is None
        terms = found.problem().terms
        assert [term.state.shape for term in terms] == [(3, 3), (4, 2, 2)]

    def test_a_part_is_a_matrix_model(self):
        part = spec().part(1)
        assert part.shapes == ((4, 2), (4, 2))
        assert part.model.scale == pytest.approx(20.0)
