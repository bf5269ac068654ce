"""Which term serves which data."""

import numpy as np
from helpers import numpy_only
from infinite_costs import band, loss_with

from wtfarray._losses.selection import terms_of
from wtfarray._losses.transport_term import TransportTerm


class TestTerms:
    @numpy_only
    def test_infinite_costs_are_served_by_the_transport_term(self):
        X = np.eye(4, 64)
        (term,) = terms_of([loss_with(band(3, 64), 1.0)], X, None, None)
        assert isinstance(term, TransportTerm)
