"""What a broker refuses while librdkafka tries again: it tells nobody until a record's time is over, minutes later.

The one place where the reason stands is librdkafka's debug log of message sets, a line for each answer with an error.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from kproc.cli.lines import print_note
from kproc.common.errors import ErrorCode

DEBUG: Final = "msg"
"""What librdkafka has to log: a line or two for each request."""
_TELL_AFTER_S: Final = 1.0  # A leader that has just moved is no news.
_REPEAT_S: Final = 10.0
_REFUSED: Final = re.compile(r"MessageSet .* encountered error: (.*) \(actions [^)]*Retry")


class Refusals(logging.Handler):
    """Notes the last error of the broker, and tells it when nothing has been delivered for a while."""

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
        """One line of librdkafka's."""
        if found := _REFUSED.search(record.getMessage()):
            now_s = time.monotonic()
            if self._since_s is None:
                self._since_s, self._tell_at_s = now_s, now_s + _TELL_AFTER_S
            self.last = named(found.group(1))

    def delivered(self) -> None:
        """A record arrived: whatever was wrong is over."""
        self._since_s = self.last = None

    def tell(self) -> None:
        """A line on the standard error, if it is time for one."""
        now_s = time.monotonic()
        if self._since_s is not None and now_s >= self._tell_at_s:
            self._tell_at_s = now_s + _REPEAT_S
            print_note(f"kproc: {self._topic}: refused with {self.last}; trying again, Ctrl-C ends it")


def named(text: str) -> str:
    """Kafka's name of the error that librdkafka has these words for."""
    from confluent_kafka import KafkaError

    words = text.removeprefix("Broker: ")
    for code in ErrorCode:
        if KafkaError(int(code)).str() == text:
            return f"{code.name} ({words})"
    return words
