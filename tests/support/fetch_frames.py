"""Fetch frames of the fast path, and a client that compares both paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kproc.broker.storage.log import Log
from kproc.broker.transport.envelope import SEND_PARTS
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.hot import FIRST_TEMPLATE
from tests.support.handler_rig import Answer, HandlerRig
from tests.support.logs import batch
from tests.support.raw import fetch_fields

Start = Callable[..., HandlerRig]
VERSIONS = range(4, 19)
KNOWN = range(FIRST_TEMPLATE, 19)
SOME = (5, 8, 11, 12, 17)  # One of each encoding.
LIMIT = 2500


def plain_versions(versions: Iterable[int]) -> list[Any]:
    """Return the versions as parameters, of which a plain run takes one of each encoding."""
    return [each if each in SOME else pytest.param(each, marks=pytest.mark.long) for each in versions]


def id_of(rig: HandlerRig, name: str) -> bytes:
    return bytes(rig.cluster.image.topics_by_name[name].topic_id)


def frame(
    rig: HandlerRig, version: int, offset: int, *, name: str = "t", partition: int = 0, **more: Any
) -> bytes:
    isolation = more.pop("isolation_level", 0)
    fields = fetch_fields(
        [(name, id_of(rig, name), [(partition, offset)])],
        **{"partition_max_bytes": LIMIT, "max_bytes": 50_000, **more},
    )
    fields["isolation_level"] = isolation
    return codec.encode_request(ApiKey.FETCH, version, offset & 0x7FFF, "test", fields)


class Asker:
    """Sends the same to a connection whose shape is known and to one that never has any."""

    def __init__(self, rig: HandlerRig) -> None:
        self.rig = rig

    @property
    def known(self) -> int:
        """Number of fetches that the fast path has answered or parked since the last metrics."""
        return self.rig.taken()

    def forget(self) -> None:
        self.rig.forget_fast_paths()

    def one(self, sent: bytes, *, connection: int = 1) -> list[Answer]:
        self.rig.processors[0].send_frames([sent], connection=connection)
        return self.rig.processors[0].answers()

    def general(self, sent: bytes) -> list[Answer]:
        """By a connection that asks for the first time."""
        before = self.known
        answers = self.one(sent, connection=99)
        assert self.known == before
        self.rig.forget_fast_paths(99)
        return answers

    def same(self, sent: bytes) -> bool:
        """Ask both; whether the first was answered by the fast path."""
        before = self.known
        mine = self.one(sent)
        is_known = self.known > before
        assert [each.parts for each in mine] == [each.parts for each in self.general(sent)]
        assert [each.kind for each in mine] == [SEND_PARTS] or not is_known
        return is_known


def filled(start: Start) -> HandlerRig:
    """120 records in the first of two partitions."""
    made = start(link_kind="ring")
    made.create_topic("t", partitions=2)
    fill(made, 40)
    return made


def fill(rig: HandlerRig, count: int, name: str = "t", partition: int = 0) -> None:
    log = rig.open(name, partition).log
    for number in range(count):
        log.append([batch(*[bytes(300 + 10 * (number % 7))] * 3)])


def make_small_segments(rig: HandlerRig, name: str, segment_bytes: int) -> Log:
    """Smaller ones than a topic's setting may ask for."""
    log = rig.open(name).log
    log.state.reconfigure(dataclasses.replace(log.state.config, segment_bytes=segment_bytes))
    return log
