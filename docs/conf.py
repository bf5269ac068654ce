"""Sphinx configuration."""

from wtfarray import __version__

project = "wtfarray"
author = "the wtfarray developers"
copyright = "the wtfarray developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Only the docstrings of what is built on them are needed.
autodoc_mock_imports = ["jax", "torch"]
# Types are in the docstrings.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "wtfarray"
