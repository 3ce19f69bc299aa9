"""OffsetRequests: when a commit is visible and answered, and which groups it creates."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.rules import Producer
from kproc.broker.group import offset_requests
from kproc.broker.group.messages import CommitRequest
from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_commit_is_visible_on_append_and_answered_when_durable(rig: Rig) -> None:
    codes = rig.commit(5)
    assert (rig.offset(), codes) == (None, [])
    rig.log.flush()
    assert (rig.offset(), codes) == (5, [])
    rig.log.sync()
    assert codes == [0]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_was_not_appended_changes_nothing(rig: Rig, error: ErrorCode, told: ErrorCode) -> None:
    rig.log.error = error
    codes = rig.commit(5)
    rig.log.flush()
    assert (rig.offset(), codes, rig.states()) == (None, [told], {})


def test_commit_with_no_valid_offset_makes_group_until_sweep(rig: Rig) -> None:
    codes: list[int] = []
    request = CommitRequest(
        group_id="g",
        member_id="",
        group_instance_id=None,
        generation=-1,
        knows_unknown_group=True,
        offsets=[],
    )
    rig.coordinator.offset_requests.commit(request, codes.append)
    assert (codes, rig.states()) == ([0], {"g": "Empty"})
    rig.sweep()
    assert rig.states() == {}


def test_commits_of_a_transaction_beyond_the_limit_are_rejected(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a transaction commits all of its offsets in one step. Only the log can name the limit."""
    monkeypatch.setattr(offset_requests, "PENDING_OFFSETS_MAX", 1)
    producer = Producer(7, 0)
    assert not rig.commit(5, producer=producer)
    rig.log.flush()
    assert rig.commit(6, topic="u", producer=producer) == [ErrorCode.POLICY_VIOLATION]
    assert "a transaction can have 1 offsets" in caplog.text
    for _ in range(20):
        rig.commit(6, topic="u", producer=producer)
    assert caplog.text.count("a transaction can have 1 offsets") == 10, "a client may not fill the log"
    assert not rig.commit(6, producer=producer)  # The same partition again.
    assert not rig.commit(7, topic="u")
