"""The audit log: one line for each decision about a client, in Kafka's format and under its logger's name.

Denials are logged at INFO, permissions at DEBUG, and questions at TRACE. A question is no attempt by the client: for
example, a list leaves out the names that its reader may not see. A line is formatted only if its level is on. Each
Handler logs at most LINES_PER_SECOND of a level, because a client can cause any number of denials, and one line with
the number of the others.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.log_rate import LogRate
from kproc.common.printable import printable

LOGGER_NAME: Final = "kafka.authorizer.logger"
_TRACE: Final = 5
# A write of at most PIPE_BUF (4096) bytes to a pipe is atomic. A line of this length stays below that limit even with
# its prefix and if JSON escapes each byte. Otherwise lines of several processes could mix.
_MESSAGE_BYTES_MAX: Final = 1900
# A line shows only the beginning of a long name, because clients choose names and the whole line must stay short.
_NAME_MAX: Final = 500

LINES_PER_SECOND: Final = 100

audit_logger = logging.getLogger(LOGGER_NAME)


class AuditRates:
    """Rate limits of one Handler's audit lines, one for each level, so that permissions do not displace denials."""

    __slots__ = ("_by_level",)

    def __init__(self) -> None:
        self._by_level: dict[int, LogRate] = {}

    def has_room(self, level: int, now_ns: int) -> bool:
        """Return True if one more audit line of that level may be logged now. Otherwise count it as suppressed."""
        rate = self._by_level.get(level)
        # Create a level's limit at its first line, because usually only one level is enabled.
        if rate is None:
            more = f"and %d more decisions at level {logging.getLevelName(level)}"
            rate = self._by_level[level] = LogRate(audit_logger, more, lines_per_second=LINES_PER_SECOND)
        return rate.has_room(now_ns)

    def report_suppressed(self, now_ns: int) -> None:
        """Log how many decisions of the last second had no line of their own."""
        for rate in self._by_level.values():
            rate.report_suppressed(now_ns)


def level_of(is_allowed: bool, is_question: bool) -> int:
    """Return the log level of a decision, as in Kafka.

    It is TRACE for a question, DEBUG for a permission, and INFO for a denial.
    """
    # A question, such as which topics Metadata may list, is no attempt of the client. Kafka does not log it as a denial
    # either.
    if is_question:
        return _TRACE
    return logging.DEBUG if is_allowed else logging.INFO


class AuditRecord(NamedTuple):
    """A decision about one operation of a client, as the audit log shows it."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str
    is_allowed: bool
    request: str  # Kafka's name of the API.
    rule: str  # The rule that decided, as in Kafka: "SuperUser", "DefaultDeny" or the ACL.
    reference_count: int  # The number of times that the request names the resource.


def message(record: AuditRecord) -> str:
    """Format a decision as Kafka's audit log does."""
    text = (
        f"Principal = {shown(record.principal)} is {'Allowed' if record.is_allowed else 'Denied'} "
        f"operation = {record.operation.name} from host = {record.host} "
        f"on resource = {pascal_case(record.resource_type.name)}:LITERAL:{shown(record.name)} "
        f"for request = {record.request} with resourceRefCount = {record.reference_count} "
        f"based on rule {printable(record.rule)}"
    )
    return cut_message(text)


def cut_message(text: str) -> str:
    """Shorten a log message, so that its line fits into one atomic write to a pipe."""
    # Cut by bytes and not by characters, because the limit of an atomic write counts bytes.
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _MESSAGE_BYTES_MAX:
        text = encoded[:_MESSAGE_BYTES_MAX].decode("utf-8", "ignore") + "..."
    return text


def pascal_case(name: str) -> str:
    """Convert TRANSACTIONAL_ID to TransactionalId, as Kafka's audit log writes it."""
    return "".join(word.capitalize() for word in name.split("_"))


def shown(name: str) -> str:
    """Make a name that a client chose printable, and shorten it if it is long."""
    return printable(name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 3]}...")
