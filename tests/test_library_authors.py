"""The pages for authors of other libraries: their code runs, their claims hold."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf

DOCS = Path(__file__).parent.parent / "docs"


def blocks():
    """Every piece of Python on the two pages, with the library that it needs."""
    for page in ("training.md", "library_authors.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for k, code in enumerate(
            re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        ):
            needed = re.search(r"^import (torch|jax)$", code, re.MULTILINE)
            yield pytest.param(code, needed[1] if needed else "numpy", id=f"{page}-{k}")


@pytest.mark.parametrize(("code", "library"), list(blocks()))
def test_code_of_the_pages_runs(backend, code, library):
    if backend.name != library:
        pytest.skip(f"runs in the {library} session")
    exec(compile(code, "the page", "exec"), {})


def test_pages_show_code_for_every_library():
    assert {block.values[1] for block in blocks()} == {"numpy", "torch", "jax"}


class TestFits:
    @pytest.fixture(autouse=True)
    def only_where_it_is_fast(self, backend):
        if backend.name not in ("numpy", "torch"):
            pytest.skip("left to the faster backends")

    def fit(self, array, seed):
        X = array(np.random.default_rng(seed).dirichlet(np.ones(8), 6))
        loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.1, lam=1.0)
        return to_numpy(wtf.nmf(X, 2, loss, rng=seed).to_tensor())

    def test_same_seed_gives_equal_results(self, array):
        assert (self.fit(array, 0) == self.fit(array, 0)).all()

    def test_threads_give_bit_equal_results(self, array):
        """Fits in threads equal sequential fits bit by bit."""
        alone = [self.fit(array, seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda seed: self.fit(array, seed), range(4)))
        for one, other in zip(alone, together, strict=True):
            assert (one == other).all()
