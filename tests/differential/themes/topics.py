"""Topics: made, grown, deleted, looked at."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import BAD_NAMES, Scene
from tests.differential.symbols import NO_TOPIC_ID, Ref
from tests.differential.themes.configs import some_configs

_IDS_SINCE = 10
_TOPICS_MAX = 6


def _new_topic(scene: Scene) -> dict[str, Any]:
    number = scene.random.randint(0, 5)
    usual = [f"~n{number}", f"~n.{scene.random.randint(0, 2)}", f"~n_{scene.random.randint(0, 2)}"]
    name = scene.usually(usual, *BAD_NAMES, *scene.topics, "__consumer_offsets")
    count = scene.usually([1, 2, 3, -1], 0, -2)
    is_laid_out = scene.chance(0.2)
    if name.startswith("~n") and len(scene.topics) < _TOPICS_MAX:
        scene.topics.setdefault(name, max(count, 1))
    assignments = [
        {
            "partition_index": scene.usually([index], 0, 7),
            "broker_ids": scene.usually([[1]], [1, 1], [9], [], [1, 2], [-1]),
        }
        for index in range(scene.pick((1, 2, 3)))
    ]
    return {
        "name": name,
        "num_partitions": scene.usually([-1], count) if is_laid_out else count,
        "replication_factor": scene.usually([-1], 1) if is_laid_out else scene.usually([1, 1, -1], 0, 2, -2),
        "assignments": assignments if is_laid_out else [],
        "configs": some_configs(scene, (0, 0, 0, 1, 1, 2)),
    }


def create_topics(scene: Scene) -> None:
    rows = [_new_topic(scene) for _ in range(scene.pick((1, 1, 2, 3)))]
    if scene.chance(0.05):
        rows.append(rows[0])
    scene.add("create_topics", {"topics": rows, "validate_only": scene.chance(0.2)})


def create_partitions(scene: Scene) -> None:
    def grown(name: str) -> dict[str, Any]:
        old = scene.topics.get(name, 1)
        count = scene.usually([old + 1, old + 2], 0, -1, 1, old)
        laid_out = [
            {"broker_ids": scene.usually([[1]], [9], [], [1, 1])}
            for _ in range(scene.usually([max(0, count - old)], 0, 1, 3))
        ]
        return {"name": name, "count": count, "assignments": laid_out if scene.chance(0.25) else None}

    rows = [grown(name) for name in dict.fromkeys(scene.topic() for _ in range(scene.pick((1, 1, 2))))]
    if scene.chance(0.05):
        rows.append(rows[0])
    scene.add("create_partitions", {"topics": rows, "validate_only": scene.chance(0.3)})


def delete_topics(scene: Scene) -> None:
    names = [scene.topic(0.15) for _ in range(scene.pick((1, 1, 2, 3)))]
    rows = [
        {"name": name, "topic_id": None}
        if scene.chance(0.5)
        else {
            "name": scene.usually([None], name),
            "topic_id": scene.usually([Ref("id", name, NO_TOPIC_ID)], None, NO_TOPIC_ID),
        }
        for name in names
    ]
    scene.add("delete_topics", {"topic_names": names, "topics": rows})


def metadata(scene: Scene) -> None:
    some = [scene.topic(0.3) for _ in range(scene.pick((1, 1, 2, 3)))]
    names = scene.usually([some], None, [])
    creates, version, by_id = scene.chance(0.12), scene.version("metadata"), scene.chance(0.4)

    def row(name: str) -> dict[str, Any]:
        if version < _IDS_SINCE or by_id == scene.chance(0.05):
            return {"name": name}
        topic_id = scene.usually([Ref("id", name, NO_TOPIC_ID)], NO_TOPIC_ID, None)
        return {"name": scene.usually([None], name, ""), "topic_id": topic_id}

    rows = [row(name) for name in names] if names is not None else None
    body = {
        "topics": rows if version or rows else [],
        "allow_auto_topic_creation": creates or version < 4,
        "include_cluster_authorized_operations": scene.chance(0.3),
        "include_topic_authorized_operations": scene.chance(0.3),
    }
    scene.add("metadata", body, version=version)


def describe_topic_partitions(scene: Scene) -> None:
    cursor = {
        "topic_name": scene.usually([scene.topic(0), "~", "~z"], ""),
        "partition_index": scene.usually([0, 1, 2], -1, 9),
    }
    body = {
        "topics": [{"name": scene.topic(0.15)} for _ in range(scene.pick((0, 1, 1, 2, 4)))],
        "response_partition_limit": scene.usually([2000, 1, 2, 3], 0, -1),
        "cursor": cursor if scene.chance(0.4) else None,
    }
    scene.add("describe_topic_partitions", body)


def describe_log_dirs(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: index, 0.15)
    scene.add("describe_log_dirs", {"topics": rows if scene.chance(0.7) else None})
