"""The consumer protocol inside the classic one: the bytes of the subscriptions and assignments of classic members.

    subscription  version int16 | topics [string] | user data nullable bytes | owned [topic string, [int32]] (v1)
                  | generation int32 (v2) | rack nullable string (v3)
    assignment    version int16 | [topic string, [int32]] | user data nullable bytes

These are Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment. The coordinator reads and writes them
only in groups with members of both protocols (KIP-848).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.coordinator.record_codec import reject_field
from kproc.broker.group.consumer.assignors import join_rows
from kproc.broker.group.consumer.records import ClassicProtocols, MemberMetadata
from kproc.common.errors import ProtocolError
from kproc.wire.primitives import INT16
from kproc.wire.schema import Field, Reader, Schema, reader_of
from kproc.wire.schema_writer import Writer, writer_of

if TYPE_CHECKING:
    from kproc.broker.group.classic.members import Member
    from kproc.broker.group.messages import JoinRequest

# Topic name -> partitions.
NamedPartitions = Mapping[str, frozenset[int]]
# Later versions only add fields, so data of a version that kproc does not know are read as version 3.
_VERSION_MAX: Final = 3


class EmbeddedSubscription(NamedTuple):
    """The subscription of a classic member. `owned` is None in version 0, which does not have it."""

    version: int
    topic_names: tuple[str, ...]
    owned: NamedPartitions | None
    rack_id: str | None

    def metadata_of(self, member: JoinRequest | Member) -> MemberMetadata:
        """Return the metadata of a classic member with this subscription, for its record in a consumer group.

        member: its JoinGroup request, or its entry in a classic group that is converted.
        """
        return MemberMetadata(
            instance_id=member.group_instance_id,
            rack_id=self.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Sorted, so that a client which lists its topics in another order does not get another record.
            topic_names=tuple(sorted(set(self.topic_names))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
        )


class EmbeddedAssignment(NamedTuple):
    """The assignment of a classic member, with the data that a custom assignor adds for its own use."""

    partitions: NamedPartitions
    user_data: bytes


def _partitions(name: str) -> Field:
    row = (Field("topic", "string"), Field("partitions", "int32", is_array=True))
    return Field(name, "struct", is_array=True, struct=Schema(f"consumer protocol {name}", False, row))


_FIELDS_OF_SUBSCRIPTION: Final = (
    (0, Field("topics", "string", is_array=True)),
    (0, Field("user_data", "bytes", is_nullable=True)),
    (1, _partitions("owned_partitions")),
    (2, Field("generation_id", "int32")),
    (3, Field("rack_id", "string", is_nullable=True)),
)
_SUBSCRIPTION_READERS: Final[dict[int, Reader]] = {
    version: reader_of(
        Schema(
            "consumer protocol subscription",
            False,
            tuple(field for since, field in _FIELDS_OF_SUBSCRIPTION if since <= version),
        )
    )
    for version in range(_VERSION_MAX + 1)
}
_ASSIGNMENT: Final = Schema(
    "consumer protocol assignment",
    False,
    (_partitions("assigned_partitions"), Field("user_data", "bytes", is_nullable=True)),
)
_read_assignment: Final[Reader] = reader_of(_ASSIGNMENT)
_write_assignment: Final[Writer] = writer_of(_ASSIGNMENT, reject_field)


def decode_subscription(metadata: bytes) -> EmbeddedSubscription:
    """Decode the metadata of one protocol of a JoinGroup. Raises ProtocolError if they are not a subscription."""
    version, fields = _read(metadata, _SUBSCRIPTION_READERS)
    owned = fields.get("owned_partitions")
    return EmbeddedSubscription(
        version,
        tuple(fields["topics"]),
        None if owned is None else _by_name(owned),
        fields.get("rack_id"),
    )


def subscription_version(metadata: bytes) -> int:
    """Return a subscription's version, at most 3, or 0 if `metadata` is too short. Assignments have this version, too.

    The metadata can be any bytes, because a JoinGroup to a consumer group checks only those of the first protocol.
    """
    if len(metadata) < INT16.size:
        return 0
    (version,) = INT16.unpack_from(metadata)
    return max(0, min(int(version), _VERSION_MAX))


def decode_assignment(assignment: bytes) -> EmbeddedAssignment:
    """Decode the assignment that a classic leader made for a member. Raises ProtocolError."""
    # A member has no assignment before its first rebalance has ended, or if the leader left it out.
    if not assignment:
        return EmbeddedAssignment({}, b"")
    _version, fields = _read(assignment, dict.fromkeys(range(_VERSION_MAX + 1), _read_assignment))
    return EmbeddedAssignment(_by_name(fields["assigned_partitions"]), fields["user_data"] or b"")


def encode_assignment(version: int, partitions: NamedPartitions) -> bytes:
    """Return the assignment of a SyncGroup response, in the version of the member's subscription."""
    encoded = bytearray(INT16.pack(version))
    rows = [{"topic": name, "partitions": sorted(numbers)} for name, numbers in sorted(partitions.items())]
    _write_assignment(encoded, {"assigned_partitions": rows, "user_data": None})
    return bytes(encoded)


def _read(data: bytes, readers: Mapping[int, Reader]) -> tuple[int, dict[str, Any]]:
    try:
        (version,) = INT16.unpack_from(data)
        if version < 0:
            raise ProtocolError(
                f"consumer protocol data of a classic member have the negative version {version}"
            )
        version = min(version, _VERSION_MAX)
        fields, _position = readers[version](data, INT16.size)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"consumer protocol data of a classic member cannot be decoded: {error}"
        ) from error
    return version, fields


def _by_name(rows: list[dict[str, Any]]) -> NamedPartitions:
    return join_rows((row["topic"], row["partitions"]) for row in rows)
