"""The request log: one JSON line per request with a response, like Kafka's kafka.request.logger.

Each Handler writes its own file, `requests-handler-N.log`. A file has one writer, so lines may be longer than PIPE_BUF,
and the writer can rename the file. At kproc.request.log.bytes the file is renamed to `.1` and replaces the last one, so
the log takes at most twice that size per Handler. It is not synced. If the disk is full, lines are lost and requests go
on.

As in Kafka, values of AlterConfigs and IncrementalAlterConfigs that can be secret are hidden: those of type PASSWORD
and those of unknown names. Secrets of delegation tokens, tokens of logins and salted passwords are hidden, too. Record
batches, other long bytes and requests above 16 KiB are logged as their size.

The dynamic broker config kproc.request.log switches the log: off, all, or slow (kproc.slow.request.log.ms and above).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from kproc.broker.cluster.topic_config import TOPIC_CONFIGS
from kproc.broker.config import SETTINGS, Config
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.request.dispatch import after_header_tags
from kproc.broker.request.request import HandlerRequest
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ProtocolError
from kproc.common.printable import printable_json
from kproc.common.regular_file import open_regular
from kproc.wire import codec
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot_produce import PRODUCE_VERSIONS, decode_produce

if TYPE_CHECKING:
    from kproc.broker.handler.request_monitor import RequestMonitor

logger = logging.getLogger(__name__)

OFF, ALL, SLOW = "off", "all", "slow"
HIDDEN: Final = "[hidden]"
_BYTES_SHOWN_MAX: Final = 16  # The length of a topic id. Longer bytes are records or a client's own metadata.
# A request is decoded for the log in one step, so only the size of a larger one is logged.
_BODY_SHOWN_MAX: Final = 16 << 10
_ALTERS: Final = (int(ApiKey.ALTER_CONFIGS), int(ApiKey.INCREMENTAL_ALTER_CONFIGS))
_WITH_TOKENS: Final = (int(ApiKey.RENEW_DELEGATION_TOKEN), int(ApiKey.EXPIRE_DELEGATION_TOKEN))
_PRODUCE: Final = int(ApiKey.PRODUCE)
_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_ALTER_USERS: Final = int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
_TOPIC, _BROKER = 2, 4
_SECRETS: Final = ("password", "secret", "sasl.jaas.config", "ssl.keystore.key", "ssl.keystore.certificate.chain",
                   "ssl.truststore.certificates")  # fmt: skip


class RequestLog:
    """The request log's file of one Handler. Created when the log is switched on."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        slow_ms: int,
        now_ns: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._slow_ms = slow_ms
        self.now_ns = now_ns
        self._wall_ms = wall_ms
        self._lines: list[bytes] = []
        self._failures = 0
        self._fd = _open(path)
        self._size = os.fstat(self._fd).st_size

    def add(self, request: LoggedRequest, outcome: str, response_bytes: int) -> None:
        """Add the line of a request with a response, unless only slower ones are logged.

        It is written at the end of the duty cycle.
        """
        total_ns = self.now_ns() - request.begun_ns
        if total_ns < self._slow_ms * NS_PER_MS:
            return
        line = {
            "timeMs": self._wall_ms(),
            "isForwarded": False,
            "requestHeader": {
                "requestApiKey": request.api_key,
                "requestApiKeyName": _api_name(request.api_key),
                "requestApiVersion": request.api_version,
                "correlationId": request.correlation_id,
                "clientId": (request.client_id_bytes or b"").decode("utf-8", "replace"),
            },
            "request": request.shown,
            "response": outcome,
            "responseBytes": response_bytes,
            "connection": str(request.connection_id),
            "clientAddress": request.client_address,
            "totalTimeMs": total_ns / NS_PER_MS,
            "throttleTimeMs": request.throttle_ms,
            "securityProtocol": request.endpoint.protocol,
            "principal": str(request.principal),
            "listener": request.endpoint.name,
        }
        self._lines.append(printable_json(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)))

    def flush(self) -> None:
        """Write the lines that were added in this duty cycle to the request log's file.

        If that fails, they are lost.
        """
        if not self._lines:
            return
        text, self._lines = b"".join(self._lines), []
        try:
            # Rotate before the write, so that a file exceeds its limit only by a single large line.
            if self._size and self._size + len(text) > self._bytes_max:
                self._rotate()
            self._size += os.write(self._fd, text)
        except OSError as error:
            # The disk may be full. Requests go on without their lines, and only the first failure is logged.
            self._failures += 1
            if self._failures == 1:
                logger.error(
                    "cannot write the request log %s; its lines are lost until a write succeeds: %s",
                    self._path,
                    error,
                )

    def close(self) -> None:
        self.flush()
        os.close(self._fd)

    def _rotate(self) -> None:
        # rename(2) replaces the former `.1` in one step. The open descriptor still refers to the renamed
        # file.
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        # Open the new file before the old one is closed, so that lines still have a file if the open fails.
        old = self._fd
        self._fd = _open(self._path)
        os.close(old)
        self._size = 0


def _open(path: Path) -> int:
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)


