"""request_percentage: the Handler's time for a client's requests (KIP-124), by a clock that moves only in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from kproc.broker.cluster.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
)
from kproc.broker.metrics.spec import SLOT
from kproc.broker.request import registry
from kproc.broker.request.client_rates import ClientBytes, ClientRates
from kproc.broker.security.principal import Principal
from kproc.broker.storage.log_append import LogAppender
from kproc.common.clock import ManualClock
from kproc.wire.header import ApiKey
from tests.support.handler_quotas import set_quota
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.raw import batch, create_topics_fields, fetch_fields, produce_fields

Start = Callable[..., HandlerRig]
MS = 1_000_000
NO_ID = bytes(16)
EVERY_TOPIC: dict[str, Any] = {"topics": None}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rates(clock: ManualClock) -> ClientRates:
    """Ten percent for client a: 100 ms of a second."""
    quotas = ClientQuotas()
    quotas.set(((CLIENT_ID, "a"),), REQUEST_PERCENTAGE, 10)
    rates = ClientRates(quotas=lambda: quotas, now_ns=clock.now_ns, sample_count=11, sample_s=1)
    rates.on_image()
    return rates


def used(rates: ClientRates, used_ms: int) -> int:
    found = rates._find(REQUEST_PERCENTAGE, "ANONYMOUS", b"a")
    assert found is not None
    return rates._charge_time(*found, used_ms * MS, rates._now_ns())


def test_time_counts_against_the_percentage_of_a_second(rates: ClientRates, clock: ManualClock) -> None:
    assert used(rates, 100) == 0, "a second's worth may be saved"
    assert used(rates, 50) == 500
    clock.advance_ms(500)
    assert used(rates, 10) == 100


def test_throttle_is_at_most_a_window_and_debt_all_windows(
    rates: ClientRates, clock: ManualClock
) -> None:
    assert used(rates, 10_000) == 1000
    clock.advance_ms(9_500)
    assert used(rates, 0) == 500, "ten seconds after the worst, and not 99"


def test_percentage_that_lets_hardly_anything_through_is_kept_to(clock: ManualClock) -> None:
    quotas = ClientQuotas()
    quotas.set(((CLIENT_ID, "a"),), REQUEST_PERCENTAGE, 5e-324)
    rates = ClientRates(quotas=lambda: quotas, now_ns=clock.now_ns, sample_count=11, sample_s=1)
    rates.on_image()
    assert used(rates, 1) == 1000
    assert used(rates, 0) == 1000


def test_debt_of_concurrent_requests_is_sent_to_handlers(clock: ManualClock) -> None:
    quotas = ClientQuotas()
    quotas.set(((CLIENT_ID, "a"),), REQUEST_PERCENTAGE, 5e-324)
    rates = ClientRates(quotas=lambda: quotas, now_ns=clock.now_ns, sample_count=11, sample_s=1)
    rates.on_image()
    for _ in range(100):
        rates.on_socket_time("ANONYMOUS", b"a", MS)
    assert msgspec.msgpack.encode(ClientBytes(rates.drain_unsent()))


def test_time_at_the_socket_counts_with_the_next_request(rates: ClientRates) -> None:
    rates.on_socket_time("ANONYMOUS", b"a", 150 * MS)
    rates.on_socket_time("ANONYMOUS", b"b", 150 * MS)
    assert used(rates, 10) == 600


def test_handlers_hear_of_each_others_time(rates: ClientRates, clock: ManualClock) -> None:
    other = ClientRates(quotas=rates._quotas, now_ns=clock.now_ns, sample_count=11, sample_s=1)
    other.on_image()
    used(other, 150)
    rates.add_charges(other.drain_unsent())
    assert used(rates, 10) == 600


# -- over a Handler ------------------------------------------------------------------------------------------


@pytest.fixture
def rig(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerRig]:
    """A Handler whose Metadata take 50 ms, and each append 30 ms."""
    rig = start()
    rig.create_topic("t")
    api = registry.APIS[ApiKey.METADATA]
    answer, append = api.handler, LogAppender.append

    def slow_answer(context: Any, request: Any) -> Any:
        rig.clock.advance_ms(50)
        return answer(context, request)

    def slow_append(*args: Any, **more: Any) -> Any:
        rig.clock.advance_ms(30)
        return append(*args, **more)

    slow_answer.__module__ = answer.__module__
    monkeypatch.setattr(api, "handler", slow_answer)
    monkeypatch.setattr(LogAppender, "append", slow_append)
    return rig


def produce(rig: HandlerRig, *, acks: int = 1, name: str = "t") -> dict[str, Any]:
    fields = produce_fields([(name, NO_ID, [(0, batch(b"x" * 1000))])], acks=acks)
    return rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)


def test_request_percentage_throttles_answer_and_reads(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    assert processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)["throttle_time"] == 0
    set_quota(rig, REQUEST_PERCENTAGE, 5)
    assert processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)["throttle_time"] == 0
    answer = processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)
    assert answer["throttle_time"] == 950, (
        "20 s for each second: two seconds for both, one saved, less the 50 ms that it took"
    )
    assert [topic["name"] for topic in answer["topics"]] == ["t"]
    assert processor.throttles == [(1, 950)]
    processor.ask(ApiKey.METADATA, 0, {"topics": []})
    assert processor.throttles[1:] == [(1, 1000)], "its answer has no room to say so"


def test_fetch_above_it_is_answered_without_records(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    produce(rig)
    set_quota(rig, REQUEST_PERCENTAGE, 1)
    processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)
    answer = processor.ask(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=0))
    assert (answer["responses"], answer["error_code"], answer["throttle_time"]) == ([], 0, 1000)


def test_unsent_records_of_throttled_fetch_do_not_count(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    produce(rig)
    set_quota(rig, REQUEST_PERCENTAGE, 1)
    set_quota(rig, CONSUMER_BYTE_RATE, 200)
    processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)
    fields = fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=0)
    processor.ask(ApiKey.FETCH, 12, fields)
    rig.clock.advance_ms(11_000)
    assert processor.ask(ApiKey.FETCH, 12, fields)["responses"], "else it had to wait for the byte rate"


def test_waiting_is_not_charged(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    set_quota(rig, REQUEST_PERCENTAGE, 1)
    processor.send(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=5000))
    rig.settle()
    rig.advance_ms(5000)
    (answer,) = processor.answers()
    assert answer.fields(ApiKey.FETCH, 12)["throttle_time"] == 0


def test_produce_takes_the_longer_of_both_throttles(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    set_quota(rig, REQUEST_PERCENTAGE, 2)
    assert produce(rig)["throttle_time"] == 500, "1500 ms for 30, of which a second was saved"
    set_quota(rig, PRODUCER_BYTE_RATE, 10)
    answer = produce(rig)
    assert answer["throttle_time"] > 90_000
    assert max(duration_ms for _, duration_ms in processor.throttles) == answer["throttle_time"]


def test_produce_without_an_answer_is_exempt_as_in_kafka(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    set_quota(rig, REQUEST_PERCENTAGE, 1)
    for _ in range(3):
        processor.send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"x"))])], acks=0))
        rig.settle()
    processor.answers()
    assert processor.throttles == []


def test_requests_of_others_in_the_same_pass_are_not_charged(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    rig.create_topic("u")
    rig.create_topic("v")
    processor.introduce("127.0.0.1", connection=1, principal=Principal("User", "alice"))
    set_quota(rig, REQUEST_PERCENTAGE, 3.1, "alice", kind=USER)
    for connection, name in ((2, "u"), (2, "v"), (1, "t")):
        fields = produce_fields([(name, NO_ID, [(0, batch(b"x"))])], acks=1)
        processor.send(ApiKey.PRODUCE, 9, fields, connection=connection)
    throttled = {
        answer.connection_id: answer.fields(ApiKey.PRODUCE, 9)["throttle_time"]
        for answer in processor.answers()
    }
    assert throttled == {2: 0, 1: 0}, "30 ms at 3.1 % take less than the second that may be saved"


def test_unquoted_client_keeps_fast_path_beside_quoted_one(rig: HandlerRig) -> None:
    set_quota(rig, REQUEST_PERCENTAGE, 50, "other")
    for _ in range(2):
        produce(rig)
    assert list(rig.fast_paths()) == [1]
    set_quota(rig, REQUEST_PERCENTAGE, 50)
    for _ in range(2):
        produce(rig)
    assert rig.fast_paths() == {}


def test_throttles_are_counted_by_quota(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    rig.controller_serves.add("create_topics")
    produce(rig)
    set_quota(rig, CONSUMER_BYTE_RATE, 200)
    fields = fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=0)
    fetched = [processor.ask(ApiKey.FETCH, 12, fields)["throttle_time"] for _ in range(2)]
    set_quota(rig, PRODUCER_BYTE_RATE, 10)
    produced = produce(rig)["throttle_time"]
    set_quota(rig, REQUEST_PERCENTAGE, 1)
    asked = processor.ask(ApiKey.METADATA, 12, EVERY_TOPIC)["throttle_time"]
    set_quota(rig, REQUEST_PERCENTAGE, 1e9)
    set_quota(rig, CONTROLLER_MUTATION_RATE, 1)
    made = [
        processor.ask(ApiKey.CREATE_TOPICS, 5, create_topics_fields(name, partitions=12))["throttle_time"]
        for name in ("a", "b")
    ]
    rig.advance_ms(200)
    (handler,) = rig.handlers
    assert handler is not None
    counted = {
        kind: tuple(
            parts_of(handler).metrics.values[SLOT[f"{kind}_{what}"]] for what in ("throttles", "throttle_ms")
        )
        for kind in ("fetch", "produce", "request", "mutation")
    }
    assert counted == {
        "fetch": (1, fetched[1]), "produce": (1, produced), "request": (1, asked), "mutation": (2, sum(made))
    }  # fmt: skip
    assert all(duration_ms > 0 for _, duration_ms in counted.values())


def test_processor_reports_time_of_quoted_clients_to_charge(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    processor.introduce("127.0.0.1")
    processor.ask(ApiKey.API_VERSIONS, 0, {})
    assert processor.metered == {}
    set_quota(rig, REQUEST_PERCENTAGE, 5)
    processor.ask(ApiKey.API_VERSIONS, 0, {})
    assert processor.metered == {1: (True, b"test")}
    processor.spent(60 * MS, b"test")
    assert processor.ask(ApiKey.API_VERSIONS, 3, {})["throttle_time"] == 200, (
        "60 ms at 5 %, a second was saved"
    )
    set_quota(rig, REQUEST_PERCENTAGE, 5, "other")
    remove_quota(rig, REQUEST_PERCENTAGE)
    processor.spent(60 * MS, b"test")
    processor.answers()
    assert processor.metered == {1: (False, b"test")}


def remove_quota(rig: HandlerRig, key: str) -> None:
    op = {"key": key, "value": 0.0, "remove": True}
    entity = [{"entity_type": CLIENT_ID, "entity_name": "test"}]
    rig.cluster.do("alter_client_quotas", entries=[{"entity": entity, "ops": [op]}], validate_only=False)
    rig.tell()
