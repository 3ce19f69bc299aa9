"""One group on a manual clock, with a log whose writes are done when the test says so, and clients that talk to it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kproc.broker.config import Config
from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.state import GroupEnvironment, OnWritten
from kproc.broker.group.messages import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from kproc.broker.group.records import GroupSnapshot
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000
RANGE = (("range", b"r"),)

T = TypeVar("T", JoinResult, SyncResult, LeaveResult)


class Answer(Generic[T]):
    """What a request was answered, if it was. A second answer fails the test."""

    def __init__(self) -> None:
        self.result: T | None = None

    def __call__(self, result: T) -> None:
        assert self.result is None, f"answered twice: {self.result}, {result}"
        self.result = result

    @property
    def is_open(self) -> bool:
        return self.result is None

    @property
    def value(self) -> T:
        assert self.result is not None, "not answered yet"
        return self.result

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(self.value.error_code)


class GroupRig:
    """A group and all that it is given."""

    def __init__(self, **config: int) -> None:
        self.clock = ManualClock()
        self.log: list[GroupSnapshot] = []
        self.append_error = ErrorCode.NONE  # Of the next appends.
        self.writing: list[OnWritten] = []  # Of the snapshots in the log that wait for a sync.
        self.holds_writes = False  # Else they are synced at once.
        self.ids = 0
        config.setdefault("group_initial_rebalance_delay_ms", INITIAL_DELAY_MS)
        self.environment = GroupEnvironment(
            Config(**config), self._random_id, self.clock.wall_ms, self._persist
        )
        self.group = ClassicGroup("g", self.environment)

    def restore(self, snapshot: GroupSnapshot) -> None:
        """Replace the group by one that was read from the log."""
        self.group = ClassicGroup(snapshot.group_id, self.environment)
        deque(self.group.restore(snapshot), maxlen=0)
        self.group.start_sessions(self.now_ms)

    def _random_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def _persist(self, snapshot: GroupSnapshot, on_written: OnWritten) -> bool:
        if self.append_error:
            on_written(self.append_error, self.now_ms)
            return False
        self.log.append(snapshot)
        self.writing.append(on_written)
        if not self.holds_writes:
            self.write()
        return True

    def write(self, code: int = ErrorCode.NONE, *, count: int | None = None) -> None:
        """The syncs of the snapshots that wait, or of the first ones, end with `code`."""
        stop = len(self.writing) if count is None else count
        writing, self.writing = self.writing[:stop], self.writing[stop:]
        for on_written in writing:
            on_written(code, self.now_ms)

    def configure(self, **changes: int) -> None:
        self.environment.config = dataclasses.replace(self.environment.config, **changes)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    @property
    def state(self) -> str:
        return self.group.state_name

    def pass_ms(
        self, duration_ms: int, *, before: Callable[[], object] = lambda: None, every_ms: int = 1_000
    ) -> None:
        """Let time pass, with the ticks that the group asks for, and `before()` every second."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            deadline_ms = self.group.next_deadline_ms()
            step_ms = (
                min(end_ms, self.now_ms + every_ms, max(deadline_ms or end_ms, self.now_ms)) - self.now_ms
            )
            self.clock.advance_ms(step_ms)
            before()
            self.group.tick(self.now_ms)
            next_ms = self.group.next_deadline_ms()
            assert next_ms is None or next_ms > self.now_ms, "a tick leaves nothing due"

    # Requests.

    def join_request(self, member_id: str = "", **fields: Any) -> JoinRequest:
        defaults: dict[str, Any] = {
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
        }
        return JoinRequest(member_id=member_id, **(defaults | fields))

    def join(self, member_id: str = "", **fields: Any) -> Answer[JoinResult]:
        answer: Answer[JoinResult] = Answer()
        self.group.join(self.join_request(member_id, **fields), self.now_ms, answer)
        return answer

    def sync(self, member_id: str, generation: int | None = None, **fields: Any) -> Answer[SyncResult]:
        answer: Answer[SyncResult] = Answer()
        number = self.group.generation if generation is None else generation
        self.group.sync(SyncRequest(member_id=member_id, generation=number, **fields), self.now_ms, answer)
        return answer

    def heartbeat(
        self, member_id: str, generation: int | None = None, group_instance_id: str | None = None
    ) -> ErrorCode:
        number = self.group.generation if generation is None else generation
        return ErrorCode(self.group.heartbeat(member_id, group_instance_id, number, self.now_ms))

    def leave(self, *members: str | LeavingMember) -> Answer[LeaveResult]:
        answer: Answer[LeaveResult] = Answer()
        leaving = [LeavingMember(each) if isinstance(each, str) else each for each in members]
        self.group.leave(leaving, self.now_ms, answer)
        return answer

    def can_commit(
        self,
        member_id: str = "",
        generation: int | None = None,
        group_instance_id: str | None = None,
        *,
        is_transactional: bool = False,
    ) -> ErrorCode:
        request = CommitRequest(
            group_id="g",
            member_id=member_id,
            group_instance_id=group_instance_id,
            generation=self.group.generation if generation is None else generation,
            knows_unknown_group=True,
            offsets=[],
            producer=Producer(1, 0) if is_transactional else None,
        )
        return ErrorCode(self.group.commit_refusal(request, self.now_ms))

    # Whole stories.

    def make_stable(self, count: int = 2, *, static: bool = False, **fields: Any) -> list[str]:
        """A stable group of `count` members; their ids, the leader's first. Assignments are `a<index>`."""
        joins = [
            self.join(group_instance_id=f"i{index}" if static else None, **fields) for index in range(count)
        ]
        while any(join.is_open for join in joins):
            self.pass_ms(500)
        assert [join.code for join in joins] == [ErrorCode.NONE] * count
        members = [join.value.member_id for join in joins]
        assert self.group.roster.leader == members[0]
        self.sync_all(members)
        return members

    def sync_all(self, members: list[str]) -> None:
        """All sync; the first one leads and assigns `a<index>`."""
        followers = [self.sync(member) for member in members[1:]]
        assignments = tuple((member, b"a%d" % index) for index, member in enumerate(members))
        leader = self.sync(members[0], assignments=assignments)
        if not self.holds_writes:
            assert [sync.value.assignment for sync in [leader, *followers]] == [
                each for _, each in assignments
            ]
            assert self.state == "Stable"

    def rejoin_all(self, members: list[str], **fields: Any) -> list[Answer[JoinResult]]:
        return [self.join(member, **fields) for member in members]
