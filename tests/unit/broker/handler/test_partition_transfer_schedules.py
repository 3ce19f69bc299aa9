"""Random schedules of Handlers that share a growing and shrinking routing table, against a simple model of logs.

Every step is one of: a request, one duty cycle of one Handler, the end of a round of fdatasync, a new Handler count,
now and then a death. Clients behave as Processors let them: requests of one connection are in work at one Handler at
a time, which need not be the owner. The model: each record that was acknowledged is in its log once, where the
answer said, and those of one connection are in the order in which they were sent.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.transport.envelope import CLOSE, NO_OP
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
HANDLERS, PARTITIONS, CONNECTIONS, STEPS = 4, 6, 5, 250
IN_WORK_MAX = 4
PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 7
NO_ID = bytes(16)
Key = tuple[int, int]  # (connection, partition)


class Client:
    """One producing connection: where its requests are in work, and what it sent."""

    def __init__(self, number: int, *, is_idempotent: bool) -> None:
        self.number = number
        self.is_idempotent = is_idempotent
        self.target = 0
        self.in_work: dict[int, tuple[int, list[tuple[int, bytes]]]] = {}  # sequence -> (acks, records)
        self.sent: dict[int, list[bytes]] = defaultdict(list)  # By partition.

    def next_batch(self, partition: int) -> tuple[bytes, bytes]:
        """(value, encoded batch) of the next record of a partition."""
        number = len(self.sent[partition])
        value = b"%d.%d.%d" % (self.number, partition, number)
        self.sent[partition].append(value)
        if self.is_idempotent:
            more: dict[str, Any] = {"producer_id": self.number, "producer_epoch": 0, "base_sequence": number}
        else:
            more = {}
        return value, batch(value, **more)


class Poller:
    """One consuming connection: one long poll after another over every partition."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.home = 0
        self.is_waiting = False
        self.got: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]


