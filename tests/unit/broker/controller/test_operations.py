"""kproc's own operations in the controller: scale, and calls that end late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.controller import operations
from kproc.common.errors import ErrorCode
from tests.support.controller_rig import ControllerRig, ScriptedPeer
from tests.support.in_memory_controller import NEW_CLUSTER_CONFIGS


def test_own_operation_is_answered(rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]) -> None:
    heard = peers[0].ask_own("status")
    rig.settle()
    assert [(reply["error"], reply["result"]["cluster_id"]) for reply in heard] == [(None, "the-cluster")]


def test_requests_for_the_status_in_one_cycle_share_it(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 requests for the status made the controller hang for a minute."""
    described: list[int] = []
    status = rig.controller.status
    describe = status.describe
    monkeypatch.setattr(type(status), "describe", lambda _self: described.append(1) or describe())
    replies = [peers[at % 2].ask_own("status") for at in range(20)]
    rig.settle()
    assert [reply["result"]["cluster_id"] for heard in replies for reply in heard] == ["the-cluster"] * 20
    assert len(described) <= 2
    monkeypatch.setattr(type(status), "describe", lambda _self: 1 // 0)
    (failed,) = [peers[0].ask_own("status")]
    rig.settle()
    assert failed == [{"error": "the status failed: see the broker's log", "result": None, "is_retriable": False}]


def test_listing_of_clients_is_asked_once_at_a_time(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    replies = [peers[at % 2].ask_own("clients") for at in range(20)]
    rig.settle()
    assert [what for what, _, _ in rig.asked] == ["clients"]
    rig.asked[0][2]({"lost": True})
    rig.settle()
    assert [what for what, _, _ in rig.asked] == ["clients", "clients"]
    rig.asked[1][2]({"clients": []})
    rig.settle()
    errors = [reply["error"] for heard in replies for reply in heard]
    assert len(errors) == 20
    assert errors[-1] is None
    lost = {"error": "the controller's request to the supervisor was lost", "result": None, "is_retriable": True}
    assert replies[0] == [lost]


def test_surveys_of_logs_run_one_after_the_other_and_are_shared(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand clients must not fill the cleaner's queue."""
    surveys: list[Callable[[Any], None]] = []

    class Survey:
        def __init__(self, _image: Any, _ask: Any, on_done: Callable[[Any], None]) -> None:
            surveys.append(on_done)

        def advance(self) -> None:
            pass

    monkeypatch.setattr(operations, "LogSurvey", Survey)
    first = peers[0].ask_own("logs")
    rig.settle()
    others = [peers[at % 2].ask_own("logs") for at in range(5)]
    rig.settle()
    assert len(surveys) == 1
    surveys[0](None)
    rig.settle()
    restarting = {"error": "the cleaner is being restarted", "result": None, "is_retriable": True}
    assert first == [restarting]
    assert (len(surveys), others) == (2, [[]] * 5), "who came later may know of later topics"
    surveys[1]([])
    rig.settle()
    assert [reply["result"]["topics"] for heard in others for reply in heard] == [[]] * 5
    peers[0].ask_own("logs")
    rig.settle()
    assert len(surveys) == 3


def test_scale_is_answered_when_the_supervisor_has_done_it(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    first, second = peers[0].ask_own("scale", processors=3), peers[0].ask_own("scale", handlers=4)
    rig.settle()
    assert rig.settings[-1].overrides == NEW_CLUSTER_CONFIGS | {"num.network.threads": "3"}, "the second one waits"
    ((what, _, on_reply),) = rig.asked
    assert what == "settle"
    assert first == []
    on_reply({"counts": {"processors": 3, "handlers": 2}, "steps": [], "took_ms": 7})
    rig.settle()
    assert first[0]["result"] == {
        "is_done": True,
        "counts": {"processors": 3, "handlers": 2},
        "steps": [],
        "took_ms": 7,
    }
    assert rig.settings[-1].overrides == NEW_CLUSTER_CONFIGS | {"num.network.threads": "3", "num.io.threads": "4"}
    rig.asked[1][2]({"counts": {"processors": 3, "handlers": 4}, "steps": [], "took_ms": 7})
    rig.settle()
    assert second[0]["error"] is None


def test_long_scale_returns_a_ticket_to_ask_again(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    first = peers[0].ask_own("scale", processors=3)
    rig.settle()
    rig.clock.advance_ms(200)
    rig.settle()
    assert first[0]["result"]["is_done"] is False
    again = peers[1].ask_own("scale", ticket=first[0]["result"]["ticket"])
    rig.settle()
    assert again == []
    rig.asked[0][2]({"counts": {"processors": 3, "handlers": 2}, "steps": [], "took_ms": 7})
    rig.settle()
    assert again[0]["result"]["is_done"] is True
    late = peers[0].ask_own("scale", ticket=first[0]["result"]["ticket"])
    unknown = peers[0].ask_own("scale", ticket="another")
    rig.settle()
    assert late == again
    assert "is unknown: the controller was restarted" in unknown[0]["error"]


def test_counts_that_could_not_be_reached_are_not_kept(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    replies = peers[0].ask_own("scale", processors=3)
    rig.settle()
    rig.asked[0][2]({"counts": {"processors": 1, "handlers": 2}, "error": "no memory", "is_retriable": True})
    rig.settle()
    assert replies == [{"error": "no memory", "result": None, "is_retriable": True}]
    assert rig.settings[-1].overrides == NEW_CLUSTER_CONFIGS | {"num.network.threads": "1", "num.io.threads": "2"}


def test_more_changes_than_anybody_means_are_refused(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    waiting = [peers[0].ask_own("scale", processors=3) for _ in range(17)]
    rig.settle()
    late = peers[0].ask_own("scale", processors=3)
    rig.settle()
    assert [reply for replies in waiting for reply in replies if reply["error"]] == []
    full = "scale: 16 changes wait already, which is the limit"
    assert late == [{"error": full, "result": None, "is_retriable": True}]


@pytest.mark.parametrize("op", ["rebalance", "plan-rebalance", "kill-client", "move-time"])
def test_supervisor_decides_if_its_error_is_retriable(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], op: str
) -> None:
    fields: dict[str, Any] = {"kill-client": {"id": "c"}, "move-time": {"action": "show", "ms": 0}}.get(op, {})
    replies: list[dict[str, Any]] = []
    for reply in ({"error": "no"}, {"error": "no", "is_retriable": True}, {"lost": True}):
        asked = peers[0].ask_own(op, **fields)
        rig.settle()
        rig.asked[-1][2](reply)
        rig.settle()
        replies += asked
    assert [each["is_retriable"] for each in replies] == [False, True, True]


def test_counts_that_cannot_be_stored_are_a_retriable_error(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of another kind, such as a rejected value, is not: the same request ends the same way."""
    replies: list[dict[str, Any]] = []
    for code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_CONFIG):
        failed = {"failure": (code, "no")}
        monkeypatch.setattr(
            type(rig.controller), "handle_change",
            lambda _self, _op, _body, on_reply, *, waits_for_handlers, failed=failed: on_reply(failed),
        )  # fmt: skip
        asked = peers[0].ask_own("scale", processors=3)
        rig.settle()
        replies += asked
    reason = "the counts cannot be written down: no"
    assert replies == [
        {"error": reason, "result": None, "is_retriable": True},
        {"error": reason, "result": None, "is_retriable": False},
    ]


@pytest.mark.parametrize("body", [{}, {"processors": 0}, {"handlers": 10_000}, {"handlers": -1}])
def test_scale_to_nonsense_is_refused(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], body: dict[str, int]
) -> None:
    replies = peers[0].ask_own("scale", **body)
    rig.settle()
    assert replies[0]["error"]
    assert not replies[0]["is_retriable"]
    assert rig.asked == []
