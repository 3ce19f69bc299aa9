"""Operator: changes the broker's settings when the plan says so: counts of roles, listeners."""

from __future__ import annotations

from collections import deque
from typing import Any

from kproc.cluster.features import SAFE_DOWNGRADE, UPGRADE
from kproc.wire.header import ApiKey
from tests.simulation.broker import PORT
from tests.simulation.client import Gone, Late, Life
from tests.simulation.workloads import E, Worker

_BROKER = 4
_FOREVER_NS = 1 << 60


class Operator(Worker):
    """Takes orders; one that got lost with a connection is not repeated."""

    def __init__(self, *arguments: Any) -> None:
        self.orders: deque[tuple[str, ...]] = deque()
        self.has_more = False  # Whether there is a second listener.
        super().__init__(*arguments)

    def work(self) -> Life:
        if not self.orders:
            self.sleep(_FOREVER_NS)  # Until there is an order.
            yield
            return
        order = self.orders.popleft()
        if order[0] == "set":
            yield from self.set(order[1], order[2])
        elif order[0] == "quota":
            yield from self.set_quota(order[1], int(order[2]))
        elif order[0] == "feature":
            yield from self.set_feature(order[1], int(order[2]))
        else:
            yield from self.change_listeners()

    def set(self, name: str, value: str) -> Life:
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": _BROKER, "resource_name": "", "configs": [config]}
        fields = {"resources": [resource], "validate_only": False}
        try:
            answer = yield from self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
        except (Gone, Late):
            self.disconnect()
            return
        row = answer["responses"][0]
        self.world.tell("operator:", name, value, row["error_code"], row["error_message"])
        self.check_code(
            f"AlterConfigs of {name}",
            answer["responses"][0]["error_code"],
            E.INVALID_REQUEST,
            E.INVALID_CONFIG,
        )

    def set_quota(self, key: str, rate: int) -> Life:
        """A quota of every client, this one too; 0 removes it."""
        entity = [{"entity_type": "client-id", "entity_name": None}]
        op = {"key": key, "value": float(rate), "remove": not rate}
        fields = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
        try:
            answer = yield from self.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, fields)
        except (Gone, Late):
            self.disconnect()
            return
        self.world.tell("operator:", key, rate, answer["entries"][0]["error_code"])
        self.check_code(f"AlterClientQuotas of {key}", answer["entries"][0]["error_code"])

    def set_feature(self, name: str, level: int) -> Life:
        update = {"feature": name, "max_version_level": level, "upgrade_type": UPGRADE}
        fields = {"timeout": 30_000, "feature_updates": [update], "validate_only": False}
        for kind in (UPGRADE, SAFE_DOWNGRADE):
            update["upgrade_type"] = kind
            try:
                answer = yield from self.call(ApiKey.UPDATE_FEATURES, 2, fields)
            except (Gone, Late):
                self.disconnect()
                return
            code = answer["error_code"]
            self.world.tell("operator:", name, level, code, answer["error_message"])
            self.check_code(f"UpdateFeatures of {name}", code, E.INVALID_UPDATE_VERSION)
            if not code:
                self.history.transactions.counts["feature levels"] += 1
                return

    def change_listeners(self) -> Life:
        """A second listener comes or goes."""
        self.has_more = not self.has_more
        value = f"PLAINTEXT://127.0.0.1:{PORT}"
        if self.has_more:
            first = "SASL_PLAINTEXT" if self.world.sasl_port else "PLAINTEXT"
            yield from self.set("listener.security.protocol.map", f"PLAINTEXT:{first},MORE:PLAINTEXT")
            value += f",MORE://127.0.0.1:{PORT + 1}"
            if PORT + 1 not in self.ports:
                self.ports.append(PORT + 1)
        yield from self.set("listeners", value)

    def finish(self) -> Life:
        self.orders.clear()
        return
        yield