class Story:
    """One random run."""

    def __init__(self, rig: HandlerRig, seed: int, *, deaths: bool) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.deaths = deaths
        self.clients = [Client(n, is_idempotent=n % 2 == 1) for n in range(1, CONNECTIONS + 1)]
        self.pollers = [Poller(n) for n in range(100, 103)]
        self.acknowledged: dict[int, dict[int, bytes]] = defaultdict(dict)  # partition -> offset -> value
        self.errors = 0

    # -- steps -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choices(
                (self.produce, self.poll, self.work, self.end_round, self.change_count, self.die),
                (8, 2, 16, 3, 1, 0.3 if self.deaths else 0),
            )[0]()
        self.finish()

    def alive(self) -> list[int]:
        return [n for n, handler in enumerate(self.rig.handlers) if handler is not None]

    def produce(self) -> None:
        client = self.random.choice(self.clients)
        if len(client.in_work) >= IN_WORK_MAX:
            return
        if not client.in_work:
            client.target = self.random.choice(self.alive())
        acks = self.random.choice((0, 1, -1))
        partitions = self.random.sample(range(PARTITIONS), self.random.choice((1, 1, 1, 3)))
        made = [(partition, *client.next_batch(partition)) for partition in partitions]
        fields = produce_fields([("t", NO_ID, [(p, records) for p, _, records in made])], acks=acks)
        processor = self.rig.processors[client.target]
        sequence = processor.send(ApiKey.PRODUCE, PRODUCE_VERSION, fields, connection=client.number)
        client.in_work[sequence] = (acks, [(partition, value) for partition, value, _ in made])

    def poll(self) -> None:
        poller = self.random.choice(self.pollers)
        if poller.is_waiting:
            return
        poller.home = self.random.choice(self.alive())
        poller.is_waiting = True
        wanted = [(partition, len(got)) for partition, got in enumerate(poller.got)]
        fields = fetch_fields([("t", NO_ID, wanted)], max_wait_ms=self.random.choice((0, 500)))
        processor = self.rig.processors[poller.home]
        processor.send(ApiKey.FETCH, FETCH_VERSION, fields, connection=poller.number)

    def work(self) -> None:
        self.rig.handler(self.random.choice(self.alive())).do_work(0)
        self.take_answers()

    def end_round(self) -> None:
        syncer = self.rig.syncers[self.random.choice(self.alive())]
        if syncer.rounds:
            syncer.end_round()

    def end_rounds(self) -> None:
        for syncer in self.rig.syncers:
            while syncer.rounds:
                syncer.end_round()
        self.rig.settle()

    def change_count(self) -> None:
        self.rig.set_handler_count(self.random.randint(1, HANDLERS), settles=False)

    def die(self) -> None:
        victim = self.random.choice(self.alive())
        self.take_answers()
        self.rig.kill(victim)
        for client in self.clients:  # Their connections are closed.
            if client.target == victim:
                client.in_work.clear()
        for poller in self.pollers:
            if poller.home == victim:
                poller.is_waiting = False
        for _ in range(self.random.randrange(6)):
            if self.alive():
                self.work()
        self.rig.start_handler(victim, is_restart=True, settles=False)

    def finish(self) -> None:
        """Let everything end: nothing may stay behind."""
        for _ in range(60):
            self.end_rounds()
            self.rig.advance_ms(100)
            self.take_answers()
        for client in self.clients:
            assert not client.in_work, f"never answered: {client.in_work}"
        assert not any(poller.is_waiting for poller in self.pollers)
        for handler in self.rig.handlers:
            assert handler is not None
            assert parts_of(handler).transfers.is_idle, handler.id
            assert len(parts_of(handler).calls) == 0, handler.id
            assert len(parts_of(handler).purgatory) == 0, handler.id
            assert not parts_of(handler).produce._guards, handler.id
            for owned in parts_of(handler).partitions.opened():
                assert self.rig.owner(*owned.key) == handler.id.index
        self.compare()

    # -- answers ---------------------------------------------------------------------------------------------

    def take_answers(self) -> None:
        for processor in self.rig.processors:
            for answer in processor.answers(settles=False):
                if answer.connection_id >= 100:
                    self.take_poll(answer)
                else:
                    self.take_produce(answer)

    def take_produce(self, answer: Answer) -> None:
        client = self.clients[answer.connection_id - 1]
        found = client.in_work.pop(answer.sequence, None)
        if found is None:
            assert self.deaths, f"answered twice: {answer}"
            return
        acks, records = found
        if answer.kind == CLOSE:
            assert self.deaths, answer
            self.errors += 1
            return
        if acks == 0:
            assert answer.kind == NO_OP, answer
            return
        rows = answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]["partition_responses"]
        for (partition, value), row in zip(records, rows, strict=True):
            assert row["index"] == partition
            if row["error_code"]:
                assert self.deaths, row
                self.errors += 1
                continue
            known = self.acknowledged[partition].setdefault(row["base_offset"], value)
            assert known == value, f"two records at offset {row['base_offset']} of {partition}"

    def take_poll(self, answer: Answer) -> None:
        poller = next(each for each in self.pollers if each.number == answer.connection_id)
        if not poller.is_waiting:
            assert self.deaths
            return
        poller.is_waiting = False
        (topic,) = answer.fields(ApiKey.FETCH, FETCH_VERSION)["responses"]
        for row in topic["partitions"]:
            if row["error_code"]:
                assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER, row
                self.errors += 1
                continue
            poller.got[row["partition_index"]] += [value for _, value in values_of(row["records"])]

    # -- the model -------------------------------------------------------------------------------------------

    def compare(self) -> None:
        for partition in range(PARTITIONS):
            stored = self.read_all(partition)
            for offset, value in self.acknowledged[partition].items():
                assert stored[offset] == value, (partition, offset)
            for poller in self.pollers:
                assert poller.got[partition] == stored[: len(poller.got[partition])], partition
            assert len(set(stored)) == len(stored), "a record is there twice"
            for client in self.clients:
                theirs = [value for value in stored if value.startswith(b"%d." % client.number)]
                sent = client.sent[partition]
                if self.deaths:
                    assert theirs == [value for value in sent if value in set(theirs)], "out of order"
                else:
                    assert theirs == sent

    def read_all(self, partition: int) -> list[bytes]:
        # The first touch after a death may ask who else holds it, so it is a request that waits. It also opens the log,
        # whose records are hidden until a sync has confirmed them.
        for _ in range(2):
            asked = self.rig.processors[0].ask(
                ApiKey.LIST_OFFSETS, LIST_VERSION, list_offsets_fields("t", [(partition, -1)]), connection=201
            )
            self.end_rounds()
        end = asked["topics"][0]["partitions"][0]["offset"]
        stored: list[bytes] = []
        while len(stored) < end:
            fields = fetch_fields([("t", NO_ID, [(partition, len(stored))])], max_wait_ms=0)
            answer = self.rig.processors[0].ask(ApiKey.FETCH, FETCH_VERSION, fields, connection=200)
            (row,) = answer["responses"][0]["partitions"]
            assert row["error_code"] == 0, row
            stored += [value or b"" for _, value in values_of(row["records"])]
        return stored


def tell_story(start: Start, seed: int, *, deaths: bool) -> Story:
    rig = start(handlers=HANDLERS, settings={"kproc.flush": "group"})
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=PARTITIONS)
    story = Story(rig, seed, deaths=deaths)
    story.run()
    return story


@pytest.mark.parametrize("seed", range(12))
def test_random_schedule_stores_each_record_once_in_order(start: Start, seed: int) -> None:
    story = tell_story(start, seed, deaths=False)
    assert sum(len(each) for each in story.acknowledged.values()) > 30


@pytest.mark.parametrize("seed", range(8))
def test_deaths_during_transfers_lose_nothing_acknowledged(start: Start, seed: int) -> None:
    tell_story(start, seed, deaths=True)
