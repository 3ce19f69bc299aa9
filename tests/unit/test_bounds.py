"""Every table that clients fill has a bound in entries and in bytes, and unused entries leave (SECURITY.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kproc.broker.cluster.client_quotas import (
    CLIENT_ID,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    ClientQuotas,
)
from kproc.broker.cluster.mutation_quotas import BUCKETS_MAX, CLIENT, MutationQuotas
from kproc.broker.group import classic_groups
from kproc.broker.group.classic.join import PROTOCOL_BYTES_MAX
from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.broker.group.messages import CommitRequest, JoinRequest, JoinResult
from kproc.broker.handler import handler_figures
from kproc.broker.request import fetch_session
from kproc.broker.request.client_rates import ACCOUNTS_MAX, TOLD_MAX, ClientRates
from kproc.broker.request.fetch_session import SessionCache
from kproc.broker.security.principal import Identity
from kproc.broker.storage.producer_state import PRODUCERS_MAX, ProducerTable
from kproc.broker.streams.messages import StreamsHeartbeat
from kproc.common.bounded import NAME_MAX
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.hot import FetchPartition, FetchRequest
from tests.support.group_coordinator_rig import NO_TOPICS, Rig
from tests.support.group_rig import GroupRig
from tests.support.logs import LogRig, batch

LONG = "n" * 32_000
SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND_NS


def quotas_of(kind: str) -> ClientQuotas:
    """A default quota for each client id."""
    quotas = ClientQuotas()
    quotas.set(((CLIENT_ID, None),), kind, 1.0)
    return quotas


def rates_of(clock: Clock) -> ClientRates:
    quotas = quotas_of(PRODUCER_BYTE_RATE)
    rates = ClientRates(quotas=lambda: quotas, now_ns=lambda: clock.now_ns, sample_count=11, sample_s=1)
    rates.on_image()
    return rates


# -- quotas ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_client_rates_of_made_up_client_ids_are_bounded() -> None:
    clock = Clock()
    rates = rates_of(clock)
    for number in range(ACCOUNTS_MAX + 5_000):
        rates.on_produce("u", f"{number}{LONG if number % 100 == 0 else ''}".encode(), 1_000_000)
    assert len(rates._accounts) <= ACCOUNTS_MAX
    assert max(len(client_id) for _, _, client_id in rates._accounts) <= NAME_MAX
    assert rates._found.size_bytes <= 4 << 20
    told = rates.drain_unsent()
    assert len(told) == TOLD_MAX
    assert sum(len(client_id) for _, _, client_id, _ in told) <= TOLD_MAX * NAME_MAX


def test_client_rates_tell_everything_in_several_messages() -> None:
    rates, count = rates_of(Clock()), 2_500
    for number in range(count):
        rates.on_produce("u", f"c{number}".encode(), 1)
    told = [row[2] for _ in range(3) for row in rates.drain_unsent()]
    assert sorted(told) == sorted(f"c{number}" for number in range(count))


def test_client_rates_keep_those_who_owe_most() -> None:
    rates = rates_of(Clock())
    rates.on_produce("u", b"heavy", 10**6)
    for number in range(ACCOUNTS_MAX + 10):
        rates.on_produce("u", f"c{number}".encode(), 1)
    assert rates.on_produce("u", b"heavy", 1) > 1_000_000


def test_client_rates_of_idle_clients_leave() -> None:
    clock = Clock()
    rates = rates_of(clock)
    rates.on_produce("u", b"c", 5)
    rates.drain_unsent()
    clock.now_ns += 60 * SECOND_NS
    rates.drain_unsent()
    assert not rates._accounts


@pytest.mark.long
def test_mutation_buckets_of_made_up_client_ids_are_bounded() -> None:
    quotas, clock = quotas_of(CONTROLLER_MUTATION_RATE), Clock()
    mutations = MutationQuotas(lambda: quotas, lambda: clock.now_ns, seconds=11)
    for number in range(BUCKETS_MAX + 5_000):
        mutations.of({CLIENT: ["u", f"{LONG if number % 100 == 0 else ''}{number}", False]}).charge(1_000)
    assert len(mutations._full_ns) <= BUCKETS_MAX
    assert max(len(client_id) for _, client_id in mutations._full_ns) <= NAME_MAX
    clock.now_ns += 10**15
    for number in range(2 * BUCKETS_MAX):
        mutations.of({CLIENT: ["u", f"d{number}", False]}).charge(1)
        clock.now_ns += 10 * SECOND_NS
    assert len(mutations._full_ns) <= 2_048, "full buckets leave"


# -- groups ---------------------------------------------------------------------------------------------------


def test_member_protocols_leave_with_the_last_member() -> None:
    """225 MB of names of left members stayed for the life of a group."""
    rig = GroupRig()
    for number in range(20):
        protocols = (("range", b""), *((f"p{number}-{each}", b"") for each in range(50)))
        join = rig.join(protocols=protocols)
        rig.pass_ms(10_000)
        rig.join(join.value.member_id, protocols=(("range", b""), (f"q{number}", b"")))
        rig.pass_ms(10_000)
        rig.leave(join.value.member_id)
        rig.pass_ms(60_000)
    assert len(rig.group.roster._known_by) == 0
    assert rig.state == "Empty"


def test_join_with_too_many_protocol_bytes_is_refused() -> None:
    rig = GroupRig()
    fits = (("range", bytes(PROTOCOL_BYTES_MAX - 5)),)
    assert rig.join(protocols=(*fits, ("x", b""))).code == ErrorCode.INVALID_REQUEST
    assert rig.join(protocols=fits).is_open


def test_member_ids_of_long_client_ids_are_short() -> None:
    rig = GroupRig()
    join = rig.join(client_id=LONG)
    rig.pass_ms(10_000)
    assert len(join.value.member_id) <= NAME_MAX + 40
    assert len(rig.group.describe().members[0].client_id) <= NAME_MAX


def join_two_steps(rig: Rig, group: str) -> str:
    """The first step of a join with a version that has two: the member id that is given out."""
    results: list[object] = []
    request = JoinRequest(
        member_id="",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
        requires_known_member_id=True,
    )
    rig.coordinator.join(group, request, results.append)
    (result,) = results
    assert isinstance(result, JoinResult)
    assert result.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return result.member_id


def test_groups_that_nobody_joins_are_bounded_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_groups, "UNWRITTEN_GROUPS_MAX", 10)
    rig = Rig()
    rig.settle()
    for number in range(50):
        join_two_steps(rig, f"made-up-{number}")
    assert len(rig.coordinator) == 11
    assert rig.states()["g"] == "Stable"
    rig.pass_ms(10_001)
    assert list(rig.states()) == ["g"], "their member ids expired"


def test_member_ids_that_nobody_uses_are_bounded_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_groups, "PENDING_MEMBERS_MAX", 10)
    rig = Rig()
    ids = [join_two_steps(rig, "g") for _ in range(50)]
    group = rig.coordinator._groups["g"]
    assert list(group.roster.pending) == ids[-10:]
    (late,) = rig.join(member_id=ids[0])
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    rig.join(member_id=ids[-1])
    assert list(group.roster.members) == [ids[-1]]
    rig.sweep()
    assert len(rig.coordinator._classic._pending) <= 9


def test_made_up_groups_with_long_ids_have_a_lower_limit() -> None:
    """12,000 JoinGroups with ids of 30 kB took 371 MiB. Member ids held the ids of groups that had left."""
    rig = Rig()
    limit = classic_groups.LONG_GROUP_IDS_MAX
    for number in range(limit + 20):
        join_two_steps(rig, f"short-{number}")
        join_two_steps(rig, f"{number}-" + "x" * 250)
    left = [group_id for group_id in rig.states() if len(group_id) > 250]
    assert [each.partition("-")[0] for each in left] == [str(number) for number in range(20, limit + 20)]
    assert len(rig.states()) == 2 * limit + 20
    rig.pass_ms(10_001)
    for number in range(limit + 20):
        join_two_steps(rig, f"again-{number}-" + "x" * 250)
        rig.pass_ms(10_001)
    assert not rig.states()
    pending = rig.coordinator._classic._pending
    assert sum(len(group_id) > 250 for group_id, _ in pending) == limit


def test_group_that_a_rejected_heartbeat_leaves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat of a new member replaces an empty classic group, which comes back if the member is rejected."""
    monkeypatch.setattr(classic_groups, "UNWRITTEN_GROUPS_MAX", 10)
    results: list[Any] = []

    def reject(_expression: str, _client: Identity) -> frozenset[str]:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION)

    for kind, code in (
        ("consumer", ErrorCode.INVALID_REGULAR_EXPRESSION),
        ("streams", ErrorCode.FENCED_MEMBER_EPOCH),  # It has no topology.
    ):
        rig = Rig(msgspec.structs.replace(NO_TOPICS, match_topics=reject))
        for number in range(50):
            group = f"{kind}-{number}"
            join_two_steps(rig, group)
            if kind == "consumer":
                request = ConsumerHeartbeat(member_id="m", member_epoch=0, topic_regex="(", owned={})
                rig.coordinator.consumer_heartbeat(group, request, results.append)
                rig.log.sync()
            else:
                results.append(
                    rig.coordinator.streams.heartbeat(group, StreamsHeartbeat(member_id="m", member_epoch=0))
                )
        assert {results.pop().error_code for _ in range(50)} == {code}
        assert len(rig.coordinator) == 10, kind


