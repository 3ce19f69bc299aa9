"""The cluster itself, and APIs whose answer hardly depends on what is there."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref

_ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def find_coordinator(scene: Scene) -> None:
    body = {
        "key": scene.usually(["~g0"], ""),
        "key_type": scene.usually([0, 0, 0], 1, 2, 3, -1),
        "coordinator_keys": scene.pick((["~g0"], ["~g0", "~g1", "~g0"], [], ["~x", ""])),
    }
    scene.add("find_coordinator", body)


def api_versions(scene: Scene) -> None:
    body = {
        "client_software_name": scene.usually(["diff", "a.b-c"], "", "a b", "-x", "é"),
        "client_software_version": scene.usually(["1.0"], "", "1 0"),
        # Since version 5: the broker that the client means, or no broker.
        "cluster_id": scene.usually([None, Ref("cluster", "")], "other", ""),
        "node_id": scene.usually([-1, 1], 2, -2),
    }
    scene.add("api_versions", body, connection=8)


def describe_cluster(scene: Scene) -> None:
    body = {
        "include_cluster_authorized_operations": scene.chance(0.4),
        "endpoint_type": scene.usually([1], 2, 3, 0),
        "include_fenced_brokers": scene.chance(0.3),
    }
    scene.add("describe_cluster", body)


def elect_leaders(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: index)
    # All partitions are those of other sequences, too.
    scene.add("elect_leaders", {"election_type": scene.usually([0, 1], 2), "topic_partitions": rows})


def alter_partition_reassignments(scene: Scene) -> None:
    odd: tuple[list[int], ...] = ([], [1, 1], [2], [1, 2], [-1])
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {"partition_index": index, "replicas": scene.usually([[1], None], *odd)},
    )
    body = {"topics": rows, "allow_replication_factor_change": scene.chance(0.7)}
    scene.add("alter_partition_reassignments", body)


def list_partition_reassignments(scene: Scene) -> None:
    rows = scene.topic_rows("partition_indexes", lambda _, index: index)
    scene.add("list_partition_reassignments", {"topics": rows if scene.chance(0.7) else None})


def alter_replica_log_dirs(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: index)
    scene.add(
        "alter_replica_log_dirs", {"dirs": [{"path": scene.pick(("/nope", "relative")), "topics": rows}]}
    )


def describe_acls(scene: Scene) -> None:
    scene.add("describe_acls", dict(_ANY_ACL))


def create_acls(scene: Scene) -> None:
    row = {
        "resource_type": scene.pick((2, 3)),
        "resource_name": scene.pick(("~plain", "*")),
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": scene.pick((3, 4)),
        "permission_type": scene.pick((2, 3)),
    }
    scene.add("create_acls", {"creations": [row] * scene.pick((0, 1, 1, 2))})


def delete_acls(scene: Scene) -> None:
    scene.add("delete_acls", {"filters": [dict(_ANY_ACL)] * scene.pick((0, 1, 2))})


def describe_user_scram_credentials(scene: Scene) -> None:
    users: tuple[Any, ...] = (None, [], [{"name": "~u"}], [{"name": "~u"}, {"name": "~u"}], [{"name": ""}])
    scene.add("describe_user_scram_credentials", {"users": scene.pick(users)})


def describe_transactions(scene: Scene) -> None:
    scene.add("describe_transactions", {"transactional_ids": scene.pick(([], ["~t"], ["~t", ""]))})


def list_transactions(scene: Scene) -> None:
    body = {
        "state_filters": scene.pick(([], ["Ongoing"], ["x"])),
        "producer_id_filters": scene.pick(([], [1])),
        "duration_filter": scene.pick((-1, 0, 5)),
        "transactional_id_pattern": scene.pick((None, "", "a.*", "[")),
    }
    scene.add("list_transactions", body)


def describe_quorum(scene: Scene) -> None:
    row = {
        "topic_name": scene.usually(["__cluster_metadata"], "~none"),
        "partitions": [{"partition_index": scene.usually([0], 1)}],
    }
    scene.add("describe_quorum", {"topics": [row] * scene.pick((1, 1, 0))})


def update_features(scene: Scene) -> None:
    rows = [
        {
            "feature": scene.pick(("metadata.version", "no.such", "share.version", "group.version")),
            "max_version_level": scene.pick((0, 1, 30, 33, 999, -1)),
            "upgrade_type": scene.pick((1, 1, 2, 3, 0, 4)),
            "allow_downgrade": False,
        }
        for _ in range(scene.pick((1, 1, 2)))
    ]
    version = max(scene.versions["update_features"])  # Only this one can be told to validate.
    scene.add("update_features", {"validate_only": True, "feature_updates": rows}, version=version)


def delegation_tokens(scene: Scene) -> None:
    """None are given over these listeners, which know nobody's name."""
    user = {"principal_type": scene.usually(["User"], "Group", ""), "principal_name": "~alice"}
    create = {
        "owner_principal_type": scene.pick(("User", None)),
        "owner_principal_name": scene.pick(("~bob", None, "")),
        "renewers": scene.pick(([], [user])),
        "max_lifetime": scene.pick((-1, 0, 1000)),
    }
    kind, body = scene.pick(
        (
            ("create_delegation_token", create),
            ("renew_delegation_token", {"hmac": "", "renew_period": -1}),
            ("expire_delegation_token", {"hmac": "", "expiry_time_period": -1}),
            ("describe_delegation_token", {"owners": scene.pick((None, [], [user]))}),
        )
    )
    scene.add(kind, body)
