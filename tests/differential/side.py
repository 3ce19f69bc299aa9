"""One broker in one run of a sequence: its connections, what it chose, and its answers as they can be compared."""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import select
import socket
import struct
import time
from typing import Any

from tests.differential import batches
from tests.differential.logins import LoginState, listener_of
from tests.differential.protocol import KEYS, read_answer, request_frame
from tests.differential.symbols import Batch, Moment, Ref, Subscription, WireId, Words
from tests.support.raw import address_of

ANSWER_SECONDS = 120.0
_CONNECT_SECONDS = 60.0
_OF_SHARES = KEYS["share_fetch"], KEYS["share_acknowledge"]
_FETCH, _PRODUCE, _DESCRIBE_LOG_DIRS, _DESCRIBE_QUORUM = KEYS["fetch"], KEYS["produce"], 35, 55
_PREFIX = re.compile(r"d[0-9a-f]{7}-")
_UUID = re.compile(r"(?:diff-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|^[\w-]{22}$")  # In hexadecimal or in base64.
_NOW_WITHIN_MS, _SEQUENCE_WITHIN_MS = 120_000, 10_000_000
_BROKER = 4
_STAMPS = {
    "timestamp",
    "log_append_time",
    "last_timestamp",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "transaction_start_time",
}
_WORDS = {
    "error_message", "acknowledge_error_message", "message", "batch_index_error_message", "documentation",
    "status_detail",
}  # fmt: skip
# Compared by their sign only; some in one API only.
_SIZES = {
    "total_bytes", "usable_bytes", "finalized_features_epoch", "coordinator_epoch",
    # Kafka forgets this version of a new group's endpoints once.
    "endpoint_information_epoch",
}  # fmt: skip
_SIZES_OF_QUORUM = {"high_watermark", "log_end_offset", "leader_epoch"}
# What a broker chooses, by field.
CHOSEN = {
    "member_id": "M", "leader": "M", "cluster_id": "C", "session_id": "S", "producer_id": "P", "log_dir": "DIR",
}  # fmt: skip
_NAMING = ("name", "topic", "topic_name", "group_id", "resource_name", "entity_name", "transactional_id")
# Of Kafka's transactions, which it keeps from the first one on.
_OF_TRANSACTIONS = "__transaction_state"
NOTHING = ("", 0, -1)
HOST = "127.0.0.1"  # From which the tool's own connections come.


class GUEST:
    """Who may do only what rules allow (rights.py): every connection of a script but those of one number.

    It logs in by PLAIN at a listener of its own, from an address of its own.
    """

    user, password = "guest", "word"
    listener = "LOGIN"
    name = "@guest"  # What stands for the address in a script.
    not_for = 9
    every = 10  # Connections of requests that wait are passed over by this many.


def now_ms() -> int:
    return int(time.time() * 1000)


def new_prefix() -> str:
    """What the names of one run begin with; always as long, because lengths are compared."""
    return f"d{secrets.token_hex(4)[:7]}-"


