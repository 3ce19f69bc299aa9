"""A share coordinator with a log on disk, and syncs that end when a test says so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.rules import KnownTopics
from kproc.broker.handler.coordinator_kinds import share_states
from kproc.broker.share.state.coordinator import ShareCoordinator
from kproc.broker.share.state.messages import (
    DeleteState,
    InitializeState,
    PersistedState,
    ReadState,
    ReadSummary,
    StateBatch,
    WriteState,
    state_key,
)
from kproc.broker.share.state.records import ShareRecordValue, decode_share_record
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from kproc.common.errors import KafkaError
from tests.support.coordinators import ALL_TOPICS, UNGUARDED, run_steps
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig, records_in
from tests.support.owned_log import OwnedLog

NAME = state_key("g", TOPIC_ID, 0)
OTHER = state_key("g", TOPIC_ID, 1)


class ShareRig:
    """One partition of `__share_group_state`. `partitions` are those of the topic TOPIC_ID that exist."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.files = LogRig(directory / "__share_group_state-0")
        self.config = Config.build({name.replace("_", "."): value for name, value in settings.items()})
        self.clock = ManualClock(wall_ms=NOW_MS)
        self.partitions = {0, 1, 2}
        self.open()

    def open(self, topics: KnownTopics = ALL_TOPICS) -> None:
        """Load the coordinator from the log."""
        self.log = self.files.open()
        self.owned = OwnedLog(self.log)
        kind = share_states(
            self.config, self.clock, lambda topic_id, index: topic_id == TOPIC_ID and index in self.partitions
        )
        owned: Any = self.owned
        self.shard: CoordinatorLog[ShareCoordinator] = CoordinatorLog(
            kind, owned, self.config, self.clock, Deadlines(), {}, 0, UNGUARDED
        )
        while not self.shard.is_loaded:
            assert not self.shard.is_damaged
            self.shard.load_some(topics)
        self.coordinator = self.shard.coordinator

    def reopen(self, topics: KnownTopics = ALL_TOPICS) -> None:
        self.log.close()
        self.open(topics)

    def settle(self) -> None:
        """Run all steps, append all writes, and end a sync round."""
        run_steps(self.coordinator)
        self.shard.flush()
        self.owned.sync()

    def outcome(self, operation: str, name: str, *arguments: Any) -> Any:
        """Carry out an operation. Return its outcome, or the code of its error."""
        outcomes: list[Any] = []
        try:
            getattr(self.coordinator, operation)(name, *arguments, outcomes.append)
        except KafkaError as error:
            return int(error.code)
        self.settle()
        (outcome,) = outcomes
        return outcome if isinstance(outcome, PersistedState) else int(outcome)

    def initialize(self, name: str = NAME, *, epoch: int = 0, start: int = 0) -> int:
        code: int = self.outcome("initialize", name, InitializeState(epoch, start))
        return code

    def write(
        self,
        *batches: tuple[int, int, int, int],
        name: str = NAME,
        epoch: int = 0,
        leader: int = 0,
        start: int = -1,
        complete: int = -1,
        replaces: bool = False,
    ) -> int:
        states = tuple(StateBatch(*each) for each in batches)
        request = WriteState(epoch, leader, start, complete, states, replaces)
        code: int = self.outcome("write", name, request)
        return code

    def read(self, name: str = NAME, *, leader: int = 0) -> PersistedState | int:
        state: PersistedState | int = self.outcome("read", name, ReadState(leader))
        return state

    def summary(self, name: str = NAME) -> PersistedState | int:
        state: PersistedState | int = self.outcome("summarize", name, ReadSummary())
        return state

    def records(self) -> list[ShareRecordValue | None]:
        """Return the values of all records in the log."""
        data = self.log.reader.read_bytes(self.log.state.start_offset, 1 << 20)
        return [decode_share_record(record.key, record.value)[1] for record in records_in(data)]

    def sweep(self) -> None:
        self.coordinator.start_sweep()
        self.settle()


# ---- random requests, as the oracle of Kafka's coordinator reads them ---------------------------------------


def text_of(batches: Sequence[StateBatch]) -> str:
    return ";".join(f"{each.first},{each.last},{each.state},{each.delivery_count}" for each in batches)


def random_request(rng: random.Random, *, may_reset: bool) -> str:
    """Return one request. With `may_reset`, it may also make a snapshot that no count of updates causes."""
    partition = rng.choice((0, 0, 0, 1, 1, 2, 3))
    kinds = ["WRITE"] * 6 + ["READ", "SUMMARY"] + (["INITIALIZE", "DELETE", "COLD"] if may_reset else [])
    match rng.choice(kinds):
        case "INITIALIZE":
            return f"INITIALIZE {partition} {rng.choice((0, 0, 1, 2))} {rng.choice((-1, 0, 5))}"
        case "WRITE":
            firsts = [rng.randrange(30) for _ in range(rng.randrange(4))]
            batches = [
                StateBatch(first, first + rng.choice((0, 2, 7)), rng.choice((0, 2, 4)), rng.randint(1, 3))
                for first in firsts
            ]
            epochs = f"{rng.choice((0, 1, 2, 3))} {rng.choice((0, 1, 2, 3))}"
            return (
                f"WRITE {partition} {epochs} {rng.choice((-1, 0, rng.randrange(20)))} {rng.randint(-1, 9)} "
                f"{text_of(batches)}"
            )
        case "READ":
            return f"READ {partition} {rng.choice((0, 1, 1, 2, 3))}"
        case "SUMMARY":
            return f"SUMMARY {partition}"
        case "DELETE":
            return f"DELETE {partition}"
        case _:
            return "COLD"


def answer_of(rig: ShareRig, request: str) -> str:
    """Carry out a request on our coordinator. Return its answer in the oracle's form."""
    kind, *fields = request.split(" ")
    end = rig.log.state.end_offset
    outcome: PersistedState | int = 0
    shown = ""
    name = state_key("g", TOPIC_ID, int(fields[0])) if fields else ""
    match kind:
        case "INITIALIZE":
            outcome = rig.initialize(name, epoch=int(fields[1]), start=int(fields[2]))
        case "WRITE":
            batches = [tuple(map(int, each.split(","))) for each in fields[5].split(";") if each]
            epoch, leader, start, complete = map(int, fields[1:5])
            outcome = rig.write(
                *batches,  # type: ignore[arg-type]
                name=name, epoch=epoch, leader=leader, start=start, complete=complete,
            )  # fmt: skip
        case "READ":
            outcome = rig.read(name, leader=int(fields[1]))
            if isinstance(outcome, PersistedState):
                shown = f"{outcome.state_epoch} {outcome.start_offset} {text_of(outcome.batches)}"
        case "SUMMARY":
            outcome = rig.summary(name)
            if isinstance(outcome, PersistedState):
                shown = (
                    f"{outcome.state_epoch} {outcome.leader_epoch} {outcome.start_offset} "
                    f"{outcome.delivery_complete_count}"
                )
        case "DELETE":
            outcome = rig.outcome("delete", name, DeleteState())
        case _:
            rig.sweep()
    written = records_in(rig.log.reader.read_bytes(end, 1 << 20)) if rig.log.state.end_offset > end else []
    records = [f"{(each.key or b'').hex()}:{(each.value or b'').hex()}" for each in written]
    code = 0 if isinstance(outcome, PersistedState) else outcome
    return f"{code}|{shown}|{' '.join(sorted(records))}"
