"""The load of a group coordinator's log: records of all protocols, unknown ones, and unknown topic ids."""

from __future__ import annotations

import pytest

from kproc.broker.group.records import OffsetKey, encode_offset_key
from kproc.common.errors import Corrupt
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_unknown_record_types_are_skipped_and_damage_is_not(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        rig.coordinator.replay(b"\0\x63\0\1g", b"\0\0", 0, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(Corrupt):
        rig.coordinator.replay(encode_offset_key(OffsetKey("g", "t", 0)), b"\0\4", 0, None)


@pytest.mark.parametrize("present", [True, False])
def test_load_counts_offsets_with_unknown_topic_id_by_name(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, present: bool
) -> None:
    """The files of __consumer_offsets come from another broker, or the metadata were restored from an older copy."""
    rig.commit(7)
    rig.commit(8, topic="u")
    rig.log.sync()
    new_id = b"n" * 16
    del rig.topics["t"]
    if present:
        rig.topics["t"] = new_id
    written = len(rig.log.records)
    rig.make()
    rig.log.sync()
    assert len(rig.log.records) == written, "no tombstone"
    assert "1 committed offsets have unknown topic ids" in caplog.text
    rig.topics["t"] = new_id
    found = rig.coordinator.offsets.get("g", "t", 0, new_id)
    assert found is not None
    assert found.offset == 7
