"""Records in flight and dead letters of share groups, for `kproc group describe`.

Kafka's APIs do not report records in flight. A kproc broker on this host counts them by the own operation
`share-records`. Dead letters are the records of the group's dead letter topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.common import request_metadata
from kproc.cli.config_requests import GROUP, Resource, describe_configs
from kproc.cli.offsets import find_offsets
from kproc.cli.topic_usage import Gaps, connect_locally
from kproc.cli.unserved import Partition
from kproc.common.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from kproc.client import Client

UNCOUNTED: Final[Mapping[str, Any]] = {"in_flight": None, "acquired": None, "deliveries": None}
"""The counts of a partition whose records in flight are unknown."""
PARTITIONS_AT_ONCE: Final = 100
"""The broker's limit of the partitions of one request (calls/own_operations.py)."""
_DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"


def records_in_flight(
    client: Client, bootstrap: str, partitions: Mapping[str, Iterable[Partition]], gaps: Gaps
) -> dict[str, dict[Partition, dict[str, Any]]]:
    """Return by group and partition the numbers of records in flight, of acquired ones, and by delivery count.

    Only a kproc broker on this host can count them: from any other one the result is empty. An error of the broker is
    added to `gaps`.
    """
    local = connect_locally(client, bootstrap)
    if local is None:
        return {}
    with local:
        return {group: _counts(local, group, sorted(each), gaps) for group, each in partitions.items()}


def _counts(
    local: Client, group: str, partitions: list[Partition], gaps: Gaps
) -> dict[Partition, dict[str, Any]]:
    from kproc.client import ClientError

    found: dict[Partition, dict[str, Any]] = {}
    for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
        some = partitions[start : start + PARTITIONS_AT_ONCE]
        try:
            answer = local.operate("share-records", group=group, partitions=some)
        except ClientError as error:
            gaps.add("records in flight", str(error))
            break
        for row in answer.rows("partitions"):
            found[row["topic"], row["partition"]] = {
                "in_flight": row["in_flight"],
                "acquired": row["acquired"],
                "deliveries": {str(count): records for count, records in row["deliveries"]},
            }
    return found


def dead_letters(client: Client, groups: list[str], gaps: Gaps) -> dict[str, tuple[str, int | None]]:
    """Return by group its dead letter topic and the number of that topic's records. Groups without one are missing.

    Groups can share a dead letter topic, so the number can include the letters of other groups. It is None if the topic
    does not exist, or if the user may not read it; the reason is added to `gaps`.
    """
    from kproc.client import error_text

    rows = describe_configs(client, [Resource(GROUP, name) for name in groups], [_DEAD_LETTER_TOPIC])
    topics: dict[str, str] = {}
    for row in rows:
        if row["error_code"]:
            gaps.add(f"dead letters of {row['resource_name']}", error_text(row["error_code"]))
        # Kafka before 4.4 has no such setting.
        values = [each["value"] for each in row["configs"] if each["value"]]
        if values:
            topics[row["resource_name"]] = values[0]
    counts = _record_counts(client, sorted(set(topics.values())), gaps)
    return {group: (topic, counts.get(topic)) for group, topic in topics.items()}


def _record_counts(client: Client, topics: list[str], gaps: Gaps) -> dict[str, int]:
    """Return by topic the number of offsets between the start and the end of its logs.

    Topics that do not exist or that cannot be read are missing, and are added to `gaps`.
    """
    from kproc.client import error_text

    if not topics:
        return {}
    metadata = request_metadata(client, topics)["topics"]
    numbers = {
        row["name"]: [each["partition_index"] for each in row["partitions"]]
        for row in metadata
        if not row["error_code"]
    }
    partitions = [(topic, number) for topic, each in numbers.items() for number in each]
    errors: dict[Partition, str] = {}
    starts, ends = (
        find_offsets(client, dict.fromkeys(partitions, timestamp), errors) for timestamp in (EARLIEST, LATEST)
    )
    reasons = {topic: reason for (topic, _), reason in errors.items()}
    reasons |= {row["name"]: error_text(row["error_code"]) for row in metadata if row["error_code"]}
    for topic, reason in reasons.items():
        gaps.add(f"number of dead letters in {topic}", reason)
    return {
        topic: sum(ends[topic, number].offset - starts[topic, number].offset for number in each)
        for topic, each in numbers.items()
        if topic not in reasons
    }
