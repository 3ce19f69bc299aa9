"""The owner's half of share sessions in a real Handler. A test holds the states of share partitions in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from kproc.broker.calls.calls import Reply
from kproc.broker.peers.share_call import READ_STATE
from kproc.broker.share.partition.messages import (
    AcknowledgeBatch,
    AcknowledgedPart,
    AcknowledgePart,
    AcknowledgeParts,
    AcknowledgeType,
    AcquiredPart,
    AcquireParts,
    PartsAcknowledged,
    PartsAcquired,
    ReleaseHolder,
    ShareHolder,
    ShareKey,
    WatchParts,
)
from kproc.broker.share.partition.owner import (
    acknowledge_for_home,
    acquire_for_home,
    release_for_home,
    watch_for_home,
)
from kproc.broker.share.state.messages import PersistedState, WriteState, parse_state_key, state_key
from kproc.broker.share.state.records import Snapshot
from kproc.broker.share.state.stored_partition import StoredPartition
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import batch

Acquired = list[tuple[int, int, int]]


def all_of(first: int, last: int, kind: int = AcknowledgeType.ACCEPT) -> AcknowledgeBatch:
    """Return an acknowledgement with one type for all offsets."""
    return AcknowledgeBatch(first, last, [kind])


class HeldStates:
    """A share coordinator: it keeps states in memory, and answers writes at once or when a test says so."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.states: dict[str, PersistedState] = {}
        self.holds = False
        self.held: list[Callable[[], None]] = []
        self.writes: list[WriteState] = []
        self.sends = 0  # Calls with writes, each of which may have several.
        self.errors: list[int] = []  # The outcomes of the next operations.

    def send(self, operation: Any, parts: Sequence[tuple[Any, Any]], on_outcome: Callable[..., None]) -> None:
        self.sends += operation is not READ_STATE
        for partition, arguments in parts:

            def answer(partition: Any = partition, arguments: Any = arguments) -> None:
                if not partition.is_dropped:
                    on_outcome(partition, self._handle(operation, partition.name, arguments))

            if self.holds:
                self.held.append(answer)
            else:
                answer()

    def send_in_turn(self, operation: Any, partition: Any, arguments: Any, on_outcome: Callable[..., None]) -> None:
        self.send(operation, [(partition, arguments)], on_outcome)

    def send_after_pause(self, operation: Any, partition: Any, arguments: Any, on_outcome: Callable[..., None]) -> None:
        self.send(operation, [(partition, arguments)], on_outcome)

    def release(self) -> None:
        """Answer what is held."""
        held, self.held = self.held, []
        for answer in held:
            answer()

    def _handle(self, operation: Any, name: str, arguments: Any) -> Any:
        if self.errors and (error := self.errors.pop(0)):
            return error
        state = self.states.get(name, PersistedState(0, 0))
        if operation is READ_STATE:
            return state
        self.writes.append(arguments)
        if arguments.state_epoch < state.state_epoch:
            return int(ErrorCode.FENCED_STATE_EPOCH)
        # The real rules: a start offset and delivery counts do not decrease, unless the request replaces the state.
        snapshot = Snapshot(
            0, state.state_epoch, arguments.leader_epoch, state.start_offset, state.delivery_complete_count, 0, 0
        )
        part = StoredPartition(parse_state_key(name), replace(snapshot, batches=state.batches), 0)
        update = part.update_for(arguments, arguments.leader_epoch)
        if arguments.replaces:
            part.follow_snapshot(part.snapshot_after(update, update.batches, 0), 1)
        else:
            part.follow_update(update)
        self.states[name] = part.persisted
        return 0


