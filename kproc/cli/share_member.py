"""`kproc consume --share`: a member of a share group, which prints records and then accepts, rejects or releases them.

confluent-kafka's ShareConsumer reads the records. It is a preview, and exists since version 2.15.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from kproc.cli.common import Failure, usage_error
from kproc.cli.connection import client_id, connect_for_records, librdkafka_security
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.record_json import Consumed
from kproc.cli.record_reader import LEAVE_WITHIN_S, WAIT_S, AbsenceCheck

# Without --follow the command ends when no record has come for this long. A new member gets its first partitions within
# about 2 s.
IDLE_S: Final = 5.0
_POLL_RECORDS: Final = 500
_COMMIT_S: Final = 10.0


class Acknowledgement(Enum):
    """The type of acknowledgement for printed records (KIP-932)."""

    ACCEPT = "accepted"
    RELEASE = "released"
    REJECT = "rejected"


def choose_acknowledgement(
    group: str | None, excluded: Sequence[str], *, follow: bool, reject: bool, release: bool
) -> tuple[str, Acknowledgement]:
    """Return (group, type of acknowledgement). Raise a usage error for options that exclude each other.

    excluded: the given options that do not apply to share groups.
    """
    if not group:
        usage_error(
            "--share: must not be empty" if group == "" else "--reject and --release need --share GROUP"
        )
    if excluded:
        usage_error(f"--share and {excluded[0]} exclude each other: the share group chooses the records")
    if reject and release:
        usage_error("--reject and --release exclude each other")
    if release and follow:
        usage_error(
            "--release and --follow exclude each other: the group would offer the same records for ever"
        )
    return (
        group,
        Acknowledgement.REJECT if reject else Acknowledgement.RELEASE if release else Acknowledgement.ACCEPT,
    )


class ShareReader:
    """Reads records as a member of a share group. It has the interface of RecordReader.

    With Acknowledgement.RELEASE the group delivers released records again. The reader is done at the first repeated
    record, so that every record is printed once.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        acknowledgement: Acknowledgement,
        *,
        follow: bool,
        limit: int | None,
    ) -> None:
        consumer_class = _find_consumer()
        _check_group(bootstrap, topics)
        self._bootstrap = bootstrap
        self._group = group
        self._acknowledgement = acknowledgement
        self._follow = follow
        self._is_repeating = False
        self._idle_s = 0.0
        self._count = 0
        self._seen: set[tuple[str, int, int]] = set()
        self._fatal: str | None = None
        self._is_down = False
        self._watch = AbsenceCheck(bootstrap)
        self._consumer = consumer_class(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id(),
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": min(_POLL_RECORDS, limit or _POLL_RECORDS),
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,
                "error_cb": self._on_error,
                **librdkafka_security(),
            }
        )
        self._consumer.subscribe(list(topics))

    @property
    def is_done(self) -> bool:
        """True if the group has delivered no record for IDLE_S (without --follow), or a released record again."""
        return self._is_repeating or (not self._follow and self._idle_s >= IDLE_S)

    def read(self, limit: int) -> list[Consumed]:
        """Return up to `limit` records, or none if none came within WAIT_S. Release further and repeated records."""
        from confluent_kafka import AcknowledgeType, KafkaException

        from kproc.cli.record_sender import describe_error

        try:
            messages = self._consumer.poll(WAIT_S)
        except KafkaException as error:
            raise Failure(f"group {self._group}: reading failed: {describe_error(error.args[0])}") from error
        records: list[Consumed] = []
        for message in messages:
            problem = message.error()
            if problem is not None:
                self._fatal = self._fatal or describe_error(problem)
                continue
            record = Consumed(
                topic=message.topic(),
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
                key=message.key(),
                value=message.value(),
                headers=message.headers() or (),
            )
            if len(records) < limit and not self._is_shown(record):
                records.append(record)
            else:
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
        if (self._is_down or self._watch.is_away) and not records:
            self._is_down = False
            self._watch.check(follow=self._follow)
        self._idle_s = 0.0 if records else self._idle_s + WAIT_S
        if self._fatal is not None and not records:
            raise Failure(f"group {self._group}: reading failed: {self._fatal}")
        return records

    def _is_shown(self, record: Consumed) -> bool:
        """Return True if a record is delivered again after this command has released it."""
        if self._acknowledgement is not Acknowledgement.RELEASE:
            return False
        place = record.topic, record.partition, record.offset
        if place in self._seen:
            self._is_repeating = True
            return True
        self._seen.add(place)
        return False

    def printed(self, records: Sequence[Consumed]) -> None:
        """Accept, release or reject these printed records, as the options say, and wait until the broker has stored it.

        Print a note for each partition whose acknowledgements the broker rejects.
        """
        from confluent_kafka import AcknowledgeType

        kind = AcknowledgeType[self._acknowledgement.name]
        for record in records:
            self._consumer.acknowledge_offset(record.topic, record.partition, record.offset, kind)
        self._count += len(records)
        self._commit()

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        from kproc.cli.record_sender import describe_error

        try:
            results = self._consumer.commit_sync(_COMMIT_S)
        except KafkaException as error:
            raise Failure(
                f"group {self._group}: records not acknowledged: {describe_error(error.args[0])}"
            ) from error
        for partition, problem in results.items():
            if problem is not None:
                # The acknowledgement was rejected, for example because the acquisition lock has expired. The group
                # delivers these records again.
                print_note(
                    f"kproc: group {self._group}: records of {partition.topic}-{partition.partition} not "
                    f"{self._acknowledgement.value}: {describe_error(problem.args[0])}"
                )

    def close(self) -> None:
        """Leave the group. Wait at most LEAVE_WITHIN_S for the broker, as RecordReader does."""
        thread = threading.Thread(target=self._consumer.close, daemon=True)
        thread.start()
        thread.join(LEAVE_WITHIN_S)
        if thread.is_alive():
            raise Failure(f"{self._bootstrap} does not respond: ended without leaving group {self._group}")
        if not self._count:
            if not self.is_done:
                return  # A signal or an error has ended the command before the group had time to deliver records.
            print_note(
                f"kproc: group {self._group} delivered no records; a new share group starts at the end of its topics; "
                f"run `kproc config set --group {self._group} share.auto.offset.reset=earliest` before its first use "
                "to begin at the oldest record"
            )
        elif self._acknowledgement is not Acknowledgement.ACCEPT:
            print_note(f"kproc: {self._acknowledgement.value} {counted(self._count, 'record')}")

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        from kproc.cli.record_sender import describe_error

        # librdkafka connects again by itself, so with --follow the restart of a broker does not end the command.
        if self._follow and error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            self._is_down = True
        elif error.fatal() or not error.retriable():
            self._fatal = self._fatal or describe_error(error)


def _find_consumer() -> Callable[[dict[str, Any]], Any]:
    """Return confluent-kafka's class ShareConsumer. Raise a Failure if the installed version lacks it."""
    import confluent_kafka

    found: Callable[[dict[str, Any]], Any] | None = getattr(confluent_kafka, "ShareConsumer", None)
    if found is None:
        raise Failure(
            f"confluent-kafka {confluent_kafka.__version__} has no share consumer: install version 2.15 or later"
        )
    return found


def _check_group(bootstrap: str, topics: Sequence[str]) -> None:
    """Raise a Failure for an unknown topic or a broker without share groups. librdkafka would wait for ever."""
    from kproc.cli.topics import checked_topics
    from kproc.wire.header import ApiKey

    with connect_for_records(bootstrap) as client:
        checked_topics(client, list(topics))
        if ApiKey.SHARE_FETCH not in client.api_versions():
            raise Failure(
                f"{bootstrap} has no share groups: upgrade the broker (Kafka 4.1 and later have them)"
            )
