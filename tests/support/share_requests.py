"""Fields of ShareFetch and ShareAcknowledge requests, and what their answers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.raw import values_of

GROUP, MEMBER = "queue", "a-member"
Fields = dict[str, Any]
Batch = tuple[int, int, Sequence[int]]
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def _topics(topic_id: bytes, partitions: Sequence[int], batches: dict[int, Sequence[Batch]]) -> list[Fields]:
    rows = [
        {
            "partition_index": index,
            "acknowledgement_batches": [
                {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
                for first, last, types in batches.get(index, ())
            ],
        }
        for index in dict.fromkeys([*partitions, *batches])
    ]
    return [{"topic_id": topic_id, "partitions": rows}] if rows else []


def share_fetch(
    topic_id: bytes,
    partitions: Sequence[int] = (),
    *,
    epoch: int = 0,
    acknowledge: dict[int, Sequence[Batch]] | None = None,
    forget: Sequence[int] = (),
    **more: Any,
) -> Fields:
    """A ShareFetch; `acknowledge` has the batches (first, last, types) of partitions."""
    return {
        "group_id": GROUP,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "topics": _topics(topic_id, partitions, acknowledge or {}),
        "forgotten_topics_data": [{"topic_id": topic_id, "partitions": list(forget)}] if forget else [],
        **more,
    }


def share_acknowledge(
    topic_id: bytes, batches: dict[int, Sequence[Batch]], *, epoch: int, **more: Any
) -> Fields:
    return {
        "group_id": GROUP,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "topics": _topics(topic_id, (), batches),
        **more,
    }


def rows_of(answer: Fields) -> dict[int, Fields]:
    """Partition -> its row, of an answer about one topic."""
    assert len(answer["responses"]) <= 1
    return {row["partition_index"]: row for topic in answer["responses"] for row in topic["partitions"]}


def offsets_of(row: Fields) -> list[int]:
    """The offsets that a row's records were acquired with."""
    return [
        at for each in row["acquired_records"] for at in range(each["first_offset"], each["last_offset"] + 1)
    ]


def values_in(row: Fields) -> list[bytes | None]:
    return [value for _, value in values_of(row["records"])]
