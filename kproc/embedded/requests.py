"""RequestRecorder: the requests that clients send to a broker for tests, as `kproc.Broker.requests` records them.

with broker.requests.recording() as requests:
    ...
    requests.wait_for("OffsetCommit", group="shop")

The data are those of `kproc monitor`: while a client watches, the Handlers keep a line for each answered request. A
thread reads these lines over a connection of its own until the recording stops.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Unpack

from kproc.client.errors import ClientError, ConnectionLost
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.common.errors import ErrorCode
from kproc.embedded.process import BrokerFailed, BrokerRestarting
from kproc.embedded.request_names import CONDITIONS, can_name, names_in
from kproc.wire.header import ApiKey, kafka_name

if TYPE_CHECKING:
    from kproc.client import Client

OWN_CLIENT_ID: Final = "kproc-embedded"
"""The client id of kproc.Broker's own connections, whose requests are not recorded."""
_POLL_S: Final = 0.05
_SHOWN_MAX: Final = 30
_NOT_RECORDED: Final = (
    "no request is recorded: use `with broker.requests.recording():`, or request/record over HTTP"
)
_RESULTS: Final = {"Send": "ok", "NoOp": "no answer", "CloseConnection": "closed"}
_clock: Final = SystemClock()


class RequestMatch(TypedDict, total=False):
    """Conditions on recorded requests. All must hold. A `*` at the end of a name stands for any rest."""

    topic: str
    group: str
    transactional_id: str
    client_id: str
    user: str
    version: int
    result: str
    """"ok", "closed", "no answer" or the name of the first error."""


class SeenRequest(NamedTuple):
    """One request of a client and its answer."""

    time_ms: int
    """Time of the answer, in ms since 1970."""
    api: str
    version: int
    client_id: str
    user: str
    address: str
    topics: tuple[str, ...]
    """The first three topics in the request."""
    names: tuple[str, ...]
    """The first three groups and transactional ids in the request."""
    fields: dict[str, Any] | None
    """The decoded request without records and secrets. None if it is large or damaged."""
    request_bytes: int
    response_bytes: int
    took_ms: float
    result: str
    """"ok", "closed", "no answer" or the name of the first error."""

    def matches(self, api: str | None, match: RequestMatch) -> bool:
        """Return True if this is a request of the API that fulfils all conditions."""
        return (
            (api is None or api == self.api)
            and self._has_name("topic", match.get("topic"), self.topics)
            and self._has_name("group", match.get("group"), self.names)
            and self._has_name("transactional_id", match.get("transactional_id"), self.names)
            and _has(match.get("client_id"), (self.client_id,))
            and _has(match.get("user"), (self.user, self.user.removeprefix("User:")))
            and match.get("version", self.version) == self.version
            and match.get("result", self.result) == self.result
        )

    def _has_name(self, condition: str, pattern: str | None, first: tuple[str, ...]) -> bool:
        """Return True if a name of the request fits the pattern.

        condition: the kind of the names, such as topic. first: the names that the broker has recorded apart from the
        request's fields.
        """
        return _has(pattern, first) or (
            self.fields is not None and _has(pattern, tuple(names_in(self.fields, condition)))
        )


SeenRequests = list[SeenRequest]


