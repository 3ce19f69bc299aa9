"""The topics of `kproc top`: traffic, sizes, and rights that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.top_links import Links
from kproc.cli.top_page import Reading
from kproc.cli.top_screen import plain
from kproc.client import ClientError
from kproc.wire.header import ApiKey
from tests.support.command_line import described, told
from tests.support.scripted_client import ScriptedClient
from tests.support.top_views import (
    PAGES,
    once,
)


def test_topics_of_a_local_broker_have_counted_traffic(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    counts = {"name": "orders", "records_in": 0, "bytes_out": 0, "fetches": 0}
    broker.traffic = [[{**counts, "bytes_in": 1000}], [{**counts, "bytes_in": 5000}]]
    answer = described(once(capsys, "topics", "--format", "json"))
    assert (answer["page"], answer["interval_s"]) == ("topics", 0.2)
    orders, internal = answer["rows"]
    assert 5_000 < orders["bytes_in_per_s"] <= 20_000
    assert (orders["size_bytes"], orders["partitions"], orders["bytes_out_per_s"]) == (1100, 2, 0)
    assert internal["is_internal"]
    assert broker.requests.count(ApiKey.LIST_OFFSETS) == 0, "no log is opened"


def test_topics_of_another_host_have_growth_of_logs(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(once(capsys, "topics")).splitlines()
    assert lines[0] == "1 topic and 1 internal, 3 partitions, 1.2 KiB, in 0 B/s out -/s"
    assert lines[1].startswith("not shown: last writes: only a kproc broker on this host")
    assert lines[2].split() == ["TOPIC", "PARTS", "SIZE", "IN/S", "REC/S", "OUT/S", "WRITTEN"]
    assert lines[4].split() == ["orders", "2", "1.1", "KiB", "0", "-", "-", "-"]


def test_denied_requests_for_sizes_are_not_repeated(
    broker: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(op: str) -> Any:
        if op != "ping":
            raise ClientError("it needs the right DESCRIBE on the cluster")

    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    broker.operate = deny  # type: ignore[method-assign,assignment]
    broker.denied = {ApiKey.DESCRIBE_LOG_DIRS}
    page = PAGES["topics"]
    reading = Reading(page.open(Links("h:1")))
    for _ in range(2):
        snapshot = reading.read([], has_survey=True)
        assert "sizes: they need the right DESCRIBE on the cluster" in plain(snapshot.head[-1])
    broker.requests.clear()
    broker.operate = None  # type: ignore[method-assign,assignment]
    assert [row["size_bytes"] for row in reading.read([], has_survey=True).rows] == [None, None]
    assert broker.requests == [ApiKey.METADATA]
