"""The group of all commands: their exit codes, and errors in one line."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import click

CONVERGED, BAD_INPUT, NOT_CONVERGED, NOT_WRITTEN, INTERRUPTED = 0, 2, 3, 4, 130
EXIT_CODES = """
Exit codes: 0 converged or done; 2 bad input or a missing package, nothing was computed; 3 not
converged, the result was written; 4 computed, but an output could not be written where it was asked
for, stderr says where it is instead; 130 interrupted, the factors found so far were written.
"""
EXPECTED = (OSError, ValueError, TypeError, ImportError, MemoryError, RuntimeError)
"""Errors that are reported in one line, without a traceback."""


class CommandGroup(click.Group):
    """A group that prints errors as one line on stderr; commands return their exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run and exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = BAD_INPUT
        except click.UsageError as error:
            where = "wtfarray" if error.ctx is None else error.ctx.command_path
            code = _print_error(f"{error.format_message()} See {where} --help.")
        except click.ClickException as error:
            code = _print_error(error.format_message())
        except click.Abort:
            _print_error("interrupted, nothing was written")
            code = INTERRUPTED
        except EXPECTED as error:
            code = _print_error(str(error) or type(error).__name__)
        sys.exit(code)


def _print_error(message: str) -> int:
    say(" ".join(message.split()))
    return BAD_INPUT


def say(message: str) -> None:
    """Print a line on stderr."""
    with suppress(OSError):  # the exit code does not depend on stderr
        click.echo(f"wtfarray: {message}", err=True)
