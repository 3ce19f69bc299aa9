"""Descriptions of groups of another type: each API says which type the group does not have."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import commit, streams_join
from tests.support.raw import RawClient

DESCRIPTIONS = {
    "classic": (ApiKey.DESCRIBE_GROUPS, 6, "groups"),
    "consumer": (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "group_ids"),
    "share": (ApiKey.SHARE_GROUP_DESCRIBE, 1, "group_ids"),
    "streams": (ApiKey.STREAMS_GROUP_DESCRIBE, 0, "group_ids"),
}


def described(client: RawClient, group_type: str, group: str) -> tuple[int, str | None]:
    """Return the error and the message of the API that describes groups of this type."""
    key, version, names = DESCRIPTIONS[group_type]
    fields = {names: [group], "include_authorized_operations": False}
    (row,) = client.call(key, version, fields)["groups"]
    return row["error_code"], row["error_message"]


@pytest.fixture
def groups(client: RawClient, group: str) -> dict[str, str]:
    """Return the ids of a streams group and of a classic one."""
    source = f"{group}-in"
    client.create_topic(source, partitions=1)
    joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 1, streams_join(group, [source]))
    assert joined["error_code"] == 0, joined
    assert commit(client, f"{group}-simple", source, {0: 1}) == {0: 0}
    return {"streams": group, "classic": f"{group}-simple"}


@pytest.mark.parametrize("group_type", DESCRIPTIONS)
def test_describe_group_of_another_type_names_the_type(
    client: RawClient, groups: dict[str, str], group_type: str
) -> None:
    """Kafka's tools print this message. "not found" would make users look for a wrong id."""
    other = groups["classic" if group_type == "streams" else "streams"]
    message = f"Group {other} is not a {group_type} group."
    assert described(client, group_type, other) == (ErrorCode.GROUP_ID_NOT_FOUND, message)
    message = f"Group {other}-missing not found."
    assert described(client, group_type, f"{other}-missing") == (ErrorCode.GROUP_ID_NOT_FOUND, message)