def _received(opened: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = opened.recv(size - len(data))
        if not more:
            raise ConnectionError("closed while the guest logged in")
        data += more
    return data


def guest_of(prefix: str) -> str:
    """An address of this host that no other run's guest has."""
    number = int(prefix[1:7], 16)
    return f"127.{1 + (number >> 16) % 254}.{(number >> 8) % 256}.{1 + number % 254}"


class Side:
    """One broker, as one run of a sequence sees it."""

    def __init__(self, bootstrap: str, prefix: str = "", began_ms: int = 0, guest: str = "") -> None:
        self._address = address_of(bootstrap)
        self._prefix = prefix
        self._began_ms = began_ms
        self._guest = guest  # The address of its guest, if it has one.
        self._listeners: dict[str, tuple[str, int]] = {}
        self._logins: dict[Any, LoginState] = {}  # By connection.
        self._symbols: dict[tuple[str, Any], str] = {}
        self._names: dict[bytes, str] = {}  # Topics by id.
        self.learnt: dict[tuple[str, Any], Any] = {}
        self._connections: dict[Any, tuple[socket.socket, bytearray]] = {}

    # -- connections

    def _connection(self, number: Any) -> tuple[socket.socket, bytearray]:
        if number not in self._connections:
            is_guest = self._guest and isinstance(number, int) and number % GUEST.every != GUEST.not_for
            listener = listener_of(number)
            if listener:
                self._logins[number] = LoginState()
            where = self._listener(listener) if listener else self._address
            opened = self._log_in() if is_guest else socket.create_connection(where, _CONNECT_SECONDS)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[number] = opened, bytearray()
        return self._connections[number]

    def _log_in(self) -> socket.socket:
        """A connection of the guest."""
        where = self._listener(GUEST.listener)
        opened = socket.create_connection(where, _CONNECT_SECONDS, (self._guest, 0))
        token = f"\0{GUEST.user}\0{GUEST.password}".encode()
        for api, version, body in (
            ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
            ("sasl_authenticate", 2, {"auth_bytes": token}),
        ):
            opened.sendall(request_frame(api, version, body))
            (size,) = struct.unpack(">i", _received(opened, 4))
            answer = read_answer(api, version, _received(opened, size))
            assert answer["error_code"] == 0, answer
        return opened

    def _listener(self, name: str) -> tuple[str, int]:
        """The address of a listener."""
        if name not in self._listeners:
            wanted = {"resource_type": _BROKER, "resource_name": "1", "configuration_keys": ["listeners"]}
            (answer,) = self.ask("describe_configs", 4, {"resources": [wanted]})["results"]
            found = re.search(rf"{name}://(.*?):(\d+)", answer["configs"][0]["value"])
            assert found is not None, answer
            self._listeners[name] = found[1], int(found[2])
        return self._listeners[name]

    def descriptor(self, number: Any) -> socket.socket | None:
        """To wait on; None when the connection is closed."""
        found = self._connections.get(number)
        return None if found is None else found[0]

    def drop(self, number: Any) -> None:
        found = self._connections.pop(number, None)
        if found is not None:
            found[0].close()

    def close(self) -> None:
        for number in list(self._connections):
            self.drop(number)

    def send(self, number: Any, api: str, version: int, body: dict[str, Any]) -> None:
        opened = self._connection(number)[0]
        real = self.real(body)
        frame = request_frame(
            api, version, self._logins[number].real(real) if number in self._logins else real
        )
        with contextlib.suppress(OSError):  # What is taken next says that it is closed.
            opened.sendall(frame)

    def take(self, number: Any, api: str, version: int) -> dict[str, Any] | str | None:
        """The answer, "closed", or None as long as there is none."""
        opened, data = self._connection(number)
        is_closed = False
        try:
            while not is_closed and select.select([opened], [], [], 0)[0]:
                more = opened.recv(1 << 20)
                data += more
                is_closed = not more
        except OSError:
            is_closed = True
        (size,) = struct.unpack_from(">i", data) if len(data) >= 4 else (0,)
        if len(data) < 4 + size:  # What came before the end is an answer.
            if not is_closed:
                return None
            self.drop(number)
            return "closed"
        frame = bytes(data[4 : 4 + size])
        del data[: 4 + size]
        answer = read_answer(api, version, frame)
        return self._logins[number].seen(answer) if number in self._logins else answer

    def has_answer(self, number: Any) -> bool:
        """Something has come: an answer, a part of one, or the end."""
        opened, data = self._connection(number)
        return bool(data or select.select([opened], [], [], 0)[0])

    def ask(self, api: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """A question of the tool's own, on a connection of its own."""
        self.send("own", api, version, body)
        return self.own_answer(api, version)

    def own_answer(self, api: str, version: int) -> dict[str, Any]:
        """The answer to what was sent over the connection of the tool's own."""
        end = time.monotonic() + ANSWER_SECONDS
        while (answer := self.take("own", api, version)) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{api} v{version}: no answer in {ANSWER_SECONDS} s")
            select.select([self._connection("own")[0]], [], [], left)
        if isinstance(answer, str):
            raise ConnectionError(f"{api} v{version}: {answer}")
        return answer

    # -- from the script to this broker

    def real(self, value: Any) -> Any:
        """A part of a request's body with this broker's own values."""
        if isinstance(value, Ref):
            return self._real_reference(value)
        if isinstance(value, Subscription):
            topics = b"".join(
                struct.pack(">h", len(name)) + name.encode() for name in map(self.real, value.topics)
            )
            head = struct.pack(">hi", value.version, len(value.topics))
            return head + topics + b"\xff" * 4 + bytes(4 if value.version else 0)
        if isinstance(value, Moment):
            return self._began_ms + int(value)
        if isinstance(value, str):
            return self._guest if value == GUEST.name else value.replace("~", self._prefix)
        if isinstance(value, list):
            if value and isinstance(value[0], Batch):
                return b"".join(batches.build(each, self.real) for each in value)
            return [self.real(each) for each in value]
        if isinstance(value, dict):
            return {key: self.real(each) for key, each in value.items()}
        return value

    def _real_reference(self, reference: Ref) -> Any:
        key = reference.kind, reference.name
        if reference.kind == "id":
            key = "id", self.real(reference.name)
            if key not in self.learnt:
                body = {"topics": [{"name": key[1]}], "allow_auto_topic_creation": False}
                for topic in self.ask("metadata", 12, body)["topics"]:
                    self.learn_id(topic)
        if reference.kind == "cluster" and key not in self.learnt:
            self.learnt[key] = self.ask("describe_cluster", 0, {})["cluster_id"]
        if reference.kind in ("owned", "tasks", "if joining"):
            is_joining = not self.learnt.get(("epoch", reference.name))
            if reference.kind == "if joining":
                return self.real(reference.other) if is_joining else None
            if is_joining:
                return []  # Or it joins again.
        found = self.learnt.get(key, reference.other)
        return found + reference.add if reference.add else found

    def learn_id(self, row: dict[str, Any]) -> None:
        """The present id of a topic, from a row of an answer."""
        name = row.get("name") or row.get("topic") or row.get("topic_name")
        if name and any(row["topic_id"]) and not row.get("error_code"):
            self.learnt["id", name] = row["topic_id"]
            self._names[row["topic_id"]] = name

    def learn(self, learning: dict[tuple[str, Any], str], answer: dict[str, Any]) -> None:
        """What later requests name, and symbols for what this answer chose."""
        for key, field in learning.items():
            if key[0] not in ("owned", "tasks"):
                self.learnt[key] = answer[field]
            elif answer[field] is not None:  # Else the member keeps what it has.
                self.learnt[key] = answer[field]["topic_partitions"] if key[0] == "owned" else answer[field]
        for field, kind in CHOSEN.items():
            if answer.get(field) not in (None, *NOTHING):
                self._name(kind, answer[field])

    def _name(self, kind: str, value: Any) -> None:
        count = sum(known == kind for known, _ in self._symbols)
        self._symbols.setdefault((kind, value), f"{kind}{count}")

    # -- from this broker to what can be compared

    def _symbol(self, kind: str, value: Any) -> str:
        return self._symbols.get((kind, value), kind + "?")

    def _stamp(self, time_ms: int) -> Any:
        if abs(time_ms - now_ms()) < _NOW_WITHIN_MS:
            return "NOW"
        since = time_ms - self._began_ms
        return f"T0{since:+}" if abs(since) < _SEQUENCE_WITHIN_MS else time_ms

    def _is_of_others(self, name: Any, key: int) -> bool:
        """Named by another run, or by the broker's own workings."""
        if not isinstance(name, str):
            return False
        is_internal = name == _OF_TRANSACTIONS or (key == _DESCRIBE_LOG_DIRS and name.startswith("__"))
        return is_internal or (_PREFIX.match(name) is not None and not name.startswith(self._prefix))

    def canonical(self, value: Any, key: int, field: str = "") -> Any:
        """A part of an answer to the API `key`, as it can be compared."""
        if isinstance(value, dict):
            if "topic_id" in value:
                self.learn_id(value)
            return {
                name: self.canonical(each, key, name)
                for name, each in value.items()
                if name != "throttle_time"
            }
        if isinstance(value, list):
            return self._canonical_list(value, key, field)
        return self._canonical_scalar(value, key, field)

    def _canonical_list(self, items: list[Any], key: int, field: str) -> list[Any]:
        kept = [
            self.canonical(each, key, field)
            for each in items
            if not (isinstance(each, dict) and self._is_row_of_others(each, key))
        ]
        if field == "acquired_records":
            return _joined(kept)
        if key in _OF_SHARES and field == "partitions":
            return sorted(kept, key=_index_of)  # Kafka's hash maps have them in another order.
        part = {_PRODUCE: "partition_responses"}.get(key, "partitions" if key in (_FETCH, *_OF_SHARES) else None)
        if part is None or field != "responses":
            return kept
        # Kafka merges and splits a topic's rows as its hash maps have it: one row for each topic is compared.
        merged = []
        for _, group in itertools.groupby(sorted(kept, key=_topic_of), _topic_of):
            rows = list(group)
            merged.append({**rows[0], part: [each for row in rows for each in row[part]]})
        return merged

    def _is_row_of_others(self, row: dict[str, Any], key: int) -> bool:
        entity = row.get("entity")
        if isinstance(entity, list) and any(self._is_row_of_others(each, key) for each in entity):
            return True
        return any(self._is_of_others(row.get(name), key) for name in _NAMING)

    def _canonical_scalar(self, value: Any, key: int, field: str) -> Any:
        if isinstance(value, WireId):
            if value in self._names:
                return f"id({self._names[value].replace(self._prefix, '~')})"
            return "id(?)" if any(value) else 0
        if value is None:
            return None
        if field == "records":
            return batches.read(value, self._stamp, lambda producer: self._symbol("P", producer))
        if field in _WORDS:
            return Words(value.replace(self._prefix, "~"))
        if field in _STAMPS:
            return self._stamp(value)
        if field in _SIZES or (key == _DESCRIBE_QUORUM and field in _SIZES_OF_QUORUM):
            return "N" if value >= 0 else value
        if field in CHOSEN and value not in NOTHING:
            symbol = self._symbol(CHOSEN[field], value)
            if CHOSEN[field] != "M":
                return symbol
            return f"{symbol}:{_UUID.sub('UUID', value.replace(self._prefix, '~'))}"
        if field == "port":
            known = (self._address, *self._listeners.values())
            return "PORT" if (self._address[0], value) in known else value
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, str):
            if self._is_of_others(value, key):
                return "OTHER"
            return value.replace(self._prefix, "~").replace(str(self._address[1]), "PORT")
        return value


def _topic_of(row: dict[str, Any]) -> str:
    return str(row.get("topic_id") or row.get("topic") or row.get("name"))


def _joined(ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranges of acquired records, with neighbours joined: Kafka lists some records one by one."""
    joined: list[dict[str, Any]] = []
    for each in ranges:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last["last_offset"] + 1 == each["first_offset"]
            and last["delivery_count"] == each["delivery_count"]
        ):
            last["last_offset"] = each["last_offset"]
        else:
            joined.append(dict(each))
    return joined


def _index_of(row: dict[str, Any]) -> Any:
    return row["partition_index"]