class LoggedRequest(HandlerRequest):
    """A request that logs its response. Used while the request log is on, a monitor watches, or fault rules exist."""

    __slots__ = ("_log", "begun_ns", "body_bytes", "client_address", "endpoint", "error", "shown")

    _log: RequestLog | RequestMonitor | None  # None for a request without a line.
    error: int  # The first error code of the response, or 0.
    body_bytes: int
    client_address: str
    endpoint: ListenerEndpoint  # Stored, because the listener may be removed before the response.
    shown: Any
    begun_ns: int

    def start_entry(self, log: RequestLog | RequestMonitor, body: memoryview | None) -> None:
        """Store the request's fields for the line, because the frame is overwritten after this duty cycle.

        body: None if the header is incomplete.
        """
        self._log = log
        self.client_address = self.client_host
        self.endpoint = self.services.endpoints[self.listener_index]
        self.begun_ns = log.now_ns()
        self.error = 0
        self.body_bytes = len(body) if body is not None else 0
        self.shown = loggable(self.api_key, self.api_version, body) if body is not None else None

    def discard_entry(self) -> None:
        """Log no line for this request, because the broker itself sent it and not a client."""
        self._log = None

    def record_lost_answer(self, outcome: str, sent_bytes: int) -> None:
        # The client does not get the answer, so the line must not show an error code of the answer.
        self.error = 0
        self._add_line(outcome, sent_bytes)

    def _add_line(self, outcome: str, response_bytes: int) -> None:
        # Log only the first line. A fault rule records a lost answer before `send` returns, and a request whose answer
        # it has dropped ends a second time when its client is gone.
        log, self._log = self._log, None
        if log is not None:
            log.add(self, outcome, response_bytes)

    def count_error(self, code: int) -> None:
        super().count_error(code)
        self.error = self.error or code

    def send(self, frame: bytes) -> None:
        super().send(frame)
        self._add_line("Send", len(frame))

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        super().send_parts(parts)
        size = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)
        self._add_line("Send", size)

    def no_op(self) -> None:
        super().no_op()
        self._add_line("NoOp", 0)

    def close(self) -> None:
        super().close()
        self._add_line("CloseConnection", 0)

    def close_after(self, frame: bytes) -> None:
        super().close_after(frame)
        self._add_line("Send", len(frame))


def loggable(api_key: int, version: int, body: memoryview) -> Any:
    """Return the fields of a request without secrets, the size of a large one, or None if it cannot be decoded.

    The topics of a large Produce are shown, too, because its records need not be decoded for that.
    """
    is_large = len(body) > _BODY_SHOWN_MAX
    if is_large and (api_key != _PRODUCE or version not in PRODUCE_VERSIONS):
        return {"sizeInBytes": len(body)}
    try:
        if is_large:
            return {"sizeInBytes": len(body), "topic_data": _produce_topics(version, body)}
        if version >= first_flexible(api_key):
            body = after_header_tags(body)
        fields = codec.decode_request(api_key, version, body)
    except (ProtocolError, KeyError, ValueError):
        # The body cannot be decoded, and the API's handler rejects the request. Its line in the request log has no
        # fields.
        return None
    return _plain(hide_secrets(api_key, fields))


def _produce_topics(version: int, body: memoryview) -> list[dict[str, str]]:
    if version >= first_flexible(_PRODUCE):
        body = after_header_tags(body)
    return [
        {"name": each.name} if each.name is not None else {"topic_id": (each.topic_id or b"").hex()}
        for each in decode_produce(version, body).topics
    ]


def hide_secrets(api_key: int, fields: Any) -> Any:
    """Return a copy of the fields without values that can be secret, or the same object if the API has no secrets."""
    # These bytes are a password (PLAIN) or a token (OAUTHBEARER).
    if api_key == _AUTHENTICATE:
        return {**fields, "auth_bytes": HIDDEN}
    # RFC 5802: a client computes its proof from the salted password, so who has it can log in.
    if api_key == _ALTER_USERS:
        rows = [{**row, "salted_password": HIDDEN} for row in fields["upsertions"]]
        return {**fields, "upsertions": rows}
    # KIP-48: the HMAC is the password of a delegation token.
    if api_key in _WITH_TOKENS:
        return {**fields, "hmac": HIDDEN}
    # Requests of other APIs have no secrets. A config can be a password, so show the values of known, harmless ones.
    if api_key not in _ALTERS:
        return fields
    return {**fields, "resources": [_hide(resource) for resource in fields["resources"]]}


def _hide(resource: dict[str, Any]) -> dict[str, Any]:
    kind = resource["resource_type"]
    configs = [
        each if each["value"] is None or _is_harmless(kind, each["name"]) else {**each, "value": HIDDEN}
        for each in resource["configs"]
    ]
    return {**resource, "configs": configs}


def _is_harmless(resource_type: int, name: str) -> bool:
    """Return True if a config is known and holds no secret."""
    if resource_type == _TOPIC:
        return name in TOPIC_CONFIGS
    # There is no table of harmless names for the other types, so their values stay hidden.
    if resource_type != _BROKER:
        return False
    plain = split_listener_key(name)[1]
    return plain in SETTINGS and not any(word in plain for word in _SECRETS)


def _plain(value: Any) -> Any:
    """Return the value as plain types for JSON. Long bytes become their size."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex() if len(value) <= _BYTES_SHOWN_MAX else {"sizeInBytes": len(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    return _plain(msgspec.to_builtins(value))


def _api_name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return str(api_key)


def open_request_log(
    config: Config,
    settings: Callable[[str], str | None],
    handler_index: int,
    *,
    now_ns: Callable[[], int],
    wall_ms: Callable[[], int],
) -> RequestLog | None:
    """Open the request log by the settings in force. Return None if it is off or cannot be opened."""
    mode = settings("kproc.request.log")
    if mode == OFF:
        return None
    directory = Path(config.kproc_request_log_dir or config.log_dirs)
    try:
        return RequestLog(
            directory / f"requests-handler-{handler_index}.log",
            bytes_max=config.kproc_request_log_bytes,
            slow_ms=int(settings("kproc.slow.request.log.ms") or 0) if mode == SLOW else 0,
            now_ns=now_ns,
            wall_ms=wall_ms,
        )
    except OSError as error:
        # The directory may be missing or not writable. The Handler runs without a request log then.
        logger.error("cannot open the request log, so this Handler writes none: %s", error)
        return None
