"""
Sources that move from image to image, found by a Wasserstein loss and by a squared error.

Run with ``python examples/demo.py``; the picture goes to ``docs/_static/demo.png``. The content is
in ``wtfarray/cli/_demo.py``, so that ``wtfarray demo`` shows the same without a checkout.
"""

import argparse
from pathlib import Path

from wtfarray.cli import _demo

FIGURE = Path(__file__).parent.parent / "docs" / "_static" / "demo.png"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the demonstration and draw its picture.")
    parser.add_argument("--out", type=Path, default=FIGURE, help="where the picture goes")
    parser.add_argument("--seed", type=int, default=0, help="other seeds draw other images")
    arguments = parser.parse_args()
    _demo.run(arguments.out, seed=arguments.seed)
