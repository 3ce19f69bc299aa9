"""Operator: changes the broker's settings when the plan says so: counts of roles, listeners."""

from __future__ import annotations

from collections import deque
from typing import Any

from kproc.broker.cluster.features import SAFE_DOWNGRADE, UPGRADE
from kproc.wire.header import ApiKey
from tests.simulation.broker import NODE, PORT
from tests.simulation.client import Gone, Late, Life
from tests.simulation.plan import protocol_of
from tests.simulation.tls_doubles import CERTIFICATES, issued
from tests.simulation.workloads import E, Worker
from tests.simulation.world import FOREVER_NS
from tests.support.quotas import quota_fields

_BROKER = 4


class Operator(Worker):
    """Takes orders; one that got lost with a connection is not repeated."""

    def __init__(self, *arguments: Any) -> None:
        self.orders: deque[tuple[str, ...]] = deque()
        self.has_more = False  # Whether there is a second listener.
        self.is_unsure = False  # A change of the certificate had no answer: it may be made later than others.
        super().__init__(*arguments)

    def work(self) -> Life:
        if not self.orders:
            self.sleep(FOREVER_NS)  # Until there is an order.
            yield
            return
        order = self.orders.popleft()
        if order[0] == "set":
            yield from self.set(order[1], order[2])
        elif order[0] == "quota":
            yield from self.set_quota(order[1], int(order[2]))
        elif order[0] == "certificate":
            yield from self.set_certificate(int(order[1]), fits=order[2] == "fits")
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

    def set_certificate(self, number: int, *, fits: bool) -> Life:
        """Another key and certificate for the listener with TLS; one whose key does not fit must be refused."""
        key, chain = issued(number).key, issued(number if fits else (number + 1) % CERTIFICATES).chain
        values = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
        configs = [
            {"name": f"listener.name.plaintext.{name}", "config_operation": 0, "value": value}
            for name, value in values.items()
        ]
        resource = {"resource_type": _BROKER, "resource_name": NODE, "configs": configs}
        shown = self.world.certificates
        if fits:
            shown.add(issued(number).der)  # Whatever the answer is, or if there is none.
        try:
            answer = yield from self.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
            )
        except (Gone, Late):
            self.disconnect()
            self.is_unsure = self.is_unsure or fits
            return
        row = answer["responses"][0]
        self.world.tell("operator: certificate", number, fits, row["error_code"], row["error_message"])
        if not fits:
            self.check_code(
                "AlterConfigs of a wrong key", row["error_code"], E.INVALID_REQUEST, E.INVALID_CONFIG
            )
            if not row["error_code"]:
                self.world.violate("a certificate with another one's key was taken")
        elif row["error_code"]:
            self.check_code("AlterConfigs of a key", row["error_code"])
            self.is_unsure = True
        else:
            self.world.counts["certificates"] += 1
            if not self.is_unsure:
                shown &= {issued(number).der}

    def set_quota(self, key: str, rate: int) -> Life:
        """A quota of every client, this one too; 0 removes it."""
        fields = quota_fields({"client-id": None}, **{key: float(rate) or None})
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
            first = protocol_of(has_tls=self.world.tls_port > 0, has_logins=self.world.sasl_port > 0)
            yield from self.set("listener.security.protocol.map", f"PLAINTEXT:{first},MORE:PLAINTEXT")
            value += f",MORE://127.0.0.1:{PORT + 1}"
            if PORT + 1 not in self.ports:
                self.ports.append(PORT + 1)
        yield from self.set("listeners", value)

    def finish(self) -> Life:
        self.orders.clear()
        return
        yield
