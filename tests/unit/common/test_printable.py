"""Text that others chose, as a terminal and a file of lines may have it."""

from __future__ import annotations

import json
import logging
import sys

import orjson
import pytest

from kproc.broker.security import audit
from kproc.broker.supervisor.logs import JsonFormatter, TextFormatter
from kproc.common.printable import printable, printable_json, printable_lines

C0 = [chr(each) for each in range(0x20)]
C1 = [chr(each) for each in range(0x7F, 0xA0)]
BIDI = [chr(each) for each in (0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
LINES = ["\u2028", "\u2029", "\x85"]
HOSTILE = [*C0, *C1, *BIDI, *LINES, "\u200b", "\ufeff", "\ud800", "\U000e0041"]


def test_printable_escapes_control_character() -> None:
    for each in HOSTILE:
        shown = printable(f"a{each}b")
        assert shown.isprintable(), ascii(each)
        assert shown.startswith("a\\"), ascii(each)


def test_printable_keeps_text_of_any_language() -> None:
    text = "orders Bestellungen заказы 注文 \\n [red] {x} $(id)"
    assert printable(text) is text
    assert printable_lines(f"{text}\n\t{text}") == f"{text}\n\t{text}"


def test_printable_lines_keeps_newline_and_tab_only() -> None:
    kept = {each for each in HOSTILE if printable_lines(each) == each}
    assert kept == {"\n", "\t"}


def test_printable_json_has_same_meaning() -> None:
    value = {"name": "".join(each for each in HOSTILE if each != "\ud800") + "\U0001f600 заказы \\u009b \\"}
    for document in (orjson.dumps(value), orjson.dumps(value, option=orjson.OPT_INDENT_2)):
        shown = printable_json(document)
        assert json.loads(shown) == value
        assert shown.decode().replace("\n", "").isprintable()
        assert "заказы" in shown.decode()


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("kproc.broker.group", logging.INFO, "x.py", 1, message, arguments, info)


FORGED = (
    "g\n2026-11-25T12:00:00.000+00:00 level=ERROR role=controller kproc.broker.security: admin deleted \x1b[2J\u202e"
)


def test_text_log_with_hostile_name_is_one_line() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(record("group %s rebalances", FORGED))
    assert line.isprintable()
    assert line.startswith("INFO group g\\n2026")


def test_text_log_of_exception_forges_no_line() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        text = TextFormatter("%(levelname)s %(message)s").format(record("failed", error=error))
    first, *others = text.split("\n")
    assert first == "INFO failed"
    assert all(line.startswith("  ") and line.replace("\t", "").isprintable() for line in others)
    assert "ValueError: g" in text


def test_json_log_with_hostile_name_is_exact_and_printable() -> None:
    line = JsonFormatter("handler-0").format(record("group %s \x9b", FORGED))
    assert json.loads(line)["message"] == f"group {FORGED} \x9b"
    assert line.isprintable()


def test_audit_message_with_hostile_name_is_one_line() -> None:
    from kproc.broker.security.acl import Operation, ResourceType

    record = audit.AuditRecord(
        principal=f"User:{FORGED}", host="127.0.0.1", operation=Operation.READ, resource_type=ResourceType.GROUP,
        name=FORGED, is_allowed=False, request="JoinGroup", rule=FORGED, reference_count=1,
    )  # fmt: skip
    text = audit.message(record)
    assert text.isprintable()


@pytest.mark.long
def test_all_suspect_code_points_are_escaped() -> None:
    """No code point that Python calls unprintable passes. Planes that Unicode has not assigned are sampled."""
    text = "".join(map(chr, (*range(0x40000), *range(0x40000, sys.maxunicode + 1, 97), *range(0xE0000, 0xE0200))))
    assert printable_lines(text).replace("\n", "").replace("\t", "").isprintable()
