"""Labelled fits: from labelled data, in projections, files, tables and Datasets."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import numpy_only, random_fit, without_escape

import wtfarray as wtf

X = np.random.default_rng(0).dirichlet(np.ones(6), 5)
WAVELENGTHS = wtf.Axis("wavelength", np.linspace(400, 500, 6), "nm")
AXES = (wtf.Axis("sample", list("abcde")), WAVELENGTHS)
FAST = {"rng": 0, "max_iter": 3}
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), without_escape]


def labelled(array, kind="nmf", shape=(5, 6), rank=2, axes=AXES):
    return replace(random_fit(array, kind, shape, rank), axes=axes)


@numpy_only
class TestFits:
    def test_labels_do_not_change_the_fit(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, index=list("abcde"), columns=[f"g{k}" for k in range(6)])
        cost = pandas.DataFrame(wtf.grid_cost(6)[0], frame.columns, frame.columns)
        fit = wtf.nmf(frame, 2, wtf.Wasserstein(cost, 0.1, 5.0), **FAST)
        plain = wtf.nmf(X, 2, wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0), **FAST)
        assert np.array_equal(fit.factors[1], plain.factors[1])
        assert fit.axes == (wtf.Axis(values=list("abcde")), wtf.Axis(values=list(frame.columns)))
        assert plain.axes == ()

    def test_rank_scan_keeps_labels(self):
        scan = wtf.rank_scan(
            X, [1], wtf.KullbackLeibler(), n_seeds=1, held_out=None, axes=AXES, max_iter=3
        )
        assert scan.fits[0].axes == AXES

    def test_sample_weight_may_be_a_series(self):
        pandas = pytest.importorskip("pandas")
        weights = np.arange(1.0, 6.0)
        fits = [
            wtf.nmf(X, 2, wtf.KullbackLeibler(), sample_weight=w, **FAST)
            for w in (weights, pandas.Series(weights))
        ]
        assert fits[0].objective == fits[1].objective


class TestProjection:
    def test_new_samples_bring_their_labels(self, array):
        fit = labelled(array)
        found = fit.projection(array(X[:2]), max_iter=2)
        assert found.axes == (wtf.Axis("sample"), WAVELENGTHS)

    @numpy_only
    def test_features_in_another_order_are_refused(self, array):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, columns=WAVELENGTHS.values)
        fit = labelled(array)
        assert fit.projection(frame).axes[1] == WAVELENGTHS
        with pytest.raises(ValueError, match=r"X has the label 500.0 at index 0 of mode 1"):
            fit.project(frame[frame.columns[::-1]])


class TestResult:
    def test_repr_names_the_labels(self, array):
        lines = repr(labelled(array)).splitlines()
        assert lines[-2:] == [
            "mode 0: sample, 'a' to 'e'",
            "mode 1: wavelength, 400.0 to 500.0 nm",
        ]

    def test_round_trip(self, array, xp, device, tmp_path):
        fit = labelled(array)
        fit.save(tmp_path / "fit.npz")
        assert wtf.load(tmp_path / "fit.npz", xp=xp, device=device).axes == AXES

    def test_axis(self, array):
        assert labelled(array).axis(-1) == WAVELENGTHS
        assert labelled(array, axes=()).axis(0) == wtf.Axis()


class TestFrame:
    def test_rows_are_labelled(self, array):
        pytest.importorskip("pandas")
        fit = labelled(array)
        frame = fit.to_frame(1)
        assert list(frame.index) == list(WAVELENGTHS.values)
        assert (frame.index.name, frame.columns.name) == ("wavelength", "component")
        assert frame.shape == (6, 2)
        assert labelled(array, axes=()).to_frame(0).index.name == "mode_0"

    @numpy_only
    def test_flattened_features_have_several_levels(self, array):
        pytest.importorskip("pandas")
        axes = (wtf.Axis(), wtf.Axis("x", [1, 2]), wtf.Axis("y", list("abc")))
        frame = labelled(array, "nmf", (5, 2, 3), 2, axes).to_frame(1)
        assert frame.index.names == ["x", "y"]
        assert frame.index[1] == (1, "b")


class TestDataset:
    @numpy_only
    @pytest.mark.parametrize(("kind", "rank"), [("cp", 2), ("tucker", (2, 3, 2)), ("nmf", 2)])
    def test_blocks_and_coordinates(self, array, kind, rank):
        pytest.importorskip("xarray")
        axes = (wtf.Axis("s"), wtf.Axis("x", [1, 2], "m"), wtf.Axis())
        fit = labelled(array, kind, (5, 2, 3), rank, axes)
        found = fit.to_xarray()
        last = "factor_1" if kind == "nmf" else "factor_2"
        assert found[last].dims[-2] == "mode_2"
        assert found["x"].attrs == {"units": "m"}
        assert np.array_equal(found["factor_0"].to_numpy(), fit.factors[0])
        assert ("core" in found) == (kind == "tucker")
        assert found.attrs["kind"] == kind
