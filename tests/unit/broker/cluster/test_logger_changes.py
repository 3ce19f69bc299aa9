"""Changes of log levels: their results, and Kafka's error for each invalid one."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.cluster.logger_changes import requested_levels
from kproc.common.errors import ErrorCode
from tests.support.cases import in_one_test

SET, DELETE, APPEND, SUBTRACT = range(4)
INVALID_REQUEST, INVALID_CONFIG = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
KNOWN = {"root": "INFO", "kproc": "INFO", "kproc.broker.processor": "INFO"}


def resource(*changes: tuple[str, int, str | None], name: str = "1") -> dict[str, Any]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    return {"resource_type": 8, "resource_name": name, "configs": configs}


def test_levels_are_set_and_taken_back() -> None:
    wishes = [resource(("kproc.broker.processor", SET, "TRACE"), ("root", SET, "FATAL"), ("kproc", DELETE, None))]
    levels = requested_levels(wishes, 1, KNOWN)
    assert levels == ({"kproc.broker.processor": "TRACE", "root": "FATAL", "kproc": None}, {})


@in_one_test(
    ("change", "code", "words"),
    [
        (("no.such", SET, "DEBUG"), INVALID_CONFIG, "Logger no.such does not exist!"),
        (("no.such", DELETE, None), INVALID_CONFIG, "Logger no.such does not exist!"),
        (("kproc", SET, "LOUD"), INVALID_CONFIG, "DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
        (("kproc", SET, "debug"), INVALID_CONFIG, "not a supported log level"),
        (("kproc", SET, ""), INVALID_CONFIG, "not a supported log level"),
        (("kproc", SET, None), INVALID_REQUEST, "Null value"),
        (("root", DELETE, None), INVALID_REQUEST, "root logger is not allowed"),
        (("kproc", APPEND, "DEBUG"), INVALID_REQUEST, "APPEND operation is not allowed"),
        (("kproc", SUBTRACT, "DEBUG"), INVALID_REQUEST, "SUBTRACT operation is not allowed"),
        (("kproc", 9, "DEBUG"), INVALID_REQUEST, "Unknown operation"),
    ],
)
def test_invalid_logger_change_rejects_its_whole_resource(
    change: tuple[str, int, str | None], code: ErrorCode, words: str
) -> None:
    levels, errors = requested_levels([resource(("kproc.broker.processor", SET, "DEBUG"), change)], 1, KNOWN)
    assert levels == {}
    assert errors[0].code == code
    assert words in str(errors[0].message)


@pytest.mark.parametrize(("name", "words"), [("2", "Unexpected"), ("", "integer"), ("x", "integer")])
def test_only_this_node_has_loggers_here(name: str, words: str) -> None:
    wishes = [resource(("kproc", SET, "DEBUG")), resource(("root", SET, "DEBUG"), name=name)]
    levels, errors = requested_levels(wishes, 1, KNOWN)
    assert levels == {"kproc": "DEBUG"}
    assert errors[1].code == INVALID_REQUEST
    assert words in str(errors[1].message)


def test_a_resource_twice_and_a_logger_twice_are_refused() -> None:
    levels, errors = requested_levels([resource(("kproc", SET, "DEBUG"))] * 2, 1, KNOWN)
    assert levels == {}
    assert {at: error.code for at, error in errors.items()} == {0: INVALID_REQUEST, 1: INVALID_REQUEST}
    _, errors = requested_levels([resource(*[("kproc", SET, "DEBUG")] * 2)], 1, KNOWN)
    assert "duplicate" in str(errors[0].message)
