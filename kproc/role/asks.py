"""Questions over control sockets: {"do": "ask", token, what, body}, answered by {"do": "answer", token, reply}.

The supervisor asks its children, the controller asks the supervisor. Whoever waits is answered in any case: with
{"lost": True} when the asked one has ended, or has not answered in time where a time was set: one that is stopped
neither answers nor ends. Answers may come in any order and at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final

Reply = dict[str, Any]
OnReply = Callable[[Reply], None]
Send = Callable[[dict[str, Any]], None]
LOST: Reply = {"lost": True}
LOG_LEVELS: Final = "log_levels"  # Asked of the supervisor by the controller, and then of every role.


class Asks:
    """The questions that one process has open, by token."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Hashable, OnReply]] = {}
        self._deadlines: dict[int, int] = {}
        self._tokens = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def ask(
        self,
        whom: Hashable,
        send: Send,
        what: str,
        body: dict[str, Any],
        on_reply: OnReply,
        *,
        until_ns: int | None = None,
    ) -> None:
        """Ask; `send` gets the message, which it may lose if `whom` has ended: then `lose` must follow.

        `expire` gives up waiting at `until_ns`; None: `whom` has all the time it wants.
        """
        token = next(self._tokens)
        self._open[token] = (whom, on_reply)
        if until_ns is not None:
            self._deadlines[token] = until_ns
        send({"do": "ask", "token": token, "what": what, "body": body})

    def take(self, message: dict[str, Any]) -> None:
        """An answer came."""
        self._end(message["token"], message["reply"])

    def lose(self, whom: Hashable) -> None:
        """`whom` has ended: nothing more comes from there."""
        for token in [token for token, (asked, _) in self._open.items() if asked == whom]:
            self._end(token, LOST)

    def expire(self, now_ns: int) -> None:
        """Whoever should have answered by now is not waited for any more."""
        for token in [token for token, until_ns in self._deadlines.items() if until_ns <= now_ns]:
            self._end(token, LOST)

    def _end(self, token: int, reply: Reply) -> None:
        self._deadlines.pop(token, None)
        found = self._open.pop(token, None)
        if found is not None:  # Else the asked one was given up.
            found[1](reply)


class Gathering:
    """One question to several: calls back with every reply, once the last has come."""

    def __init__(self, count: int, on_all: Callable[[dict[Hashable, Reply]], None]) -> None:
        self._missing = count
        self._on_all = on_all
        self._replies: dict[Hashable, Reply] = {}
        if not count:
            on_all({})

    def taker(self, whom: Hashable) -> OnReply:
        """What takes the reply of `whom`."""

        def take(reply: Reply) -> None:
            self._replies[whom] = reply
            self._missing -= 1
            if not self._missing:
                self._on_all(self._replies)

        return take


def answer(token: int, reply: Reply) -> dict[str, Any]:
    """The message that answers."""
    return {"do": "answer", "token": token, "reply": reply}
