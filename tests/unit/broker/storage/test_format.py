"""Names of the files of a partition."""

from __future__ import annotations

from kproc.broker.storage.format import (
    DELETE_DIRECTORY_SUFFIX,
    is_state_directory_name,
    parse_partition_directory_name,
    parse_segment_file_name,
    segment_file_name,
    set_aside_directory_name,
)


def test_file_names() -> None:
    assert segment_file_name(123, ".log") == "00000000000000000123.log"
    assert parse_segment_file_name("00000000000000000123.log", ".log") == 123
    assert parse_segment_file_name("00000000000000000123.log.deleted", ".log") is None
    assert parse_segment_file_name("x.log", ".log") is None
    assert parse_segment_file_name("1.log", ".log") is None
    assert parse_segment_file_name("00000000000000000123", ".log") is None
    assert parse_partition_directory_name("a-b-12") == ("a-b", 12)
    for name in ("a", "-1", "a-", "a-x", "a-1.0123456789abcdef-delete", "__cluster_metadata"):
        assert parse_partition_directory_name(name) is None, name
        assert not is_state_directory_name(name), name
    aside = set_aside_directory_name("a", 1, "f" * 32, DELETE_DIRECTORY_SUFFIX)
    assert all(map(is_state_directory_name, (".a-0", aside, "__cluster_metadata-0")))
    assert len(set_aside_directory_name("t" * 249, 100_000, "f" * 32, DELETE_DIRECTORY_SUFFIX)) == 255
