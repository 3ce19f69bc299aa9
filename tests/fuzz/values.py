"""Values for the fields of fuzzed requests: those that lead deep into a handler, and those at the edges.

A request is made of the first kind but for a few fields: with nothing but extremes it would end at its first check.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from kproc.wire.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    parse_header,
    rebuild,
)
from kproc.wire.record_batch import encode_batch as encode
from kproc.wire.records import Record
from tests.fuzz.hostile_batches import hostile_batches
from tests.support.mutate import flip_bits
from tests.support.well_formed import NUMBERS, SETTINGS, VALUES, WORDS

INT64: Final = (2**63 - 1, -(2**63))
# Numbers that a handler takes, by the field's name; the others come from NUMBERS.
SANE_NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    "acks": (-1, -1, 1, 1, 0),
    "timeout": (0, 1, 50, 1_000),
    "timeout_ms": (0, 1, 50, 1_000),
    "max_wait": (0, 0, 0, 1, 20),
    "min_bytes": (0, 1, 1, 1_000),
    "max_bytes": (50_000_000, 1, 0, 2**31 - 1),
    "partition_max_bytes": (1_000_000, 1, 0),
    "session_timeout": (10, 100, 1_000, 6_000),
    "rebalance_timeout": (0, 10, 100),
    "partition": (0, 0, 1, 2),
    "partition_index": (0, 0, 1, 2),
    "partition_indexes": (0, 0, 1, 2),
    "partitions": (0, 0, 1, 2),
    "index": (0, 0, 1, 2),
    "fetch_offset": (0, 0, 1, 5, -1),
    "offset": (0, 1, -1, 5),
    "committed_offset": (0, 1, 5, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_000, 1_700_000_000_005),
    "current_leader_epoch": (-1, -1, 0, 1),
    "leader_epoch": (-1, 0, 0, 1),
    "state_epoch": (0, 0, 1, -1),
    "start_offset": (0, 0, 1, -1, 5),
    "first_offset": (0, 1, 4, 10),
    "last_offset": (1, 4, 9, 20),
    "delivery_state": (0, 2, 4, 1, 3),
    "delivery_count": (1, 1, 2, 3),
    "delivery_complete_count": (-1, 0, 1, 5),
    "last_fetched_epoch": (-1, -1, 0),
    "replica_id": (-1, -1, -2, 0, 1),
    "isolation_level": (0, 1),
    "generation_id": (-1, 0, 1, 1, 2),
    "member_epoch": (0, 0, 0, -1, -2, 1, 2, 3),
    "epoch": (0, 0, 1),
    "producer_id": (-1, 0, 1, 1_000),
    "producer_epoch": (-1, 0, 1),
    "coordinator_epoch": (-1, 0, 1),
    "transaction_version": (0, 1, 2),
    "replication_factor": (1, 1, -1),
    "resource_type": (2, 2, 3, 4, 8, 16, 32, 1),
    "resource_type_filter": (1, 2, 3, 4, 5, 6, 7),
    "resource_pattern_type": (3, 4),
    "pattern_type_filter": (1, 2, 3, 4),
    "operation": (2, 3, 4, 8, 1),
    "permission_type": (2, 3, 1),
    "config_operation": (0, 1, 2, 3),
    "key_type": (0, 0, 1, 2),
    "session_epoch": (-1, 0, 1, 2),
    "share_session_epoch": (0, 0, 0, 1, 1, 2, -1),
    "share_acquire_mode": (0, 0, 1, 2),
    "acknowledge_types": (1, 1, 2, 3, 0, 4),
    "max_records": (1, 500, 0, -1),
    "batch_size": (1, 500, 0),
    "throttle_time": (0,),
}
# These are bounded also at the edges: more would be served, and takes the time of making it.
BOUNDED_NUMBERS: Final = {
    "num_partitions": (1, 1, 2, 3, -1, 0, -2, 2**31 - 1, -(2**31)),
    "count": (1, 2, 3, 4, 0, -1, 2**31 - 1, -(2**31)),
}
# A broker's own settings that would shut the fuzzer out, or begin changes of roles, which tests/faults look at.
HARMFUL: Final = frozenset({"listeners", "max.connections", "node.id"})
BROKER_SETTINGS: Final = (
    "kproc.request.log", "kproc.request.log.slow.ms", "log.cleaner.threads", "message.max.bytes",
    "log.retention.ms", "log.segment.bytes", "log.flush.interval.messages", "compression.type", "min.insync.replicas",
)  # fmt: skip
MORE_VALUES: Final = (
    "all",
    "slow",
    "topic",
    "none",
    "-2",
    "0.5",
    "1e308",
    "NaN",
    "9" * 19,
    "x" * 32_767,
    "é" * 16_000,
)
# As text in UTF-8; what is no UTF-8 is in BAD_TEXTS.
EDGE_TEXTS: Final = (
    *(word.encode() for word in WORDS), b"..", b"x" * 32_767, "ж".encode() * 16_383, b"a,b", b"a=b",
    b"%s%n{}", b"/../..",
    b"\x7f\x00\xc2\x80", "\U0010ffff".encode() * 60, b"x" * 249, b"\xef\xbf\xbd",
)  # fmt: skip
# Lone surrogates, bytes that are never UTF-8, an overlong NUL, a cut sequence; and longer than a string may be.
BAD_TEXTS: Final = (b"\xed\xa0\x80", b"\xff\xfe", b"\xc0\x80", b"caf\xc3", b"y" * 32_768, b"z" * 100_000)
BYTES: Final = (
    b"", b"\0", bytes(5_000), b"\0\0\0\0\0\1\0\1a" + bytes(4), b"\xff" * 64, b"\0\3\x7f\xff\xff\xff",
    b"\0\1" + bytes(4),
    b"\0\1\0\0\0\1\0\3one\xff\xff\xff\xff", b"\0\0\0\0\0\1\0\3one\0\0\0\1\0\0\0\0\xff\xff\xff\xff",
)  # fmt: skip


def batches(source: random.Random, count: int) -> list[bytes]:
    """Record batches: every codec and attribute, odd times, sequences and offsets, old formats; and damaged ones."""
    made = list(_whole_batches(source))
    hostile = list(hostile_batches(source, 400))
    while len(made) < count:
        damaged = flip_bits(b"\0\0\0\0" + source.choice(made[:300]), source)[4:]
        made.append(source.choice((damaged, damaged[: source.randrange(len(damaged))])))
    return made + hostile


def _whole_batches(source: random.Random) -> Iterator[bytes]:
    now = 1_700_000_000_000
    times = (now, -1, -2, 0, INT64[0], INT64[1], now + 10**12)
    rows = ([Record(b"k", b"v", now)], [Record(None, b"v", now), Record(b"k", None, now + 5)])
    headers = [("h", b"x"), ("", None), ("ключ", bytes(50))]
    rows += ([Record(b"k%d" % n, b"v" * 50, now + n, headers) for n in range(20)],)
    rows += ([Record(b"key", bytes(200_000), now)], [Record(b"k%d" % n, b"", now) for n in range(500)])
    for codec in range(5):
        for records in rows:
            yield bytes(encode(records, codec=codec))
            for flags in (TRANSACTIONAL, CONTROL, CONTROL | TRANSACTIONAL, LOG_APPEND_TIME, 0x40):
                yield bytes(
                    encode(
                        records[:3],
                        codec=codec,
                        flags=flags,
                        producer_id=1,
                        producer_epoch=0,
                        base_sequence=0,
                    )
                )
            for sequence in (0, 1, 5, 2**31 - 1, -2):
                epoch = source.choice((0, 1, 2**15 - 1, -1))
                who = source.choice((0, 1, 1_000, INT64[0], -5))
                yield bytes(
                    encode(
                        records[:3],
                        codec=codec,
                        producer_id=who,
                        producer_epoch=epoch,
                        base_sequence=sequence,
                    )
                )
        for first in times:
            for second in times:
                if -(2**63) <= second - first < 2**63:
                    yield bytes(encode([Record(b"k", b"1", first), Record(b"k", b"2", second)], codec=codec))
    plain = bytes(encode(rows[0]))
    header, records = parse_header(plain), plain[61:]
    for name in BatchHeader._fields:
        if name in ("batch_length", "crc"):
            continue
        for value in (0, 1, -1, -2, 2, 7, 127, 2**15 - 1, 2**31 - 1, INT64[0], INT64[1]):
            try:
                yield bytes(
                    rebuild(header._replace(**{name: value}), records, codec=0, max_timestamp=value)[0]
                )
                changed = header._replace(**{name: value})
                yield bytes(rebuild(changed, records, codec=changed.attributes & 7, max_timestamp=now)[0])
            except Exception:  # noqa: BLE001  # Does not fit its field.
                continue
    for magic in (0, 1, 3, 127):
        yield plain[:16] + bytes([magic]) + plain[17:]
    yield bytes(26)
    yield b"\0" * 12 + b"\0\0\0\0" + b"\1" + bytes(30)
    yield plain * 2
    yield plain[:-1]
    yield b""


def number_edges(kind: str, name: str) -> tuple[Any, ...]:
    """What a number may be at its edges."""
    return BOUNDED_NUMBERS.get(name) or NUMBERS[kind]


def number_sane(kind: str, name: str) -> tuple[Any, ...]:
    """What a number is mostly."""
    return SANE_NUMBERS.get(name) or number_edges(kind, name)


def setting_names() -> list[str]:
    """Settings to ask for and to change."""
    return [*(name for name in SETTINGS if name not in HARMFUL), *BROKER_SETTINGS]


def setting_values() -> list[str]:
    """What they are changed to."""
    return [*VALUES, *MORE_VALUES]


# -- kproc's own operations ----------------------------------------------------------------------------------------

_OPERATIONS: Final = (
    "ping", "status", "clients", "topics", "logs", "scale", "kill-client", "monitor", "add-fault", "remove-fault",
    "list-faults", "keep-fault", "share-records", "no-such", "",
)  # fmt: skip
_MEMBERS: Final = (
    "op", "processors", "handlers", "ticket", "id", "watch", "rule", "group", "partitions", "x", "", "\x1b[2J",
    "\ud800",
)  # fmt: skip


def odd_json(source: random.Random) -> bytes:
    """A body for API key 30000 that is nearly an operation. None changes the roles or closes a connection."""
    body = json.dumps(
        {
            "op": source.choice(_OPERATIONS) if source.random() < 0.6 else _odd_value(source, 0),
            **{source.choice(_MEMBERS): _odd_value(source, 0) for _ in range(source.randrange(3))},
        }
    ).encode()
    draw = source.random()
    if draw < 0.15:
        return body[: source.randrange(len(body))]
    if draw < 0.3:
        return flip_bits(b"\0\0\0\0" + body, source)[4:]
    if draw < 0.35:
        depth = source.choice((10, 900, 20_000))
        return b'{"op":"status","x":' + b"[" * depth + b"]" * depth + b"}"
    return body


def _odd_value(source: random.Random, depth: int) -> Any:
    draw = source.randrange(10 if depth < 4 else 7)
    if draw < 7:
        return (None, True, -1, 10**30, 1.5, "x" * source.choice((0, 3, 70_000)), float("inf"))[draw]
    if draw < 9:
        return [_odd_value(source, depth + 1) for _ in range(source.randrange(3))]
    return {source.choice(_MEMBERS): _odd_value(source, depth + 1) for _ in range(source.randrange(3))}
