"""Frames of a whole transaction."""

from __future__ import annotations

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.handler_transactions import TOPIC, Producer
from tests.support.raw import batch, produce_fields


def transaction_frames(producer: Producer, partitions: int) -> list[list[bytes]]:
    """Return the frames of one transaction, in the groups in which librdkafka sends them.

    First the partitions are added, then each of them gets one batch, then the transaction is committed.
    """
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    named = {"transactional_id": producer.name, **ids}
    topics = [{"name": TOPIC, "partitions": list(range(partitions))}]
    added = {f"v3_and_below_{name}": value for name, value in named.items()} | {"v3_and_below_topics": topics}
    records = batch(b"value", **ids, base_sequence=0, flags=TRANSACTIONAL)
    produced = [
        produce_fields([(TOPIC, bytes(16), [(index, records)])], acks=-1) for index in range(partitions)
    ]
    requests = [
        [(ApiKey.ADD_PARTITIONS_TO_TXN, 0, added)],
        [(ApiKey.PRODUCE, 10, fields | {"transactional_id": producer.name}) for fields in produced],
        [(ApiKey.END_TXN, 1, named | {"committed": True})],
    ]
    return [[codec.encode_request(*each[:2], 7, "test", each[2]) for each in group] for group in requests]
