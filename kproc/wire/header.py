"""API keys and the headers in front of every request and response.

    request header v1    api key int16, api version int16, correlation id int32, client id nullable string
    request header v2    the same, then tagged fields; the client id keeps its int16 length
    response header v0   correlation id int32
    response header v1   correlation id int32, then tagged fields

Flexible versions of an API (KIP-482) use request header v2 and response header v1. The ApiVersions response is the only
exception and always has header v0 (KIP-511). A client sends this request before it knows the broker's versions, and it
must be able to read the response of an older broker.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from kproc.common.errors import ProtocolError
from kproc.wire.primitives import INT16, INT32, Buffer, skip_tagged_fields


class ApiKey(IntEnum):
    """Every API of Kafka 4.x by its schema's name. Keys 4-7 were removed with ZooKeeper and count as unknown."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


def kafka_name(api_key: int) -> str:
    """Return an API's name as in Kafka's logs, for example ListOffsets, or the number of an API that Kafka lacks."""
    try:
        return ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        return str(api_key)


NEVER_FLEXIBLE: Final = 0x7FFF

# By API key, the first flexible version. A plain int finds its row, too, because an IntEnum hashes like its number.
_FIRST_FLEXIBLE: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.SASL_HANDSHAKE: NEVER_FLEXIBLE,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.CREATE_DELEGATION_TOKEN: 2,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.OFFSET_DELETE: NEVER_FLEXIBLE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.VOTE: 0,
    ApiKey.BEGIN_QUORUM_EPOCH: 1,
    ApiKey.END_QUORUM_EPOCH: 1,
    ApiKey.DESCRIBE_QUORUM: 0,
    ApiKey.ALTER_PARTITION: 2,
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.ENVELOPE: 0,
    ApiKey.FETCH_SNAPSHOT: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.BROKER_REGISTRATION: 0,
    ApiKey.BROKER_HEARTBEAT: 0,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.CONTROLLER_REGISTRATION: 0,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: 0,
    ApiKey.PUSH_TELEMETRY: 0,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_FETCH: 1,
    ApiKey.SHARE_ACKNOWLEDGE: 1,
    ApiKey.ADD_RAFT_VOTER: 0,
    ApiKey.REMOVE_RAFT_VOTER: 0,
    ApiKey.UPDATE_RAFT_VOTER: 0,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE: 0,
    ApiKey.WRITE_SHARE_GROUP_STATE: 0,
    ApiKey.DELETE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 0,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 0,
    ApiKey.STREAMS_GROUP_DESCRIBE: 0,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 0,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: 0,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: 0,
    ApiKey.UNREGISTER_CONTROLLER: 0,
}
assert len(_FIRST_FLEXIBLE) == len(ApiKey), "an API key has no first flexible version"

_KEYS: Final = {int(key): key for key in ApiKey}
REQUEST_HEADER: Final = Struct(">hhih")  # API key, version, correlation id, length of the client id


class RequestHeader(NamedTuple):
    """The header of a request. A null client id is shown as an empty string, as in Kafka."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str


def first_flexible(api_key: int) -> int:
    """Return the first version with compact strings and tagged fields (KIP-482), or NEVER_FLEXIBLE."""
    return _FIRST_FLEXIBLE[api_key]


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the request header's version, 1 or 2. A version newer than all known ones counts as flexible."""
    return 2 if api_version >= first_flexible(api_key) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return the response header's version, 0 or 1."""
    # KIP-511: the ApiVersions response always has header version 0, because a client reads it before it knows the
    # broker's versions.
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if api_version >= first_flexible(api_key) else 0


def parse_request_header(view: Buffer, offset: int = 0) -> tuple[RequestHeader, int]:
    """Parse a request header. Return (header, position of the body). Raises ProtocolError.

    Accepts any version, because only the registry knows the supported ones, and because an ApiVersions request of an
    unknown version must get a response (KIP-511).
    """
    try:
        key, version, correlation_id, client_id_bytes = REQUEST_HEADER.unpack_from(view, offset)
    except StructError:
        raise ProtocolError("request header is too short") from None
    api_key = _KEYS.get(key)
    # Nobody knows from which version on this API is flexible, so the end of its header is unknown. As in
    # Kafka, the connection is then closed.
    if api_key is None:
        raise ProtocolError(f"unknown API key {key}")
    position = offset + REQUEST_HEADER.size
    client_id = ""
    if client_id_bytes > 0:
        end = position + client_id_bytes
        if end > len(view):
            raise ProtocolError("client id runs past the end of its request")
        try:
            client_id = str(view[position:end], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("client id is not UTF-8") from None
        position = end
    # -1 is null. The client id is a non-compact string even in header version 2, so that brokers can read it in any
    # version.
    elif client_id_bytes < -1:
        raise ProtocolError(f"client id has the length {client_id_bytes}; expected -1 (null) or more")
    if version >= _FIRST_FLEXIBLE[api_key]:
        # Fast case: a single zero byte means no tagged fields. No client sends tagged fields in a request header yet.
        if position < len(view) and view[position] == 0:
            position += 1
        else:
            position = skip_tagged_fields(view, position)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode a request header in the header version that the API's version requires."""
    head = INT16.pack(api_key) + INT16.pack(api_version) + INT32.pack(correlation_id)
    if client_id is None:
        head += INT16.pack(-1)
    else:
        encoded = client_id.encode()
        head += INT16.pack(len(encoded)) + encoded
    # The zero byte stands for no tagged fields, because Kafka has defined none for request headers.
    return head + b"\0" if request_header_version(api_key, api_version) == 2 else head


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Encode a response header in the header version that the API's version requires."""
    if response_header_version(api_key, api_version):
        # KIP-482: a zero byte for no tagged fields, because Kafka has defined none for response headers.
        return INT32.pack(correlation_id) + b"\0"
    return INT32.pack(correlation_id)


def parse_response_header(api_key: int, api_version: int, view: Buffer, offset: int = 0) -> tuple[int, int]:
    """Parse a response header. Return (correlation id, position of the body). Raises ProtocolError."""
    try:
        (correlation_id,) = INT32.unpack_from(view, offset)
    except StructError:
        raise ProtocolError("response header is too short") from None
    position = offset + INT32.size
    if response_header_version(api_key, api_version):
        position = skip_tagged_fields(view, position)
    return correlation_id, position
