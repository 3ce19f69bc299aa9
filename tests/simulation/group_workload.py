"""Members of one group, as a consumer library makes them: join, sync, heartbeat, commit, leave; and what must hold."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Life
from tests.simulation.workloads import PASSING, Committing, E
from tests.support.groups import join_fields, subscription

_REJOIN = (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.MEMBER_ID_REQUIRED)


class Member(Committing):
    """One member of the group that all of its kind share; each commits the offset of a partition of its own."""

    group = "group-of-members"

    def __init__(self, *arguments: Any) -> None:
        self.member_id = ""
        self.generation = -1
        super().__init__(*arguments)

    def work(self) -> Life:
        if not any(each.name == "stable" for each in self.history.alive()):
            yield from self.pause(20)
            return
        yield from self.find_coordinator(self.group)
        if not (yield from self.join()):
            return
        yield from self.look()  # As a consumer does that was given a partition.
        for _ in range(self.rng.choice((1, 3, 10, 30))):
            if self.must_finish or not (yield from self.live()):
                return
        if self.rng.random() < 0.4:
            yield from self.leave()

    def place(self) -> tuple[str, int]:
        return self.group, int(self.name.rpartition("-")[2])

    def join(self) -> Life:
        """Until it is in a generation and has its assignment; False: begin anew."""
        fields = join_fields(
            self.group,
            session_timeout=self.rng.choice((200, 1000)),
            rebalance_timeout=self.rng.choice((300, 1000)),
            member_id=self.member_id,
            protocols=[{"name": "range", "metadata": subscription("stable")}],
        )
        answer = yield from self.call(ApiKey.JOIN_GROUP, 9, fields)
        code = answer["error_code"]
        if code == E.MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            return False
        if not self.accept("JoinGroup", code):
            yield from self.pause(10)
            return False
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        is_leader = answer["leader"] == self.member_id
        assignments = []
        if is_leader:
            assignments = [
                {"member_id": each["member_id"], "assignment": self.assignment_of(each["member_id"])}
                for each in answer["members"]
            ]
        sync = {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
            "assignments": assignments,
        }  # fmt: skip
        answer = yield from self.call(ApiKey.SYNC_GROUP, 5, sync)
        if not self.accept("SyncGroup", answer["error_code"]):
            return False
        if answer["assignment"] != self.assignment_of(self.member_id):
            self.world.violate(
                f"{self.name}: generation {self.generation} assigned {answer['assignment']!r} to {self.member_id}"
            )
        return True

    def assignment_of(self, member_id: str) -> bytes:
        """What whoever leads this generation assigns to a member."""
        return f"{self.generation}/{member_id}".encode()

    def live(self) -> Life:
        if self.rng.random() < 0.5:
            fields = {
                "group_id": self.group, "generation_id": self.generation, "member_id": self.member_id,
                "group_instance_id": None,
            }  # fmt: skip
            answer = yield from self.call(ApiKey.HEARTBEAT, 4, fields)
            is_in = self.accept("Heartbeat", answer["error_code"])
        else:
            code = yield from self.commit(
                generation_id_or_member_epoch=self.generation, member_id=self.member_id
            )
            is_in = self.accept("OffsetCommit", code)
        yield from self.pause(self.rng.choice((1, 10, 50, 150)))
        return is_in

    def leave(self) -> Life:
        rows = [{"member_id": self.member_id, "group_instance_id": None, "reason": None}]
        answer = yield from self.call(ApiKey.LEAVE_GROUP, 5, {"group_id": self.group, "members": rows})
        self.accept("LeaveGroup", answer["error_code"])
        self.member_id, self.generation = "", -1

    def accept(self, what: str, code: int) -> bool:
        if code == E.GROUP_ID_NOT_FOUND and self.world.movable is not None:
            code = E.UNKNOWN_MEMBER_ID  # All sessions ended when time moved, and an empty group is removed.
        if code == E.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code and code not in PASSING and code not in _REJOIN:
            self.world.violate(f"{self.name}: {what} was answered with {ErrorCode(code).name}")
        return not code
