"""Calls of a share session to the owners of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.peers.registered_calls import REGISTERED_CALLS
from kproc.broker.share.partition.messages import SHARE_RELEASE, ReleaseHolder

if TYPE_CHECKING:
    from kproc.broker.request.context import Services
    from kproc.broker.share.session.sessions import ShareSession


def call_owner(
    services: Services, owner: int, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]
) -> None:
    """Call the owner of partitions, without a message if it is this Handler. `on_reply` may be called at once."""
    if owner != services.handler_index:
        services.peers.ask(owner, call, body, on_reply)
        return

    def on_result(result: R | None) -> None:
        on_reply(Lost() if result is None else result)

    REGISTERED_CALLS[call.name].handle(services, body, on_result)


def release_at(services: Services, session: ShareSession, owner: int) -> None:
    """Release the records that an ended session holds at one owner."""
    body = ReleaseHolder(services.image.version, session.holder)
    call_owner(services, owner, SHARE_RELEASE, body, lambda _reply: None)


def release_session(services: Services, session: ShareSession) -> None:
    """Release the records that an ended session holds, at each owner that it has called.

    If acknowledgements of the session are not sent yet, their end releases the records (acknowledge.py).
    """
    # An owner rejects the acknowledgement of a released record, and delivers the record again.
    session.is_release_due = session.unsent_count > 0
    if session.is_release_due:
        return
    owners, session.owners = session.owners, set()
    for owner in owners:
        release_at(services, session, owner)


def close_sessions(services: Services, connection_id: int) -> None:
    """Close the share sessions of a connection that was closed or has another home now, and release their records."""
    for session in services.owner.share_sessions.close_connection(connection_id):
        release_session(services, session)


def close_all_sessions(services: Services) -> None:
    """Close all share sessions, because this Handler is leaving. Their connections get other homes."""
    for session in services.owner.share_sessions.close_all():
        release_session(services, session)
