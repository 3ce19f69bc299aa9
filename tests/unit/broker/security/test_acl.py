"""Kafka's enums of ACLs."""

from __future__ import annotations

from kproc.broker.security.acl import OPERATIONS, ResourceType


def test_every_type_has_its_operations() -> None:
    assert set(OPERATIONS) == set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
