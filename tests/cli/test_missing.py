"""Missing entries on the command line."""

from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, SAMPLES, data, refuse, run
from helpers import numpy_only

import wtfarray as wtf

pytestmark = numpy_only


def spoilt():
    X = data()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    return X


def fitted(*words):
    result = run("fit", *words, *QUICK)
    assert result.exit_code == 0, result.output
    return wtf.load("fit.npz")


def library(X, mask, model=wtf.cp):
    loss = wtf.Wasserstein(wtf.grid_cost(*X.shape[1:]), 0.1, 10.0)
    return model(X, 2, loss, mask=mask, rng=0, tol=1e-3)


@pytest.mark.parametrize("value", ["nan", "-1"])
def test_fit_and_project_are_those_of_the_library(value):
    X = spoilt()
    mask = ~np.isnan(X)
    np.save("X.npy", X if value == "nan" else np.where(mask, X, -1.0))
    found, expected = fitted("X.npy", "--missing", value), library(X, mask)
    np.testing.assert_array_equal(found.to_tensor(), expected.to_tensor())
    result = run("project", "fit.npz", "X.npy", "--missing", value)
    assert result.exit_code == 0, result.output
    coefficients = expected.project(X, mask=mask)
    np.testing.assert_allclose(np.load("coefficients.npy"), coefficients)


@pytest.mark.parametrize("named", [False, True])
def test_fields_of_a_table_may_be_empty(named):
    X = spoilt().reshape(SAMPLES, -1)
    X[0, 0] = 0.5
    rows = [["" if np.isnan(x) else repr(float(x)) for x in row] for row in X]
    rows[1][1] = "NA"
    if named:
        rows = [["", *(f"bin {j}" for j in range(20))]] + [
            [f"sample {i}", *row] for i, row in enumerate(rows)
        ]
    Path("X.csv").write_text("\n".join(",".join(row) for row in rows))
    X[1, 1] = np.nan
    fit = fitted("X.csv", "--missing", "nan", "--model", "nmf")
    np.testing.assert_allclose(
        fit.to_tensor(), library(X, ~np.isnan(X), wtf.nmf).to_tensor(), rtol=1e-10
    )
    assert "cannot be read" in refuse("fit", "X.csv", *QUICK)


def test_transparent_pixels_are_missing():
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = rng.integers(1, 255, (4, 6, 5), dtype=np.uint8)
    alpha = np.where(rng.random((4, 6, 5)) < 0.2, 0, 255).astype(np.uint8)
    Path("images").mkdir()
    for k in range(4):
        both = np.stack([pixels[k], alpha[k]], axis=-1)
        Image.fromarray(both, mode="LA").save(f"images/{k}.png")
    fit = fitted("images", "--missing", "nan", "--normalise", "--model", "nmf")
    X = np.where(alpha > 0, pixels, 0.0)
    X = X / X.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(
        fit.to_tensor(), library(X, alpha > 0, wtf.nmf).to_tensor(), rtol=1e-6
    )


def test_sample_of_which_nothing_was_observed():
    """It stays missing under --normalise, which would divide it by zero."""
    X = data()
    X[2] = np.nan
    np.save("X.npy", X)
    fit = fitted("X.npy", "--missing", "nan", "--normalise", "--model", "nmf")
    unit = X / np.nansum(X, axis=tuple(range(1, X.ndim)), keepdims=True).clip(1e-9)
    expected = library(unit, ~np.isnan(X), wtf.nmf)
    np.testing.assert_array_equal(fit.to_tensor(), expected.to_tensor())


@pytest.mark.parametrize("corner", ["", "sample"])
def test_empty_fields_of_a_named_table_are_refused_with_their_place(corner):
    Path("X.csv").write_text(f"{corner},400,410\na,1,2\nb,,3\n")
    message = refuse("fit", "X.csv", *QUICK, "--model", "nmf")
    assert "could not convert string '' at row 2, column 2: expected numbers; --missing" in message


def test_columns_in_another_order_are_refused():
    Path("X.csv").write_text(",400,410,420\na,1,2,3\nb,3,1,2\n")
    Path("new.csv").write_text(",420,410,400\nc,1,2,3\n")
    fitted("X.csv", "--model", "nmf")
    message = refuse("project", "fit.npz", "new.csv")
    assert "new.csv has the label 420.0 at index 0 of mode 1, where the fit has 400.0" in message
