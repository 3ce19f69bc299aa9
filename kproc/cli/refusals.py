"""Reports errors of the broker that librdkafka retries. librdkafka itself reports them only at a record's timeout.

The timeout takes minutes. Only librdkafka's debug log of message sets has the reason, in a line for each response with
an error.
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
# Shorter errors are normal, for example when a partition has just changed its leader.
_TELL_AFTER_S: Final = 1.0
_REPEAT_S: Final = 10.0
_REFUSED: Final = re.compile(r"MessageSet .* encountered error: (.*) \(actions [^)]*Retry")


class Refusals(logging.Handler):
    """Stores the broker's last error, and reports it if no record has been delivered for a while."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._since_s: float | None = None
        self._tell_at_s = 0.0
        self.last: str | None = None
        self.logger = logging.getLogger("kproc.librdkafka")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Read one line of librdkafka's log."""
        if found := _REFUSED.search(record.getMessage()):
            now_s = time.monotonic()
            if self._since_s is None:
                self._since_s, self._tell_at_s = now_s, now_s + _TELL_AFTER_S
            self.last = named(found.group(1))

    def delivered(self) -> None:
        """Forget the error, because a record was delivered."""
        self._since_s = self.last = None

    def report(self) -> None:
        """Print the error on standard error if it has lasted long enough, and every 10 s after that."""
        now_s = time.monotonic()
        if self._since_s is not None and now_s >= self._tell_at_s:
            self._tell_at_s = now_s + _REPEAT_S
            print_note(f"kproc: {self._topic}: refused with {self.last}; trying again, Ctrl-C ends it")


def named(text: str) -> str:
    """Return Kafka's name of an error with librdkafka's text for it, or the text alone if it is unknown."""
    from confluent_kafka import KafkaError

    words = text.removeprefix("Broker: ")
    for code in ErrorCode:
        if KafkaError(int(code)).str() == text:
            return f"{code.name} ({words})"
    return words
