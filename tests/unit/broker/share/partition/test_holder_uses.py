"""The share partitions that each share session uses."""

from __future__ import annotations

from kproc.broker.share.partition.holder_uses import HolderUses
from kproc.broker.share.partition.messages import ShareHolder
from kproc.broker.share.state.messages import SharePartitionKey

ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)
FIRST, SECOND = (SharePartitionKey("g", b"t" * 16, index) for index in (0, 1))


def test_share_partition_is_used_until_its_last_session_ends() -> None:
    uses = HolderUses()
    for holder, key in ((ANN, FIRST), (ANN, FIRST), (ANN, SECOND), (BOB, FIRST)):
        uses.add(holder, key)
    assert (uses.count(ANN), uses.count(BOB)) == (2, 1)
    assert list(uses.pop(ANN)) == [FIRST, SECOND]
    assert (uses.is_used(FIRST), uses.is_used(SECOND)) == (True, False)
    assert list(uses.pop(BOB)) == [FIRST]
    assert (uses.is_used(FIRST), len(uses)) == (False, 0)
    assert not uses.pop(BOB)


def test_uses_of_a_home_end_together() -> None:
    uses = HolderUses()
    for holder in (ANN, BOB):
        uses.add(holder, FIRST)
    assert list(uses.pop_home(1)) == [FIRST]
    assert (uses.count(ANN), uses.count(BOB)) == (1, 0)
