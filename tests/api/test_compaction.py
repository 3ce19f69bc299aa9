"""Compacted topics as clients see them: gaps in the offsets, and nothing else that is new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.wire.record_batch import decode_records, encode_batch
from kproc.wire.records import Record
from tests.support import hostile
from tests.support.broker import BrokerUnderTest
from tests.support.command_line import call_kproc
from tests.support.configs import TOPIC, set_config
from tests.support.raw import RawClient, split_batches
from tests.support.status import status
from tests.support.wait import pause, wait_until

pytestmark = pytest.mark.own_broker

StartBroker = Callable[..., BrokerUnderTest]
NOW_MS = 1_700_000_000_000
SETTINGS = {"log.cleaner.backoff.ms": 100, "log.segment.delete.delay.ms": 0}
# Each batch is dated a second after the one before, so each begins a segment of its own.
CONFIGS = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}


def put(client: RawClient, number: int, *pairs: tuple[str, str | None], topic: str = "t") -> int:
    """Produce one batch; its base offset."""
    records = [
        Record(key.encode(), None if value is None else value.encode(), NOW_MS + 1000 * number)
        for key, value in pairs
    ]
    row = client.produce(topic, bytes(encode_batch(records)))
    assert row["error_code"] == 0, row
    return int(row["base_offset"])


def contents(client: RawClient, offset: int = 0, topic: str = "t") -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of all records from an offset on."""
    found = []
    end = client.end_offset(topic)
    while offset < end:
        row = client.fetch(topic, offset)
        assert row["error_code"] == 0, row
        batches = split_batches(row["records"])
        assert batches, f"nothing at {offset} of {end}"
        for batch in batches:
            for record in decode_records(batch):
                assert record.key is not None
                if record.offset >= offset:
                    value = None if record.value is None else record.value.decode()
                    found.append((record.offset, record.key.decode(), value))
        base = int.from_bytes(batches[-1][:8], "big")
        offset = base + int.from_bytes(batches[-1][23:27], "big") + 1
    return found


@pytest.mark.every_transport
def test_compaction_keeps_newest_records_and_every_offset(start_broker: StartBroker) -> None:
    running = start_broker(settings=SETTINGS)
    with RawClient(running.bootstrap) as client:
        client.create_topic("t", configs=CONFIGS)
        for number in range(20):
            put(client, number, ("a", f"a{number}"), (f"k{number % 3}", f"v{number}"))
        put(client, 30, ("last", "in the active segment"))
        kept = [(35, "k2", "v17"), (37, "k0", "v18"), (38, "a", "a19"), (39, "k1", "v19")]
        kept.append((40, "last", "in the active segment"))

        def is_compacted() -> bool:
            assert contents(client) == kept
            return True

        wait_until(is_compacted, what="compacted")
        for offset in range(41):
            assert contents(client, offset) == [row for row in kept if row[0] >= offset]
        assert client.list_offset("t", -2)["offset"] == 0
        assert client.end_offset("t") == 41
        found = client.list_offset("t", NOW_MS + 1000 * 3)
        assert (found["offset"], found["timestamp"]) == (35, NOW_MS + 17_000)
        assert client.list_offset("t", -3)["offset"] == 40
        assert running.data is not None
        checkpoint = (Path(running.data) / "cleaner-offset-checkpoint").read_text()
        assert checkpoint == "0\n1\nt 0 40\n"


def test_compaction_removes_tombstone_after_delete_retention(
    start_broker: StartBroker,
) -> None:
    running = start_broker(settings=SETTINGS)
    with RawClient(running.bootstrap) as client:
        # No pass before all is there: a second one takes the tombstone away.
        later = {"delete.retention.ms": "0", "min.compaction.lag.ms": str(NOW_MS)}
        client.create_topic("t", configs={**CONFIGS, **later})
        client.create_topic("plain", configs={"segment.ms": "1"})
        for topic in ("t", "plain"):
            put(client, 0, ("a", "1"), ("b", "1"), topic=topic)
            put(client, 1, ("a", None), topic=topic)
            put(client, 2, ("c", "1"), topic=topic)
            put(client, 3, ("d", "1"), topic=topic)
        marked = [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "d", "1")]
        assert set_config(client, "min.compaction.lag.ms", "0", kind=TOPIC, resource="t") == (0, None)
        wait_until(lambda: contents(client) == marked, what="the first pass")
        put(client, 4, ("e", "1"))  # Something is dirty again.
        left = [(1, "b", "1"), (3, "c", "1"), (4, "d", "1"), (5, "e", "1")]
        wait_until(lambda: contents(client) == left, what="the second pass")
        assert len(contents(client, topic="plain")) == 5


def test_log_cleaner_enable_false_keeps_all_records(start_broker: StartBroker) -> None:
    running = start_broker(settings={**SETTINGS, "log.cleaner.enable": "false"})
    with RawClient(running.bootstrap) as client:
        client.create_topic("t", configs=CONFIGS)
        for number in range(5):
            put(client, number, ("a", str(number)))
        pause(0.5)  # Several times log.cleaner.backoff.ms.
        assert len(contents(client)) == 5
    assert running.data is not None
    assert not (Path(running.data) / "cleaner-offset-checkpoint").exists()


def test_log_with_unreadable_batch_is_shown_as_uncleanable(
    start_broker: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record has a timestamp varint of 11 bytes. The cleaner skips the log, names it, and goes on with others."""
    running = start_broker(settings=SETTINGS)
    with RawClient(running.bootstrap) as client:
        for name in ("bad", "good"):
            client.create_topic(name, configs={**CONFIGS, "cleanup.policy": "delete"})
        poison = hostile.sealed(hostile.long_timestamp(11), now_ms=NOW_MS)
        assert client.produce("bad", bytes(poison))["error_code"] == 0
        for name in ("bad", "good"):
            for number in range(1, 4):
                put(client, number, ("k", f"v{number}"), topic=name)
            assert set_config(client, "cleanup.policy", "compact", kind=TOPIC, resource=name)[0] == 0
        wait_until(lambda: len(contents(client, topic="good")) == 2, what="the other log is compacted")

        def is_shown() -> bool:
            shown = status(running.bootstrap)["uncleanable"]
            return [(row["topic"], row["partition"]) for row in shown["first"]] == [("bad", 0)]

        wait_until(is_shown, what="the log is shown")
        text = call_kproc(capsys, "status", "-b", running.bootstrap).stdout
        assert "not compacted: bad-0: the records of the batch at offset 0 cannot be read" in text
        assert "1 partition is not compacted" in text
        client.delete_topic("bad")
        wait_until(lambda: not status(running.bootstrap)["uncleanable"]["count"], what="it is gone")
