"""An idempotent producer by raw requests: numbered batches of one producer id and epoch."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch


def new_producer(client: RawClient, version: int = 4) -> tuple[int, int]:
    fields = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = client.call(ApiKey.INIT_PRODUCER_ID, version, fields)
    assert answer["error_code"] == ErrorCode.NONE
    return int(answer["producer_id"]), int(answer["producer_epoch"])


class Producer:
    """Sends numbered batches as one producer of one epoch."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.id, self.epoch = new_producer(client)

    def make(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> bytes:
        values = [b"%d" % (sequence + number) for number in range(count)]
        chosen = self.epoch if epoch is None else epoch
        return batch(*values, producer_id=self.id, producer_epoch=chosen, base_sequence=sequence)

    def send(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> tuple[int, int]:
        """(error code, base offset)."""
        row = self.client.produce(self.topic, self.make(sequence, count, epoch=epoch))
        return int(row["error_code"]), int(row["base_offset"])
