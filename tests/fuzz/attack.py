"""Bunches of fuzzed frames against a broker, and what is looked at after each: nothing but answers may have changed."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import parse_header
from tests.fuzz import encrypted, rights
from tests.fuzz.frames import FrameMaker
from tests.support.acls import ANY_ACL
from tests.support.broker import ServedBroker
from tests.support.other_decoder import decode_as_a_consumer
from tests.support.proc import child_pids, pss_bytes
from tests.support.raw import NO_TOPIC_ID, Closed, RawClient, address_of, batch, split_batches, values_of
from tests.support.status import connect as connect_operator
from tests.support.wait import stretched

SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "num.io.threads": 2,
    "num.network.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 10,
    "log.segment.delete.delay.ms": 1_000,
    "log.retention.check.interval.ms": 86_400_000,
    "offsets.topic.num.partitions": 4,
    "authorizer.class.name": rights.SETTINGS["authorizer.class.name"],
    "super.users": "User:ANONYMOUS",
}
# Every record is checked, so everything that is stored can be read: see `Attack.check_readable`.
FULL_SETTINGS: Final = {**SETTINGS, "kproc.validate.records": "full"}
# As whoever may do nothing: see rights.py.
DENIED_SETTINGS: Final = {**SETTINGS, **rights.SETTINGS, "super.users": ""}
TOPICS: Final[dict[str, dict[str, str]]] = {
    "one": {},
    "compacted": {"cleanup.policy": "compact"},
    "coded": {"compression.type": "zstd", "segment.bytes": "1048576"},
    "dated": {"message.timestamp.type": "LogAppendTime"},
    "bounded": {
        "message.timestamp.before.max.ms": "1000000000000",
        "message.timestamp.after.max.ms": str(2**63 - 1),
    },
}
PROBE: Final = "probe"
EXPECTED_ERRORS: Final = ("kproc.broker.role.lookups: ",)  # Somebody's name for an address in a quota.
# These wait for others or for data; an answer that does not come from them says nothing.
PARKED: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
ANSWER_SECONDS: Final = 240.0
PATIENCE_SECONDS: Final = stretched(300) / 1000  # For answers behind a parked one.
IDLE_SHARE_MAX: Final = 0.25  # Of one core, for all roles together.
IDLE_SECONDS: Final = 120.0
PSS_GROWTH_MAX: Final = 400 << 20
DESCRIPTORS_GROWTH_MAX: Final = 400
OWN_SHARE: Final = 0.01  # Requests for kproc's own operations.
_LEARNED: Final = {int(ApiKey.JOIN_GROUP): 20, int(ApiKey.FETCH): 300}  # One answer in so many is read.


class Found(Exception):
    """Something happened that must not."""


@dataclass
class Line:
    """One connection of a bunch: what goes out, and what has come back."""

    sock: socket.socket
    frames: list[tuple[int, int, bytes]]  # API key, version, frame.
    pieces: deque[memoryview]
    waiting: deque[int] = field(default_factory=deque)  # Numbers of frames without an answer.
    received: bytearray = field(default_factory=bytearray)
    is_closed: bool = False
    has_end: bool = True  # Its last frame is whole.


def connect(bootstrap: str, source: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection(address_of(bootstrap), 10, (source, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        sock = tls.wrap_socket(sock)
    sock.setblocking(False)
    return sock


class Attack:
    """One broker under fire."""

    def __init__(
        self,
        broker: ServedBroker,
        seed: int,
        *,
        only: ApiKey | None = None,
        is_denied: bool = False,
        is_full: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """With `is_denied`, at a broker with DENIED_SETTINGS, the requests come from where nobody may do anything.

        With `is_full`, at a broker with FULL_SETTINGS, everything that was stored is read back.
        With `tls` they go to its TLS listener: encrypted.py.
        """
        self.broker = broker
        self._tls = tls
        self._target = broker.bootstrap if tls is None else broker.listeners[encrypted.LISTENER]["bound"]
        self.is_denied = is_denied
        self.is_full = is_full
        self.read_back = 0
        self.source = random.Random(seed)
        self.sent = 0
        self.closed = 0
        self.answered: dict[int, int] = {}
        self.bunch: list[list[bytes]] = []
        self._log_at = 0
        self._probed = 0
        self.healthy = RawClient(broker.bootstrap, timeout=ANSWER_SECONDS)
        self.healthy.create_topic(PROBE)
        self.topics = {name: self._make_topic(name) for name in TOPICS}
        served = self._served()
        if only is not None:
            served = {int(only): served[int(only)]}
        self.make = FrameMaker(self.source, self.topics, served)
        if is_denied:
            rights.shut_out(self.healthy)
            self._state = rights.state(self.healthy, TOPICS)
        self.pids = sorted(child_pids(broker.pid))
        self._pss = self._descriptors = 0

    def close(self) -> None:
        self.healthy.close()

    def _served(self) -> dict[int, range]:
        software = {"client_software_name": "t", "client_software_version": "1"}
        rows = self.healthy.call(ApiKey.API_VERSIONS, 3, software)["api_keys"]
        return {
            row["api_key"]: range(max(row["min_version"], 3 * (row["api_key"] == 0)), row["max_version"] + 1)
            for row in rows
        }

    def _make_topic(self, name: str) -> bytes:
        return self.healthy.create_topic(name, partitions=2, configs=TOPICS[name])

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_bunch(self, lines: int, frames_each: int) -> None:
        """So many connections with so many pipelined frames each, at once; returns when all is answered."""
        self.bunch = []
        opened = []
        for _ in range(lines):
            frames, rough = [], []
            for number in range(frames_each):
                if self.source.random() < OWN_SHARE:
                    frames.append((PRIVATE_API_KEY, 0, self.make.own_operation(number)))
                    continue
                key, frame = self.make.frame(number)
                entry = key, struct.unpack_from(">h", frame, 6)[0], frame
                (rough if self.make.is_rough else frames).append(entry)
            frames += rough[:1]
            if self.source.random() < 0.5:
                frames.append((-1, -1, self.make.damaged(frames_each)))
            opened.append(self._line(frames))
            self.bunch.append([frame for _, _, frame in frames])
        try:
            self._exchange(opened)
        finally:
            for line in opened:
                if self.source.random() < 0.2:
                    line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.sock.close()

    def _line(self, frames: list[tuple[int, int, bytes]]) -> Line:
        data = b"".join(frame for _, _, frame in frames)
        has_end = self.source.random() > 0.1
        if not has_end:
            data = data[: -self.source.randrange(1, len(frames[-1][2]))]  # Half sent.
        view, pieces = memoryview(data), deque[memoryview]()
        if self.source.random() < 0.2:  # Split anywhere.
            cuts = sorted(self.source.randrange(len(data)) for _ in range(self.source.choice((1, 3, 20))))
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                pieces.append(view[start:end])
        else:
            pieces.append(view)
        line = Line(
            connect(self._target, rights.THEIRS if self.is_denied else rights.OURS, self._tls),
            frames,
            pieces,
            deque(range(len(frames))),
            has_end=has_end,
        )
        self.sent += len(frames)
        return line

    def _exchange(self, lines: list[Line]) -> None:
        poller = select.epoll()
        by_fd = {line.sock.fileno(): line for line in lines}
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN | select.EPOLLOUT)
        deadline = time.monotonic() + ANSWER_SECONDS
        quiet_since = time.monotonic()
        while by_fd:
            events = poller.poll(0.02)
            now = time.monotonic()
            for fd, mask in events:
                line = by_fd[fd]
                if mask & ~select.EPOLLOUT and self._receive(line):
                    quiet_since = now
                if mask & select.EPOLLOUT and not line.is_closed:
                    quiet_since = now
                    self._send(line)
                    if not line.pieces:
                        poller.modify(fd, select.EPOLLIN)
            for fd in [fd for fd, line in by_fd.items() if self._is_over(line, now - quiet_since)]:
                poller.unregister(fd)
                del by_fd[fd]
            if now > deadline:
                raise Found(
                    f"no answer within {ANSWER_SECONDS:.0f} s: {[self._head(each) for each in by_fd.values()]}"
                )
        poller.close()

    def _send(self, line: Line) -> None:
        piece = line.pieces.popleft()
        try:
            sent = line.sock.send(piece)
        except BlockingIOError:
            sent = 0
        except OSError:
            line.is_closed = True
            return
        if sent < len(piece):
            line.pieces.appendleft(piece[sent:])

    def _receive(self, line: Line) -> bool:
        try:
            data = line.sock.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            line.is_closed = True
            self.closed += 1
            return True
        received = line.received
        received += data
        position = 0
        while len(received) - position >= 8:
            length, correlation_id = struct.unpack_from(">ii", received, position)
            if not 4 <= length < 1 << 28:
                raise Found(f"an answer of {length} bytes")
            if len(received) - position < 4 + length:
                break
            self._answer(line, correlation_id, received, position + 4, length)
            position += 4 + length
        del received[:position]
        return True

    def _answer(self, line: Line, correlation_id: int, data: bytearray, at: int, length: int) -> None:
        while line.waiting:
            key, version, frame = line.frames[line.waiting.popleft()]
            if key == -1 or struct.unpack_from(">i", frame, 8)[0] == correlation_id:
                break
            if key != ApiKey.PRODUCE:  # Which may have had acks=0.
                raise Found(
                    f"API key {key} {version} has no answer, one behind it has: {frame.hex()[:4000]}"
                )
        else:
            raise Found(f"an answer that nobody waits for: correlation id {correlation_id}")
        self.answered[key] = self.answered.get(key, 0) + 1
        if key in _LEARNED and self.answered[key] % _LEARNED[key] == 0:
            self._learn(key, version, bytes(data[at : at + length]))

    def _learn(self, key: int, version: int, answer: bytes) -> None:
        _, fields = codec.decode_response(key, version, answer)
        if key == ApiKey.JOIN_GROUP and fields["member_id"]:
            self.make.members[2:] = [*self.make.members[2:][-30:], fields["member_id"].encode()]
        elif key == ApiKey.FETCH and fields.get("session_id"):
            self.make.sessions[2:] = [*self.make.sessions[2:][-10:], fields["session_id"]]

    def _is_over(self, line: Line, quiet_s: float) -> bool:
        if line.is_closed:
            return True
        if line.pieces:
            return False
        if not line.waiting:
            return True
        if quiet_s < PATIENCE_SECONDS:
            return False
        keys = [line.frames[number][0] for number in line.waiting]
        # A parked one holds the answers behind it back; acks=0, damaged and half frames have none.
        return keys[0] in PARKED or all(key in (0, -1) for key in keys[: None if line.has_end else -1])

    @staticmethod
    def _head(line: Line) -> str:
        key, version, frame = line.frames[line.waiting[0]]
        done = [f"{line.frames[at][0]} v{line.frames[at][1]}" for at in range(line.waiting[0])]
        return f"{key} v{version} {frame.hex()[:400]}, {len(line.waiting)} wait, before it: {done}"

    def _states(self, ports: list[int]) -> list[dict[str, object]]:
        """What the broker says of these connections."""
        with connect_operator(self.broker.bootstrap) as operator:
            rows = operator.operate("clients")["clients"]
        return [row for row in rows if any(str(row).find(f"{port}") >= 0 for port in ports)]

    # -- looking ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """After each bunch: the same processes, a round trip, nothing of ours in the log."""
        if not self.broker.is_running():
            raise Found(f"the broker has ended: {self.broker.log()[-3_000:]}")
        pids = sorted(child_pids(self.broker.pid))
        if pids != self.pids:
            raise Found(
                f"processes were {self.pids}, are {pids}: {self.broker.log()[self._log_at :][-6_000:]}"
            )
        self._round_trip()
        if self.is_denied:
            found = rights.state(self.healthy, TOPICS)
            for what, before in self._state.items():
                if found[what] != before:
                    raise Found(f"somebody without rights changed {what}: {before} -> {found[what]}")
        log = self.broker.log()
        new, self._log_at = log[self._log_at :], len(log)
        lines = new.splitlines()
        for number, line in enumerate(lines):
            if ("Traceback" in line or "level=ERROR" in line) and not any(
                each in line for each in EXPECTED_ERRORS
            ):
                raise Found("in the log: " + "\n".join(lines[number : number + 60])[:6_000])

    def _round_trip(self) -> None:
        value = b"%d" % self._probed
        self._probed += 1
        try:
            row = self.healthy.produce(PROBE, batch(value))
            if (
                row["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
            ):  # A request may have set message.max.bytes to 5.
                self._reset_broker_settings()
                row = self.healthy.produce(PROBE, batch(value))
            if row["error_code"]:
                raise Found(f"the probe's Produce: {row}")
            fetched = values_of(self.healthy.fetch(PROBE, row["base_offset"])["records"])
        except (Closed, TimeoutError) as problem:
            raise Found(f"the probe's round trip ended by {problem!r}") from problem
        if fetched[:1] != [(row["base_offset"], value)]:
            raise Found(f"the probe got {fetched}")

    def check_readable(self) -> None:
        """Read all topics as another client's consumer does: what Produce accepts must be readable."""
        if not self.is_full:
            return
        for name in TOPICS:
            for partition in (0, 1):
                self._read_back(name, partition)

    def _read_back(self, name: str, partition: int) -> None:
        offset = self.healthy.list_offset(name, -2, partition=partition)["offset"]
        end = self.healthy.list_offset(name, -1, partition=partition)["offset"]
        while offset < end:
            row = self.healthy.fetch(name, offset, partition=partition)
            batches = split_batches(row["records"])
            if row["error_code"] or not batches:
                return  # A request has deleted the topic, or its records, meanwhile.
            for each in batches:
                try:
                    decode_as_a_consumer(each)
                except Exception as problem:
                    raise Found(f"{name}-{partition}: no consumer reads {each.hex()[:2000]}: {problem!r}") from problem
                header = parse_header(each)
                offset = header.last_offset + 1
                self.read_back += 1

    def clean_up(self) -> None:
        """What the requests made and changed goes again; topics that they deleted come back."""
        if self.is_denied:
            return
        call = self.healthy.call
        call(ApiKey.DELETE_ACLS, 3, {"filters": [ANY_ACL]})
        for row in (
            call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})["entries"] or []
        ):
            ops = [{"key": each["key"], "value": 0.0, "remove": True} for each in row["values"]]
            call(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [{"entity": row["entity"], "ops": ops}]})
        self._reset_broker_settings()
        names = {row["name"] for row in call(ApiKey.METADATA, 12, {"topics": None})["topics"]}
        kept = {PROBE, *TOPICS}
        doomed = [name for name in names if name not in kept and not name.startswith("__")]
        for start in range(0, len(doomed), 50):
            rows = [{"name": name, "topic_id": NO_TOPIC_ID} for name in doomed[start : start + 50]]
            call(ApiKey.DELETE_TOPICS, 6, {"topics": rows, "timeout": 10_000})
        for name in sorted(kept - names):
            if name == PROBE:
                self.healthy.create_topic(PROBE)
            else:
                new, old = self._make_topic(name), self.topics[name]
                self.topics[name] = new
                self.make.ids[self.make.ids.index(old)] = new
        groups = [row["group_id"] for row in call(ApiKey.LIST_GROUPS, 4, {"states_filter": []})["groups"]]
        if groups:
            call(ApiKey.DELETE_GROUPS, 2, {"groups_names": groups})

    def _reset_broker_settings(self) -> None:
        wanted = {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]}
        for name in ("", "1"):
            wanted["resources"][0]["resource_name"] = name
            (row,) = self.healthy.call(ApiKey.DESCRIBE_CONFIGS, 4, wanted)["results"]
            changed = [each["name"] for each in row["configs"] if each["config_source"] in (2, 3)]
            if changed:
                configs = [{"name": each, "config_operation": 1, "value": None} for each in changed]
                fields = {"resources": [{"resource_type": 4, "resource_name": name, "configs": configs}]}
                self.healthy.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)

    def check_rest(self) -> None:
        """With nothing to do nobody works, and what is held is as it was after the first bunches."""
        until = time.monotonic() + IDLE_SECONDS
        while (share := self._busy_share(0.5)) > IDLE_SHARE_MAX:
            if time.monotonic() > until:
                raise Found(f"idle, the broker takes {share:.0%} of a core: {self._busiest()}")
        pss = pss_bytes([self.broker.pid, *self.pids])
        descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)
        if not self._pss:
            self._pss, self._descriptors = pss, descriptors
        if pss - self._pss > PSS_GROWTH_MAX or descriptors - self._descriptors > DESCRIPTORS_GROWTH_MAX:
            raise Found(
                f"memory {self._pss >> 20} -> {pss >> 20} MiB, descriptors {self._descriptors} -> {descriptors}"
            )

    def _ticks(self) -> dict[int, int]:
        found = {}
        for pid in self.pids:
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/stat") as file:
                columns = file.read().rpartition(")")[2].split()
                found[pid] = int(columns[11]) + int(columns[12])
        return found

    def _busy_share(self, seconds: float) -> float:
        before = self._ticks()
        select.select([], [], [], seconds)
        after = self._ticks()
        self._last = {pid: after.get(pid, 0) - before[pid] for pid in before}
        return sum(self._last.values()) / os.sysconf("SC_CLK_TCK") / seconds

    def _busiest(self) -> dict[int, int]:
        return {pid: ticks for pid, ticks in self._last.items() if ticks}

    def run(self, requests: int, *, lines: int = 40, frames_each: int = 25, rest_every: int = 25) -> None:
        """Bunches until so many requests were sent, with all checks on the way and at the end."""
        number = 0
        while self.sent < requests:
            self.send_bunch(lines, frames_each)
            number += 1
            self.check()
            if number % 5 == 0:
                self.check_readable()
                self.clean_up()
            if number % rest_every == 0:
                self.check_rest()
        self.check_readable()
        self.clean_up()
        self.check()
        self.check_rest()


def replay(broker: ServedBroker, frames: Sequence[bytes], ids: Sequence[bytes]) -> None:
    """Send these, each on a connection of its own, and look; Found if it happens again. `ids`: of TOPICS, then."""
    attack = Attack(broker, 0)
    try:
        frames = with_new_ids(frames, ids, list(attack.topics.values()))
        lines = [attack._line([(-1, -1, frame)]) for frame in frames]
        try:
            attack._exchange(lines)
        finally:
            for line in lines:
                line.sock.close()
        attack.check()
        attack.check_rest()
    finally:
        attack.close()


def with_new_ids(frames: Iterable[bytes], old: Sequence[bytes], new: Sequence[bytes]) -> list[bytes]:
    """Frames of a broker of before, for one whose topics have other ids."""
    changed = []
    for frame in frames:
        for before, after in zip(old, new, strict=True):
            frame = frame.replace(before, after)
        changed.append(frame)
    return changed
