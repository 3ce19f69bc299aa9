"""The audit log: one line for each decision about a client, in Kafka's format and under its logger's name.

Denials are logged at INFO, what was allowed at DEBUG, and questions (a list leaves out what its reader may not see) at
TRACE. A line is made only if its level is on. Whoever reads standard error slowly loses lines and never holds up a
Handler: see `WithoutWaiting`.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from typing import Final

from kproc.printable import printable
from kproc.security.acl import Operation, ResourceType

LOGGER_NAME: Final = "kafka.authorizer.logger"
_TRACE: Final = 5
# A pipe that can be written to has room for PIPE_BUF, 4096 bytes. With what stands in front, and twice as long if a
# line of JSON escapes all of it, a message below this is written at once and whole.
_MESSAGE_BYTES_MAX: Final = 1900
# Clients choose names: so much of one is shown.
_NAME_MAX: Final = 500

audit_logger = logging.getLogger(LOGGER_NAME)
logger = logging.getLogger(__name__)


def level_of(is_allowed: bool, is_question: bool) -> int:
    """The level at which Kafka logs such a decision."""
    if is_question:
        return _TRACE
    return logging.DEBUG if is_allowed else logging.INFO


def message(
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    is_allowed: bool,
    request: str,
    rule: str,
    count: int,
) -> str:
    """The line about one decision. `request` is the API's name, as Kafka writes it; `rule` what decided."""
    text = (
        f"Principal = {shown(principal)} is {'Allowed' if is_allowed else 'Denied'} "
        f"operation = {operation.name} from host = {host} "
        f"on resource = {pascal_case(resource_type.name)}:LITERAL:{shown(name)} for request = {request} "
        f"with resourceRefCount = {count} based on rule {printable(rule)}"
    )
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _MESSAGE_BYTES_MAX:
        text = encoded[:_MESSAGE_BYTES_MAX].decode("utf-8", "ignore") + "..."
    return text


def pascal_case(name: str) -> str:
    """TRANSACTIONAL_ID as Kafka writes it: TransactionalId."""
    return "".join(word.capitalize() for word in name.split("_"))


def shown(name: str) -> str:
    """What a client called something, cut if it is long."""
    return printable(name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 3]}...")


class WithoutWaiting(logging.Filter):
    """Lets a line pass if it can be written at once; counts the others, and says how many there were.

    `descriptor` tells where lines are written now, or None if that cannot be known.
    """

    def __init__(self, descriptor: Callable[[], int | None]) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self._lost and self._has_room():
            lost, self._lost = self._lost, 0
            logger.warning("lines of the audit log lost, standard error is read too slowly: %d", lost)
        if self._has_room():
            return True
        self._lost += 1
        return False

    def _has_room(self) -> bool:
        descriptor = self._descriptor()
        return descriptor is None or has_room(descriptor)


def has_room(descriptor: int) -> bool:
    """Whether a line can be written there without waiting for a reader."""
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poll.poll(0))
    except OSError:
        return True  # Not a thing that can be waited for.
