"""python -m tests.starvation [--api NAME] [--denied]: a table of every API with arrays, for a quiet machine.

One client sends the largest request that is served, and one as large as socket.request.max.bytes lets through; then
small requests with answers of ANSWER_ROWS rows, and floods of small requests (floods.py). Another one produces a record
every 5 ms meanwhile. The table shows how long that took at most, and the memory of the Handler.
`--denied` does it as a client without any right, whose denials are logged for the audit.

The deterministic tests of the same requests, which count bytecodes between two turns of a Handler, are
tests/unit/broker/request/test_divided_requests.py and test_listing.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from kproc.broker.request.divided_request import ROWS_MAX
from kproc.broker.share.session.share_requests import PARTITIONS_MAX
from kproc.broker.share.session.share_requests import ROWS_MAX as SHARE_ROWS_MAX
from kproc.client import ConnectionLost
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.hot_fetch_request import FETCH_ROWS_MAX
from kproc.wire.hot_produce import PRODUCE_ROWS_MAX
from tests.starvation.floods import FLOODS, Flood
from tests.support.broker import ServedBroker
from tests.support.large_answers import LARGE_ANSWERS, LargeAnswer
from tests.support.large_requests import LARGE, LargeRequest
from tests.support.raw import Closed, RawClient, batch

WAIT_MS_MAX, MEMORY_MIB_MAX = 100, 300
FRAME_BYTES = 100 << 20  # socket.request.max.bytes
ANSWER_ROWS = 20_000
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_MIB = 1 << 20
_ROWS_MAX = {
    ApiKey.PRODUCE: PRODUCE_ROWS_MAX,
    ApiKey.FETCH: FETCH_ROWS_MAX,
    ApiKey.SHARE_FETCH: PARTITIONS_MAX,
    ApiKey.SHARE_ACKNOWLEDGE: SHARE_ROWS_MAX,
}


class Watch:
    """A client that produces again and again, and the memory of the Handler meanwhile."""

    def __init__(self, broker: ServedBroker, *, may_produce: bool) -> None:
        self._broker = broker
        self._may_produce = may_produce
        self._handlers = [row["pid"] for row in broker.processes if row["role"].startswith("handler")]
        self._stop, self._round = threading.Event(), threading.Event()
        self.longest_s = 0.0
        self.memory = self.before = self._memory()
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._produce, self._measure)
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_a_round(self) -> None:
        """Wait until the client has sent something from now on, and got its answer."""
        self._round.clear()
        self._round.wait()
        self._round.clear()
        self._round.wait()

    def _produce(self) -> None:
        with RawClient(self._broker.bootstrap, timeout=120) as client:
            while not self._stop.is_set():
                began = time.monotonic()
                if self._may_produce:
                    client.produce("t", batch(b"x"), acks=1)
                else:
                    client.call(ApiKey.API_VERSIONS, 0, {})
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._round.set()
                self._stop.wait(0.005)

    def _measure(self) -> None:
        while not self._stop.wait(0.02):
            self.memory = max(self.memory, self._memory())

    def _memory(self) -> int:
        """Bytes that the Handlers have for themselves."""
        found = 0
        for pid in self._handlers:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Dirty:", "Private_Clean:")):
                    found += int(line.split()[1]) << 10
        return found


def frames_of(large: LargeRequest) -> list[tuple[str, bytes]]:
    """The largest request that is served, and the largest that a Processor reads."""
    rows_max = _ROWS_MAX.get(large.key, ROWS_MAX) - 10
    served = _frame(large, rows_max)
    by_size = _frame(large, 1_000)
    rows = 1_000 * FRAME_BYTES // len(by_size)
    return [(f"{rows_max:,} rows", served), ("100 MiB", _largest(large, rows))]


def _frame(large: LargeRequest, rows: int) -> bytes:
    return codec.encode_request(large.key, large.version, 1, "starvation", large.make(rows))


def _largest(large: LargeRequest, rows: int) -> bytes:
    """A frame just below the limit. Building all rows would take minutes: the last ones are zeros."""
    frame = bytearray(_frame(large, min(rows, 200_000)))
    frame += bytes(FRAME_BYTES - len(frame))
    frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


def try_one(
    broker: ServedBroker, large: LargeRequest | LargeAnswer, label: str, frame: bytes, *, may: bool
) -> bool:
    """Send one request, print its line of the table. Return True if the bounds hold.

    Raises AssertionError if a LargeAnswer has fewer rows than it should, because a small answer measures nothing.
    """
    outcome, answer = "", b""
    with Watch(broker, may_produce=may) as watch:
        watch.wait_for_a_round()
        began = time.monotonic()
        try:
            with RawClient(broker.bootstrap, timeout=300) as client:
                client.send_bytes(frame)
                answer = client.receive_frame()
                outcome = f"{len(answer):,} B"
        except (Closed, ConnectionLost, OSError):
            outcome = "closed"
        took_s = time.monotonic() - began
        watch.wait_for_a_round()
    if isinstance(large, LargeAnswer):
        rows = large.count(codec.decode_response(large.key, large.version, answer)[1])
        assert rows >= min(ANSWER_ROWS, large.rows_max), f"{large.name}: {rows} rows"
    is_well = watch.longest_s * 1000 < WAIT_MS_MAX and watch.memory < MEMORY_MIB_MAX * _MIB
    print(
        f"{large.name:34} {label:>16} {len(frame) / _MIB:7.1f} MiB  answer {outcome:>14} in {took_s:6.2f} s  "
        f"others waited {watch.longest_s * 1000:6.0f} ms  Handler {watch.memory / _MIB:5.0f} MiB"
        f"{'' if is_well else '  TOO MUCH'}",
        flush=True,
    )
    return is_well


def _send_flood(flood: Flood, bootstrap: str, begins: Event) -> None:
    begins.wait()
    flood.send(bootstrap)


def try_flood(broker: ServedBroker, flood: Flood) -> bool:
    """Send one flood, print its line of the table. Return True if the bounds hold."""
    with RawClient(broker.bootstrap, timeout=300) as client:
        flood.prepare(client)
    # The flood has a process of its own, forked before the threads of the Watch start. In this process, the Watch would
    # also wait for the interpreter lock while frames of 1 MB are encoded.
    context = multiprocessing.get_context("fork")
    begins = context.Event()
    process = context.Process(target=_send_flood, args=(flood, broker.bootstrap, begins))
    process.start()
    with Watch(broker, may_produce=True) as watch:
        watch.wait_for_a_round()
        began = time.monotonic()
        begins.set()
        process.join()
        took_s = time.monotonic() - began
        watch.wait_for_a_round()
    if process.exitcode:
        raise RuntimeError(f"flood {flood.name!r} failed")
    is_well = watch.longest_s * 1000 < WAIT_MS_MAX and watch.memory < MEMORY_MIB_MAX * _MIB
    print(
        f"{flood.name:34} {'flood':>16} {'':11}  answers {'':14} in {took_s:6.2f} s  "
        f"others waited {watch.longest_s * 1000:6.0f} ms  Handler {watch.memory / _MIB:5.0f} MiB"
        f"{'' if is_well else '  TOO MUCH'}",
        flush=True,
    )
    return is_well


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all within the bounds, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.starvation", description=__doc__)
    parser.add_argument("--api", default="", help="only those whose name contains this")
    parser.add_argument("--denied", action="store_true", help="as a client without any right")
    options = parser.parse_args(arguments)
    is_well = True
    with _served(is_denied=options.denied) as broker:
        for large in LARGE:
            if options.api.lower() in large.name.lower():
                for label, frame in frames_of(large):
                    is_well &= try_one(broker, large, label, frame, may=not options.denied)
        if options.denied:
            print(f"{len(broker.log()):,} characters of log")
            return 0 if is_well else 1
        for answer in LARGE_ANSWERS:
            if options.api.lower() in answer.name.lower():
                with RawClient(broker.bootstrap, timeout=300) as client:
                    answer.fill(client.call, ANSWER_ROWS)
                frame = codec.encode_request(answer.key, answer.version, 1, "starvation", answer.fields)
                is_well &= try_one(broker, answer, f"{ANSWER_ROWS:,} in answer", frame, may=True)
    for flood in FLOODS:
        if options.api.lower() in flood.name.lower():
            with _served() as broker:
                is_well &= try_flood(broker, flood)
    return 0 if is_well else 1


@contextmanager
def _served(*, is_denied: bool = False) -> Iterator[ServedBroker]:
    """Run a broker with one Handler, one Processor and the topic `t`.

    Large requests and answers share one, so that an answer has the topics of all before it, too. A flood has one of its
    own: its groups still exist afterwards, and their memory would count for the next flood.
    """
    settings: dict[str, Any] = {"num.io.threads": 1, "num.network.threads": 1}
    super_user = "User:root" if is_denied else "User:ANONYMOUS"
    settings |= {"authorizer.class.name": AUTHORIZER, "super.users": super_user}
    with tempfile.TemporaryDirectory(prefix="starvation-") as scratch:
        broker = ServedBroker(Path(scratch) / "data", settings=settings).start()
        try:
            if not is_denied:
                with RawClient(broker.bootstrap) as client:
                    client.create_topic("t", partitions=4)
                    client.call(ApiKey.FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
                    client.call(ApiKey.FIND_COORDINATOR, 1, {"key": "x", "key_type": 1})
            yield broker
        finally:
            broker.stop(seconds=60)


if __name__ == "__main__":
    sys.exit(main())
