"""Quotas of clients at a Handler."""

from __future__ import annotations

from kproc.broker.cluster.client_quotas import CLIENT_ID
from tests.support.handler_rig import HandlerRig

# -- over a Handler ------------------------------------------------------------------------------------------


def set_quota(
    rig: HandlerRig, key: str, value: float, name: str | None = "test", *, kind: str = CLIENT_ID
) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name}],
        "ops": [{"key": key, "value": value, "remove": False}],
    }
    rig.cluster.do("alter_client_quotas", entries=[entry], validate_only=False)
    rig.tell()
