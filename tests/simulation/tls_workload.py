"""Other clients of TLS: strangers that do everything wrong, at a low cost for the broker and none for other clients;
and haulers, whose answers are larger than a TLS record and leave from files while they are read slowly.
"""

from __future__ import annotations

from typing import Any, Final

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.simulation.broker import PORT
from tests.simulation.client import Gone, Late, Life
from tests.simulation.history import value_of
from tests.simulation.kernel import Socket
from tests.simulation.tls_end import PADDING, TlsEnd
from tests.simulation.transaction_history import rows_of
from tests.simulation.workloads import E, Worker
from tests.simulation.world import MS
from tests.support.raw import fetch_fields, produce_fields

_PATIENCE_MS: Final = 30_000  # Longer than any deadline of a handshake and any pause of a Processor.
_LAST_LOOKS: Final = 100
_ASK: Final = {"topics": None, "allow_auto_topic_creation": False}
_MODES: Final = (
    "say_nothing", "half_hello", "unfinished", "flood", "in_the_clear", "damaged_hello", "damaged_record", "cut",
    "leave_at_once", "dribble",
)  # fmt: skip


class Stranger(Worker):
    """Knows no manners. In the end it looks once whether the broker shows the certificate that it was given."""

    ends: tuple[TlsEnd, ...] = ()  # More than one connection.

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ports = [PORT]

    def work(self) -> Life:
        if not self.reach(PORT):
            yield from self.pause(20)
            return
        mode = self.rng.choice(_MODES)
        try:
            yield from getattr(self, mode)()
        except OSError as problem:
            self.world.tell(self.name, f"({mode}) was stopped:", problem)
        self.world.counts["wrong handshakes"] += 1
        self.disconnect()
        yield from self.pause(self.rng.choice((0, 2, 10, 30)))

    def raw(self) -> Socket:
        assert isinstance(self.sock, Socket)
        return self.sock

    def wait_for_end(self, what: str, *, may_answer: bool = False) -> Life:
        """The broker must end the connection, and answer nothing."""
        until_ns = self.world.now_ns() + _PATIENCE_MS * MS
        while (sock := self.sock) is not None:
            if isinstance(sock, Socket):
                sock.bytes.clear()
            elif not sock.is_open:
                sock.take()
            elif sock.bytes and not may_answer:
                self.world.violate(f"{self.name}: {what} was answered")
            if sock.has_ended or sock.is_reset:
                return
            if self.world.now_ns() >= until_ns:
                self.world.violate(f"{self.name}: {what} was not ended in {_PATIENCE_MS // 1000} s")
                return
            self.sleep(until_ns - self.world.now_ns())
            yield

    def leave_or_wait(self, what: str) -> Life:
        if self.rng.random() < 0.7:
            yield from self.pause(self.rng.choice((0, 1, 10)))
        else:
            yield from self.wait_for_end(what)

    # -- without a handshake -----------------------------------------------------------------------------------

    def say_nothing(self) -> Life:
        yield from self.leave_or_wait("a silent connection")

    def in_the_clear(self) -> Life:
        self.raw().send(codec.encode_request(ApiKey.METADATA, 12, 1, self.name, _ASK))
        yield from self.wait_for_end("a request without TLS")

    # -- half of one -------------------------------------------------------------------------------------------

    def half_hello(self) -> Life:
        raw, end = self.raw(), self.begin_tls(resumes=False)
        hello = end.hello()
        raw.send(hello[: self.rng.randrange(1, len(hello))])
        yield from self.leave_or_wait("half a hello")

    def unfinished(self) -> Life:
        raw, end = self.raw(), self.begin_tls(resumes=False)
        raw.send(end.hello())
        yield from self.leave_or_wait("half a handshake")

    def flood(self) -> Life:
        """More handshakes than may be begun, at once; none goes on."""
        ends = []
        for _ in range(self.rng.choice((3, 6))):
            if self.sock is None and not self.reach(PORT):
                break
            raw, end = self.raw(), self.begin_tls(resumes=False)
            self.sock = None
            ends.append(end)
            raw.send(end.hello())
        yield from self.pause(self.rng.choice((0, 2, 10)))
        for end in ends:
            end.watchers.clear()
            end.on_last_close()

    # -- damage ------------------------------------------------------------------------------------------------

    def damaged_hello(self) -> Life:
        raw, end = self.raw(), self.begin_tls(resumes=False)
        raw.send(end.damaged(end.hello()))
        yield from self.fail_to_shake(end)

    def fail_to_shake(self, end: TlsEnd) -> Life:
        """Go on with a handshake that nobody must bring to its end."""
        until_ns = self.world.now_ns() + _PATIENCE_MS * MS
        try:
            while not end.shake():
                if self.world.now_ns() >= until_ns:
                    self.world.violate(f"{self.name}: a damaged handshake was not ended")
                    return
                self.sleep(until_ns - self.world.now_ns())
                yield
        except OSError:  # Our alert has left, or theirs has come.
            yield from self.wait_for_end("a damaged handshake")
        else:
            self.world.violate(f"{self.name}: a damaged handshake was finished")

    def damaged_record(self) -> Life:
        raw, end = self.raw(), self.begin_tls(resumes=True)
        yield from self.shake_hands(end)
        raw.send(end.damaged(end.encrypt(codec.encode_request(ApiKey.METADATA, 12, 1, self.name, _ASK))))
        yield from self.wait_for_end("a damaged request")

    # -- bad ends ----------------------------------------------------------------------------------------------

    def cut(self) -> Life:
        """Half a record, and no close_notify."""
        raw, end = self.raw(), self.begin_tls(resumes=True)
        yield from self.shake_hands(end)
        record = end.encrypt(codec.encode_request(ApiKey.METADATA, 12, 1, self.name, _ASK))
        raw.send(record[: self.rng.randrange(1, len(record) + 1)])
        yield from self.pause(self.rng.choice((0, 1, 5)))

    def leave_at_once(self) -> Life:
        """A request with a close_notify behind it."""
        raw, end = self.raw(), self.begin_tls(resumes=True)
        yield from self.shake_hands(end)
        raw.send(end.encrypt(codec.encode_request(ApiKey.METADATA, 12, 1, self.name, _ASK)))
        end.say_goodbye()
        yield from self.wait_for_end("a connection that its client ended", may_answer=True)

    # -- slow, but right ---------------------------------------------------------------------------------------

    def dribble(self) -> Life:
        """The hello comes in small pieces, which is no reason to refuse it."""
        raw, end = self.raw(), self.begin_tls(resumes=True)
        hello = end.hello()
        while hello:
            size = self.rng.choice((1, 4, 5, 100, 300))
            raw.send(hello[:size])
            hello = hello[size:]
            yield from self.pause(self.rng.choice((0, 0.1, 1)))
        yield from self.shake_hands(end)
        if self.world.sasl_port:
            yield from self.log_in()
        yield from self.call(ApiKey.METADATA, 12, _ASK)

    # -- the certificate ---------------------------------------------------------------------------------------

    def finish(self) -> Life:
        for _ in range(_LAST_LOOKS):
            try:
                if self.reach(PORT):
                    end = self.begin_tls(resumes=False)
                    yield from self.shake_hands(end)
                    if end.certificate in self.world.certificates:
                        return
            except (Gone, Late) as problem:
                self.world.tell(self.name, "looks again:", problem)
            self.disconnect()
            yield from self.pause(50)
        self.world.violate(f"{self.name}: the certificate that the broker was given is not shown")


