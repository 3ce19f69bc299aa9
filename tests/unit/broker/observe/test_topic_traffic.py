"""TopicTraffic: the counts of several Handlers, of which one hangs or dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import CleanerActivity
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.observe.topic_traffic import TopicTraffic, TrafficReport
from kproc.common.clock import ManualClock


class Rig:
    """Two Handlers that reply when they are told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.image = ClusterImage()
        self.image.handler_count = 2
        self.asked: dict[int, Callable[[TrafficReport | Lost], None]] = {}
        self.sent: list[int] = []
        self.answers: list[dict[str, Any]] = []
        self.traffic = TopicTraffic(self.clock.now_ns, lambda: self.image, self._ask, self._ask_cleaner)
        self.cleaner_calls: list[Callable[[CleanerActivity | Lost], None]] = []
        self.cleaner_answers = True
        for name in ("a", "b"):
            topic_id = name.encode() * 16
            self.image.apply_records([r.TopicCreated(name, topic_id)], self.image.version + 1)

    def _ask(self, index: int, _call: Any, _body: Any, on_reply: Callable[[Any], None]) -> None:
        self.sent.append(index)
        self.asked[index] = on_reply

    def _ask_cleaner(self, _call: Any, _body: Any, on_reply: Callable[[Any], None]) -> None:
        self.cleaner_calls.append(on_reply)
        if self.cleaner_answers:
            self.reply_of_cleaner()

    def reply_of_cleaner(self) -> None:
        self.cleaner_calls.pop()(CleanerActivity(checks_retention=True, compacts=False))

    def request(self) -> None:
        self.traffic.request(self.answers.append)

    def reply(self, index: int, **traffic: list[int]) -> None:
        self.asked.pop(index)(TrafficReport(traffic))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_counts_of_all_handlers_are_summed(rig: Rig) -> None:
    rig.request()
    rig.reply(0, a=[1, 2, 3, 4], gone=[9, 9, 9, 9])
    assert not rig.answers
    rig.reply(1, a=[10, 20, 30, 40], b=[5, 0, 0, 0])
    assert rig.answers == [
        {
            "topics": [
                {"name": "a", "bytes_in": 11, "records_in": 22, "bytes_out": 33, "fetches": 44},
                {"name": "b", "bytes_in": 5, "records_in": 0, "bytes_out": 0, "fetches": 0},
            ],
            "silent": [],
            "long_polls": 0,
            "syncing": 0,
            "cleaner": {"checks_retention": True, "compacts": False},
        }
    ]
    assert not rig.traffic.is_collecting


def test_hung_handler_is_silent_after_2_s_and_asked_once(rig: Rig) -> None:
    rig.request()
    rig.reply(1, b=[5, 0, 0, 0])
    rig.clock.advance_ms(1999)
    rig.traffic.expire(rig.clock.now_ns())
    assert not rig.answers
    assert rig.traffic.is_collecting
    rig.clock.advance_ms(1)
    rig.traffic.expire(rig.clock.now_ns())
    assert [answer["silent"] for answer in rig.answers] == [[0]]
    rig.request()
    assert rig.sent == [0, 1, 1]
    rig.reply(1)
    rig.reply(0, a=[1, 1, 1, 1])
    assert (rig.answers[1]["silent"], [row["name"] for row in rig.answers[1]["topics"]]) == ([], ["a"])


def test_dead_handler_has_no_counts(rig: Rig) -> None:
    rig.request()
    rig.asked.pop(0)(Lost())
    rig.reply(1, b=[5, 0, 0, 0])
    assert [row["name"] for row in rig.answers[0]["topics"]] == ["b"]


def test_simultaneous_requests_share_one_collection(rig: Rig) -> None:
    rig.request()
    rig.request()
    assert rig.sent == [0, 1]
    rig.reply(0)
    rig.reply(1)
    assert len(rig.answers) == 2


def test_late_reply_without_a_request_changes_nothing(rig: Rig) -> None:
    rig.request()
    rig.reply(1)
    rig.clock.advance_ms(2000)
    rig.traffic.expire(rig.clock.now_ns())
    rig.reply(0, a=[1, 1, 1, 1])
    assert len(rig.answers) == 1


def test_hung_cleaner_is_asked_once_and_delays_only_the_first(rig: Rig) -> None:
    rig.cleaner_answers = False
    for is_first in (True, False):
        rig.request()
        rig.reply(0)
        assert rig.traffic.is_collecting
        rig.reply(1)
        assert rig.traffic.is_collecting == is_first
        rig.clock.advance_ms(2000)
        rig.traffic.expire(rig.clock.now_ns())
        assert not rig.traffic.is_collecting
    assert len(rig.cleaner_calls) == 1
    rig.reply_of_cleaner()  # Too late for both.
    rig.request()
    rig.reply(0)
    rig.reply(1)
    rig.cleaner_calls.pop()(Lost())
    assert [answer["cleaner"] for answer in rig.answers] == [None, None, None]
