"""The page about the estimators."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("numpy_estimators")


ROOT = Path(__file__).parents[2]


def test_code_of_the_documentation_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
