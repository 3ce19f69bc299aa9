"""Requests of a user without any rights: none of them changes anything that others can see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kproc.wire.header import ApiKey
from tests.support.acls import ANY_ACL, acl_fields
from tests.support.raw import RawClient, list_offsets_fields

# Both are this host's. Rules tell them apart, so that whoever comes from the second one may do nothing.
OURS, THEIRS = "127.0.0.1", "127.0.0.2"
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # Until there are the rules below.
}
_CLUSTER: Final = 4
_TYPES: Final = (_CLUSTER, 2, 3, 5, 6, 7)
_ALL, _ALLOW, _LITERAL = 2, 3, 3


def shut_out(client: RawClient) -> None:
    """From now on everybody may do everything from our address, and nothing from any other."""
    rules = [
        acl_fields(kind, "kafka-cluster" if kind == _CLUSTER else "*", _ALL, host=OURS) for kind in _TYPES
    ]
    answer = client.call(ApiKey.CREATE_ACLS, 3, {"creations": rules})
    assert [row["error_code"] for row in answer["results"]] == [0] * len(rules), answer


def rules(client: RawClient) -> list[Any]:
    """Every rule there is, by resource."""
    answer = client.call(ApiKey.DESCRIBE_ACLS, 3, ANY_ACL)
    assert answer["error_code"] == 0, answer
    return list(answer["resources"])


def state(client: RawClient, topics: Iterable[str]) -> dict[str, Any]:
    """What the broker shows of itself that a request could change. `topics` are those whose ends are looked at."""
    call = client.call
    described = {
        row["name"]: (row["topic_id"], len(row["partitions"]))
        for row in call(ApiKey.METADATA, 12, {"topics": None})["topics"]
    }
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in [(4, ""), (4, "1"), (8, "1"), *((2, name) for name in described)]
    ]
    configs = call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources})["results"]
    named = call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": []})
    latest = [
        (name, [(index, -1) for index in range(described[name][1])]) for name in topics if name in described
    ]
    ends = {
        (name, row["partition_index"]): row["offset"]
        for name, wanted in latest
        for row in call(ApiKey.LIST_OFFSETS, 7, list_offsets_fields(name, wanted))["topics"][0]["partitions"]
    }
    return {
        "topics": described,
        "ends": ends,
        "configs": {
            (row["resource_type"], row["resource_name"]): {
                each["name"]: each["value"] for each in row["configs"] if each["config_source"] != 5
            }
            for row in configs
        },
        "config resources": sorted(
            (row["resource_name"], row["resource_type"]) for row in named["config_resources"]
        ),
        "groups": sorted(
            row["group_id"] for row in call(ApiKey.LIST_GROUPS, 4, {"states_filter": []})["groups"]
        ),
        "transactional ids": sorted(
            row["transactional_id"]
            for row in call(ApiKey.LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []})[
                "transaction_states"
            ]
        ),
        "quotas": call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})["entries"],
        "rules": rules(client),
        "users": call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})["results"],
        "features": _features(client),
    }


def _features(client: RawClient) -> Any:
    software = {"client_software_name": "t", "client_software_version": "1"}
    answer = client.call(ApiKey.API_VERSIONS, 3, software)
    return sorted((row["name"], row["max_version_level"]) for row in answer["finalized_features"])
