"""The change log: one INFO line for each request by which a client changed topics, settings, rights, users or groups.

    User:alice from 127.0.0.1 deleted topics (2): orders, payments

Every response but those of Produce and Fetch passes through `RequestContext.reply`. `reply` looks up the API in CHANGES
(change_descriptions.py), whose functions find the changed items in the request and its response. `reply` logs the line
before the client gets the response. A divided request collects the items of its slices and has one line. Rows with an
error, and requests that only validate, change nothing and are not logged.

A line has no secrets and a bounded length. The number in parentheses counts all items, and the texts are those of the
first ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.request.change_descriptions import (
    CHANGES,
    Described,
    Fields,
    described_operation,
    described_request,
    shown,
    succeeded,
)
from kproc.broker.security.audit import cut_message
from kproc.common.bounded import BoundedCache, short_name
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import OwnOperation
    from kproc.broker.group.messages import LeftMember
    from kproc.broker.request.context import RequestContext

logger = logging.getLogger(__name__)

# Items are formatted until their texts have this many characters together. security/audit.py bounds the bytes of the
# line.
_TEXT_MAX: Final = 1500
# Limits of the cache of (connection, group) pairs whose first commit without a member id is logged already.
_COMMITS_KEPT: Final = 1000
_COMMITS_BYTES_MAX: Final = 1 << 18


class ChangeLine:
    """The line about the changes of one request: the number of items, and the texts of the first ones."""

    __slots__ = ("_count", "_did", "_left", "_texts")

    def __init__(self) -> None:
        self._did = ""
        self._count = 0
        self._texts: list[str] = []
        self._left = _TEXT_MAX

    def add(self, described: Described) -> None:
        """Add the items that one request, or one slice of a divided request, has changed."""
        self._did = described.did
        for item in described.items:
            self._count += 1
            if self._left > 0:
                text = described.format_item(item)
                self._left -= len(text)
                self._texts.append(text)

    def log(self, context: RequestContext) -> None:
        """Log the line, unless nothing was changed."""
        if not self._count:
            return
        who, where = shown(str(context.principal)), context.client_host.removeprefix("/")
        text = f"{who} from {where} {self._did} ({self._count}): {', '.join(self._texts)}"
        more = self._count - len(self._texts)
        logger.info("%s", cut_message(f"{text} and {more} more" if more else text))


class ChangeLog:
    """Writes a log line for each administrative change that one role handles, with principal and address."""

    __slots__ = ("_commits",)

    def __init__(self) -> None:
        # A consumer with manually assigned partitions commits without a member id, as tools that reset offsets do. It
        # does so for hours, so only a connection's first such commit to a group is logged.
        self._commits: BoundedCache[tuple[int, str], None] = BoundedCache(_COMMITS_KEPT, _COMMITS_BYTES_MAX)

    def log_response(self, context: RequestContext, response: Fields) -> None:
        """Log the changes that an administrative request (an API in CHANGES) has made."""
        # `decoded` is None for a divided request. DividedRequest collects the changes of its slices and logs them
        # itself.
        if context.decoded is not None:
            line = ChangeLine()
            self.collect(context, context.decoded, response, line)
            self.finish(context, line)

    def collect(self, context: RequestContext, request: Fields, response: Fields, line: ChangeLine) -> None:
        """Add to `line` the items that a request, or one slice of it, has changed."""
        # The change is made already. A bug in its description must not answer the client with an error.
        context.services.containment.run(
            "the description of a change", None, self._collect, context, request, response, line
        )

    def finish(self, context: RequestContext, line: ChangeLine) -> None:
        """Log the changes of a request that were collected in `line`."""
        context.services.containment.run("the log line of a change", None, line.log, context)

    def _collect(self, context: RequestContext, request: Fields, response: Fields, line: ChangeLine) -> None:
        if request.get("validate_only") or response.get("error_code"):
            return
        described = CHANGES[context.api_key](request, response)
        if described is None:
            return
        if context.api_key == ApiKey.OFFSET_COMMIT and not self._is_first_commit(context, request):
            return
        line.add(described)

    def _is_first_commit(self, context: RequestContext, request: Fields) -> bool:
        key = context.connection_id, short_name(request["group_id"])
        try:
            self._commits[key]
        except KeyError:
            self._commits.put(key, None, len(key[1]))
            return True
        return False

    def log_operation(self, context: RequestContext, operation: OwnOperation, result: Fields) -> None:
        """Log one of kproc's own operations that has succeeded, if it changes something."""
        described = described_operation(operation, result)
        if described is not None:
            self._log(context, described)

    def log_request(self, context: RequestContext, operation: OwnOperation) -> None:
        """Log one of kproc's own operations that ends this role, before it is carried out. Log no other operation."""
        described = described_request(operation)
        if described is not None:
            self._log(context, described)

    def log_created_topics(self, context: RequestContext, rows: Iterable[Fields]) -> None:
        """Log topics that were created because a request named them (auto.create.topics.enable)."""
        self._log(context, Described("created topics automatically", succeeded(rows), shown))

    def log_aborted_transaction(self, context: RequestContext, transactional_id: str) -> None:
        """Log that a new producer of a transactional id, or an administrator, has aborted its open transaction.

        The response of that InitProducerId is an error that asks for a retry, so `log_response` does not log it.
        """
        self._log(
            context, Described("aborted open transactions of transactional ids", [transactional_id], shown)
        )

    def log_removed_members(
        self, context: RequestContext, group_id: str, members: Sequence[LeftMember]
    ) -> None:
        """Log the group's members that an administrator has removed, as Admin.removeMembersFromConsumerGroup does."""

        def format_member(member: LeftMember) -> str:
            address = member.client_host.removeprefix("/")
            # A static member is removed by its instance id.
            name = member.member_id or member.group_instance_id or ""
            return f"{shown(name)} (client {shown(member.client_id)}, {address})"

        self._log(context, Described(f"removed members of group {shown(group_id)}", members, format_member))

    def _log(self, context: RequestContext, described: Described) -> None:
        line = ChangeLine()
        line.add(described)
        self.finish(context, line)
