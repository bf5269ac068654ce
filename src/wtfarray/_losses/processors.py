"""The processors of this machine, for which several kinds of threads compete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm


def processors_for(terms: Sequence[Term]) -> AbstractContextManager[None]:
    """The context in which to solve the terms: with no other threads, if they have their own."""
    if not any(isinstance(term, TransportTerm) and term.is_fused for term in terms):
        return nullcontext()
    # Imported only where Numba is installed.
    from wtfarray._transport.fused.threads import without_other_threads

    return without_other_threads()
