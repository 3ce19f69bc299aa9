"""A controller without its disk: what it decides is applied at once, and every delta is kept."""

from __future__ import annotations

import itertools
from typing import Any, Final

from kproc.broker.cluster import records as r
from kproc.broker.cluster.controller import ControllerState
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.common.clock import ManualClock

NO_ID = bytes(16)


def counted_ids():
    """Topic ids that a test can predict: 1, 2, ... as 16 bytes."""
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(16, "big")


# The dynamic configs of a new cluster for all nodes.
NEW_CLUSTER_CONFIGS: Final = {"min.insync.replicas": "1"}


class InMemoryController:
    """ControllerState, its image, and the deltas that any other image can be built from."""

    def __init__(
        self,
        settings: dict[str, object] | None = None,
        *,
        handlers: int = 1,
        clock: ManualClock | None = None,
    ) -> None:
        self.config = Config.build(settings)
        self.image = ClusterImage()
        self.clock = clock or ManualClock()
        self.state = ControllerState(self.config, self.image, self.clock, random_id=counted_ids())
        self.deltas: list[bytes] = []
        self.do("register_cluster", cluster_id="test-cluster")
        self.do("start_broker")
        self.do("set_handler_count", count=handlers)

    def do(self, op: str, **body: Any) -> dict[str, Any]:
        """One operation as the controller process runs it."""
        reply, records = self.state.handle(op, body)
        if records:
            delta = r.encode_delta(self.image.version, records)
            self.image.apply(delta)
            self.deltas.append(delta)
        return reply

    def create(self, *topics: dict[str, Any], validate_only: bool = False) -> list[dict[str, Any]]:
        return self.do("create_topics", topics=list(topics), validate_only=validate_only)["topics"]

    def alter(self, *resources: dict[str, Any], validate_only: bool = False) -> list[dict[str, Any]]:
        body = {"resources": list(resources), "validate_only": validate_only}
        return self.do("incremental_alter_configs", **body)["responses"]

    def replace_configs(
        self, *resources: dict[str, Any], validate_only: bool = False
    ) -> list[dict[str, Any]]:
        return self.do("alter_configs", resources=list(resources), validate_only=validate_only)["responses"]


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    """One entry of a CreateTopics request; `assignments` as (partition, [brokers]), `configs` as a dict."""
    configs = more.get("configs", {})
    pairs = configs.items() if isinstance(configs, dict) else configs
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in more.get("assignments", [])
        ],
        "configs": [{"name": key, "value": value} for key, value in pairs],
    }


def changes(resource_type: int, name: str, *ops: tuple[str, int, str | None]) -> dict[str, Any]:
    """One resource of an IncrementalAlterConfigs request: (config, operation, value)."""
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in ops],
    }


def delete_wish(name: str | None, topic_id: bytes = NO_ID) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id}


def outcome(rows: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    """(error code, message) of each row."""
    return [(row["error_code"], row["error_message"]) for row in rows]
