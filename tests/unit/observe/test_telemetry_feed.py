"""Feed: bounded, one batch at a time, sent again when its owner dies; the loss counted."""

from __future__ import annotations

from typing import Any

import orjson

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import Done
from kproc.broker.calls.controller_calls import Changed, OnChanged
from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from kproc.broker.observe.telemetry_feed import BYTES_MAX, Feed, OnSent
from kproc.broker.role.roles import CONTROLLER
from kproc.common.clock import NS_PER_S, ManualClock
from kproc.wire.record_batch import decode_records
from tests.unit.cluster.in_memory import InMemoryController


class Rig:
    """A Feed, and what it asked for."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = InMemoryController({})
        self.sent: list[tuple[int, bytes, OnSent]] = []
        self.created: list[OnChanged] = []
        self.feed = Feed(
            CONTROLLER,
            clock=self.clock,
            config=self.cluster.config,
            image=lambda: self.cluster.image,
            ask=lambda owner, _body, on_reply, batch: self.sent.append((owner, batch, on_reply)),
            create=self.created.append,
        )

    def make_topic(self) -> None:
        self.cluster.do("auto_create_topics", names=[TELEMETRY_TOPIC])

    def tick(self) -> None:
        self.clock.advance_ns(NS_PER_S)
        self.feed.tick()

    def lines(self, at: int) -> list[dict[str, Any]]:
        return [orjson.loads(record.value or b"") for record in decode_records(memoryview(self.sent[at][1]))]


def test_the_topic_is_asked_for_once_and_lines_wait_for_it() -> None:
    rig = Rig()
    rig.tick()
    assert not rig.created, "nothing to tell, nothing to make"
    rig.feed.add("api", {"api": "Fetch"})
    rig.tick()
    rig.tick()
    assert len(rig.created) == 1
    rig.make_topic()
    rig.created[0](Changed({"topics": [{"error_code": 0, "error_message": None}]}))
    rig.tick()
    (line,) = rig.lines(0)
    assert (line["kind"], line["api"], line["role"], line["number"]) == ("api", "Fetch", "controller", 1)


def test_one_batch_is_under_way_and_it_is_the_same_after_a_death() -> None:
    rig = Rig()
    rig.make_topic()
    rig.feed.add("api", {"n": 1})
    rig.tick()
    rig.feed.add("api", {"n": 2})
    rig.tick()
    assert len(rig.sent) == 1
    rig.sent[0][2](Lost())
    rig.tick()
    assert rig.sent[1][1] == rig.sent[0][1]
    rig.sent[1][2](Done(None))
    rig.tick()
    assert [line["n"] for line in rig.lines(2)] == [2]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    rig = Rig()
    rig.make_topic()
    for _ in range(30):
        rig.feed.add("request", {"text": "x" * (BYTES_MAX // 20)})
    for _ in range(30):
        rig.tick()
        if rig.sent:
            rig.sent[-1][2](Done(None))
    kept = [line for at in range(len(rig.sent)) for line in rig.lines(at)]
    dropped = [line["lines"] for line in kept if line["kind"] == "dropped"]
    assert len(kept) - len(dropped) < 20
    assert sum(dropped) == 30 - (len(kept) - len(dropped))


def test_a_full_buffer_has_room_for_the_count_of_what_it_lost() -> None:
    rig = Rig()
    rig.make_topic()
    rig.feed.add("request", {"text": "x" * (BYTES_MAX - 1000)})
    for _ in range(1000):
        rig.feed.add("api", {})
    rig.tick()
    rig.sent[0][2](Done(None))
    rig.tick()
    told = [line for at in range(len(rig.sent)) for line in rig.lines(at)]
    kept = [line for line in told if line["kind"] == "api"]
    (dropped,) = (line["lines"] for line in told if line["kind"] == "dropped")
    assert len(kept) + dropped == 1000


def test_a_refused_batch_counts_as_dropped_and_the_next_goes_on() -> None:
    rig = Rig()
    rig.make_topic()
    rig.feed.add("api", {"n": 1})
    rig.tick()
    rig.sent[0][2](Done("the disk is full"))
    rig.feed.add("api", {"n": 2})
    rig.tick()
    assert [(x["kind"], x.get("n"), x.get("lines")) for x in rig.lines(1)] == [
        ("api", 2, None),
        ("dropped", None, 1),
    ]


def test_a_refused_batch_keeps_the_count_that_was_in_it() -> None:
    rig = Rig()
    rig.make_topic()
    for number in range(3):
        rig.feed.add("api", {"n": number})
        rig.tick()
        rig.sent[number][2](Done("the disk is full"))
    rig.feed.add("api", {"n": 3})
    rig.tick()
    assert [line["lines"] for line in rig.lines(3) if line["kind"] == "dropped"] == [3]


def test_nothing_is_sent_after_it_was_switched_off() -> None:
    rig = Rig()
    rig.make_topic()
    rig.feed.add("api", {"n": 1})
    rig.feed.forget()
    rig.tick()
    assert not rig.sent
