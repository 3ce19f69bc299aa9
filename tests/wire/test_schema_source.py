"""schemas.jsonl equals the entities of kio, and the versions that schema_additions.py adds to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kproc.wire import schema_additions, schema_source, schema_table
from kproc.wire.header import ApiKey
from kproc.wire.schema import Schema


@pytest.mark.long
def test_schema_table_equals_kio_and_additions() -> None:
    """After an update of kio: `python -m kproc.wire.schema_source`."""
    assert schema_table.PATH.read_text() == schema_source.make_table()


@pytest.mark.long
def test_schemas_are_read_back_unchanged() -> None:
    made = list(schema_source.make_schemas())
    assert len(made) > 600
    for key, version, direction, schema in made:
        assert schema_table.find_schema(key, version, direction) == schema
    for key in ApiKey:
        versions = {version for made_key, version, _, _ in made if made_key == key}
        assert set(schema_table.supported_versions(key)) == versions, key.name


def test_additions_follow_versions_of_kio() -> None:
    """Remove a row of schema_additions.py when kio has its version."""
    for key, version in schema_additions.CHANGED:
        assert schema_source.supported_versions(key)[-1] == version - 1, (key.name, version)
    for key in schema_additions.NEW:
        assert not schema_source.supported_versions(key), key.name


@pytest.mark.long
def test_every_change_names_a_field_of_the_version_before() -> None:
    made = {(key, version, direction): schema for key, version, direction, schema in schema_source.make_schemas()}
    for (key, version), changes in schema_additions.CHANGED.items():
        for direction, change in zip(("request", "response"), changes, strict=True):
            assert change.keys() <= set(paths_of(made[key, version - 1, direction])), (key.name, direction)


def paths_of(schema: Schema, prefix: str = "") -> Iterator[str]:
    for field in schema.fields:
        yield f"{prefix}{field.name}"
        if field.struct is not None:
            yield from paths_of(field.struct, f"{prefix}{field.name}.")
