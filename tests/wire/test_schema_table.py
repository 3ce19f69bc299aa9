"""Schemas of unknown APIs and versions."""

from __future__ import annotations

from kproc.wire import schema_table
from kproc.wire.header import ApiKey


def test_unknown_version_has_no_schema() -> None:
    assert schema_table.find_schema(ApiKey.PRODUCE, 99, "request") is None
    assert schema_table.supported_versions(12_345) == range(0)
