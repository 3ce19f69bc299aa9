"""Dead letters of the share group (KIP-1191): read at the end, and compared with what was rejected."""

from __future__ import annotations

from collections import Counter
from typing import Final

from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records
from tests.simulation.client import Life
from tests.simulation.share_history import Place
from tests.simulation.workloads import PASSING, Worker
from tests.support.raw import fetch_fields, list_offsets_fields, offset_behind, split_batches

DEAD_LETTERS: Final = "dlq.stable"
_PREFIX: Final = "__dlq.errors."


class DeadLetterReader(Worker):
    """A client that can find offsets and read the topic of dead letters, when all has come to rest."""

    def find(self, topic: str, partition: int, timestamp: int) -> Life:
        while True:
            fields = list_offsets_fields(topic, [(partition, timestamp)])
            answer = yield from self.call(ApiKey.LIST_OFFSETS, 9, {**fields, "isolation_level": 0})
            row = answer["topics"][0]["partitions"][0]
            if not row["error_code"]:
                return row["offset"]
            yield from self.pause(50)

    def read_dead_letters(self, topic_id: bytes) -> Life:
        """Return how often each record of a topic is among the dead letters."""
        letters: Counter[Place] = Counter()
        fields = {"topics": [{"name": DEAD_LETTERS}], "allow_auto_topic_creation": False}
        answer = yield from self.call(ApiKey.METADATA, 12, fields)
        topic = answer["topics"][0]
        for row in () if topic["error_code"] else topic["partitions"]:
            yield from self._read(letters, topic_id, topic["topic_id"], row["partition_index"])
        return letters

    def _read(self, letters: Counter[Place], topic_id: bytes, letters_id: bytes, partition: int) -> Life:
        position = yield from self.find(DEAD_LETTERS, partition, -2)
        end = yield from self.find(DEAD_LETTERS, partition, -1)
        while position < end:
            fields = fetch_fields([(DEAD_LETTERS, letters_id, [(partition, position)])])
            answer = yield from self.call(ApiKey.FETCH, 13, fields)
            row = answer["responses"][0]["partitions"][0] if answer["responses"] else {"error_code": 0, "records": b""}
            self.check_code("Fetch of dead letters", row["error_code"], *PASSING)
            behind = offset_behind(row["records"], position)
            if behind <= position:
                yield from self.pause(50)
                continue
            for batch in split_batches(row["records"]):
                for record in decode_records(batch):
                    if record.offset >= position:
                        headers = dict(record.headers)
                        at = (int(headers[_PREFIX + name] or b"") for name in ("partition", "offset"))
                        letters[topic_id, *at] += 1
            position = behind
