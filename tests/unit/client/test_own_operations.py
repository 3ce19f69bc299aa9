"""own_operations.py of the client: the frame of an operation, and answers of kproc and of other programs."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from kproc.client import STATUS_KEY, ClientError, ConnectionLost, OperationUnavailable
from kproc.client.own_operations import OperationFields, decode_result, encode_operation
from tests.support.cases import in_one_test


def result_of(answer: Any) -> OperationFields:
    return decode_result(answer if isinstance(answer, bytes) else json.dumps(answer).encode(), "b:1")


def test_operation_is_json_behind_a_plain_header() -> None:
    frame = encode_operation(7, "kproc", "status", {"verbose": True})
    assert struct.unpack_from(">ihhih", frame) == (len(frame) - 4, STATUS_KEY, 0, 7, 5)
    assert frame[14:19] == b"kproc"
    assert json.loads(frame[19:]) == {"op": "status", "verbose": True}


def test_result_with_missing_field_is_one_error() -> None:
    """Any program may listen at the port. Commands report odd answers in a line, without a traceback."""
    status = result_of({"error": None, "result": {"processes": [{"role": "supervisor"}]}})
    with pytest.raises(ClientError, match="no field 'pid': it runs another version"):
        status["pid"]
    [row] = status["processes"]
    assert row["role"] == "supervisor"
    with pytest.raises(ClientError, match="no field 'index'"):
        row["index"]


def test_result_without_rows_is_one_error() -> None:
    for rows in (5, None, {}, "rows", [5], [{}, None], [[]]):
        with pytest.raises(ClientError, match="no rows in 'lines'"):
            result_of({"error": None, "result": {"lines": rows}}).rows("lines")
    assert result_of({"error": None, "result": {"lines": [{"a": 1}]}}).rows("lines") == [{"a": 1}]


def test_error_of_an_operation_is_raised_with_the_address() -> None:
    with pytest.raises(ClientError, match=r"^b:1: only for loopback peers$"):
        result_of({"error": "only for loopback peers", "result": {}})


def test_retriable_error_of_an_operation_has_its_own_type() -> None:
    answer = {"error": "the controller is being restarted", "result": None}
    with pytest.raises(OperationUnavailable, match=r"^b:1: the controller is being restarted; try again$"):
        result_of({**answer, "is_retriable": True})
    for older in (answer, {**answer, "is_retriable": False}):
        with pytest.raises(ClientError, match=r"restarted$") as raised:
            result_of(older)
        assert type(raised.value) is ClientError


@in_one_test(
    "answer",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"error": null, "result": {"at": ' + b"9" * 30 + b"}}",
        b'{"error": null, "result": {"at": Infinity}}',
        {"error": None},
        {"error": None, "result": 5},
    ],
)
def test_answer_of_another_program_is_a_lost_connection(answer: Any) -> None:
    with pytest.raises(ConnectionLost, match="b:1 is not a kproc broker"):
        result_of(answer)


def test_operation_with_text_that_is_not_utf8_names_the_text() -> None:
    """The broker answered that the request's JSON is malformed: invalid utf-16 surrogate pair (byte 77)."""
    for arguments in ({"client": "a\udcff"}, {"apis": ["Fetch", "a\udcff"]}, {"rule": {"topic": "a\udcff"}}):
        with pytest.raises(UnicodeEncodeError) as raised:
            encode_operation(1, "c", "monitor", arguments)
        assert raised.value.object == "a\udcff"
    assert encode_operation(1, "c", "monitor", {"user": None, "client": "é"}).endswith(b'"client": "\\u00e9"}')
