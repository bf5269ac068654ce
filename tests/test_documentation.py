"""
The code that README and the pages show: every block of Python runs, every command parses.

A page is one script: its blocks run in order, in one namespace, in a folder of their own. Blocks
that import torch or JAX run in the session of that library, after the blocks before them; all
others run in the NumPy session.
"""

import re
import shlex
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LIBRARIES = ("torch", "jax")
NEEDS = re.compile(r"^(?:import|from) (?:wtfarray\.)?(torch|jax)\b", re.MULTILINE)
"""How a block says that it needs one of them."""


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return list(Document.parse(str(page), CodeBlockParser(language)))


def libraries(block):
    """Which of torch and JAX a block imports."""
    return set(NEEDS.findall(block.parsed))


def named(pages):
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


def evaluate(block):
    """Run a block in the namespace of its page; a traceback names the page and the line."""
    lines = "\n" * (block.line + block.parsed.line_offset)
    exec(compile(lines + block.parsed, block.path, "exec"), block.namespace)


@pytest.mark.parametrize("page", named(page for page in PAGES if blocks(page, "python")))
def test_code_runs(page, backend, tmp_path, monkeypatch):
    found = blocks(page, "python")
    needed = [libraries(block) for block in found]
    if backend.name in LIBRARIES:
        if {backend.name} not in needed:
            pytest.skip(f"no code of this page imports {backend.name}")
    elif backend.name != "numpy":
        pytest.skip("the code runs in the sessions of NumPy, torch and JAX")
    elif all(needed):
        pytest.skip(f"all code of this page imports {' or '.join(sorted(set.union(*needed)))}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    for block, names in zip(found, needed, strict=True):
        if names <= {backend.name}:
            evaluate(block)


@pytest.mark.parametrize("page", named(page for page in PAGES if blocks(page, "bash")))
def test_commands_parse(page, on_numpy, tmp_path, monkeypatch):
    """The files that a command reads need not hold anything for that."""
    command = pytest.importorskip("wtfarray.cli._commands").command
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "bash"):
        for line in block.parsed.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["wtfarray"] or "--help" in words:
                continue
            for word in words:
                if Path(word).suffix in {".npy", ".npz"}:
                    Path(word).touch()
            with command.make_context("wtfarray", words[1:]) as context:
                name, subcommand, rest = command.resolve_command(context, words[1:])
                subcommand.make_context(name, rest, parent=context).close()


def test_there_is_code():
    """What is not found is not tested."""
    found = {page.stem: blocks(page, "python") for page in PAGES}
    assert found["README"]
    assert len(found["tutorial"]) > 5
    (commands,) = (blocks(page, "bash") for page in PAGES if page.stem == "command_line")
    assert any("\nwtfarray fit " in block.parsed for block in commands)
    every = [libraries(block) for some in found.values() for block in some]
    assert set().union(*every) == set(LIBRARIES)
    assert all(len(names) < 2 for names in every), "a block of two libraries runs in no session"


def test_every_block_has_a_language():
    """A fence without one would be passed over."""
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) % 2 == 0, page
        assert all(fences[::2]), page
        assert not any(fences[1::2]), page


def test_links_of_the_readme_exist():
    """Those of the pages are checked when the documentation is built."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    own = r"https://(?:raw\.)?github(?:usercontent)?\.com/wtfarray/wtfarray/(?:blob/|tree/|raw/)?main/"
    for target in (re.sub(own, "", target) for target in targets):
        assert "://" in target or (ROOT / target).exists(), target


def test_architecture_page_is_a_map():
    """Every private module is listed under its package, and nothing that does not exist."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "wtfarray"
    for path in re.findall(r"`(?:wtfarray/)?(_\w+(?:/\w+)?\.py)`", page):
        assert (source / path).exists(), path
    for package in sorted(path.parent for path in source.glob("_*/__init__.py")):
        (listed,) = re.findall(rf"^`{package.name}/`\n:((?:.+\n)+)", page, re.MULTILINE)
        modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
        assert modules <= set(re.findall(r"`(\w+)`", listed)), package.name