class ShareOwner:
    """Calls to the owner of the partitions of the topic `t`, for sessions of the group `g`."""

    def __init__(self, rig: HandlerRig, *, earliest: bool = True) -> None:
        self.rig = rig
        self.states = HeldStates()
        self.services = parts_of(rig.handler(0)).services
        self.shares = self.services.owner.shares
        self.shares._calls = self.states  # type: ignore[assignment]
        self.topic_id = rig.create_topic("t", partitions=2)
        if earliest:
            self.configure(share_auto_offset_reset="earliest")
        self._watches = 0

    def configure(self, **configs: str) -> None:
        """Set configs of the group."""
        wanted = {name.replace("_", "."): value for name, value in configs.items()}
        self.rig.cluster.do(
            "incremental_alter_configs",
            resources=[
                {
                    "resource_type": 32,
                    "resource_name": "g",
                    "configs": [
                        {"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()
                    ],
                }
            ],
            validate_only=False,
        )
        self.rig.tell()

    @property
    def state(self) -> PersistedState:
        """The persisted state of partition 0."""
        return self.states.states[state_key("g", self.topic_id, 0)]

    def part(self, index: int = 0) -> ShareKey:
        return self.topic_id, index

    def acknowledge_part(self, *batches: AcknowledgeBatch, index: int = 0) -> AcknowledgePart:
        return AcknowledgePart((self.topic_id, index), list(batches))

    def acquire(
        self, member: ShareHolder, *parts: ShareKey, records_max: int = 500, **more: Any
    ) -> list[AcquiredPart] | None:
        """Acquire, and settle. None if the call is not answered yet."""
        body = AcquireParts(
            self.services.image.version,
            member,
            list(parts) or [self.part()],
            **{"records_max": records_max, "batch_size": 0, "bytes_max": 1 << 20, **more},
        )
        replies: list[PartsAcquired | None] = []
        acquire_for_home(self.services, body, replies.append)
        self.rig.settle()
        if not replies:
            return None
        (reply,) = replies
        assert reply is not None
        return reply.parts

    def offsets(self, member: ShareHolder, **more: Any) -> Acquired:
        """Acquire from partition 0. Return (first, last, delivery count) of each range."""
        found = self.acquire(member, **more)
        assert found is not None
        (part,) = found
        assert part.error == 0, part
        return [(each.first, each.last, each.delivery_count) for each in part.acquired]

    def load(self, member: ShareHolder) -> None:
        """Have the state of partition 0 read, which the first acquire only begins."""
        self.acquire(member, records_max=0)

    def acknowledge(
        self, member: ShareHolder, *batches: AcknowledgeBatch, index: int = 0
    ) -> AcknowledgedPart | None:
        """Acknowledge records of a partition. None if this is not persisted yet."""
        replies: list[PartsAcknowledged | None] = []
        body = AcknowledgeParts(self.services.image.version, member, [self.acknowledge_part(*batches, index=index)])
        acknowledge_for_home(self.services, body, replies.append)
        self.rig.settle()
        if not replies:
            return None
        assert replies[0] is not None
        return replies[0].parts[0]

    def release(self, member: ShareHolder) -> None:
        """End a session."""
        release_for_home(self.services, ReleaseHolder(self.services.image.version, member), lambda _reply: None)
        self.rig.settle()

    def watch(self, *, wait_ms: int = 500, index: int = 0, bytes_min: int = 1) -> list[Reply | None]:
        """Watch a partition. The list gets the reply."""
        replies: list[Reply | None] = []
        self._watches += 1
        deadline_ns = self.rig.clock.now_ns() + wait_ms * NS_PER_MS
        body = WatchParts(
            self.services.image.version,
            (0, self._watches),
            "g",
            [self.part(index=index)],
            deadline_ns,
            bytes_min,
        )
        watch_for_home(self.services, body, replies.append)
        self.rig.settle()
        return replies

    def produce(self, *sizes: int, value: bytes = b"v", index: int = 0) -> None:
        """Append batches with so many records each."""
        owned = self.rig.open("t", index)
        for size in sizes:
            owned.log.append([batch(*[value] * size)])
        owned.after_append()
        self.rig.settle()
