"""The join of adjacent acknowledgements of a partition."""

from __future__ import annotations

import pytest

from kproc.broker.share.partition.messages import AcknowledgeBatch
from kproc.broker.share.session.acknowledge import join_adjacent
from tests.support.share_requests import ACCEPT, REJECT, RELEASE

Batches = list[tuple[int, int, list[int]]]


def joined(batches: Batches) -> Batches:
    found = join_adjacent([AcknowledgeBatch(first, last, list(types)) for first, last, types in batches])
    return [(each.first, each.last, each.types) for each in found]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], []),
        ([(4, 6, [ACCEPT])], [(4, 6, [ACCEPT])]),
        ([(0, 0, [ACCEPT]), (1, 1, [RELEASE])], [(0, 1, [ACCEPT, RELEASE])]),
        ([(0, 1, [ACCEPT]), (2, 3, [REJECT, 0])], [(0, 3, [ACCEPT, ACCEPT, REJECT, 0])]),
        ([(0, 0, [ACCEPT]), (2, 2, [ACCEPT])], [(0, 0, [ACCEPT]), (2, 2, [ACCEPT])]),
        ([(0, 19, [ACCEPT]), (20, 20, [REJECT])], [(0, 20, [ACCEPT] * 20 + [REJECT])]),
        ([(0, 20, [ACCEPT]), (21, 21, [REJECT])], [(0, 20, [ACCEPT]), (21, 21, [REJECT])]),
        # A repetition of the type for each offset would take much memory.
        (
            [(0, 0, [ACCEPT]), (1, 2**62, [RELEASE]), (2**62 + 1, 2**62 + 1, [ACCEPT])],
            [(0, 0, [ACCEPT]), (1, 2**62, [RELEASE]), (2**62 + 1, 2**62 + 1, [ACCEPT])],
        ),
    ],
)
def test_adjacent_batches_are_joined(batches: Batches, expected: Batches) -> None:
    assert joined(batches) == expected
