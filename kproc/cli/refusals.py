"""Reports errors of the broker that librdkafka retries silently until a record's timeout, which takes minutes.

Only librdkafka's debug log (context msg) has the reason, in a line for each Produce response with an error.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from kproc.cli.lines import print_note
from kproc.common.errors import ErrorCode

DEBUG: Final = "msg"
"""librdkafka's debug context that logs the errors of message sets, in a line or two for each request."""
# Report an error only if it has lasted this long. Shorter ones are normal, for example when a partition changes its
# leader.
_TELL_AFTER_S: Final = 1.0
_LOCAL: Final = "Local: "  # librdkafka's prefix for errors that it found itself, such as a timeout.
_REFUSED: Final = re.compile(r"MessageSet .* encountered error: (.*) \(actions [^)]*Retry")


class Refusals(logging.Handler):
    """Stores the last error in librdkafka's debug log, and reports it once if no record has been delivered for 1 s."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        super().__init__()
        self._topic = topic
        self._bootstrap = bootstrap
        self._since_s: float | None = None
        self._last: str | None = None
        self._reported: str | None = None  # The error in the last printed line.
        self.logger = logging.getLogger("kproc.librdkafka")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.handlers = [self]

    def reason(self) -> str | None:
        """Return why the last records were not stored, or None without an error. Can send a request for the status."""
        if self._last is None:
            return None
        is_storage_error = self._last.endswith(f"({ErrorCode.KAFKA_STORAGE_ERROR.name})")
        if is_storage_error and _is_disk_full(self._bootstrap):
            return "the broker's disk is full"
        if self._last.startswith(_LOCAL):
            return f"the last request failed: {self._last.removeprefix(_LOCAL)}"
        return f"the broker's last error was {self._last}"

    def emit(self, record: logging.LogRecord) -> None:
        """Store the error in a line of librdkafka's debug log, if the line says that a message set is retried."""
        if found := _REFUSED.search(record.getMessage()):
            if self._since_s is None:
                self._since_s = time.monotonic()
            self._last = named(found.group(1))

    def delivered(self) -> None:
        """Discard the error, because a record was delivered. Print a note if the error was printed."""
        if self._reported is not None:
            print_note(f"kproc: {self._topic}: the broker accepts records again")
        self._since_s = self._last = self._reported = None

    def report(self) -> None:
        """Print the error on standard error if it has lasted for 1 s. Print it again only if it changes."""
        if self._since_s is None or self._last == self._reported:
            return
        if time.monotonic() < self._since_s + _TELL_AFTER_S:
            return
        self._reported = self._last
        print_note(f"kproc: {self._topic}: {self.reason()}; trying again, Ctrl-C ends it")


def named(text: str) -> str:
    """Return librdkafka's text for an error, followed by the name of Kafka's error code if it is known."""
    from confluent_kafka import KafkaError

    words = text.removeprefix("Broker: ")
    for code in ErrorCode:
        if KafkaError(int(code)).str() == text:
            return f"{words} ({code.name})"
    return words


def _is_disk_full(bootstrap: str) -> bool:
    """Return True if the broker's status says that its disk is full."""
    from kproc.cli.status_source import StatusSource

    with StatusSource(bootstrap) as source:
        status = source.find_status()
    return status is not None and bool(status.get("disk", {}).get("is_full"))
