"""Where the commands get a broker's status: from the broker, or from its supervisor when a role hangs.

The supervisor has a window of its own (server/status_window.py), for processes of the same host, as `status` itself is.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kproc.cli.common import connect
from kproc.cli.failure import DEFAULT_PORT

if TYPE_CHECKING:
    from kproc.client import Client

_PATIENCE_MS: Final = 1500
"""A broker under load answers in less; a person does not like to wait longer without a word."""
_NEXT_PATIENCE_MS: Final = 300
"""Once it has not answered: then every question is one more wait."""
_ANSWER_MS: Final = 10_000
_WINDOW_MS: Final = 1000


class StatusSource:
    """Status as often as it is wanted. Owned by one thread; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: Client | None = None
        self.notice: str | None = None
        """Why the last answer is the supervisor's; None: it is the broker's."""

    def ask(self) -> dict[str, Any]:
        """The broker's answer; its supervisor's if the broker gives none in time; else the broker's after all."""
        from kproc.client import AnswerTimeout, ConnectionFailed, ConnectionLost

        patience_ms = _PATIENCE_MS if self.notice is None else _NEXT_PATIENCE_MS
        try:
            answer = self._ask(patience_ms)
        except (AnswerTimeout, ConnectionFailed, ConnectionLost) as error:
            self.close()
            known = _from_window(_ports(self._bootstrap))
            if known is None:
                if isinstance(error, (ConnectionFailed, ConnectionLost)):
                    raise
                self.notice = None
                return self._ask(_ANSWER_MS)
            self.notice = f"{error}; this is what its supervisor knows"
            return known
        self.notice = None
        return answer

    def _ask(self, timeout_ms: int) -> dict[str, Any]:
        if self._client is None:
            self._client = connect(self._bootstrap, timeout_ms=timeout_ms)
        self._client.timeout_ms = timeout_ms
        return self._client.operate("status")

    def close(self) -> None:
        """The next question makes a connection of its own."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()


def _ports(bootstrap: str) -> set[str]:
    last = (item.rpartition(":") for item in bootstrap.split(","))
    return {port if colon and port.isdecimal() else str(DEFAULT_PORT) for _, colon, port in last}


def _from_window(ports: set[str]) -> dict[str, Any] | None:
    """The status of the broker of this host that listens at one of these ports."""
    from kproc.client import ClientError
    from kproc.role.port_holder import holds_any
    from kproc.server.status_window import WINDOW_PREFIX, look_in

    for name in _window_names(WINDOW_PREFIX):
        answer = look_in(name, timeout_ms=_WINDOW_MS)
        if answer is None:
            pid = name.removeprefix(WINDOW_PREFIX)
            if _is_stopped(pid) and holds_any(int(pid), {int(port) for port in ports}):
                raise ClientError(f"the broker is stopped: its supervisor, pid {pid}, has had a SIGSTOP")
            continue
        bound = [listener["bound"] for listener in answer["listeners"].values()]
        if ports & {str(each).rpartition(":")[2] for each in (*bound, answer["control"]) if each}:
            return answer
    return None


def _window_names(prefix: str) -> Iterator[str]:
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        names = {line.rstrip("\n").rpartition(" ")[2] for line in file}
    yield from sorted(name.removeprefix("@") for name in names if name.startswith(f"@{prefix}"))


def _is_stopped(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
