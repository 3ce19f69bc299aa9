"""schemas.jsonl equals the entities of kio."""

from __future__ import annotations

from kproc.wire import schema_source, schema_table
from kproc.wire.header import ApiKey


def test_schema_table_equals_kio() -> None:
    """After an update of kio: `python -m kproc.wire.schema_source`."""
    assert schema_table.PATH.read_text() == schema_source.make_table()


def test_schemas_are_read_back_unchanged() -> None:
    made = list(schema_source.make_schemas())
    assert len(made) > 600
    for key, version, direction, schema in made:
        assert schema_table.find_schema(key, version, direction) == schema
    for key in ApiKey:
        assert schema_table.supported_versions(key) == schema_source.supported_versions(key)
