"""Requests the usage of topics: bytes on the disk, bytes per second, retention. One request for all topics.

If the broker lacks an API (a control listener, an old Kafka) or the user a right, the value is None, and a line reports
the reason (Gaps).
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.cli.config_requests import describe_configs, topic_resource
from kproc.cli.connection import connect
from kproc.cli.lines import print_note
from kproc.cli.offsets import FoundOffset, find_offsets
from kproc.cli.unserved import Partition
from kproc.common.reading import MAX_TIMESTAMP

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.wire.header import ApiKey

_POLICY: Final = "cleanup.policy"
_RETENTION_MS: Final = "retention.ms"
_RETENTION_BYTES: Final = "retention.bytes"
_NO_TRAFFIC: Final = (0, 0, 0)
_OLDEST: Final = 0  # Every record is at or after this time.


class Gaps:
    """Values that a command cannot show, with the reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def add(self, what: str, reason: str) -> None:
        """Add a value that cannot be shown, with the reason. Keep the first reason for each value."""
        self._reasons.setdefault(what, reason)

    def lacks(self, client: Client, key: ApiKey, what: str) -> bool:
        """If the broker does not serve an API at this listener, add `what` and return True."""
        if int(key) in client.api_versions():
            return False
        from kproc.wire.header import kafka_name

        self.add(what, f"{client.address} does not serve {kafka_name(key)}")
        return True

    def text(self) -> str | None:
        """Return a text with the values that cannot be shown and the reasons, or None if there are none."""
        told = "; ".join(f"{what}: {reason}" for what, reason in self._reasons.items())
        return f"not shown: {told}" if told else None

    def report(self) -> None:
        """Print a line for each value that cannot be shown."""
        for what, reason in self._reasons.items():
            print_note(f"kproc: not shown: {what}: {reason}")


def log_sizes(client: Client, gaps: Gaps, topics: Mapping[str, Iterable[int]] | None) -> dict[Partition, int]:
    """Return the bytes of each partition's log, for the partitions of `topics`, or for all if it is None.

    Return an empty dict if the broker does not report sizes.
    """
    from kproc.client import error_text
    from kproc.wire.header import ApiKey

    if gaps.lacks(client, ApiKey.DESCRIBE_LOG_DIRS, "sizes"):
        return {}
    wanted = (
        None
        if topics is None
        else [{"topic": name, "partitions": list(each)} for name, each in topics.items()]
    )
    answer = client.call_latest(ApiKey.DESCRIBE_LOG_DIRS, {"topics": wanted})
    sizes: dict[Partition, int] = {}
    for directory in answer["results"]:
        if directory["error_code"]:
            gaps.add("sizes", error_text(directory["error_code"]))
        for topic in directory["topics"]:
            for row in topic["partitions"]:
                # KIP-113: skip future logs, which are copies of logs that are being moved to another directory.
                if not row["is_future_key"]:
                    sizes[topic["name"], row["partition_index"]] = row["partition_size"]
    # Before version 3 DescribeLogDirs reports a missing right by a response without directories.
    if answer.get("error_code") or not answer["results"]:
        gaps.add("sizes", "they need the right DESCRIBE on the cluster")
    return sizes


class Retention(NamedTuple):
    """The limits of a topic: by time, by bytes of each partition (-1: none), and whether old segments are deleted."""

    ms: int
    bytes: int
    deletes: bool

    @property
    def has_time(self) -> bool:
        """True if records are deleted at an age."""
        return self.deletes and self.ms >= 0

    @property
    def has_bytes(self) -> bool:
        """True if records are deleted when a partition is too large."""
        return self.deletes and self.bytes >= 0


def retentions(client: Client, gaps: Gaps, names: Iterable[str]) -> dict[str, Retention]:
    """Return the retention of topics. Topics whose settings the user may not see are omitted."""
    from kproc.client import error_text
    from kproc.wire.header import ApiKey

    if gaps.lacks(client, ApiKey.DESCRIBE_CONFIGS, "retention"):
        return {}
    keys = [_POLICY, _RETENTION_MS, _RETENTION_BYTES]
    found: dict[str, Retention] = {}
    for row in describe_configs(client, map(topic_resource, names), keys):
        if row["error_code"]:
            gaps.add("retention of some topics", error_text(row["error_code"]))
            continue
        values = {each["name"]: each["value"] for each in row["configs"]}
        if values.keys() >= set(keys):
            found[row["resource_name"]] = Retention(
                int(values[_RETENTION_MS]), int(values[_RETENTION_BYTES]), "delete" in values[_POLICY]
            )
    return found


class Rates(NamedTuple):
    """Rates of a topic per second: bytes and records from producers, and bytes to consumers. None if unknown."""

    bytes_in: float | None = None
    records_in: float | None = None
    bytes_out: float | None = None


