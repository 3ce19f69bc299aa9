"""Client: an actor whose life is a generator; each request goes as bytes through a simulated connection.

    answer = yield from self.call(ApiKey.METADATA, 12, fields)     Gone if the connection ended, Late if nothing came
    yield from self.pause(20)

A request that is still unanswered is kept in `waits`, so that whoever looks at the end knows what never came.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Generator
from typing import Any, Final

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.simulation import doubles
from tests.simulation.kernel import Socket
from tests.simulation.tls_doubles import VERSIONS
from tests.simulation.tls_end import TlsEnd
from tests.simulation.world import FOREVER_NS, MS, Actor, S, World

Life = Generator[None, None, Any]
Fields = dict[str, Any]
PATIENCE_MS: Final = 30_000
_OLDER_TLS: Final = 0.2
_RESUMES: Final = 0.7
_LONE_BYTES_MAX: Final = 8000  # A request that a Processor reads whole, or not at all.
_SETTLED_NS: Final = S
LOGIN: Final = b"\0ANONYMOUS\0word"


class Gone(Exception):
    """The connection ended, or there is none."""


class Late(Exception):
    """No answer within the client's patience."""


class Client(Actor):
    """One client with at most one connection."""

    def __init__(self, world: World, name: str, rng: random.Random, ports: list[int]) -> None:
        super().__init__(world, name)
        self.rng = rng
        self.ports = ports
        self.sock: Socket | TlsEnd | None = None
        self.room = 1 << 16  # Of its sockets.
        self.connections = 0  # How many it has had.
        self.is_done = False
        self.must_finish = False  # Begin nothing new.
        self.waits: deque[tuple[int, ApiKey, int]] = deque()  # Correlation id, key, version: unanswered.
        self.waits_since_ns = 0
        self.session_ends_ns = 0  # 0: never.
        self.prolonged_ns = -FOREVER_NS  # When the session of this connection was last prolonged.
        self.lone_since_ns = 0  # When the only request without an answer was sent, if it is small; else 0.
        self._is_logging_in = False
        self._tickets: dict[
            Any, tuple[int, Any]
        ] = {}  # By version of TLS: of which start of the broker, what.
        self._numbers = itertools.count(1)
        self._life = self.life()

    def life(self) -> Life:
        raise NotImplementedError

    def turn(self) -> None:
        self.sleep(FOREVER_NS)  # Unless its life says otherwise.
        try:
            next(self._life)
        except StopIteration:
            self.is_done = True
            self.disconnect()
            self.world.remove(self)

    # -- time --------------------------------------------------------------------------------------------------

    def pause(self, duration_ms: float) -> Life:
        until_ns = self.world.now_ns() + int(duration_ms * MS)
        while (left_ns := until_ns - self.world.now_ns()) > 0:
            self.sleep(left_ns)
            yield

    # -- the connection ----------------------------------------------------------------------------------------

    def connect(self) -> Life:
        """A connection, as soon as somebody takes one; Gone if nobody does for a while."""
        for _ in range(400):
            port = self.rng.choice(self.ports)
            if self.reach(port):
                if port == self.world.tls_port:
                    try:
                        yield from self.shake_hands(self.begin_tls(resumes=self.rng.random() < _RESUMES))
                    except (Gone, Late) as problem:
                        self.world.tell(self.name, "shakes hands again:", problem)
                        self.disconnect()
                        yield from self.pause(self.rng.choice((5, 20, 50)))
                        continue
                if port == self.world.sasl_port:
                    if self.rng.random() < 0.05:
                        yield from self.break_in()
                        continue
                    yield from self.log_in()
                return
            yield from self.pause(self.rng.choice((5, 20, 50)))
        raise Gone("nobody listens")

    def reach(self, port: int) -> bool:
        """Return True if there is a connection, which nothing has been sent by."""
        sock = doubles.host.kernel.host.connect(port, room=self.room)
        self.sock = sock
        if sock is None:
            return False
        sock.watchers[self] = 0  # type: ignore[index]
        self.connections += 1
        self.waits.clear()
        self.session_ends_ns = self.lone_since_ns = 0
        self.prolonged_ns = -FOREVER_NS
        return True

    def begin_tls(self, *, resumes: bool) -> TlsEnd:
        """Speak TLS over the connection that there is, with the last session if it `resumes`."""
        assert isinstance(self.sock, Socket)
        version = VERSIONS[self.rng.random() < _OLDER_TLS]
        life, ticket = self._tickets.get(version, (0, None)) if resumes else (0, None)
        rng = random.Random(self.rng.getrandbits(30))
        end = self.sock = TlsEnd(self.world, self.name, self.sock, rng=rng, version=version, session=ticket)
        end.must_resume = ticket is not None and life == self.world.life
        return end

    def shake_hands(self, end: TlsEnd) -> Life:
        """The TLS handshake. Gone if the broker ends it, which a deadline or others' handshakes make it do."""
        until_ns = self.world.now_ns() + PATIENCE_MS * MS
        while True:
            try:
                if end.shake():
                    break
            except OSError as problem:
                raise Gone(str(problem)) from problem
            if self.world.now_ns() >= until_ns:
                self.world.violate(f"{self.name}: a TLS handshake neither went on nor ended in 30 s")
                raise Late("no end of the handshake")
            self.sleep(until_ns - self.world.now_ns())
            yield
        self.world.counts["resumed" if end.is_resumed else "handshakes"] += 1
        if end.must_resume and not end.is_resumed:
            self.world.violate(f"{self.name}: a TLS session of this broker's was not resumed")

    def break_in(self) -> Life:
        """Ask for something without a login: the connection ends, and nothing is answered."""
        self._is_logging_in = True
        try:
            yield from self.call(ApiKey.METADATA, 1, {"topics": None})
        except (Gone, Late):
            self.disconnect()
        else:
            self.world.violate(f"{self.name}: served without a login")
        finally:
            self._is_logging_in = False

    def log_in(self) -> Life:
        """Log in, or prolong the session. Who prolongs it at another Handler than the one where it began is closed."""
        self._is_logging_in = True
        is_again = self.session_ends_ns > 0
        try:
            shaken = yield from self.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            answer = shaken
            if not shaken["error_code"]:
                answer = yield from self.call(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": LOGIN})
        finally:
            self._is_logging_in = False
        code = answer["error_code"]
        if code:
            self.world.violate(f"{self.name}: a login was refused: {answer}")
            self.disconnect()
            raise Gone("the login was refused")
        lifetime_ms = answer["session_lifetime"]
        self.session_ends_ns = self.world.now_ns() + lifetime_ms * MS if lifetime_ms else 0
        if is_again:
            self.prolonged_ns = self.world.now_ns()

    def disconnect(self) -> None:
        self.waits.clear()
        sock, self.sock = self.sock, None
        if sock is None:
            return
        if isinstance(sock, TlsEnd) and (ticket := sock.ticket()) is not None:
            self._tickets[sock.version] = sock.life, ticket
        sock.watchers.clear()
        sock.on_last_close()

    def send(self, key: ApiKey, version: int, fields: Fields) -> Life:
        """Send a request, connecting first if need be; its correlation id."""
        if self.sock is None:
            yield from self.connect()
        elif self._should_prolong():
            yield from self.log_in()
        number = next(self._numbers)
        frame = memoryview(self.encode(key, version, number, fields))
        if not self.waits:
            self.waits_since_ns = self.world.now_ns()
        is_lone = not self.waits and len(frame) <= _LONE_BYTES_MAX and not self._is_logging_in
        self.lone_since_ns = self.world.now_ns() if is_lone else 0
        self.waits.append((number, key, version))
        while frame:
            assert self.sock is not None
            try:
                frame = frame[self.sock.send(frame) :]
            except BlockingIOError:
                self.sleep(MS)
                yield
            except OSError as problem:
                self.disconnect()
                raise Gone(str(problem)) from problem
        return number

    def _should_prolong(self) -> bool:
        """Return True if the session ends soon, and was not prolonged within the last second, which is rejected.

        Sometimes the client forgets it, and the connection is closed.
        """
        if not self.session_ends_ns or self._is_logging_in or self.waits:
            return False
        if self.world.now_ns() - self.prolonged_ns <= S:
            return False
        return self.session_ends_ns - self.world.now_ns() < 20 * MS and self.rng.random() < 0.9

    def receive(self, patience_ms: int = PATIENCE_MS) -> Life:
        """The next answer: (correlation id, fields)."""
        until_ns = self.world.now_ns() + patience_ms * MS
        while True:
            sock = self.sock
            if sock is None:
                raise Gone("disconnected")
            data = sock.bytes
            if len(data) >= 4:
                length = int.from_bytes(data[:4], "big")
                if len(data) >= 4 + length:
                    return self._take(sock, length)
            if sock.has_ended or sock.is_reset:
                if isinstance(sock, TlsEnd) and sock.has_notified:
                    self._judge_end(sock)
                self.disconnect()
                raise Gone("the broker closed the connection")
            if self.world.now_ns() >= until_ns:
                if (
                    patience_ms == PATIENCE_MS
                ):  # No pause, no backoff of a restart and no slow disk lasts as long.
                    name = self.waits[0][1].name if self.waits else "nothing"
                    self.world.violate(f"{self.name}: no answer to {name} in {patience_ms // 1000} s")
                self.disconnect()
                raise Late(f"no answer in {patience_ms} ms")
            if len(data) >= sock.room and sock.peer is not None:
                sock.room = 2 * len(data)  # An answer larger than what this client meant to hold.
                sock.peer.notify()
            self.sleep(until_ns - self.world.now_ns())
            yield

    def _judge_end(self, end: TlsEnd) -> None:
        """The broker has closed in order. It must have answered what it had read, if nothing of it has died lately."""
        if end.bytes:
            self.world.violate(f"{self.name}: the broker closed in order within an answer")
        if not self.lone_since_ns or end.is_reset or end.has_unread_request or self.session_ends_ns:
            return  # Several requests; or this one was not read; or a session was over.
        if self.world.disturbed_ns < self.lone_since_ns - _SETTLED_NS:
            name = self.waits[0][1].name if self.waits else "nothing"
            self.world.violate(f"{self.name}: the broker closed in order and had not answered {name}")

    def _take(self, sock: Socket | TlsEnd, length: int) -> tuple[int, Fields]:
        frame = bytes(sock.bytes[4 : 4 + length])
        del sock.bytes[: 4 + length]
        if sock.peer is not None:
            sock.peer.notify()
        self.lone_since_ns = 0
        number, key, version = self.waits.popleft()
        self.waits_since_ns = self.world.now_ns()
        got, fields = self.decode(key, version, frame)
        if got != number:
            self.world.violate(f"{self.name}: answers out of order: {got} came, {number} was next")
        return number, fields

    def encode(self, key: ApiKey, version: int, number: int, fields: Fields) -> bytes:
        """Return the frame of a request."""
        return codec.encode_request(key, version, number, self.name, fields)

    def decode(self, key: ApiKey, version: int, frame: bytes) -> tuple[int, Fields]:
        """Return the correlation id and the fields of a response."""
        return codec.decode_response(key, version, frame)

    def call(self, key: ApiKey, version: int, fields: Fields, patience_ms: int = PATIENCE_MS) -> Life:
        """One request and its answer."""
        yield from self.send(key, version, fields)
        _, answer = yield from self.receive(patience_ms)
        return answer
