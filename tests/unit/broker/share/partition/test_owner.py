"""Calls to the owner of share partitions: acquire, watch and release records, over a real log in a Handler."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from kproc.broker.calls.calls import Reply
from kproc.broker.share.partition import owner as owner_calls
from kproc.broker.share.partition import share_partitions
from kproc.broker.share.partition.messages import AcknowledgeType, ReleaseHolder, ShareHolder
from kproc.common.errors import Corrupt, ErrorCode
from tests.support.handler_rig import HandlerRig
from tests.support.logs import batch
from tests.support.share_partition_rig import ShareOwner, all_of

RELEASE = AcknowledgeType.RELEASE
ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 2, 1)


# -- acquire -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [OSError("damaged disk"), Corrupt("damaged file")])
def test_unreadable_log_fails_only_its_partition(owner: ShareOwner, failure: Exception) -> None:
    owner.produce(2)
    owner.produce(1, index=1)
    parts = [owner.part(), owner.part(1)]
    owner.acquire(ANN, *parts, records_max=0)
    log = owner.rig.open("t").log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "read", lambda *_args, **_more: raise_it(failure))
        first, second = owner.acquire(ANN, *parts) or []
    assert (first.error, first.acquired) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert (second.error, len(second.acquired)) == (0, 1)
    # Nothing of the first partition was acquired.
    assert owner.offsets(BOB) == [(0, 1, 1)]


def raise_it(failure: Exception) -> None:
    raise failure


def test_record_limit_mode_acquires_exactly(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(5, 5)
    assert owner.offsets(ANN, records_max=7, is_exact=True) == [(0, 6, 1)]
    assert owner.offsets(BOB, records_max=7, is_exact=True) == [(7, 9, 1)]


def test_batch_size_divides_at_ends_of_batches(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(2, 2, 2, 2)
    assert owner.offsets(ANN, batch_size=3) == [(0, 3, 1), (4, 7, 1)]


def test_parts_of_a_call_share_its_limits(owner: ShareOwner) -> None:
    parts = [owner.part(), owner.part(index=1)]
    owner.acquire(ANN, *parts)
    owner.produce(3)
    owner.produce(3, index=1)
    found = owner.acquire(ANN, *parts, records_max=4) or []
    assert [part.record_count for part in found] == [3, 3]
    assert owner.acquire(ANN, *parts) == [type(found[0])(), type(found[0])()]


def test_no_more_records_than_locks_are_in_flight(owner: ShareOwner) -> None:
    owner.configure(share_partition_max_record_locks="100")
    owner.load(ANN)
    owner.produce(*[1] * 250)
    assert owner.offsets(ANN) == [(0, 99, 1)]
    assert owner.offsets(BOB) == []
    watch = owner.watch()
    assert watch == []
    owner.acknowledge(ANN, all_of(0, 9))
    assert len(watch) == 1
    assert owner.offsets(BOB) == [(100, 109, 1)]


def test_changed_number_of_locks_counts_at_once(owner: ShareOwner) -> None:
    owner.configure(share_partition_max_record_locks="150")
    owner.load(ANN)
    owner.produce(*[1] * 250)
    assert owner.offsets(ANN) == [(0, 149, 1)]
    owner.configure(share_partition_max_record_locks="100")
    assert owner.offsets(ANN) == []
    owner.configure(share_partition_max_record_locks="200")
    assert owner.offsets(ANN) == [(150, 199, 1)]


def test_records_below_the_log_start_are_given_up(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(10)
    assert owner.offsets(ANN) == [(0, 9, 1)]
    log = owner.rig.open("t").log
    log.retention.advance_start(6)
    owner.load(ANN)
    assert owner.acknowledge(ANN, all_of(0, 7)) is not None
    assert owner.state.start_offset == 8


# -- release -------------------------------------------------------------------------------------------------


def test_released_records_are_delivered_again_up_to_the_limit(owner: ShareOwner) -> None:
    owner.configure(share_delivery_count_limit="2")
    owner.load(ANN)
    owner.produce(1)
    for count in (1, 2):
        assert owner.offsets(ANN) == [(0, 0, count)]
        owner.acknowledge(ANN, all_of(0, 0, RELEASE))
    assert owner.offsets(ANN) == []
    assert owner.state.start_offset == 1


def test_end_of_a_session_releases_its_records(owner: ShareOwner) -> None:
    """The delivery counts, because a record that ends its consumers must reach the limit."""
    owner.load(ANN)
    owner.produce(2)
    assert owner.offsets(ANN, records_max=2) == [(0, 1, 1)]
    owner.release(ShareHolder("g", "ann", 7, 0))  # Another session of the member.
    assert owner.offsets(BOB) == []
    owner.release(ANN)
    assert owner.offsets(BOB) == [(0, 1, 2)]


def test_death_of_a_home_releases_its_sessions(start: Callable[..., HandlerRig]) -> None:
    rig = start(handlers=2)
    owner = ShareOwner(rig)
    index = next(index for index in (0, 1) if rig.owner("t", index) == 0)
    part = owner.part(index=index)
    owner.acquire(BOB, part)
    owner.produce(2, index=index)
    (found,) = owner.acquire(BOB, part) or []
    assert found.record_count == 2
    rig.kill(1)
    rig.settle()
    (found,) = owner.acquire(ANN, part) or []
    assert [(each.first, each.last, each.delivery_count) for each in found.acquired] == [(0, 1, 2)]


# -- watch ---------------------------------------------------------------------------------------------------


def test_watch_ends_at_an_append_and_at_its_deadline(owner: ShareOwner) -> None:
    owner.load(ANN)
    watch = owner.watch()
    assert watch == []
    owner.produce(1)
    assert watch == [Reply()]
    owner.offsets(ANN)
    watch = owner.watch()
    owner.rig.advance_ms(499)
    assert watch == []
    owner.rig.advance_ms(2)
    assert watch == [Reply()]


def test_watch_waits_for_so_many_bytes(owner: ShareOwner) -> None:
    owner.load(ANN)
    watch = owner.watch(bytes_min=300)
    owner.produce(1, value=b"x" * 100)
    assert watch == []
    owner.produce(1, value=b"x" * 100)
    assert len(watch) == 1


def test_watches_of_many_partitions_are_checked_one_by_one(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each append to one of 2,000 partitions would have checked all of them for each of 100 watches."""
    monkeypatch.setattr(owner_calls, "SLOW_PARTS", 0)
    owner.load(ANN)
    watches = [owner.watch(bytes_min=1_000_000) for _ in range(3)]
    checks: list[int] = []
    fetch_offset = owner_calls.fetch_offset
    monkeypatch.setattr(owner_calls, "fetch_offset", lambda *call: checks.append(1) or fetch_offset(*call))
    owned = owner.rig.open("t")
    owned.log.append([batch(b"v")])
    owned.after_append()
    counts = [0]
    while counts[-1] < len(watches):
        owner.rig.run_cycle(owner.rig.handler(0))
        counts.append(len(checks))
        assert counts[-1] - counts[-2] <= 1, counts
    owner.rig.settle()
    assert watches == [[]] * 3
    owner.rig.advance_ms(500)
    assert watches == [[Reply()]] * 3


