"""Requests a broker's status for the commands: from the broker, or from its supervisor if a role hangs.

The supervisor answers at its own Unix socket (supervisor/status_window.py), but only to processes of the same host. The
broker also sends its status only to its own host.
"""

from __future__ import annotations

import contextlib
import pwd
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kproc.cli.connection import connect
from kproc.cli.failure import DEFAULT_PORT, Failure

if TYPE_CHECKING:
    from kproc.broker.supervisor.broker_process import VerifiedBroker
    from kproc.client import Client

_PATIENCE_MS: Final = 1500
"""Time that the broker has to answer before the supervisor is asked. A broker under load answers sooner."""
_NEXT_PATIENCE_MS: Final = 300
"""Limit for the requests after a timeout. It is short, because each further request to a hung broker waits again."""
_ANSWER_MS: Final = 10_000
_WINDOW_MS: Final = 1000


class StatusSource:
    """A context manager that requests the status repeatedly over one connection. Only one thread may use it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client: Client | None = None
        self.notice: str | None = None
        """The reason why the last status came from the supervisor, or None if it came from the broker."""

    def request_status(self) -> dict[str, Any]:
        """Return the status from the broker, or from its supervisor if the broker does not answer in time.

        If neither answers, raise ConnectionFailed or ConnectionLost if the broker cannot be reached. If the broker is
        only slow, request the status again and wait up to _ANSWER_MS.
        """
        from kproc.client import AnswerTimeout, ConnectionFailed, ConnectionLost

        patience_ms = _PATIENCE_MS if self.notice is None else _NEXT_PATIENCE_MS
        try:
            answer = self._request_from_broker(patience_ms)
        except (AnswerTimeout, ConnectionFailed, ConnectionLost) as error:
            self.close()
            # Look for a supervisor only if the address is of this host: a broker of this host may listen at the same
            # port as the remote one.
            known = _from_window(_ports(self._bootstrap)) if is_of_this_host(self._bootstrap) else None
            if known is None:
                if isinstance(error, (ConnectionFailed, ConnectionLost)):
                    raise
                self.notice = None
                return self._request_from_broker(_ANSWER_MS)
            self.notice = f"{error}; this is what its supervisor knows"
            return known
        self.notice = None
        return answer

    def find_status(self) -> dict[str, Any] | None:
        """Return the status, or None for any error: the broker is Kafka, denies the status, or cannot be reached."""
        from kproc.client import ClientError
        from kproc.common.errors import KafkaError

        try:
            return self.request_status()
        except (ClientError, KafkaError, Failure, OSError):
            return None

    def open_process(self, status: dict[str, Any]) -> VerifiedBroker:
        """Open the broker's process that `status` names. Raise NotABroker unless the kernel confirms the claim.

        Any user can listen at a port and send a false status. So the process must have locked the data directory in the
        status, and listen at the address from which the status came. A status from a supervisor was already verified to
        come from root or our own user.
        """
        from kproc.broker.supervisor.broker_process import VerifiedBroker, claim_in

        claim = claim_in(status)
        with ExitStack() as stack:
            process = stack.enter_context(VerifiedBroker(claim.pid))
            process.require(claim)
            if self._client is not None:
                process.require_listens_at(*self._client.peer)
            stack.pop_all()
        return process

    def _request_from_broker(self, timeout_ms: int) -> dict[str, Any]:
        if self._client is None:
            self._client = connect(self._bootstrap, timeout_ms=timeout_ms)
        self._client.timeout_ms = timeout_ms
        return self._client.operate("status")

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()


def is_of_this_host(bootstrap: str) -> bool:
    """Return True if an address of a bootstrap list is one of this host.

    A host name that cannot be resolved does not count.
    """
    from kproc.broker.config.listeners import split_address

    for item in bootstrap.split(","):
        host, _ = split_address(item, default_port=DEFAULT_PORT)
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue
        for family, kind, protocol, _, address in found:
            # Test the address by bind(), which fails for addresses of other hosts.
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def _ports(bootstrap: str) -> set[str]:
    last = (item.rpartition(":") for item in bootstrap.split(","))
    return {port if colon and port.isdecimal() else str(DEFAULT_PORT) for _, colon, port in last}


def _from_window(ports: set[str]) -> dict[str, Any] | None:
    """Return the status from the supervisor of this host's broker that listens at one of `ports`, or None without one.

    Raise ClientError if this broker belongs to another user, or its supervisor was stopped by SIGSTOP.
    """
    from kproc.broker.role.port_holder import holds_any
    from kproc.broker.supervisor.status_window import WINDOW_PREFIX, request_status, window_owner
    from kproc.client import ClientError

    numbers = {int(port) for port in ports}
    for name, pid in _windows(WINDOW_PREFIX):
        owner = window_owner(name)
        if owner is not None and not owner.is_trusted:
            if holds_any(owner.pid, numbers):
                raise ClientError(
                    f"the broker, pid {owner.pid}, belongs to {_user_name(owner.uid)}: "
                    "run this as that user to see what its supervisor knows"
                )
            continue
        answer = request_status(name, timeout_ms=_WINDOW_MS)
        if answer is None:
            if _is_stopped(pid) and holds_any(pid, numbers):
                raise ClientError(
                    f"the broker is paused: SIGSTOP has stopped its supervisor (kill -CONT {pid})"
                )
            continue
        bound = [listener["bound"] for listener in answer["listeners"].values()]
        if ports & {str(each).rpartition(":")[2] for each in (*bound, answer["control"]) if each}:
            return answer
    return None


def _windows(prefix: str) -> Iterator[tuple[str, int]]:
    """Yield (name, pid) of the abstract Unix sockets at which supervisors of this host answer with their status.

    The names begin with `prefix`. Any user can bind such a name, so skip malformed ones.
    """
    form = re.compile(rf"{prefix}(\d{{1,10}})(?:-[0-9a-f]+)?")
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        names = {line.rstrip("\n").rpartition(" ")[2].removeprefix("@") for line in file}
    for name in sorted(names):
        found = form.fullmatch(name)
        if found is not None:
            yield name, int(found.group(1))


def _user_name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # proc(5): the state follows the process's name in parentheses. Search the last parenthesis, because the
            # name can contain some.
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
