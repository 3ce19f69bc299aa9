"""The metadata records. Each class is one kind of change of the cluster's metadata.

A record states a change that the controller has decided, so that applying it to an image of the right version cannot
fail. The metadata log, deltas and snapshots consist of the same records. ClusterImage.apply_records applies all three.

Layout of one record on disk and on the wire: a MessagePack array with the tag and then the fields in order.

    +-----+---------+---------+-----
    | tag | field 0 | field 1 | ...
    +-----+---------+---------+-----

How to change it: append fields with a default at the end, so that older logs can still be read, or add a struct with a
new tag. Never reorder fields, change their types or reuse a tag. Increase `LAYOUT_VERSION` only if an old log could be
misread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import HIDDEN

T = TypeVar("T")

LAYOUT_VERSION: Final = 1
CLUSTER_DEFAULT_NODE: Final = ""  # In BrokerConfigSet: the default for every node without a value of its own.


def node_over_cluster(stored: Mapping[str, Mapping[str, str]], node_id: int) -> dict[str, str]:
    """Return the dynamic configs of a broker: its own over those of all (KIP-226). `stored`: configs by node."""
    # The node's own values come last, so that they win.
    return {**stored.get(CLUSTER_DEFAULT_NODE, {}), **stored.get(str(node_id), {})}


class ClusterRegistered(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first record of every log: the id of the log's cluster."""

    cluster_id: str
    layout_version: int = LAYOUT_VERSION