def test_sessions_of_many_partitions_are_released_one_by_one(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_partitions, "SLOW_PARTS", 0)
    owner.load(ANN)
    owner.produce(1, 1)
    assert owner.offsets(ANN, records_max=1) == [(0, 0, 1)]
    assert owner.offsets(BOB) == [(1, 1, 1)]
    released: list[ShareHolder] = []
    monkeypatch.setattr(owner.shares, "release_now", released.append)
    for member in (ANN, BOB):
        body = ReleaseHolder(owner.services.image.version, member)
        owner_calls.release_for_home(owner.services, body, lambda _reply: None)
    counts = [0]
    while counts[-1] < 2:
        owner.rig.run_cycle(owner.rig.handler(0))
        counts.append(len(released))
        assert counts[-1] - counts[-2] <= 1, counts
    assert released == [ANN, BOB]


def test_waiting_share_fetches_share_their_keys(owner: ShareOwner) -> None:
    """100 of them wait for 2,000 partitions each. Keys of their own took 45 MB, and each collection visited them."""
    owner.load(ANN)
    for _ in range(2):
        owner.watch(bytes_min=1_000_000)
    purgatory = owner.services.owner.purgatory
    first, second = purgatory.watchers["t", 0]
    shared = [one for one, other in zip(first.watched, second.watched, strict=True) if one is other]
    assert len(shared) == 2
    assert len(purgatory.watchers[shared[0]]) == 2
    part = owner.part()
    gc.collect()
    assert not gc.is_tracked(part)
