"""Models without mass in a sample that has some: their loss is infinite."""

from __future__ import annotations

from wtfarray._arrays.typing import Array
from wtfarray._losses.source_term import SourceTerm
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm


def has_empty_sample(term: Term, model: Array) -> bool:
    """
    Whether the loss is infinite because a sample of this process is empty in the model.

    Processes that share the samples have to know this of each other before they evaluate a term: it
    returns at once where it is infinite, and would leave the others waiting.
    """
    if isinstance(term, SourceTerm):
        return has_empty_sample(term.term, term.part(model))
    return isinstance(term, TransportTerm) and term.has_empty_sample(model)
