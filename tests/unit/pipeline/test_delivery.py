"""Which delivery a topic sink of a pipeline gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.client import ApiError
from kproc.common.errors import ErrorCode
from kproc.pipeline import delivery
from kproc.pipeline.access import Access
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError
from kproc.spark.brokers import Cluster, Unreachable

SPEC = """
pipeline = { name = "p", checkpoint = "state" }
source = [{ name = "lines", topic = "words" }]
"""


def chosen(sink: str, *, is_able: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[str | None, list[str]]:
    """The delivery of a sink with these keys, and what was said about it."""
    monkeypatch.setattr(delivery, "has_transactions", lambda _bootstrap: is_able)
    notes: list[str] = []
    spec = f'{SPEC}sink = [{{ name = "out", input = "lines", {sink} }}]'
    pipeline = delivery.with_deliveries(parse_spec(spec, Path("/p.toml")), notes.append)
    return pipeline.sinks[0].delivery, notes


@pytest.mark.parametrize(
    ("keys", "is_able", "wanted", "words"),
    [
        ('topic = "t"', True, "exactly-once", None),
        ('topic = "t", mode = "append"', True, "exactly-once", None),
        ('topic = "t"', False, "at-least-once", "127.0.0.1:9092 has no transactions"),
        ('topic = "t", options.kafka.acks = 1', True, "at-least-once", "needs kafka.acks=all"),
        ('topic = "t", delivery = "at-least-once"', True, "at-least-once", None),
        ('topic = "t", delivery = "exactly_once"', False, "exactly-once", None),
        ('topic = "t", options.delivery = "at-least-once"', True, None, None),
        ('topic = "t", mode = "update"', True, "exactly-once", None),
        ('topic = "t", mode = "complete"', True, "exactly-once", None),
        ('topic = "t", connector = "kafka"', True, None, None),
        ('parquet = "lake"', True, None, None),
    ],
)
def test_topic_sink_is_exactly_once_by_default(
    keys: str, is_able: bool, wanted: str | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, notes = chosen(keys, is_able=is_able, monkeypatch=monkeypatch)
    assert found == wanted
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('delivery = "exactly-once", connector = "kafka"', "Spark's own connector writes at least once"),
        ('delivery = "at-most-once"', "is none of at-least-once, exactly-once"),
    ],
)
def test_impossible_exactly_once_is_rejected_with_place(keys: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_spec(
            f'{SPEC}sink = [{{ name = "out", input = "lines", topic = "t", {keys} }}]', Path("/p.toml")
        )


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (None, True),
        (ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "refused"), False),
        (Unreachable("away"), True),
    ],
)
def test_broker_has_transactions_if_coordinator_or_unreachable(
    error: Exception | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def coordinator(_self: Cluster, _key: str, *, of_transactions: bool) -> int:
        assert of_transactions
        if error is not None:
            raise error
        return 1

    monkeypatch.setattr(Cluster, "coordinator", coordinator)
    assert delivery.has_transactions(Access("127.0.0.1:9")) is wanted