class Hauler(Worker):
    """Large batches, and whole partitions, read as slowly as its socket's room makes it."""

    def __init__(self, *arguments: Any) -> None:
        self.number = 0
        self.left = 12  # Batches.
        super().__init__(*arguments)
        self.room = self.rng.choice((1 << 16, 20_000, 7000, 7000))

    def work(self) -> Life:
        topic = self.some_topic(is_compacted=False)
        if topic is None:
            yield from self.pause(5)
            return
        partition = self.rng.randrange(topic.partitions)
        if self.left and self.rng.random() < 0.5:
            yield from self.produce(topic, partition)
        else:
            yield from self.fetch(topic, partition)
        yield from self.pause(self.rng.choice((0, 5, 30)))

    def produce(self, topic: Any, partition: int) -> Life:
        if self.sock is None:
            yield from self.connect()
        self.left -= 1
        self.number += 1
        source = f"{self.name}.{self.connections}"
        value = value_of(topic.topic_id, partition, source, self.number, self.rng.randrange(5))
        padding = PADDING * self.rng.choice((20, 270, 270, 500, 1500))
        record = Record(value.rsplit(b"|", 1)[1], value, self.world.clock.wall_ms(), [("padding", padding)])
        records = bytes(encode_batch([record]))
        losses = self.history.power_losses
        fields = produce_fields([("", topic.topic_id, [(partition, records)])])
        self.history.awaited.add(value)
        answer = yield from self.call(ApiKey.PRODUCE, 13, fields)
        row = answer["responses"][0]["partition_responses"][0]
        self.check_code("Produce", row["error_code"])
        if not row["error_code"]:
            self.history.acknowledge(
                topic.topic_id, partition, row["base_offset"], [value], is_durable=True, losses=losses
            )

    def fetch(self, topic: Any, partition: int) -> Life:
        known = self.history.of(topic.topic_id, partition)
        losses = self.history.power_losses
        # All of it, or one batch from anywhere, which may just not fit into the socket.
        offset, bytes_max = known.log_start, 1_000_000
        if known.acknowledged and self.rng.random() < 0.6:
            offset, bytes_max = self.rng.choice(list(known.acknowledged)), 1
        fields = fetch_fields(
            [(topic.name, topic.topic_id, [(partition, offset)])], partition_max_bytes=bytes_max
        )
        answer = yield from self.call(ApiKey.FETCH, 13, fields)
        if answer["error_code"] or not answer["responses"] or losses != self.history.power_losses:
            return
        row = answer["responses"][0]["partitions"][0]
        self.check_code("Fetch", row["error_code"], E.OFFSET_OUT_OF_RANGE)
        if not row["error_code"]:
            self.world.counts["large answers"] += len(row["records"] or b"") > 16_384
            self.history.read(topic.topic_id, partition, [each[:2] for each in rows_of(row["records"])])