class TrafficMeter:
    """Measures the traffic of topics, starting when it is created, so that the caller can do other work meanwhile.

    A kproc broker counts the traffic, and reports it to clients of its own host. For other brokers the growth of the
    logs counts as incoming traffic, and outgoing traffic is unknown.
    """

    def __init__(self, client: Client, local: Client | None, gaps: Gaps) -> None:
        from kproc.client import ClientError

        self._client = client
        self._gaps = gaps
        self._counter = local
        try:
            self._before = self._sample()
        except ClientError as error:
            if self._counter is None:
                raise
            gaps.add("traffic out", str(error))  # An older kproc, or the user has no right.
            self._counter = None
            self._before = self._sample()
        self._began_s = time.monotonic()
        if self._counter is None:
            gaps.add("traffic out", "only a kproc broker on this host counts it")

    @property
    def is_counted(self) -> bool:
        """True if the broker's traffic counters are used. Otherwise incoming traffic is the growth of the logs."""
        return self._counter is not None

    def measure(self, interval_s: float, names: Iterable[str]) -> dict[str, Rates]:
        """Wait until `interval_s` after the creation of this object, and return the rates of topics since then."""
        time.sleep(max(0.0, self._began_s + interval_s - time.monotonic()))
        return self.advance(names)

    def advance(self, names: Iterable[str]) -> dict[str, Rates]:
        """Return the rates of topics since the last call, or since the creation of this object."""
        after = self._sample()
        now_s = time.monotonic()
        seconds = max(1e-3, now_s - self._began_s)
        rates = {}
        for name in names:
            if self._counter is not None:
                # The broker sends no row for a topic that has had no traffic. Count such a topic as 0.
                before, now = self._before.get(name, _NO_TRAFFIC), after.get(name, _NO_TRAFFIC)
                # Use 0 instead of a negative rate: counters become smaller if the topic was recreated or a role was
                # restarted.
                rates[name] = Rates(
                    *(max(0, new - old) / seconds for new, old in zip(now, before, strict=True))
                )
            elif name in self._before and name in after:
                # Use 0 instead of a negative rate: retention makes a log smaller.
                rates[name] = Rates(max(0, after[name][0] - self._before[name][0]) / seconds)
        self._before, self._began_s = after, now_s
        return rates

    def _sample(self) -> dict[str, tuple[int, int, int]]:
        """Return the broker's traffic counters (bytes in, records in, bytes out) by topic.

        Without counters return (size of the logs, 0, 0).
        """
        if self._counter is None:
            sizes: dict[str, int] = {}
            for (topic, _), size in log_sizes(self._client, self._gaps, None).items():
                sizes[topic] = sizes.get(topic, 0) + size
            return {topic: (size, 0, 0) for topic, size in sizes.items()}
        rows = self._counter.operate("topics").rows("topics")
        return {row["name"]: (row["bytes_in"], row["records_in"], row["bytes_out"]) for row in rows}


def connect_locally(client: Client, bootstrap: str) -> Client | None:
    """Return another connection for kproc's own operations, or None if the broker is no kproc of this host.

    Use a separate connection, because Kafka closes a connection on which it gets an unknown request, and logs an error.
    """
    from kproc.client import ClientError

    if not ipaddress.ip_address(client.peer[0].partition("%")[0]).is_loopback:
        return None
    try:
        local = connect(bootstrap)
    except ClientError:
        return None
    try:
        local.operate("ping")
    except ClientError:
        local.close()
        return None
    return local


class LogFigures(NamedTuple):
    """The bytes of a log (None: unknown), and the times in ms of its last write and oldest record (-1: unknown)."""

    bytes: int | None
    newest_ms: int
    oldest_ms: int


def surveyed_logs(local: Client, errors: dict[Partition, str]) -> dict[Partition, LogFigures] | None:
    """Return sizes and times of all logs, which a kproc broker reads from the files without opening the logs.

    Return None if the broker does not report them. ListOffsets would make the broker open each log, which takes about 1
    ms each. Offline partitions are added to `errors`.
    """
    from kproc.client import ClientError

    try:
        answer = local.operate("logs")
    except ClientError:
        return None
    errors.update({(row["topic"], row["partition"]): row["reason"] for row in answer["offline"]["first"]})
    return {
        (topic["name"], number): LogFigures(size, newest_ms, oldest_ms)
        for topic in answer["topics"]
        for number, size, newest_ms, oldest_ms in topic["partitions"]
    }


def requested_logs(
    client: Client, partitions: list[Partition], gaps: Gaps, errors: dict[Partition, str]
) -> dict[Partition, LogFigures]:
    """Request the size and the times of the newest and oldest record of each log by Kafka's protocol.

    Offline partitions are added to `errors`.
    """
    from kproc.wire.header import ApiKey

    sizes = log_sizes(client, gaps, None)
    newest: dict[Partition, FoundOffset] = {}
    oldest: dict[Partition, FoundOffset] = {}
    if not gaps.lacks(client, ApiKey.LIST_OFFSETS, "last writes"):
        used = [each for each in partitions if sizes.get(each, 1)]
        newest = find_offsets(client, dict.fromkeys(used, MAX_TIMESTAMP), errors)
        oldest = find_offsets(client, dict.fromkeys(newest, _OLDEST), {})
    nowhere = FoundOffset(-1, -1)
    return {
        each: LogFigures(
            sizes.get(each), newest.get(each, nowhere).timestamp_ms, oldest.get(each, nowhere).timestamp_ms
        )
        for each in partitions
    }