def test_group_of_a_refused_join_leaves_at_once() -> None:
    rig = Rig()
    request = JoinRequest(
        member_id="",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="",
        protocols=(),
    )
    results: list[JoinResult] = []
    rig.coordinator.join("g", request, results.append)
    assert results[0].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(rig.coordinator) == 0


def test_groups_of_empty_commits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_groups, "UNWRITTEN_GROUPS_MAX", 10)
    rig = Rig()
    rig.commit(1, group="kept")
    for number in range(50):
        request = CommitRequest(
            group_id=f"made-up-{number}",
            member_id="",
            group_instance_id=None,
            generation=-1,
            knows_unknown_group=True,
            offsets=[],
        )
        rig.coordinator.offset_requests.commit(request, lambda code: None)
    rig.log.sync()
    assert len(rig.coordinator) == 11
    assert rig.offset(group="kept") == 1


def groups_of_figures() -> tuple[list[Any], Counter[str]]:
    """Return the rows of groups for the metrics, and the number of the others by state."""
    rows: list[Any] = []
    more: dict[str, Counter[str]] = defaultdict(Counter)
    for _ in handler_figures._collect_groups(cast(Any, None), rows, more):
        pass
    return rows, more["classic"]


def test_figures_of_groups_are_bounded_and_have_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group names of 32 kB made a scrape of 38 MB."""
    rig = Rig()
    for number in range(30):
        rig.commit(number, group=f"{number}{LONG}")
    rig.log.sync()
    of = SimpleNamespace(loaded=lambda: [rig.coordinator])
    monkeypatch.setattr(handler_figures.GROUPS, "of", lambda services: of)
    monkeypatch.setattr(handler_figures, "REPORTED_GROUPS_MAX", 10)
    rows, more = groups_of_figures()
    assert ([len(row.id) for row in rows], more) == ([NAME_MAX] * 10, {"Empty": 20})
    assert len({row.id for row in rows}) == 10
    monkeypatch.setattr(handler_figures, "REPORTED_OFFSETS_MAX", 3)
    rows, more = groups_of_figures()
    assert (len(rows), more) == (3, {"Empty": 27})


# -- fetch sessions -------------------------------------------------------------------------------------------


def fetch(*topics: str, session: tuple[int, int] = (0, 0)) -> FetchRequest:
    rows = [(name, None, [FetchPartition(0, -1, 0, -1, -1, 1000)]) for name in topics]
    return FetchRequest(100, 1, 1 << 20, 0, *session, rows, [], "")


def test_fetch_sessions_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "BYTES_MAX", 100_000)
    monkeypatch.setattr(fetch_session, "SESSION_BYTES_MAX", 70_000)
    cache = SessionCache(1_000)
    newest = None
    for number in range(100):
        _, newest, _ = cache.resolve(fetch(f"{number}{LONG}"), 12, now_ns=0)
        assert cache.size_bytes <= 100_000
    assert newest is not None
    assert len(cache) == 3
    with pytest.raises(KafkaError) as grown:
        cache.resolve(fetch("a" + LONG, "b" + LONG, session=(newest.id, 1)), 12, now_ns=0)
    assert grown.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    _, too_large, _ = cache.resolve(fetch("a" + LONG, "b" + LONG, "c" + LONG), 12, now_ns=0)
    assert too_large is None, "a client without a session sends full requests"


def test_fetch_sessions_that_nobody_uses_leave() -> None:
    cache = SessionCache(1_000)
    for number in range(10):
        cache.resolve(fetch(f"t{number}"), 12, now_ns=0)
    cache.resolve(fetch("u"), 12, now_ns=700 * SECOND_NS)
    assert len(cache) == 1
    assert cache.size_bytes < 1_000


# -- producers ------------------------------------------------------------------------------------------------


def table_of(count: int, *, open_count: int = 0) -> ProducerTable:
    table = ProducerTable()
    for number in range(count):
        table.record(number, 0, (0, number, 0, number), transactional=number < open_count, heard_ms=number)
    return table


def test_made_up_producers_leave_but_not_those_in_transactions() -> None:
    table = table_of(1_000, open_count=10)
    table.trim(100)
    kept = [entry.producer_id for entry in table.entries()]
    assert kept == [*range(10), *range(1_000 - 65, 1_000)]
    assert table.first_open_offset == 0
    table.trim(100)
    assert len(table) == 75


def test_partition_with_made_up_producers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of all of them stopped a Handler for half a second every 2,000 batches."""
    monkeypatch.setattr("kproc.broker.storage.log_append.SNAPSHOT_BATCHES", 10)
    monkeypatch.setattr("kproc.broker.storage.log_append.PRODUCERS_MAX", 100)
    rig = LogRig(tmp_path / "t-0")
    log = rig.open()
    taken = []
    write_snapshot = type(log.state).write_snapshot

    def count_snapshot(state: object) -> None:
        taken.append(len(log.state.producers))
        write_snapshot(log.state)

    monkeypatch.setattr(type(log.state), "write_snapshot", count_snapshot)
    for number in range(1_000):
        log.append([batch("v", producer_id=number, producer_epoch=0, base_sequence=0)])
        assert len(log.state.producers) <= 100 + 10
    assert sum(taken) <= 2 * 1_000, "a snapshot costs as much as the producers it has"
    log.close(clean=True)
    again = rig.open()
    assert len(again.state.producers) <= 110
    again.close(clean=True)


def test_verifications_of_made_up_producers_are_bounded() -> None:
    table = ProducerTable()
    for number in range(PRODUCERS_MAX + 100):
        table.start_verification(number, 0, 0, owns_epoch=True, now_ms=0)
    assert len(table.verifying) == PRODUCERS_MAX
    assert PRODUCERS_MAX + 99 in table.verifying


def test_log_lines_about_groups_with_long_names_are_short(caplog: pytest.LogCaptureFixture) -> None:
    """A client makes a group rebalance as often as it likes, each time with a line."""
    caplog.set_level("INFO", logger="kproc.broker.group")
    rig = Rig()
    rig.join(LONG)
    assert caplog.messages
    assert max(map(len, caplog.messages)) < 1_000
