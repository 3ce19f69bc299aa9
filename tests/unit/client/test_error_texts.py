"""Every error code has a text, and no program for users formats a code in another way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kproc
from kproc.client.error_texts import MEANINGS, error_text, failure_text
from kproc.common.errors import ErrorCode, KafkaError

ROOMS = ("cli", "client", "embedded/broker.py", "pipeline", "pytest_plugin.py", "spark", "tools")


def test_every_code_has_a_meaning_in_plain_words() -> None:
    assert MEANINGS.keys() == ErrorCode.__members__.keys()
    shouting = {name: text for name, text in MEANINGS.items() if re.search(r"[A-Z]+_[A-Z]+|[.:]\Z", text)}
    assert shouting == {}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.NON_EMPTY_GROUP, "the group has members; stop them first (NON_EMPTY_GROUP)"),
        (31_000, "error 31000, which this version of kproc does not know"),
    ],
)
def test_error_text_has_the_meaning_and_then_the_name(code: int, text: str) -> None:
    assert error_text(code) == text


def test_failure_text_prefers_the_message() -> None:
    assert failure_text(KafkaError(ErrorCode.INVALID_RECORD, "a key too long")) == "a key too long (INVALID_RECORD)"
    assert failure_text(KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)) == error_text(ErrorCode.GROUP_ID_NOT_FOUND)


def _formats_name(node: ast.AST) -> bool:
    """Return True for `ErrorCode(code).name` and for `error.code.name`."""
    if not isinstance(node, ast.Attribute) or node.attr != "name":
        return False
    owner = node.value
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "ErrorCode"
    return isinstance(owner, ast.Attribute) and owner.attr == "code"


def test_programs_for_users_format_codes_in_one_place() -> None:
    root = Path(kproc.__file__).parent
    found = []
    for room in ROOMS:
        for path in [root / room] if room.endswith(".py") else (root / room).rglob("*.py"):
            if path.name == "error_texts.py":
                continue
            text = path.read_text(encoding="utf-8")
            # Most files have no such words, and their tree need not be built.
            if not re.search(r"\.\s*name\b", text) or not re.search(r"\bErrorCode\b|\.\s*code\b", text):
                continue
            tree = ast.parse(text)
            found += [f"{path.name}:{each.lineno}" for each in ast.walk(tree) if _formats_name(each)]
    assert found == []
