"""NEWEST: the newest version of each API that the client sends. `Client.negotiate` lowers it to the broker's newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.wire.header import ApiKey

# The newest version of each API that this client uses. The broker's range can lower it.
NEWEST: Final[Mapping[ApiKey, int]] = {
    # Versions from 13 on of Produce and Fetch address topics by id, and a caller knows only the name.
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 10,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 7,
    # DeleteTopics from version 6 on has other fields, because it also accepts topic ids.
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.STREAMS_GROUP_DESCRIBE: 1,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    # OffsetFetch accepts several groups from version 8 on, and addresses topics by id from version 10 on.
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.LIST_TRANSACTIONS: 2,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
}
