"""Bodies of kproc's own operations (API key 30000): the only definition of the operations and their types.

A client sends one JSON object, and its `op` names the operation. An invalid body is answered with INVALID_REQUEST and
one line, and is not forwarded to another role.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

# A JSON integer has any length, but calls between roles carry at most 64 bits. The controller checks the real limits.
_Count = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class _AnyOperation(msgspec.Struct, tag_field="op"):
    """Base of kproc's own operations: a JSON object with the operation's name in `op`. Unknown members are ignored."""


class Ping(_AnyOperation, tag="ping"):
    """Test the connection. The Handler itself answers."""


class ShowStatus(_AnyOperation, tag="status"):
    """Return the status: roles, load and problems."""


class ShowClients(_AnyOperation, tag="clients"):
    """List all connections of clients, for `kproc clients`."""


class ShowTopics(_AnyOperation, tag="topics"):
    """Return the traffic of each topic since the start of the Handlers."""


class ShowLogs(_AnyOperation, tag="logs"):
    """Return the sizes of all logs and the times of their records, from the files."""


# Limits, because one Handler sends and joins the calls for all of them in one duty cycle.
PARTITIONS_MAX: Final = 100
_Topic = Annotated[str, msgspec.Meta(max_length=249)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class CountShareRecords(_AnyOperation, tag="share-records"):
    """Count the records that a share group has in flight, for `kproc group describe`.

    Partitions are given by topic and number. The client's Handler answers.
    """

    group: Annotated[str, msgspec.Meta(max_length=32_767)]
    partitions: Annotated[list[tuple[_Topic, _Index]], msgspec.Meta(max_length=PARTITIONS_MAX)]


class Scale(_AnyOperation, tag="scale"):
    """Change the counts of roles, or return the state of a change by its ticket."""

    processors: _Count | None = None
    handlers: _Count | None = None
    ticket: str | None = None


class Rebalance(_AnyOperation, tag="rebalance"):
    """Migrate connections from busy Processors to idle ones, for `kproc rebalance`."""


class PlanRebalance(_AnyOperation, tag="plan-rebalance"):
    """Return the migrations that `rebalance` would make now, for `kproc rebalance --dry-run`.

    This is no field of Rebalance, because an older broker would ignore the field and move the connections.
    """


class KillClient(_AnyOperation, tag="kill-client"):
    """Close the connection that `clients` shows with this id."""

    id: str


# The caller of `monitor` names its watch. A pattern is a name, or a prefix that ends with `*`.
_WatchName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Pattern = Annotated[str, msgspec.Meta(max_length=32_767)]
# Limits, because each request is compared with all API names of a rule. Kafka has about 90 APIs.
_ApiName = Annotated[str, msgspec.Meta(max_length=64)]
_APIS_MAX: Final = 200


class ReadMonitor(_AnyOperation, tag="monitor"):
    """Return the requests of clients since the last call with this watch's name. The first call starts the watch.

    The client's Handler answers (handler/request_monitor.py), or the controller on the control listener.
    """

    watch: _WatchName
    apis: Annotated[list[_ApiName], msgspec.Meta(max_length=_APIS_MAX)] = []
    client: _Pattern | None = None
    user: _Pattern | None = None
    topic: _Pattern | None = None
    # Also return the decoded fields of small requests.
    has_fields: bool = False
    # End the watch with this call. Otherwise it counts for the limit of watches until it was not read for some seconds.
    is_last: bool = False


# Numbers of rules and of requests. A rule's number is its id.
_RuleId = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
FaultAction = Literal[
    "fail",
    "delay",
    "close",
    "drop-request",
    "drop-answer",
    "delay-answer",
    "cut-answer",
    "throttle",
    "advertise",
    "fill-disk",
    "fail-write",
    "fail-sync",
]
DISK_ACTIONS: Final = ("fill-disk", "fail-write", "fail-sync")
"""Actions on the broker's calls of the file system. The others act on requests."""


