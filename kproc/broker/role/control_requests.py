"""ControlRequests: requests over control sockets and their replies.

    request {"do": "ask", token, what, body}     reply {"do": "answer", token, reply}

The supervisor sends requests to its children, and the controller to the supervisor. Every request gets a reply. The
reply is {"lost": True} if the other process has ended, or has not replied within the request's time limit. The limit is
needed for a stopped process (SIGSTOP), which neither replies nor ends. Replies may come in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final

Reply = dict[str, Any]
OnReply = Callable[[Reply], None]
Send = Callable[[dict[str, Any]], None]
LOST: Reply = {"lost": True}
LOOK_UP: Final = "look_up"  # The supervisor sends this to the controller: {"host"}, answered by {"found"}.
REOPEN_LOG: Final = "reopen_log"  # The supervisor sends this to every role at SIGHUP.
SNAPSHOTS: Final = "snapshots"  # The controller sends this to the supervisor (supervisor/snapshots.py).
LOG_LEVELS: Final = "log_levels"  # The controller sends this to the supervisor, which sends it to every role.
MOVE_TIME: Final = "move_time"  # The controller sends this to the supervisor (supervisor/broker_time.py).
FOLLOW_TIME: Final = "follow_time"  # The supervisor sends this to every role after a MOVE_TIME.


class ControlRequests:
    """The requests over control sockets that this process has sent and that are not answered yet, by token."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Hashable, OnReply]] = {}
        self._deadlines: dict[int, int] = {}
        self._tokens = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def send_request(
        self,
        receiver: Hashable,
        send: Send,
        what: str,
        body: dict[str, Any],
        on_reply: OnReply,
        *,
        until_ns: int | None = None,
    ) -> None:
        """Send the request `what` by `send`. If `send` drops it, because `receiver` has ended, the caller calls `fail`.

        `expire` answers the request with {"lost": True} at `until_ns`. None means no time limit.
        """
        token = next(self._tokens)
        self._open[token] = (receiver, on_reply)
        if until_ns is not None:
            self._deadlines[token] = until_ns
        send({"do": "ask", "token": token, "what": what, "body": body})

    def handle_answer(self, message: dict[str, Any]) -> None:
        """Pass a reply to the callback of its request."""
        self._respond(message["token"], message["reply"])

    def fail(self, receiver: Hashable) -> None:
        """Answer every request to `receiver`, which has ended, with {"lost": True}."""
        for token in [token for token, (each, _) in self._open.items() if each == receiver]:
            self._respond(token, LOST)

    def expire(self, now_ns: int) -> None:
        """Answer every request whose time limit is over with {"lost": True}."""
        for token in [token for token, until_ns in self._deadlines.items() if until_ns <= now_ns]:
            self._respond(token, LOST)

    def _respond(self, token: int, reply: Reply) -> None:
        self._deadlines.pop(token, None)
        found = self._open.pop(token, None)
        if found is not None:  # None: the request has expired.
            found[1](reply)


class Gathering:
    """One request to `count` roles. It calls `on_all` with all replies when the last one has come.

    If `count` is 0, it calls `on_all` at once, without replies.
    """

    def __init__(self, count: int, on_all: Callable[[dict[Hashable, Reply]], None]) -> None:
        self._missing = count
        self._on_all = on_all
        self._replies: dict[Hashable, Reply] = {}
        if not count:
            on_all({})

    def receiver(self, sender: Hashable) -> OnReply:
        """Return a callback that stores the reply of `sender`."""

        def receive(reply: Reply) -> None:
            self._replies[sender] = reply
            self._missing -= 1
            if not self._missing:
                self._on_all(self._replies)

        return receive


def answer(token: int, reply: Reply) -> dict[str, Any]:
    """Return the message that carries a reply."""
    return {"do": "answer", "token": token, "reply": reply}