class RequestRecorder:
    """The recorded requests of one broker. connect: opens a new connection to it. Threads may share the object."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._watch = ""
        self._seen: deque[SeenRequest] = deque()
        self.lost = 0
        """Number of answered requests that are missing: too many came between two reads, or `limit` was exceeded."""

    def __repr__(self) -> str:
        return f"<requests: {len(self._seen)} recorded, {self.lost} lost>"

    # -- recording

    @contextlib.contextmanager
    def recording(self, *, limit: int = 10_000) -> Iterator[RequestRecorder]:
        """Record the requests of clients during a `with` block. The recorded requests stay until the next recording."""
        self.start(limit=limit)
        try:
            yield self
        finally:
            self.stop()

    def start(self, *, limit: int = 10_000) -> None:
        """Start to record the requests that the broker answers. Keep the last `limit` of them.

        Raises RuntimeError if a recording is in progress, and ClientError with the broker's reason.
        """
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("the requests of this broker are recorded already: stop() first")
            self._seen = deque(maxlen=limit)
            self.lost = 0
            self._watch = secrets.token_hex(8)
            self._stopping.clear()
            self._read()
            self._thread = threading.Thread(target=self._follow, name="kproc-requests", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop recording. A second call does nothing."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._stopping.set()
            # Read the last requests and end the watch, unless the broker has ended.
            with contextlib.suppress(ClientError, BrokerFailed):
                self._read(is_last=True)
        thread.join()
        self._disconnect()

    def _follow(self) -> None:
        """Read the answered requests periodically, because a Handler keeps a bounded number.

        Runs in the recorder's thread.
        """
        while not self._stopping.wait(_POLL_S):
            # A restart or restore of the broker closes the connection and ends the watch. The next _read() connects and
            # watches again. It raises BrokerFailed while a restarting broker has no address.
            with self._lock, contextlib.suppress(ClientError, BrokerFailed):
                # While this thread waited for the lock, stop() may have ended the watch. Another read would begin it
                # again.
                if not self._stopping.is_set():
                    self._read()

    def _read(self, *, is_last: bool = False) -> None:
        """Append the requests that the broker has answered since the last call.

        is_last: end the broker's watch, because no further call follows.
        """
        with self._lock:
            try:
                if self._client is None:
                    self._client = self._connect()
                answer = self._client.operate("monitor", watch=self._watch, has_fields=True, is_last=is_last)
                rows = [_as_seen(row) for row in answer["lines"] if row["client"] != OWN_CLIENT_ID]
            except BaseException:
                # Also after Ctrl-C: the answer may be half read, and would be taken for that of the next call.
                self._disconnect()
                raise
            limit = self._seen.maxlen
            assert limit is not None
            self.lost += answer["lost"] + max(0, len(self._seen) + len(rows) - limit)
            self._seen.extend(rows)

    def catch_up(self) -> None:
        """Read the requests until now, if a recording is in progress. After a restart of the broker, resume it."""
        # During a restart there is nothing to read.
        with self._lock, contextlib.suppress(BrokerRestarting):
            if self._thread is None:
                return
            try:
                self._read()
            except ConnectionLost:
                # A restart or restore of the broker closes the connection, and this is the first read after it. Try
                # once more, which reconnects.
                self._read()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- reading

    def list(self, api: str | None = None, **match: Unpack[RequestMatch]) -> SeenRequests:
        """Return the recorded requests that match, in the order of their answers.

        api: an API's name in Kafka's protocol, such as "OffsetCommit"; None for all APIs.

        Raises ValueError for an unknown API or result or a condition that no request of the API can meet, TypeError for
        an unknown condition, and RuntimeError if there was no recording.
        """
        _validate(api, match)
        with self._lock:
            if not self._watch:
                raise RuntimeError(_NOT_RECORDED)
            self.catch_up()
            return [each for each in self._seen if each.matches(api, match)]

    def wait_for(
        self,
        api: str | None = None,
        *,
        count: int = 1,
        timeout_s: float = 10.0,
        **match: Unpack[RequestMatch],
    ) -> SeenRequests:
        """Wait until `count` requests match, and return them. Requests before the call count, too.

        The wait goes on while another thread restarts the broker.

        Raises AssertionError with the recorded requests if fewer match after `timeout_s`, RuntimeError if no recording
        is in progress, and the errors of `list`.
        """
        until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
        while len(found := self._list_again(api, match, until_ns)) < count:
            if self._thread is None:
                raise RuntimeError(_NOT_RECORDED)
            if _clock.now_ns() > until_ns:
                wanted = " ".join([api or "request", *(f"{key}={value!r}" for key, value in match.items())])
                raise AssertionError(
                    f"{len(found)} of {count} awaited requests matched {wanted} within {timeout_s:g} s; "
                    f"{self.timeline()}"
                )
            self._stopping.wait(_POLL_S)
        return found

    def _list_again(self, api: str | None, match: RequestMatch, until_ns: int) -> SeenRequests:
        """Return what `list` returns. If the connection is lost before `until_ns`, try again.

        A broker that is restarted, or a role that dies, can also close the connections that were opened meanwhile.
        """
        while True:
            try:
                return self.list(api, **match)
            except ConnectionLost:
                if _clock.now_ns() > until_ns:
                    raise
            self._stopping.wait(_POLL_S)

    def timeline(self) -> str:
        """Return the last recorded requests as text, a line each."""
        with self._lock:
            shown = list(self._seen)[-_SHOWN_MAX:]
            head = f"{len(self._seen)} requests recorded, {self.lost} lost"
        if not shown:
            return head
        lines = [_line(each, shown[0].time_ms) for each in shown]
        return "\n".join([f"{head}; the last {len(shown)}:", *lines])


def _has(pattern: str | None, names: tuple[str, ...]) -> bool:
    if pattern is None:
        return True
    if pattern.endswith("*"):
        return any(name.startswith(pattern[:-1]) for name in names)
    return pattern in names


def _validate(api: str | None, match: RequestMatch) -> None:
    """Raise an error for conditions that no request can meet, because a test would wait for it in vain."""
    for name in match.keys() - RequestMatch.__annotations__.keys():
        raise TypeError(f"unknown condition {name!r}: use {', '.join(RequestMatch.__annotations__)}")
    result = match.get("result", "ok")
    if result not in _RESULTS.values() and result not in ErrorCode.__members__:
        others = ", ".join(map(repr, _RESULTS.values()))
        raise ValueError(
            f"unknown result {result!r}: use {others} or an error, such as 'NOT_LEADER_OR_FOLLOWER'"
        )
    if api is None:
        return
    key = next((each for each in ApiKey if kafka_name(each) == api), None)
    if key is None:
        raise ValueError(f"unknown API {api!r}: `kproc api` shows all, such as Produce")
    for condition in CONDITIONS:
        if condition in match and not can_name(key, condition):
            possible = ", ".join(
                name for name in RequestMatch.__annotations__ if name not in CONDITIONS or can_name(key, name)
            )
            raise ValueError(f"requests of {api} have no {condition}, so none can match: use {possible}")


def _as_seen(row: dict[str, Any]) -> SeenRequest:
    return SeenRequest(
        time_ms=row["time_ms"],
        api=row["api"],
        version=row["version"],
        client_id=row["client"],
        user=row["user"],
        address=row["address"],
        topics=tuple(row["topics"]),
        names=tuple(row["others"]),
        fields=row.get("fields"),
        request_bytes=row["request_bytes"],
        response_bytes=row["response_bytes"],
        took_ms=row["took_us"] / 1000,
        result=row["error"] or _RESULTS.get(row["outcome"], row["outcome"]),
    )


def _line(seen: SeenRequest, first_ms: int) -> str:
    names = ",".join((*seen.topics, *seen.names)) or "-"
    after_s = (seen.time_ms - first_ms) / 1000
    return (
        f"  +{after_s:.3f} s  {seen.api} v{seen.version}  {names}  {seen.result}  {seen.took_ms:.2f} ms  "
        f"client {seen.client_id or '-'}"
    )
