"""Every (key, version) that ApiVersions advertises answers a minimal valid request.

The walk is over the broker's own answer: what it advertises without an entry in MINIMAL fails the test, so no
API can be added without one.
"""

from __future__ import annotations

import struct

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.minimal import MINIMAL, REFUSED, advertised, error_codes
from tests.support.raw import RawClient

pytestmark = pytest.mark.every_transport

# What an absent topic or coordinator honestly answers.
HONEST = {
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
# What is refused whatever is asked: there is no authorizer, and no other broker.
ALWAYS = {
    ApiKey.DESCRIBE_ACLS: {ErrorCode.SECURITY_DISABLED},
    # Nobody logs in on a PLAINTEXT listener.
    ApiKey.SASL_HANDSHAKE: {ErrorCode.ILLEGAL_SASL_STATE},
    ApiKey.SASL_AUTHENTICATE: {ErrorCode.ILLEGAL_SASL_STATE},
    ApiKey.CREATE_DELEGATION_TOKEN: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    ApiKey.RENEW_DELEGATION_TOKEN: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    ApiKey.UNREGISTER_BROKER: {ErrorCode.BROKER_ID_NOT_REGISTERED},
    # Of members and groups that there are not.
    ApiKey.JOIN_GROUP: {ErrorCode.MEMBER_ID_REQUIRED},
    ApiKey.SYNC_GROUP: {ErrorCode.UNKNOWN_MEMBER_ID},
    ApiKey.HEARTBEAT: {ErrorCode.UNKNOWN_MEMBER_ID},
    ApiKey.LEAVE_GROUP: {ErrorCode.UNKNOWN_MEMBER_ID},
    ApiKey.DESCRIBE_GROUPS: {ErrorCode.GROUP_ID_NOT_FOUND},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {ErrorCode.GROUP_ID_NOT_FOUND},
    ApiKey.STREAMS_GROUP_DESCRIBE: {ErrorCode.GROUP_ID_NOT_FOUND},
    # Of a broker without the plug-in that stores descriptions.
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: {ErrorCode.UNSUPPORTED_VERSION},
    # Of share groups, sessions and stored states that there are not. As in Kafka, ShareFetch of a partition without a
    # state fails with this error.
    ApiKey.SHARE_FETCH: {ErrorCode.UNKNOWN_SERVER_ERROR},
    ApiKey.SHARE_ACKNOWLEDGE: {ErrorCode.SHARE_SESSION_NOT_FOUND},
    ApiKey.READ_SHARE_GROUP_STATE: {ErrorCode.INVALID_REQUEST},
    ApiKey.WRITE_SHARE_GROUP_STATE: {ErrorCode.INVALID_REQUEST},
    ApiKey.SHARE_GROUP_DESCRIBE: {ErrorCode.GROUP_ID_NOT_FOUND},
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: {ErrorCode.GROUP_ID_NOT_FOUND},
    ApiKey.DELETE_GROUPS: {ErrorCode.GROUP_ID_NOT_FOUND},
    ApiKey.OFFSET_DELETE: {ErrorCode.GROUP_ID_NOT_FOUND},
    # The second once a test has made the coordinators' topic.
    ApiKey.END_TXN: {ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    ApiKey.ADD_OFFSETS_TO_TXN: {ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    ApiKey.TXN_OFFSET_COMMIT: {ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_PRODUCER_ID_MAPPING},
}


@pytest.mark.long
def test_every_advertised_version_answers_a_minimal_request(
    broker: BrokerUnderTest, client: RawClient, log: tuple[str, bytes]
) -> None:
    problems: list[str] = []
    for key, versions in advertised(client).items():
        minimal = MINIMAL.get(ApiKey(key))
        if minimal is None:
            # A broker of another make serves more than we do.
            if broker.pid is not None:
                problems.append(f"{ApiKey(key).name} is advertised and has no minimal request here")
            continue
        for version in versions:
            if (key, version) in REFUSED:
                continue
            try:
                with RawClient(broker.bootstrap) as one:
                    answer = one.call(ApiKey(key), version, minimal(*log))
                codes = error_codes(answer)
                honest = HONEST | ALWAYS.get(ApiKey(key), set())
                if not codes <= honest:
                    problems.append(f"{ApiKey(key).name} v{version}: {codes - honest}")
            except Exception as problem:  # noqa: BLE001 - each failure is a line of the report
                problems.append(f"{ApiKey(key).name} v{version}: {problem!r}")
    assert not problems, "\n".join(problems)


def test_versions_outside_advertised_range_close_connection(
    broker: BrokerUnderTest, client: RawClient
) -> None:
    for key, versions in advertised(client).items():
        if key == ApiKey.API_VERSIONS:
            continue
        for version in {versions[0] - 1, versions[-1] + 1} - {-1}:
            with RawClient(broker.bootstrap) as one:
                body = struct.pack(">hhihxx", key, version, 1, -1) + bytes(40)
                one.send_bytes(struct.pack(">i", len(body)) + body)
                assert one.is_closed_by_broker(), f"{ApiKey(key).name} v{version}"
