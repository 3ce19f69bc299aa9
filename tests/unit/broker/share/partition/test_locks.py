"""The locks of acquired records: their end, and how members renew them (KIP-1222)."""

from __future__ import annotations

from kproc.broker.share.partition.messages import (
    AcknowledgeType,
    ShareHolder,
)
from kproc.broker.share.state.messages import RecordState, StateBatch
from kproc.common.errors import ErrorCode
from tests.support.share_partition_rig import ShareOwner, all_of

RENEW = AcknowledgeType.RENEW
ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)
LOCK_MS = 30_000


def test_lock_ends_after_its_duration(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    watch = owner.watch(wait_ms=60_000)
    owner.rig.advance_ms(LOCK_MS - 200)
    assert watch == []
    owner.rig.advance_ms(300)
    assert len(watch) == 1
    assert owner.state.batches == (StateBatch(0, 1, RecordState.AVAILABLE, 1),)
    assert owner.offsets(BOB) == [(0, 1, 2)]


def test_renewed_lock_lasts_longer(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.rig.advance_ms(20_000)
    writes = len(owner.states.writes)
    owner.acknowledge(ANN, all_of(1, 1, RENEW))
    assert len(owner.states.writes) == writes
    owner.rig.advance_ms(LOCK_MS - 10_000)
    assert owner.offsets(BOB) == [(0, 0, 2)]


def test_renewal_can_be_disabled_for_a_group(owner: ShareOwner) -> None:
    owner.configure(share_renew_acknowledge_enable="false")
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    result = owner.acknowledge(ANN, all_of(0, 0, RENEW))
    assert result is not None
    assert result.error == ErrorCode.INVALID_RECORD_STATE
