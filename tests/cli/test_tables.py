"""CSV files with the names of rows and columns."""

import csv
from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._tables import read_table, write_table

pytestmark = numpy_only
SPECTRA = np.random.default_rng(0).dirichlet(np.ones(4), 6)


def write(text):
    Path("table.csv").write_text(text, encoding="utf-8")
    return read_table(Path("table.csv"))


def rows(path):
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write_spectra():
    lines = ["vial,400,410,420,430"]
    lines += [",".join([f"v{i}", *map(repr, row.tolist())]) for i, row in enumerate(SPECTRA)]
    Path("spectra.csv").write_text("\n".join(lines), encoding="utf-8")


class TestRead:
    def test_names_of_features(self):
        values, axes = write("a,b\n1,2\n3,4\n")
        assert values.tolist() == [[1, 2], [3, 4]]
        assert axes == (wtf.Axis(), wtf.Axis(values=["a", "b"]))

    def test_names_of_samples_and_wavelengths(self):
        values, axes = write('vial,400,410\nx,1,2\n"y, z",3,4\n')
        assert values.tolist() == [[1, 2], [3, 4]]
        assert axes == (wtf.Axis("vial", ["x", "y, z"]), wtf.Axis(values=[400.0, 410.0]))

    def test_index_of_numbers_under_an_empty_field(self):
        values, axes = write(",a,b\n7,1,2\n8,3,4\n")
        assert values.tolist() == [[1, 2], [3, 4]]
        assert axes[0] == wtf.Axis(values=[7.0, 8.0])

    def test_plain_numbers_have_no_labels(self):
        values, axes = write("1,2\n3,4\n")
        assert values.tolist() == [[1, 2], [3, 4]]
        assert axes == ()

    def test_rows_of_another_length_are_refused(self):
        with pytest.raises(ValueError, match="columns changed from 3 to 2 at row 2"):
            write("s,a,b\nx,1,2\ny,1\n")


def test_several_modes_have_several_columns():
    axes = [wtf.Axis("x", [1, 2], "nm"), wtf.Axis()]
    write_table(Path("factor.csv"), np.arange(4.0)[:, None], [1, 2], axes, [2, 2])
    assert rows("factor.csv") == [
        ["x [nm]", "mode 2", "component 0"],
        ["1", "0", "0.0"],
        ["1", "1", "1.0"],
        ["2", "0", "2.0"],
        ["2", "1", "3.0"],
    ]


class TestCommands:
    def test_labels_go_from_table_to_tables(self):
        write_spectra()
        words = ("--model", "nmf", "--out", "fit.npz", "--csv", "out/tables")
        assert run("fit", "spectra.csv", *QUICK, *words).exit_code == 0
        fit = wtf.load("fit.npz")
        assert fit.axes[0] == wtf.Axis("vial", [f"v{i}" for i in range(6)])
        samples, atoms = rows("out/tables/factor_0.csv"), rows("out/tables/factor_1.csv")
        assert samples[0] == ["vial", "component 0", "component 1"]
        assert samples[3][0] == "v2"
        assert [row[0] for row in atoms[1:]] == ["400.0", "410.0", "420.0", "430.0"]
        np.testing.assert_array_equal(
            np.asarray([row[1:] for row in atoms[1:]], dtype=float), fit.factors[1]
        )
        assert "v0" in run("info", "fit.npz").stdout

    def test_projection_names_the_new_samples(self):
        write_spectra()
        run("fit", "spectra.csv", *QUICK, "--model", "nmf")
        assert run("project", "fit.npz", "spectra.csv", "--out", "c.csv").exit_code == 0
        assert rows("c.csv")[0] == ["vial", "component 0", "component 1"]
        assert rows("c.csv")[1][0] == "v0"
