"""The command line, ``wtfarray``; needs click and rich (``pip install 'wtfarray[cli]'``)."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; if click or rich is missing, print how to install it."""
    try:
        from wtfarray.cli._commands import command
    except KeyboardInterrupt:
        sys.stderr.write("wtfarray: interrupted, nothing was written\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"wtfarray: the command line needs {missing}: pip install 'wtfarray[cli]'\n"
        )
        sys.exit(2)
    command(prog_name="wtfarray")
