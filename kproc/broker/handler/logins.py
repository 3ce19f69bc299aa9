"""Logins: the SASL logins of the connections that are assigned to this Handler.

A connection whose client must log in has a PendingLogin (processor/pending_login.py): this module handles its requests.
Re-authentication of a session that has not ended (KIP-368) comes through the general path, by SaslHandshake and
SaslAuthenticate in `api/`. security/sasl/login.py has the rules. This module handles the requests and responses,
delays the responses of failed logins, and logs them."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from typing import Final

from kproc.broker.api.api_versions import is_valid
from kproc.broker.cluster.token_credentials import TokenCredentials
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.metrics.spec import SLOT
from kproc.broker.request.context import RequestContext, Services
from kproc.broker.request.dispatch import after_header_tags, dispatch
from kproc.broker.request.registry import lookup
from kproc.broker.request.request import ClientPeer, HandlerRequest
from kproc.broker.role.purgatory import DelayedCall
from kproc.broker.security.principal import Principal
from kproc.broker.security.sasl.listeners import Surroundings, make_listener
from kproc.broker.security.sasl.login import CompletedLogin, Login, Refused, SaslListener
from kproc.broker.security.sasl.mechanism import KeysAwaited
from kproc.broker.security.sasl.scram import FoundCredential, ScramKind
from kproc.broker.security.session import ENDS_NS_MAX, Session
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import ErrorCode, ProtocolError
from kproc.common.log_rate import LogRate
from kproc.wire import codec
from kproc.wire.header import REQUEST_HEADER, ApiKey, first_flexible

logger = logging.getLogger(__name__)

Head = tuple[int, int, int, int]
"""Connection id, sequence, listener and flags."""

_LENGTH: Final = struct.Struct(">i")
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_BARE: Final = -1  # The version of a token without a request header (SaslHandshake version 0, KIP-43).
_SHOWN: Final = 40  # Characters of a mechanism's name in log lines, because clients can make up names.
_KEYS_AGAIN_NS: Final = 100_000_000
_KEYS_ATTEMPTS: Final = 100
# Limit of a token that waits for keys, for up to 10 s. Real tokens are smaller, because they fit into HTTP headers.
_WAITING_TOKEN_BYTES_MAX: Final = 64 << 10


class Logins:
    """The logins of one Handler that are not complete, and their counters."""

    __slots__ = (
        "_by_listener",
        "_counts",
        "_lines",
        "_open",
        "_reauthentications",
        "_services",
        "_tokens",
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tokens = TokenCredentials(
            services.config, lambda: services.image.delegation_tokens, services.clock.wall_ms
        )
        # The start of the last re-authentication in ns, by connection.
        self._reauthentications: dict[int, int] = {}
        self._open: dict[int, Login] = {}  # The logins that are not complete, by connection.
        self._by_listener: dict[str, SaslListener] = {}
        self._counts: dict[int, int] = {}
        self._lines = LogRate(logger, "%d more logins failed meanwhile")

    def drain_counts(self) -> Iterator[tuple[int, int]]:
        """Return the counts since the last call: the slot of the metric, and the number."""
        counts, self._counts = self._counts, {}
        return iter(counts.items())

    def is_open(self, connection_id: int) -> bool:
        """Return True if the client of a connection has begun to log in and is not done."""
        return connection_id in self._open

    def discard_login(self, connection_id: int) -> None:
        """Remove the login of a connection, if it has one: the login is complete or the connection is closed."""
        self._open.pop(connection_id, None)

    # -- requests ----------------------------------------------------------------------------------------------

    def handle_frame(self, peer: ClientPeer, frame: memoryview, head: Head) -> bool:
        """Handle a frame of a connection whose client has not logged in.

        Returns False, because it is the last frame of its record: the Processor sends the next one after the response.
        """
        connection_id = head[0]
        login = self._open.get(connection_id)
        request: HandlerRequest | None = None
        containment = self._services.containment
        try:
            if login is None:
                before = peer.sessions.get(connection_id)
                login = self._open[connection_id] = Login(self._listener(head[2]), before)
            if login.takes_bare_tokens:
                request = HandlerRequest(self._services, peer, *head, _AUTHENTICATE, _BARE, 0, None)
                containment.owner = request
                self._token(request, login, bytes(frame))
            else:
                request, body = self._request_in(peer, frame, head)
                containment.owner = request
                self._handle_request(request, login, body)
        except Exception as error:  # noqa: BLE001 - contained: the connection is closed
            request = request or HandlerRequest(self._services, peer, *head, _AUTHENTICATE, _BARE, 0, None)
            self.discard_login(connection_id)
            if isinstance(error, ProtocolError):
                self._refuse(request, login, Refused(str(error)))
            else:
                containment.caught("a login", error, request)
        finally:
            containment.owner = None
        return False

    def _request_in(
        self, peer: ClientPeer, frame: memoryview, head: Head
    ) -> tuple[HandlerRequest, memoryview]:
        if len(frame) < REQUEST_HEADER.size:
            raise ProtocolError("the frame is shorter than its request header")
        api_key, version, correlation_id, length = REQUEST_HEADER.unpack_from(frame)
        body_at = REQUEST_HEADER.size + max(0, length)
        if body_at > len(frame):
            raise ProtocolError("the frame is shorter than its request header")
        client_id = bytes(frame[REQUEST_HEADER.size : body_at]) if length >= 0 else None
        request = HandlerRequest(self._services, peer, *head, api_key, version, correlation_id, client_id)
        return request, frame[body_at:]

    def _handle_request(self, request: HandlerRequest, login: Login, body: memoryview) -> None:
        key, version = request.api_key, request.api_version
        # The session is over (KIP-368). As in Kafka, only SaslHandshake may follow, and any other request closes the
        # connection.
        if login.is_again and not login.mechanism and key != _HANDSHAKE:
            self.discard_login(request.connection_id)
            self._count(SLOT["sessions_killed"])
            logger.debug(
                "closing connection %d: its SASL session has expired and the client has not logged in again",
                request.connection_id,
            )
            request.close()
            return
        if key not in (_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE):
            raise ProtocolError(f"API key {key} from a client that has not logged in")
        served = lookup(key)
        assert served is not None
        if key == _API_VERSIONS:
            if served.serves(version) and self._attempt(request, login, login.check_versions):
                return
            dispatch(request, body)
            # A client with an unsupported version or an invalid request gets an error and may send ApiVersions again.
            if served.serves(version) and is_valid(version, request.decoded):
                login.on_versions_sent()
            return
        if not served.serves(version):
            raise ProtocolError(f"API key {key} version {version} is not served")
        self._services.counts.add(REQUESTS, key, version)
        if version >= first_flexible(key):
            body = after_header_tags(body)
        fields = codec.decode_request(key, version, body)
        if key == _HANDSHAKE:
            self._handshake(request, login, fields["mechanism"])
        else:
            self._token(request, login, fields["auth_bytes"])

    def _attempt(self, request: HandlerRequest, login: Login, step: Callable[[], object]) -> bool:
        """Run a step of the login. Return True if the login was rejected."""
        try:
            step()
        except Refused as refused:
            self._refuse(request, login, refused)
            return True
        return False

    def _handshake(self, request: HandlerRequest, login: Login, mechanism: str) -> None:
        def step() -> None:
            offered = login.handshake(request.api_version, mechanism)
            request.reply({"error_code": int(ErrorCode.NONE), "mechanisms": list(offered)})
            self._show(request, login, None, ErrorCode.NONE)

        self._attempt(request, login, step)

    def _token(self, request: HandlerRequest, login: Login, token: bytes, attempt: int = 1) -> None:
        def step() -> None:
            answer, done = login.token(token, self._services.clock.wall_ms())
            if done is not None:
                self._complete(request, login, done)
            self._answer_token(request, answer, done)

        try:
            self._attempt(request, login, step)
        except KeysAwaited:
            # Count the attempts instead of measuring the time, because a stopping Handler completes all waits at once.
            if len(token) > _WAITING_TOKEN_BYTES_MAX:
                problem = (
                    f"a token of {len(token)} bytes is too large to wait until the keys are loaded; the limit is "
                    f"{_WAITING_TOKEN_BYTES_MAX} bytes; log in again later"
                )
                self._refuse(request, login, Refused(problem))
            elif attempt == _KEYS_ATTEMPTS:
                self._refuse(request, login, Refused("the keys of tokens could not be loaded"))
            else:
                self._later(request, _KEYS_AGAIN_NS, lambda: self._token(request, login, token, attempt + 1))

    def _answer_token(self, request: HandlerRequest, answer: bytes, done: CompletedLogin | None) -> None:
        # After SaslHandshake version 0 a token and its answer have a length but no header (KIP-43).
        if request.api_version == _BARE:
            request.send(_LENGTH.pack(len(answer)) + answer)
            return
        lifetime_ms = done.lifetime_ms if done is not None else None
        request.reply(
            {
                "error_code": int(ErrorCode.NONE),
                "error_message": "",
                "auth_bytes": answer,
                "session_lifetime": lifetime_ms or 0,
            }
        )

    def _complete(self, request: HandlerRequest, login: Login, done: CompletedLogin) -> None:
        self.discard_login(request.connection_id)
        self._count(SLOT["sessions_prolonged"] if login.is_again else SLOT["logins"])
        self._show(request, login, done.principal, ErrorCode.NONE)
        ends_ns = 0
        if done.lifetime_ms is not None:
            ends_ns = min(self._services.clock.now_ns() + done.lifetime_ms * NS_PER_MS, ENDS_NS_MAX)
        request.authenticated(Session(done.principal, login.mechanism, ends_ns))

    # -- re-authentication (KIP-368) ---------------------------------------------------------------------------

    def start_reauthentication(self, context: RequestContext, mechanism: str) -> bool:
        """Start a re-authentication (KIP-368).

        Returns False if the session has no end, or if the last re-authentication started less than 1 s ago, as in
        Kafka.
        """
        assert isinstance(context, HandlerRequest), "a slice of a divided request is no login"
        before = context.peer.sessions.get(context.connection_id)
        if before is None or not before.ends_ns:
            return False
        now_ns = self._services.clock.now_ns()
        self._reauthentications = {
            each: at_ns for each, at_ns in self._reauthentications.items() if now_ns - at_ns < NS_PER_S
        }
        if context.connection_id in self._reauthentications:
            return False
        self._reauthentications[context.connection_id] = now_ns
        login = self._open[context.connection_id] = Login(self._listener(context.listener_index), before)
        self._handshake(context, login, mechanism)
        return True

    def continue_reauthentication(self, context: RequestContext, token: bytes) -> bool:
        """Evaluate a token of a re-authentication, and respond to it or close the connection.

        Return False without effect if the connection has no session with an end, so that no re-authentication can have
        begun.
        """
        assert isinstance(context, HandlerRequest), "a slice of a divided request is no login"
        login = self._open.get(context.connection_id)
        if login is None:
            before = context.peer.sessions.get(context.connection_id)
            if before is None or not before.ends_ns:
                return False
            # The re-authentication started at another Handler, before the connection was assigned to us. Close the
            # connection, so that the client connects again. It would treat an error code as a failed login.
            context.close()
            return True
        if len(token) > self._services.config.sasl_server_max_receive_size:
            self._refuse(context, login, Refused("a token above sasl.server.max.receive.size"))
        else:
            self._token(context, login, token)
        return True

    # -- failures ----------------------------------------------------------------------------------------------

    def _refuse(self, request: HandlerRequest, login: Login | None, refused: Refused) -> None:
        """Respond to a failed login and close the connection.

        Both are delayed by connection.failed.authentication.delay.ms, against password guessing. The requests of other
        connections are not delayed.
        """
        self.discard_login(request.connection_id)
        self._count(
            SLOT["sessions_not_prolonged"] if login is not None and login.is_again else SLOT["logins_failed"]
        )
        self._log(request, login, refused.why)
        self._show(request, login, None, refused.code or ErrorCode.SASL_AUTHENTICATION_FAILED)
        delay_ns = self._services.config.connection_failed_authentication_delay_ms * NS_PER_MS
        frame = self._error_frame(request, refused)
        close = request.close if frame is None else lambda: request.close_after(frame)
        if delay_ns:
            self._later(request, delay_ns, close)
        else:
            close()

    def _error_frame(self, request: HandlerRequest, refused: Refused) -> bytes | None:
        """Return the error response of the request's API, or None if the connection is closed without a response."""
        served = lookup(request.api_key)
        if (
            refused.code == ErrorCode.NONE
            or request.api_version == _BARE
            or served is None
            or served.error_response is None
        ):
            return None
        fields = served.error_response({}, int(refused.code), refused.told)
        if refused.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            fields["mechanisms"] = self._listener(request.listener_index).enabled
        request.count_error(refused.code)
        return codec.encode_response(request.api_key, request.api_version, request.correlation_id, fields)

    def report_suppressed(self, now_ns: int) -> None:
        """Log how many failed logins of the last second were not logged."""
        self._lines.report_suppressed(now_ns)

    def _show(
        self, request: HandlerRequest, login: Login | None, principal: Principal | None, error: ErrorCode
    ) -> None:
        """Show a step of a login to `kproc monitor`: the mechanism, the user and the result, and no token."""
        monitor = self._services.clients.monitor
        if monitor is not None:
            monitor.add_login(request, login.mechanism if login is not None else "", principal, error)

    def _log(self, request: HandlerRequest, login: Login | None, why: str) -> None:
        if not self._lines.has_room(self._services.clock.host_ns()):
            return
        logger.warning(
            "login failed: host=%s listener=%s mechanism=%s: %s",
            request.client_host.removeprefix("/"),
            request.listener,
            _shown(login.mechanism if login is not None else ""),
            why,
        )

    # -- helpers -----------------------------------------------------------------------------------------------

    def _later(self, request: HandlerRequest, delay_ns: int, action: Callable[[], None]) -> None:
        operation = DelayedCall(self._services.clock.now_ns() + delay_ns, action)
        request.when_gone(lambda: self._services.owner.purgatory.cancel(operation))
        self._services.owner.purgatory.watch(operation, ())

    def _find_user(self, kind: ScramKind, name: str, is_token: bool) -> FoundCredential:
        if not is_token:
            return self._services.image.scram_users.find(kind, name)
        return self._tokens.find(kind, name)

    def _count(self, slot: int) -> None:
        self._counts[slot] = self._counts.get(slot, 0) + 1

    def _listener(self, index: int) -> SaslListener:
        name = self._services.endpoints[index].name
        listener = self._by_listener.get(name)
        if listener is None:
            services = self._services
            around = Surroundings(services.config, self._find_user, services.clock)
            listener = self._by_listener[name] = make_listener(name, around)
        return listener


def _shown(mechanism: str) -> str:
    """Return a mechanism's name for a log line. Escape it if it has unusual characters, because clients choose it."""
    name = mechanism[:_SHOWN]
    return name if name.replace("-", "").isalnum() and name.isascii() else repr(name)
