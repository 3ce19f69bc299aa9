"""Client byte rates: Kafka's throttle for a client above its quota, over one Handler and over several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.cluster.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    Entity,
)
from kproc.broker.request.client_rates import ClientRates
from kproc.broker.security.principal import Principal
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_quotas import set_quota
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, create_topics_fields, fetch_fields, produce_fields

Start = Callable[..., HandlerRig]
ANONYMOUS = "ANONYMOUS"
SECOND_NS = 1_000_000_000
NO_ID = bytes(16)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5 * SECOND_NS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas() -> ClientQuotas:
    return ClientQuotas()


def make_rates(quotas: ClientQuotas, clock: Clock) -> ClientRates:
    rates = ClientRates(quotas=lambda: quotas, now_ns=lambda: clock.now_ns, sample_count=11, sample_s=1)
    rates.on_image()
    return rates


def client(name: str | None) -> Entity:
    return ((CLIENT_ID, name),)


def test_without_a_quota_it_is_off(quotas: ClientQuotas, clock: Clock) -> None:
    assert not make_rates(quotas, clock).is_on
    quotas.set((("ip", "127.0.0.1"),), "connection_creation_rate", 5)
    assert not make_rates(quotas, clock).is_on
    quotas.set(client("a"), PRODUCER_BYTE_RATE, 1000)
    assert make_rates(quotas, clock).is_on


def test_throttle_time_brings_rate_back_to_quota(
    quotas: ClientQuotas, clock: Clock
) -> None:
    quotas.set(client("a"), PRODUCER_BYTE_RATE, 1000)
    rates = make_rates(quotas, clock)
    assert rates.on_produce(ANONYMOUS, b"a", 1_000) == 0, "one second ahead"
    assert rates.on_produce(ANONYMOUS, b"a", 1_500) == 1500
    clock.now_ns += 2 * SECOND_NS
    assert rates.on_produce(ANONYMOUS, b"a", 1_500) == 1000
    assert rates.on_produce(ANONYMOUS, b"b", 10**9) == 0


@pytest.mark.parametrize("quota", [20_000, 1_000_000])
def test_client_that_obeys_is_held_at_its_quota(quotas: ClientQuotas, clock: Clock, quota: int) -> None:
    quotas.set(client(None), PRODUCER_BYTE_RATE, quota)
    rates = make_rates(quotas, clock)
    start_ns, sent = clock.now_ns, 0
    while clock.now_ns - start_ns < 80 * SECOND_NS:
        if clock.now_ns - start_ns < 20 * SECOND_NS:
            sent = 0
        sent += quota // 20
        clock.now_ns += 1_000_000 + rates.on_produce(ANONYMOUS, b"any", quota // 20) * 1_000_000
    assert sent / 60 == pytest.approx(quota, rel=0.03)


@pytest.mark.parametrize("handlers", [2, 5])
def test_rates_of_several_handlers_are_summed(quotas: ClientQuotas, clock: Clock, handlers: int) -> None:
    quota = 100_000
    quotas.set(client("a"), PRODUCER_BYTE_RATE, quota)
    every = [make_rates(quotas, clock) for _ in range(handlers)]
    ready_ns = [0] * handlers
    sent = 0
    for tick in range(1600):  # Steps of 50 ms: 80 s.
        if tick == 400:
            sent = 0
        clock.now_ns += 50_000_000
        for number, rates in enumerate(every):
            if clock.now_ns >= ready_ns[number]:
                sent += 5000
                ready_ns[number] = clock.now_ns + rates.on_produce(ANONYMOUS, b"a", 5000) * 1_000_000
        if tick % 2:
            for rates in every:
                told = rates.drain_unsent()
                for other in every:
                    if other is not rates:
                        other.add_charges(told)
    assert sent / 60 == pytest.approx(quota, rel=0.05)


def test_fetch_above_the_quota_does_not_count(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.set(client("a"), CONSUMER_BYTE_RATE, 1000)
    rates = make_rates(quotas, clock)
    assert rates.fetch_bytes_max(ANONYMOUS, b"a") == 10_000
    assert rates.fetch_bytes_max(ANONYMOUS, b"b") is None
    assert rates.fetch_wait_ms(ANONYMOUS, b"a") == 0
    rates.on_fetch(ANONYMOUS, b"a", 1_500)
    assert rates.fetch_wait_ms(ANONYMOUS, b"a") == 500
    assert rates.fetch_wait_ms(ANONYMOUS, b"a") == 500, "the one before was not sent"
    assert rates.fetch_wait_ms(ANONYMOUS, b"b") == 0


def test_quota_precedence_and_shared_accounts(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.set(client(None), PRODUCER_BYTE_RATE, 1)
    quotas.set(((USER, ANONYMOUS),), PRODUCER_BYTE_RATE, 1000)
    rates = make_rates(quotas, clock)
    assert rates.on_produce(ANONYMOUS, b"a", 600) == 0
    assert rates.on_produce(ANONYMOUS, b"b", 600) == 200, "a user's quota is shared by all its clients"
    quotas.set(((CLIENT_ID, "a"), (USER, ANONYMOUS)), PRODUCER_BYTE_RATE, 10**9)
    rates.on_image()
    assert rates.on_produce(ANONYMOUS, b"a", 6_000) == 0


@pytest.mark.parametrize("kind", [PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE])
def test_each_of_kafkas_eight_levels_yields_to_the_one_above(
    quotas: ClientQuotas, clock: Clock, kind: str
) -> None:
    levels: list[Entity] = [
        ((CLIENT_ID, None),),
        ((CLIENT_ID, "app"),),
        ((USER, None),),
        ((CLIENT_ID, None), (USER, None)),
        ((CLIENT_ID, "app"), (USER, None)),
        ((USER, "alice"),),
        ((CLIENT_ID, None), (USER, "alice")),
        ((CLIENT_ID, "app"), (USER, "alice")),
    ]
    for rank, entity in enumerate(levels, 1):
        quotas.set(entity, kind, 1000.0 * rank)
        rates = make_rates(quotas, clock)
        if kind == CONSUMER_BYTE_RATE:
            assert rates.fetch_bytes_max("alice", b"app") == 10_000 * rank
        else:
            assert rates.on_produce("alice", b"app", 2000 * rank) == 1000
    bob = make_rates(quotas, clock)
    assert bob.on_produce("bob", b"app", 10_000) == (1000 if kind == PRODUCER_BYTE_RATE else 0)


def test_users_under_one_default_are_counted_each_for_itself(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.set(((USER, None),), PRODUCER_BYTE_RATE, 1000)
    rates = make_rates(quotas, clock)
    assert rates.on_produce("alice", b"a", 1_500) == 500
    assert rates.on_produce("alice", b"b", 500) == 1000, "whatever client id she uses"
    assert rates.on_produce("bob", b"a", 1_000) == 0


def test_changes_and_removals_count_at_once(quotas: ClientQuotas, clock: Clock) -> None:
    quotas.set(client("a"), PRODUCER_BYTE_RATE, 1000)
    rates = make_rates(quotas, clock)
    assert rates.on_produce(ANONYMOUS, b"a", 20_000) > 0
    quotas.set(client("a"), PRODUCER_BYTE_RATE, 10**6)
    rates.on_image()
    assert rates.on_produce(ANONYMOUS, b"a", 10**5) == 0
    quotas.set(client("a"), PRODUCER_BYTE_RATE, None)
    rates.on_image()
    assert not rates.is_on


@pytest.mark.parametrize("parts", [1, 2])
def test_produce_above_quota_is_stored_answered_and_throttled(start: Start, parts: int) -> None:
    rig = start()
    rig.create_topic("t", partitions=2)
    fields = produce_fields([("t", NO_ID, [(n, batch(b"x" * 1000)) for n in range(parts)])])
    processor = rig.processors[0]
    assert processor.ask(ApiKey.PRODUCE, 9, fields)["throttle_time"] == 0
    set_quota(rig, PRODUCER_BYTE_RATE, 10)
    answer = processor.ask(ApiKey.PRODUCE, 9, fields)
    assert [row["error_code"] for row in answer["responses"][0]["partition_responses"]] == [0] * parts
    assert answer["throttle_time"] > 90_000
    ((connection_id, duration_ms),) = processor.throttles
    assert (connection_id, duration_ms) == (1, answer["throttle_time"])


def test_fetch_above_the_quota_is_answered_without_records(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    processor = rig.processors[0]
    processor.ask(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"x" * 1000))])]))
    set_quota(rig, CONSUMER_BYTE_RATE, 200)
    fields = fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=0)
    assert processor.ask(ApiKey.FETCH, 12, fields)["responses"][0]["partitions"][0]["records"]
    answer = processor.ask(ApiKey.FETCH, 12, fields)
    assert (answer["responses"], answer["error_code"]) == ([], 0)
    assert answer["throttle_time"] > 0
    assert processor.throttles == [(1, answer["throttle_time"])]
    rig.clock.advance_ms(answer["throttle_time"] + 12_000)
    assert processor.ask(ApiKey.FETCH, 12, fields)["throttle_time"] == 0


def test_user_quota_applies_to_principal_of_connection(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    processor = rig.processors[0]
    processor.introduce("127.0.0.1", connection=1, principal=Principal("User", "alice"))
    processor.introduce("127.0.0.1", connection=2, principal=Principal("User", "bob"))
    set_quota(rig, PRODUCER_BYTE_RATE, 10, "alice", kind=USER)
    fields = produce_fields([("t", NO_ID, [(0, batch(b"x" * 1000))])])
    assert processor.ask(ApiKey.PRODUCE, 9, fields, connection=2)["throttle_time"] == 0
    assert processor.ask(ApiKey.PRODUCE, 9, fields, connection=1)["throttle_time"] > 90_000
    assert [connection for connection, _ in processor.throttles] == [1]


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, ErrorCode.THROTTLING_QUOTA_EXCEEDED)])
def test_mutation_quota_rejects_or_throttles_old_client(
    start: Start, version: int, code: int
) -> None:
    rig = start()
    rig.controller_serves.add("create_topics")
    processor = rig.processors[0]
    set_quota(rig, CONTROLLER_MUTATION_RATE, 1)
    codes = []
    for name in ("a", "b"):
        answer = processor.ask(ApiKey.CREATE_TOPICS, version, create_topics_fields(name, partitions=21))
        codes += [row["error_code"] for row in answer["topics"]]
    assert codes == [0, code]
    assert answer["throttle_time"] == (10_000 if code else 31_000)
    assert processor.throttles[-1] == (1, answer["throttle_time"])


def test_handlers_learn_which_clients_have_zero_quota(start: Start) -> None:
    rig = start(handlers=2)
    set_quota(rig, REQUEST_PERCENTAGE, 5e-324)
    rig.processors[0].introduce("10.0.0.7")
    for _ in range(30):
        rig.processors[0].spent(1_000_000, b"test")
    rig.settle()
    rig.advance_ms(100)
    rig.advance_ms(100)
    assert rig.processors[1].ask(ApiKey.METADATA, 12, {"topics": []})["throttle_time"] > 0


def test_handlers_tell_each_other_what_they_counted(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    set_quota(rig, PRODUCER_BYTE_RATE, 10_000)
    fields = produce_fields([("t", NO_ID, [(0, batch(b"x" * 9000))])])
    assert rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)["throttle_time"] == 0
    rig.advance_ms(100)
    rig.advance_ms(100)
    assert rig.processors[1].ask(ApiKey.PRODUCE, 9, fields)["throttle_time"] > 0
