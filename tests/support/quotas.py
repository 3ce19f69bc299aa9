"""Quotas of users, client ids and addresses, by AlterClientQuotas."""

from __future__ import annotations

from collections.abc import Mapping

from kproc.wire.header import ApiKey
from tests.support.raw import Fields, RawConnection


def quota_fields(entity: Mapping[str, str | None], **quotas: float | None) -> Fields:
    """Return an AlterClientQuotas request for one entity, such as {"user": "bob"}. None removes a quota."""
    rows = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()]
    return {"entries": [{"entity": rows, "ops": ops}], "validate_only": False}


def alter_quotas(
    client: RawConnection, entity: Mapping[str, str | None], *, version: int = 1, **quotas: float | None
) -> int:
    """Set quotas of an entity, or remove those that are None; return the error code."""
    fields = quota_fields(entity, **quotas)
    (row,) = client.call(ApiKey.ALTER_CLIENT_QUOTAS, version, fields)["entries"]
    assert row["entity"] == fields["entries"][0]["entity"], row
    return int(row["error_code"])
