"""The idle producers of a process: each is used by one task at a time, and never by a forked child."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kproc.spark import producer_pool
from kproc.spark.producer_pool import acquire_producer, release_producer
from kproc.spark.sink_options import SinkOptions, parse_sink_options

pytest.importorskip("pyspark")


@pytest.fixture
def options() -> Iterator[SinkOptions]:
    yield parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"})
    producer_pool._close_all()


def test_released_producer_is_acquired_once(options: SinkOptions) -> None:
    first = acquire_producer(options)
    release_producer(options, first)
    assert acquire_producer(options) is first
    second = acquire_producer(options)
    assert second is not first
    release_producer(options, first)
    second.close()


def test_forked_child_gets_a_producer_of_its_own(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = acquire_producer(options)
    release_producer(options, parents)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        own = acquire_producer(options)
        assert own is not parents
        own.close()