class BrokerStarted(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The broker was started: every partition's leader epoch grows by one.

    One record for all of them, because a start with 100,000 partitions must not write 100,000 records. `was_clean` says
    that the stop before it was clean: it carried out every deletion of a topic.
    """

    broker_epoch: int
    was_clean: bool = False


class HandlersCounted(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The number of Handlers on which partitions are placed from now on."""

    count: int


class TopicCreated(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A topic was created, without partitions; `PartitionsAdded` follows in the same delta."""

    name: str
    topic_id: bytes


class PartitionsAdded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Partitions `first_index`, `first_index` + 1, ... with one entry of each list per partition."""

    topic_id: bytes
    first_index: int
    slots: tuple[int, ...]
    slot_generations: tuple[int, ...]
    leader_epochs: tuple[int, ...]


class TopicDeleted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A topic and its configs were deleted. Its slots can be reused, each with a higher generation."""

    topic_id: bytes


class TopicConfigSet(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """One config of a topic. The value None removes the override."""

    topic_id: bytes
    name: str
    value: str | None


class BrokerConfigSet(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """One dynamic broker config; `node` is "" for the cluster-wide default (KIP-226). The value None removes it."""

    node: str
    name: str
    value: str | None


class ProducerIdsTaken(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Producer ids below `next_producer_id` were assigned to Handlers and can be in use."""

    next_producer_id: int


class LeaderEpochRaised(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A new leader epoch of one partition. A coordinator that starts raises it."""

    topic_id: bytes
    partition: int
    leader_epoch: int


class SlotsRetired(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Free slots of deleted partitions, the oldest first, with their last generation. Occurs only in snapshots.

    Without it, a broker that started from a snapshot would use a slot again with a generation that other processes can
    still associate with a deleted partition.
    """

    slots: tuple[int, ...]
    slot_generations: tuple[int, ...]


class TopicsDeletedBefore(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Ids and former names of the topics that were deleted last, the oldest first.

    Occurs only in snapshots of 26 November 2026. Later snapshots have TopicCreated and TopicDeleted for each topic,
    which older versions of kproc can read, too.
    """

    topic_ids: tuple[bytes, ...]
    names: tuple[str, ...]


class ResourceConfigSet(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """One config of a group (resource type 32) or a client-metrics subscription (16). The value None removes it.

    `resource_type` is the number of Kafka's ConfigResource.Type.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class FeatureLevelSet(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The finalised level of a feature (KIP-584). Without this record it has its `initial` level (features.py)."""

    name: str
    level: int


class ClientQuotaSet(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """One quota of an entity, which is (type, name) pairs sorted by type (client_quotas.py). Value None removes it."""

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None


class AclAdded(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """An ACL rule, with an id of its own. The numbers are Kafka's codes (security/acl.py)."""

    acl_id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclRemoved(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The ACL rule with that id was removed."""

    acl_id: bytes


Name = tuple[str, str]
"""A principal: its type and its name."""


class DelegationTokenSet(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """A delegation token, new or renewed. Its secret is stored nowhere. Times are in ms since 1970."""

    token_id: str
    owner: Name
    requester: Name
    renewers: tuple[Name, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int


class DelegationTokenRemoved(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """A delegation token was removed, because it has expired or a client has expired it."""

    token_id: str


class ScramSecretMade(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The secret from which the salts of users that do not exist are derived. Written once, with the first user."""

    secret: bytes


class ScramCredentialSet(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """A user's credential for a SCRAM mechanism (1: SHA-256, 2: SHA-512). It holds no password."""

    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class ScramCredentialRemoved(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A user's credential for a SCRAM mechanism was removed."""

    name: str
    mechanism: int


SecurityRecord = (
    AclAdded
    | AclRemoved
    | DelegationTokenSet
    | DelegationTokenRemoved
    | ScramSecretMade
    | ScramCredentialSet
    | ScramCredentialRemoved
)
Record = (
    ClusterRegistered
    | BrokerStarted
    | HandlersCounted
    | TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | TopicConfigSet
    | BrokerConfigSet
    | ProducerIdsTaken
    | LeaderEpochRaised
    | SlotsRetired
    | TopicsDeletedBefore
    | ClientQuotaSet
    | ResourceConfigSet
    | FeatureLevelSet
    | SecurityRecord
)


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """Records that take an image from `base_version` to `version`.

    A version is a count of records, the offset of the metadata log's end, so `version` is `base_version` plus
    the number of records. Only in a snapshot (`base_version` 0) there are fewer records than versions.
    """

    base_version: int
    version: int
    records: tuple[Record, ...]


_encoder = msgspec.msgpack.Encoder()
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_delta_decoder = msgspec.msgpack.Decoder(Delta)


def encode_record(record: Record) -> bytes:
    """Encode a record for the metadata log."""
    return _encoder.encode(record)


def decode_record(data: bytes | memoryview) -> Record:
    """Decode a record. Raise msgspec.MsgspecError if `data` is not a valid record."""
    return _decode(_record_decoder, data)


def encode_delta(base_version: int, records: Sequence[Record]) -> bytes:
    """Encode the delta that follows `base_version`, as the controller sends it to the Handlers and the cleaner."""
    return _encoder.encode(Delta(base_version, base_version + len(records), tuple(records)))


def encode_snapshot(version: int, records: Sequence[Record]) -> bytes:
    """Encode a whole image at `version`, as a delta for the empty image."""
    return _encoder.encode(Delta(0, version, tuple(records)))


def decode_delta(data: bytes | memoryview) -> Delta:
    """Decode a delta or snapshot. Raise msgspec.MsgspecError if `data` is invalid."""
    return _decode(_delta_decoder, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    # msgspec raises UnicodeDecodeError, which is no MsgspecError, for a string that is not UTF-8.
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def record_error(data: bytes) -> str | None:
    """Return why this version cannot decode a metadata record, or None if it can."""
    try:
        decode_record(data)
    except msgspec.MsgspecError as error:
        return str(error)
    return None


def without_secrets(data: bytes) -> bytes:
    """Return a record's bytes for output, without passwords, keys and hashes of passwords.

    Bytes that are not a record are returned unchanged.
    """
    try:
        record = decode_record(data)
    # A tool that shows a damaged log must go on. Bytes that are no record have no field to hide.
    except msgspec.MsgspecError:
        return data
    hidden = HIDDEN.encode()
    match record:
        # An unknown setting counts as a secret, because a newer kproc can have stored a password in it.
        case BrokerConfigSet(value=str(), name=name) if is_secret(name, if_unknown=True):
            return encode_record(msgspec.structs.replace(record, value=HIDDEN))
        # Anybody who knows this secret can compute the salts of users that do not exist, and so find out which users
        # do.
        case ScramSecretMade():
            return encode_record(msgspec.structs.replace(record, secret=hidden))
        # Anybody who has the keys can try passwords without the broker (RFC 5802, security considerations).
        case ScramCredentialSet():
            keys = dict.fromkeys(("salt", "stored_key", "server_key"), hidden)
            return encode_record(msgspec.structs.replace(record, **keys))
    return data
