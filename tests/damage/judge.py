"""The judge of a broker with a damaged data directory: it reads every record and compares it with the promises."""

from __future__ import annotations

import struct
from collections.abc import Callable

from kproc.broker.cluster.internal_topics import SHARE_STATE_TOPIC
from kproc.common.errors import ErrorCode as E
from kproc.common.errors import KafkaError
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import crc_of, decode_records, parse_header
from tests.damage.scene import GROUP, PRODUCER_TOPIC, SHARE_GROUP, STREAMS_GROUP, Partition, Promises
from tests.support.groups import fetch_group
from tests.support.raw import RawClient, fetch_fields, split_batches

_NOTHING = bytes(16)
_OFFSETS_TOPIC = "__consumer_offsets"


class Broken(Exception):
    """A promise that the broker does not keep."""


class Refused(Exception):
    """The broker, or the client's check of the CRC, rejects a partition. Allowed if a file of it was damaged."""


class Judge:
    """One broker, one client. A file of each partition in `damaged` was damaged."""

    def __init__(
        self,
        client: RawClient,
        promises: Promises,
        damaged: set[Partition],
        is_set_aside: Callable[[str], bool],
    ) -> None:
        self._is_set_aside = is_set_aside
        self._client = client
        self._promises = promises
        self._damaged = damaged
        self.refused: set[Partition] = set()

    def judge(self) -> None:
        """Raise Broken for the first promise that is not kept."""
        for key in sorted(self._promises.records):
            self._allow(key, lambda key=key: self._judge_log(key))  # type: ignore[misc]
        self._allow(("transactional", 0), self._judge_committed)
        self._judge_group()
        self._judge_share_states()
        self._judge_streams_group()
        self._allow((PRODUCER_TOPIC, 0), self._judge_retry)

    def _allow(self, key: Partition, check: Callable[[], None]) -> None:
        try:
            check()
        except Refused as problem:
            if key not in self._damaged:
                raise Broken(f"{key[0]}-{key[1]} is refused, and nothing of it was damaged: {problem}") from problem
            self.refused.add(key)
        except Broken:
            if not self._is_loudly_gone(key):
                raise
            self.refused.add(key)

    def _is_loudly_gone(self, key: Partition) -> bool:
        """Return True if the damaged partition's directory is set aside, which log, status and doctor say."""
        return key in self._damaged and self._is_set_aside(f"{key[0]}-{key[1]}")

    def _offset(self, key: Partition, timestamp: int) -> int:
        row = self._client.list_offset(key[0], timestamp, partition=key[1])
        if row["error_code"]:
            raise Refused(f"ListOffsets answers {row['error_code']}")
        return int(row["offset"])

    def _judge_log(self, key: Partition) -> None:
        promises = self._promises
        start, end = self._offset(key, -2), self._offset(key, -1)
        if key not in promises.compacted and start != promises.starts.get(key, 0):
            raise Broken(f"{key} begins at {start}, not at {promises.starts.get(key, 0)}")
        if end != promises.ends[key]:
            raise Broken(f"{key} ends at {end}, not at {promises.ends[key]}")
        found = self._read(key, start, end)[0]
        sent = promises.records[key]
        for offset, value in found.items():
            if sent.get(offset) != value:
                raise Broken(f"{key} has {value[:20]!r} at {offset}, not {sent.get(offset, b'')[:20]!r}")
        wanted = {offset for offset in sent if offset >= start}
        if key in promises.compacted:  # Of each of its two keys the last record is there.
            wanted = set(sorted(wanted)[-2:])
        if missing := wanted - found.keys():
            raise Broken(f"{key} lacks {len(missing)} records from {min(missing)} on without a word")

    def _read(
        self, key: Partition, start: int, end: int, *, isolation: int = 0
    ) -> tuple[dict[int, bytes], list[tuple[int, int]], list[tuple[int, int, bool]]]:
        """Return records by offset, aborted (producer, first offset) and batches as (offset, producer, is a marker)."""
        found: dict[int, bytes] = {}
        aborted: list[tuple[int, int]] = []
        batches: list[tuple[int, int, bool]] = []
        offset = start
        while offset < end:
            fields = fetch_fields([(key[0], _NOTHING, [(key[1], offset)])])
            answer = self._client.call(ApiKey.FETCH, 12, {**fields, "isolation_level": isolation})
            row = answer["responses"][0]["partitions"][0]
            if row["error_code"]:
                raise Refused(f"Fetch answers {row['error_code']}")
            aborted += [(each["producer_id"], each["first_offset"]) for each in row["aborted_transactions"] or ()]
            content = row["records"] or b""
            if not content:
                raise Broken(f"{key} has nothing at {offset}, and ends at {end}")
            following = offset
            for each in split_batches(content):
                try:
                    header = parse_header(each)
                    if crc_of(each) != header.crc:
                        raise Refused(f"the CRC of the batch at {header.base_offset} does not match")
                    records = decode_records(each)
                except (KafkaError, struct.error) as problem:
                    raise Refused(f"the client cannot decode a batch: {problem}") from problem
                batches.append((header.base_offset, header.producer_id, header.is_control))
                if not header.is_control:
                    found.update({record.offset: record.value or b"" for record in records})
                following = header.last_offset + 1
            if following <= offset:
                raise Refused("the client gets no whole batch")
            offset = following
        return found, aborted, batches

    def _judge_committed(self) -> None:
        """A read_committed consumer sees what was committed, and nothing that was aborted."""
        key = ("transactional", 0)
        found, aborted, batches = self._read(key, 0, self._offset(key, -1), isolation=1)
        pending = sorted(aborted, key=lambda each: each[1])
        open_aborts: set[int] = set()
        hidden: set[int] = set()
        for base, producer, is_control in batches:
            while pending and pending[0][1] <= base:
                open_aborts.add(pending.pop(0)[0])
            if is_control:
                open_aborts.discard(producer)
            elif producer in open_aborts:
                hidden.update({base, base + 1})
        wanted = self._promises.aborted[key]
        if hidden != wanted:
            raise Broken(f"{key}: a read_committed consumer skips {sorted(hidden)}, aborted are {sorted(wanted)}")
        if missing := self._promises.records[key].keys() - found.keys():
            raise Broken(f"{key} lacks {sorted(missing)}")

    def _judge_group(self) -> None:
        is_damaged = any(topic == _OFFSETS_TOPIC for topic, _ in self._damaged)
        row = fetch_group(self._client, GROUP, {"plain": [0, 1]})
        code = row["error_code"] or max(part["error_code"] for part in row["topics"][0]["partitions"])
        if code:
            if not is_damaged:
                raise Broken(f"the group is refused with {code}")
            return
        rows = row["topics"][0]["partitions"]
        found = {("plain", part["partition_index"]): part["committed_offset"] for part in rows}
        if found != self._promises.offsets and not any(
            self._is_loudly_gone(each) for each in self._damaged if each[0] == _OFFSETS_TOPIC
        ):
            raise Broken(f"the group stands at {found}, not at {self._promises.offsets}")

    def _judge_share_states(self) -> None:
        damaged = [each for each in self._damaged if each[0] == SHARE_STATE_TOPIC]
        rows = [{"partition": index, "leader_epoch": 0} for index in self._promises.share_starts]
        topics = [{"topic_id": self._client.topic_id("plain"), "partitions": rows}]
        fields = {"group_id": SHARE_GROUP, "topics": topics}
        (result,) = self._client.call(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, fields)["results"]
        for row in result["partitions"]:
            wanted = self._promises.share_starts[row["partition"]]
            if row["error_code"]:
                if not damaged:
                    raise Broken(f"the state of a share partition is refused with {row['error_code']}")
            elif row["start_offset"] != wanted and not any(map(self._is_loudly_gone, damaged)):
                raise Broken(f"a share partition begins at {row['start_offset']}, not at {wanted}")

    def _judge_streams_group(self) -> None:
        damaged = [each for each in self._damaged if each[0] == _OFFSETS_TOPIC]
        fields = {"include_authorized_operations": False, "include_topology_description": False}
        (row,) = self._client.call(
            ApiKey.STREAMS_GROUP_DESCRIBE, 1, {"group_ids": [STREAMS_GROUP], **fields}
        )["groups"]
        code = row["error_code"]
        if any(map(self._is_loudly_gone, damaged)) or (damaged and code not in (0, E.GROUP_ID_NOT_FOUND)):
            return
        if code:
            raise Broken(f"the streams group is refused with {code}")
        epoch, members = row["group_epoch"], [each["member_id"] for each in row["members"]]
        sources = [each["source_topics"] for each in row["topology"]["subtopologies"]]
        if epoch < self._promises.streams_epoch or members != ["m"] or sources != [["plain"]]:
            raise Broken(f"the streams group has epoch {epoch}, members {members}, topics {sources}")

    def _judge_retry(self) -> None:
        """A retry of an idempotent producer's last batch is a duplicate."""
        content, offset = self._promises.last_batch
        row = self._client.produce(PRODUCER_TOPIC, content, acks=-1)
        if row["error_code"]:
            raise Refused(f"Produce answers {row['error_code']}")
        if row["base_offset"] != offset:
            raise Broken(f"a retry of offset {offset} was stored at {row['base_offset']}")
