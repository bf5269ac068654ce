"""AnnData and MuData: with stand-ins that have their attributes, and with the packages."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, sizes_made_dense, without_escape

import wtfarray as wtf
from wtfarray import anndata as wad

pytestmark = [numpy_only, pytest.mark.filterwarnings("ignore::UserWarning"), without_escape]
CELLS, GENES = 12, 9
FAST = {"rng": 0, "tol": 1e-3}


def counts(genes=GENES, seed=0):
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(1).dirichlet(np.ones(2), CELLS) @ rng.gamma(0.5, size=(2, genes))
    return rng.poisson(20 * means).astype(float) + np.eye(CELLS, genes)


def stand_in(X, cells=None, **var):
    """An object with the attributes of AnnData that are used."""
    pandas = pytest.importorskip("pandas")
    cells = [f"cell{i}" for i in range(X.shape[0])] if cells is None else cells
    names = pandas.Index([f"gene{k}" for k in range(X.shape[1])])
    return SimpleNamespace(
        X=X,
        layers={"counts": 2 * X},
        obs_names=pandas.Index(cells),
        var_names=names,
        var=pandas.DataFrame(var, index=names),
        obsm={},
        varm={},
        uns={},
    )


class TestAnnData:
    def test_result_is_written(self):
        data = stand_in(counts())
        fit = wad.nmf(data, 2, **FAST)
        assert np.array_equal(data.obsm["X_wtf"], fit.factors[0])
        assert np.array_equal(data.varm["wtf"], fit.factors[1])
        assert fit.axis(1) == wtf.Axis("feature", [f"gene{k}" for k in range(GENES)])
        assert data.uns["wtf"]["objective"] == fit.objective
        np.testing.assert_allclose(data.obsm["X_wtf"].sum(axis=1), 1.0)

    def test_default_loss_is_the_cosine_of_features(self):
        X = counts()
        fit = wad.nmf(stand_in(X), 2, **FAST)
        expected = wtf.feature_cost(X / X.sum(axis=1, keepdims=True))
        np.testing.assert_allclose(fit.loss.costs[0], expected)

    def test_highly_variable_features(self):
        marks = np.arange(GENES) % 2 == 0
        data = stand_in(counts(), highly_variable=marks)
        fit = wad.nmf(data, 2, wtf.KullbackLeibler(), **FAST)
        assert fit.shape == (CELLS, 5)
        assert (data.varm["wtf"][~marks] == 0).all()
        assert np.array_equal(data.varm["wtf"][marks], fit.factors[1])
        fit = wad.nmf(data, 2, wtf.KullbackLeibler(), use_highly_variable=False, **FAST)
        assert fit.shape == (CELLS, GENES)

    def test_layer_and_masses(self):
        loss, data = wtf.KullbackLeibler(), stand_in(counts())
        fit = wad.nmf(data, 2, loss, layer="counts", normalise=False, key="k", **FAST)
        plain = wtf.nmf(2 * counts(), 2, loss, **FAST)
        assert np.array_equal(fit.factors[0], plain.factors[0])
        assert set(data.obsm) == {"X_k"}

    def test_sparse_matrix(self):
        sparse = pytest.importorskip("scipy.sparse")
        dense = wad.nmf(stand_in(counts()), 2, wtf.KullbackLeibler(), **FAST)
        for kind in (sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix):
            found = wad.nmf(stand_in(kind(counts())), 2, wtf.KullbackLeibler(), **FAST)
            assert np.array_equal(found.factors[1], dense.factors[1])

    def test_large_sparse_matrix_is_never_dense(self, monkeypatch):
        sparse = pytest.importorskip("scipy.sparse")
        set_thresholds(monkeypatch, chunk_entries=4 * GENES, chunk_batches=1)
        sizes = sizes_made_dense(monkeypatch)
        for kind in (sparse.csr_matrix, sparse.csc_array):
            fit = wad.nmf(stand_in(kind(counts())), 2, rng=0, max_iter=2)
            assert fit.shape == (CELLS, GENES)
        assert {rows for rows, _ in sizes} == {1, 4, GENES}  # and the Gram matrix of the features

    @pytest.mark.filterwarnings("default::UserWarning")
    @pytest.mark.parametrize("kind", ["dense", "sparse"])
    def test_empty_cells_are_left_out(self, kind):
        X, loss = counts(), wtf.KullbackLeibler()
        X[[2, 5]] = 0.0
        stored = X if kind == "dense" else pytest.importorskip("scipy.sparse").csr_array(X)
        data = stand_in(stored)
        with pytest.warns(UserWarning, match="2 of 12 cells have no counts of the features"):
            fit = wad.nmf(data, 2, loss, **FAST)
        kept = np.delete(X, [2, 5], axis=0)
        plain = wtf.nmf(kept / kept.sum(axis=1, keepdims=True), 2, loss, **FAST)
        assert np.array_equal(np.delete(data.obsm["X_wtf"], [2, 5], axis=0), plain.factors[0])
        assert not data.obsm["X_wtf"][[2, 5]].any()
        assert fit.axis(0).values[2] == "cell3"

    @pytest.mark.parametrize(
        ("marks", "message"),
        [
            ([True] * 8 + [None], r"has the entry None: expected True or False"),
            (["False"] * 9, r"var\['highly_variable'\] has the entry 'False': expected True or"),
            ([1.0] * 7 + [np.nan] * 2, r"is NaN for 2 features: .* fillna\(False\)"),
        ],
    )
    def test_marks_that_are_no_marks(self, marks, message):
        pandas = pytest.importorskip("pandas")
        data = stand_in(counts(), highly_variable=pandas.Series(marks, dtype=object).to_numpy())
        data.var["highly_variable"] = data.var["highly_variable"].infer_objects()
        with pytest.raises((TypeError, ValueError), match=message):
            wad.nmf(data, 2)

    @pytest.mark.parametrize("kind", ["dense", "sparse"])
    def test_centred_data_are_refused_by_name(self, kind):
        X = counts() - counts().mean(axis=0)
        if kind == "sparse":
            X = pytest.importorskip("scipy.sparse").csr_matrix(X)
        data = stand_in(counts())
        data.layers["scaled"] = X
        message = r"data.layers\['scaled'\] has negative entries: .* another layer; \d+ of \d+ ent"
        with pytest.raises(ValueError, match=message):
            wad.nmf(data, 2, layer="scaled")

    def test_data_in_layers_only(self):
        data = stand_in(counts())
        data.X = None
        with pytest.raises(ValueError, match=r"data.X is None: expected a layer, 'counts'"):
            wad.nmf(data, 2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"layer": "raw"}, "layer is 'raw', which data does not have: expected 'counts'"),
            ({"use_highly_variable": True}, r"data has no var\['highly_variable'\]"),
            ({"weights": {"rna": 1.0}}, "weights was given, but data is an AnnData"),
            ({"loss": {}}, "loss is a mapping, but data is an AnnData"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises((TypeError, ValueError), match=message):
            wad.nmf(stand_in(counts()), 2, **options)

    def test_other_objects_are_refused(self):
        with pytest.raises(TypeError, match="data is a ndarray: expected an AnnData"):
            wad.nmf(counts(), 2)


class TestMuData:
    def stand_in(self):
        rna, protein = stand_in(counts()), stand_in(counts(5, seed=3))
        return SimpleNamespace(
            mod={"rna": rna, "protein": protein}, obs_names=rna.obs_names, obsm={}
        )

    def test_modalities_share_coefficients(self):
        data = self.stand_in()
        losses = dict.fromkeys(data.mod, wtf.KullbackLeibler())
        fit = wad.nmf(data, 2, losses, weights={"protein": 0.5}, **FAST)
        assert np.array_equal(data.obsm["X_wtf"], fit.coefficients)
        assert data.mod["protein"].varm["wtf"].shape == (5, 2)
        X = [counts(), counts(5, seed=3)]
        X = [x / x.sum(axis=1, keepdims=True) for x in X]
        plain = wtf.coupled(X, 2, list(losses.values()), weights=[1.0, 0.5], **FAST)
        assert np.array_equal(plain.coefficients, fit.coefficients)

    def test_cells_that_a_modality_lacks_are_missing(self):
        data = self.stand_in()
        names = [f"cell{i}" for i in range(2, CELLS)]
        data.mod["protein"] = stand_in(counts(5, seed=3)[2:], cells=names)
        fit = wad.nmf(data, 2, dict.fromkeys(data.mod, wtf.KullbackLeibler()), **FAST)
        assert fit.coefficients.shape == (CELLS, 2)
        assert fit.fits[1].axis(1).values == tuple(f"gene{k}" for k in range(5))
        assert fit.fits[1].axis(0).values == tuple(data.obs_names)

    def test_empty_cells_are_missing(self):
        """In one modality; those that are empty in all get zeros."""
        sparse = pytest.importorskip("scipy.sparse")
        losses = dict.fromkeys(["rna", "protein"], wtf.KullbackLeibler())
        data, same = self.stand_in(), self.stand_in()
        for name, part in data.mod.items():
            part.X[[1, 7] if name == "rna" else [7]] = 0.0
            same.mod[name].X = sparse.csc_matrix(part.X)
        fit, found = (wad.nmf(d, 2, losses, **FAST) for d in (data, same))
        assert not data.obsm["X_wtf"][7].any()
        assert (data.obsm["X_wtf"][1] > 0).any()
        np.testing.assert_allclose(fit.coefficients.sum(axis=1), 1.0)
        assert np.array_equal(fit.coefficients, found.coefficients)

    def test_modalities_of_different_dtypes(self):
        data = self.stand_in()
        data.mod["rna"].X = data.mod["rna"].X.astype(np.float32)
        losses = dict.fromkeys(data.mod, wtf.KullbackLeibler())
        assert wad.nmf(data, 2, losses, **FAST).coefficients.dtype == np.float64

    def test_modality_in_another_order(self):
        sparse = pytest.importorskip("scipy.sparse")
        losses = dict.fromkeys(["rna", "protein"], wtf.KullbackLeibler())
        data = self.stand_in()
        fit = wad.nmf(data, 2, losses, **FAST)
        for kind in (np.asarray, sparse.csr_array):
            names = data.obs_names[::-1]
            data.mod["rna"] = stand_in(kind(counts()[::-1]), cells=names)
            found = wad.nmf(data, 2, losses, **FAST)
            assert np.array_equal(found.coefficients, fit.coefficients)

    def test_unknown_modalities_are_refused(self):
        with pytest.raises(ValueError, match="weights names the modality 'atac': expected some"):
            wad.nmf(self.stand_in(), 2, weights={"atac": 1.0})


class TestPackages:
    """In environments that have them."""

    def test_anndata(self, tmp_path):
        package = pytest.importorskip("anndata")
        sparse = pytest.importorskip("scipy.sparse")
        data = package.AnnData(sparse.csr_matrix(counts()))
        data.var["highly_variable"] = np.arange(GENES) < 6
        fit = wad.nmf(data, 2, **FAST)
        assert data.obsm["X_wtf"].shape == (CELLS, 2)
        assert fit.axis(1).values == tuple(data.var_names[:6])
        data.write_h5ad(tmp_path / "data.h5ad")
        read = package.read_h5ad(tmp_path / "data.h5ad")
        assert np.array_equal(read.varm["wtf"], data.varm["wtf"])

    def test_view(self):
        package = pytest.importorskip("anndata")
        sparse = pytest.importorskip("scipy.sparse")
        data = package.AnnData(sparse.csr_matrix(counts()))[:8]
        assert wad.nmf(data, 2, wtf.KullbackLeibler(), **FAST).shape == (8, GENES)

    @pytest.mark.filterwarnings("ignore:From 0.4:FutureWarning")  # of the constructor
    def test_mudata(self):
        package, mudata = (pytest.importorskip(name) for name in ("anndata", "mudata"))
        parts = {"rna": package.AnnData(counts()), "protein": package.AnnData(counts(5, seed=3))}
        data = mudata.MuData(parts)
        fit = wad.nmf(data, 2, dict.fromkeys(parts, wtf.KullbackLeibler()), **FAST)
        assert np.array_equal(data.obsm["X_wtf"], fit.coefficients)
        assert data["protein"].varm["wtf"].shape == (5, 2)
