"""InitialOffsets: where a query began outlives the query."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kproc.spark.option_values import OptionError
from tests.spark.streams import numbered, send
from tests.support.broker import BrokerUnderTest
from tests.support.spark_readers import stream
from tests.support.topics import TopicFactory

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs the spark extra")
pytest.importorskip("pyarrow", reason="needs the spark extra")

pytestmark = [pytest.mark.transports("process"), pytest.mark.usefixtures("own_connections")]


def without_notes(document: dict[str, Any]) -> dict[str, Any]:
    """The offsets of a document."""
    return {topic: rows for topic, rows in document.items() if not topic.startswith("@")}


def test_checkpoint_state_keeps_where_a_query_began(
    broker: BrokerUnderTest, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    name = topic()
    options = {"subscribe": name, "checkpointState": str(tmp_path / "new" / "state")}
    assert without_notes(stream(broker.bootstrap, **options).initialOffset()) == {name: {"0": 0}}
    assert synced == [False, True], "the file, then its name"
    send(broker.bootstrap, name, numbered(0, 3))
    assert without_notes(stream(broker.bootstrap, **options).initialOffset()) == {name: {"0": 0}}
    # Another source of the same query has a file of its own.
    other = stream(broker.bootstrap, **options, sourceName="other")
    assert without_notes(other.initialOffset()) == {name: {"0": 3}}
    files = sorted(path.name for path in (tmp_path / "new" / "state").iterdir())
    assert len(files) == 2
    assert files[0] == "other.initial.json"
    (tmp_path / "new" / "state" / files[0]).write_text("{half")
    with pytest.raises(OptionError, match=r"other.initial.json is damaged .* remove it"):
        stream(broker.bootstrap, **options, sourceName="other").initialOffset()
