"""Replies of the controller carry its failures."""

from __future__ import annotations

from kproc.broker.cluster.controller import failure_of, failure_reply
from kproc.common.errors import ErrorCode


def test_failures_travel_in_replies():
    error = failure_of(failure_reply(ErrorCode.KAFKA_STORAGE_ERROR, "disk full"))
    assert (error.code, error.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
    assert failure_of({"lost": True}).code == ErrorCode.REQUEST_TIMED_OUT
    assert failure_of({"topics": []}) is None
