"""BrokerGroup: the state, members, offsets and lag of a group of a broker for tests, whatever the group's protocol.

Each property sends requests of its own, so two of them can show different moments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.client.errors import ConnectionLost
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.common.lag import lag_between
from kproc.common.reading import LATEST, READ_COMMITTED
from kproc.embedded.process import BrokerRestarting, RequestFailed
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.client import Client

Partition = tuple[str, int]
_POLL_S: Final = 0.02
_TIMEOUT_MS: Final = 30_000
_SHARE: Final = "share"
# By type of group: the API that describes its groups, and the request's field with their names.
_DESCRIBE: Final = {
    "classic": (ApiKey.DESCRIBE_GROUPS, "groups"),
    "consumer": (ApiKey.CONSUMER_GROUP_DESCRIBE, "group_ids"),
    _SHARE: (ApiKey.SHARE_GROUP_DESCRIBE, "group_ids"),
    "streams": (ApiKey.STREAMS_GROUP_DESCRIBE, "group_ids"),
}
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_REBALANCE_HINT: Final = ", which lasts until every member has called poll()"
_clock: Final = SystemClock()
_pause: Final = threading.Event()  # Never set, so that wait(seconds) is a sleep.


class SeenMember(NamedTuple):
    """A member of a group, as the broker describes it."""

    member_id: str
    client_id: str
    host: str


class BrokerGroup:
    """One group of a broker. connect: opens a new connection to it."""

    def __init__(self, connect: Callable[[], Client], name: str) -> None:
        self._connect = connect
        self.name = name

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"

    @property
    def state(self) -> str:
        """The state by Kafka's names, such as "Stable" or "Empty", and "Dead" for a group that does not exist."""
        return self._type_and_state()[1]

    @property
    def type(self) -> str:
        """The protocol: "classic", "consumer", "share" or "streams".

        Raises RuntimeError if the group does not exist.
        """
        return self._existing_type()

    @property
    def members(self) -> list[SeenMember]:
        """The members, each with `member_id`, `client_id` and `host`.

        Raises RuntimeError if the group does not exist.
        """
        key, names = _DESCRIBE[self._existing_type()]
        with self._connect() as client:
            [row] = client.call_latest(key, {names: [self.name]})["groups"]
        self._check(row["error_code"])
        return [
            SeenMember(each["member_id"], each["client_id"], each["client_host"].removeprefix("/"))
            for each in row["members"]
        ]

    @property
    def offsets(self) -> dict[Partition, int]:
        """The committed offset of each partition, or in a share group its start offset.

        Raises RuntimeError if the group does not exist.
        """
        with self._connect() as client:
            if self._existing_type() == _SHARE:
                return {key: row["start_offset"] for key, row in self._share_rows(client).items()}
            return self._committed(client)

    @property
    def lag(self) -> dict[Partition, int]:
        """The number of offsets from each partition's committed offset to the end that read_committed consumers see.

        In a share group it is the broker's count of records that are not acknowledged. Raises RuntimeError if the
        group does not exist.
        """
        from kproc.client.requests import list_offsets_fields

        with self._connect() as client:
            if self._existing_type() == _SHARE:
                return {key: row["lag"] for key, row in self._share_rows(client).items()}
            committed = self._committed(client)
            if not committed:
                return {}
            fields = list_offsets_fields(
                dict.fromkeys(committed, LATEST), isolation=READ_COMMITTED, timeout_ms=_TIMEOUT_MS
            )
            topics = client.call_latest(ApiKey.LIST_OFFSETS, fields)["topics"]
        # Leave out a partition that was deleted after its offset was committed: ListOffsets returns an error for it.
        ends = {
            (topic["name"], row["partition_index"]): row["offset"]
            for topic in topics
            for row in topic["partitions"]
            if not row["error_code"]
        }
        return {key: lag_between(offset, ends[key]) for key, offset in committed.items() if key in ends}

    def wait_for_state(self, state: str, *, members: int | None = None, timeout_s: float = 10.0) -> None:
        """Wait until the group has this state, and this number of members if `members` is given.

        The wait goes on while another thread restarts the broker. Raises AssertionError with the present state if the
        group does not reach it within `timeout_s`, and ValueError for an unknown state.
        """
        from kproc.client.requests import GROUP_STATES

        if state not in GROUP_STATES:
            raise ValueError(f"unknown state {state!r} of a group: use one of {', '.join(GROUP_STATES)}")
        until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
        while True:
            try:
                present = self.state
                count = 0 if present == "Dead" or members is None else len(self.members)
            except (BrokerRestarting, ConnectionLost):
                # The broker or the role of this connection is being replaced. Wait for its successor.
                if _clock.now_ns() > until_ns:
                    raise
                _pause.wait(_POLL_S)
                continue
            if present == state and members in (None, count):
                return
            if _clock.now_ns() > until_ns:
                wanted = state if members is None else f"{state} with {members} members"
                found = present if members is None else f"{present} with {count}"
                hint = _REBALANCE_HINT if present in _REBALANCING else ""
                raise AssertionError(
                    f"group {self.name!r} is not {wanted} within {timeout_s:g} s: it is {found}{hint}"
                )
            _pause.wait(_POLL_S)

    def _type_and_state(self) -> tuple[str | None, str]:
        with self._connect() as client:
            answer = client.call_latest(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})
            self._check(answer["error_code"])
            row = next((each for each in answer["groups"] if each["group_id"] == self.name), None)
            if row is None:
                return None, "Dead"
            # A broker that emulates an older release lists groups without their type, which is then classic, and before
            # 2.6 without their state (KIP-518).
            return row.get("group_type", "classic").lower(), row.get("group_state") or self._classic_state(
                client
            )

    def _classic_state(self, client: Client) -> str:
        [row] = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": [self.name]})["groups"]
        self._check(row["error_code"])
        return str(row["group_state"])

    def _existing_type(self) -> str:
        found = self._type_and_state()[0]
        if found is None:
            raise RuntimeError(f"group {self.name!r} does not exist")
        return found

    def _committed(self, client: Client) -> dict[Partition, int]:
        one_group = {"group_id": self.name, "topics": None}
        answer = client.call_latest(
            ApiKey.OFFSET_FETCH, {**one_group, "groups": [one_group], "require_stable": False}
        )
        # Before Kafka 3.0 a request has one group, and its answer no list of groups (KIP-709).
        [group] = answer.get("groups", [answer])
        self._check(group["error_code"])
        return {
            (topic["name"], row["partition_index"]): row["committed_offset"]
            for topic in group["topics"]
            for row in topic["partitions"]
        }

    def _share_rows(self, client: Client) -> dict[Partition, dict[str, Any]]:
        fields = {"groups": [{"group_id": self.name, "topics": None}]}
        [group] = client.call_latest(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, fields)["groups"]
        self._check(group["error_code"])
        return {
            (topic["topic_name"], row["partition_index"]): row
            for topic in group["topics"]
            for row in topic["partitions"]
        }

    def _check(self, code: int) -> None:
        from kproc.client import error_text

        if code:
            raise RequestFailed(code, f"group {self.name!r}: {error_text(code)}")
