"""Kafka's own code merges random state batches as we do, and writes the records that we read and write."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence

import pytest

from kproc.broker.share.state.batches import combine
from kproc.broker.share.state.messages import NO_OFFSET, SharePartitionKey, StateBatch
from kproc.broker.share.state.records import (
    ShareRecordValue,
    Snapshot,
    Update,
    decode_share_record,
    encode_share_record,
)
from kproc.broker.storage.checkpoints import uuid_text
from tests.support.java_programs import program_command
from tests.support.java_tools import TOOL_SECONDS_MAX
from tests.support.kafka_jars import KAFKA_VERSION, classpath, missing_reason

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
MERGES = 2_000
KEY = SharePartitionKey("grüße", bytes(range(0xF0, 0x100)), 7)
VALUES: list[ShareRecordValue] = [
    Snapshot(1, 2, 3, 4, 5, 6, 7, (StateBatch(5, 9, 0, 1), StateBatch(10, 2**62, 4, 32_767))),
    Snapshot(0, 0, 0, -1, -1, 8, 8),
    Update(1, 3, 5, 6, (StateBatch(5, 9, 2, 1),)),
    Update(1, 3, -1, -1),
]


def answers(lines: Sequence[str]) -> list[str]:
    """Return the answers of Kafka's code, one for each line."""
    program = program_command("ShareStateOracle", classpath())
    done = subprocess.run(
        program,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        timeout=TOOL_SECONDS_MAX,
        check=True,
    )
    found = done.stdout.split("\n")[:-1]
    assert len(found) == len(lines), done.stderr
    return found


def text_of(batches: Sequence[StateBatch]) -> str:
    return " ".join(f"{each.first},{each.last},{each.state},{each.delivery_count}" for each in batches)


def joined(text: str) -> str:
    """Return batches with equal neighbours joined."""
    batches = [StateBatch(*map(int, each.split(","))) for each in text.split()]
    return text_of(combine((), batches, NO_OFFSET))


def random_batches(rng: random.Random) -> list[StateBatch]:
    firsts = [rng.randrange(40) for _ in range(rng.randrange(6))]
    return [
        StateBatch(first, first + rng.choice((0, 1, 3, 9)), rng.choice((0, 2, 4)), rng.randint(1, 3))
        for first in firsts
    ]


def line_of(value: ShareRecordValue) -> str:
    place = f"{KEY.group_id}\t{uuid_text(KEY.topic_id)}\t{KEY.partition}"
    if isinstance(value, Snapshot):
        numbers = (
            value.snapshot_epoch, value.state_epoch, value.leader_epoch, value.start_offset,
            value.delivery_complete_count, value.created_ms, value.written_ms,
        )  # fmt: skip
        kind = "SNAPSHOT"
    else:
        numbers = (
            value.snapshot_epoch, value.leader_epoch, value.start_offset, value.delivery_complete_count,
        )  # fmt: skip
        kind = "UPDATE"
    return "\t".join((kind, place, *map(str, numbers), text_of(value.batches)))


def test_merges_and_records_are_kafkas() -> None:
    rng = random.Random(1)
    merges = []
    for _ in range(MERGES):
        current = combine((), random_batches(rng), NO_OFFSET)
        merges.append((current, random_batches(rng), rng.choice((NO_OFFSET, rng.randrange(45)))))
    lines = [f"COMBINE\t{text_of(current)}\t{text_of(new)}\t{start}" for current, new, start in merges]
    found = answers([*lines, *map(line_of, VALUES)])
    for answer, merge in zip(found, merges, strict=False):
        ours = text_of(combine(*merge))
        # Kafka 4.3 joins fewer neighbours.
        assert (answer if KAFKA_VERSION >= "4.4" else joined(answer)) == ours, merge
    for answer, value in zip(found[MERGES:], VALUES, strict=True):
        key, content = map(bytes.fromhex, answer.split("\t"))
        assert (key, content) == encode_share_record(KEY, value)
        assert decode_share_record(key, content) == (KEY, value)