class FaultRule(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One rule of fault injection: the requests or writes that it matches, how many it acts on, and what it does.

    Unknown members are rejected: a rule without a condition that this broker does not know would match too much.
    """

    action: FaultAction
    # Names of APIs, such as Produce. Empty: all.
    apis: Annotated[list[_ApiName], msgspec.Meta(max_length=_APIS_MAX)] = []
    versions: tuple[_Number, _Number] | None = None
    client: _Pattern | None = None
    user: _Pattern | None = None
    topic: _Pattern | None = None
    partition: _Number | None = None
    group: _Pattern | None = None
    transactional_id: _Pattern | None = None
    # Of the matching requests: skip the first `after`, act on every `every`-th of the others with `probability`, and
    # on `times` requests at most.
    times: _Number | None = None
    after: _Number = 0
    every: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] = 1
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    seed: _Number = 0
    # fail: the name of Kafka's error. fail-write, fail-sync: the name of the errno, EIO by default.
    error: str = ""
    # delay, delay-answer, throttle: the time in ms.
    ms: _Number = 0
    # drop-request, drop-answer: close the connection, too.
    closes: bool = False
    # cut-answer: the number of bytes of the answer to send. None: half of the answer.
    bytes_sent: _Number | None = None
    # advertise: the version range of each API by name, or None to leave it out.
    ranges: Annotated[dict[_ApiName, tuple[_Number, _Number] | None], msgspec.Meta(max_length=_APIS_MAX)] = {}
    # fill-disk: bytes by which the files in log.dirs can still grow.
    free_bytes: _Bytes = 0
    # fill-disk: bytes of all files when the rule was added. The broker sets it.
    used_bytes: _Bytes = 0


class AddFault(_AnyOperation, tag="add-fault"):
    """Add a fault rule. It ends with the connection of this request, unless a KeepFault follows.

    A dry run only validates the rule.
    """

    rule: FaultRule
    is_dry_run: bool = False


class RemoveFault(_AnyOperation, tag="remove-fault"):
    """Remove a fault rule, or all of them without `id`. Return how many requests each removed rule matched and hit."""

    id: _RuleId | None = None


class ListFaults(_AnyOperation, tag="list-faults"):
    """List the fault rules with their counts."""


class KeepFault(_AnyOperation, tag="keep-fault"):
    """Let a fault rule stay until it is removed or the broker stops, also if the connection that added it ends."""

    id: _RuleId


# A snapshot is named by the broker.
_SnapshotName = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


class CreateSnapshot(_AnyOperation, tag="snapshot"):
    """Copy the state of a broker for tests, and return the copy's name. The stop of the broker deletes it."""


class RestoreSnapshot(_AnyOperation, tag="restore"):
    """Return to the state of a snapshot, or without `snapshot` to the empty state. All connections are closed.

    The answer may be lost, because the roles end right after it. The ready file then counts one more restore.
    """

    snapshot: _SnapshotName | None = None


class DeleteSnapshot(_AnyOperation, tag="delete-snapshot"):
    """Delete a snapshot."""

    snapshot: _SnapshotName


class MoveTime(_AnyOperation, tag="move-time"):
    """Advance the broker's time by `ms`, freeze it, let it continue, or only return it.

    Requires kproc.time.movable. The answer comes when every role has run the timers that are due.
    """

    action: Literal["show", "advance", "freeze", "unfreeze"]
    ms: Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] = 0


FaultOperation = AddFault | RemoveFault | ListFaults | KeepFault
SnapshotOperation = CreateSnapshot | RestoreSnapshot | DeleteSnapshot
OwnOperation = (
    Ping
    | ShowStatus
    | ShowClients
    | ShowTopics
    | ShowLogs
    | CountShareRecords
    | Scale
    | Rebalance
    | PlanRebalance
    | KillClient
    | ReadMonitor
    | AddFault
    | RemoveFault
    | ListFaults
    | KeepFault
    | CreateSnapshot
    | RestoreSnapshot
    | DeleteSnapshot
    | MoveTime
)


class _Named(msgspec.Struct):
    op: str


class InvalidOperation(Exception):
    """A body is not a valid operation. The message is one line for the client."""


_decode = msgspec.json.Decoder(OwnOperation).decode
_decode_name = msgspec.json.Decoder(_Named).decode
_NAMES = frozenset(str(each.__struct_config__.tag) for each in _AnyOperation.__subclasses__())
_SHOWN = 60  # Characters of an operation's name that a client made up.


def decode_operation(body: memoryview) -> OwnOperation:
    """Decode the operation in a request's body. Raises InvalidOperation."""
    try:
        operation: OwnOperation = _decode(body)
    except RecursionError:
        raise InvalidOperation("the JSON of the operation is nested too deeply to decode") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidOperation(_unknown_name(body) or str(error)) from error
    return operation


def _unknown_name(body: memoryview) -> str | None:
    """Return an error message if the body names an unknown operation, else None."""
    try:
        name = _decode_name(body).op
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return None if name in _NAMES else f"unknown operation {name[:_SHOWN]!r}"
