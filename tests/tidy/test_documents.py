"""Every block of code of every document is run by a test, or stands in a list with the reason why not."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support.command_parser import parse_line
from tests.support.documents import CODE, LANGUAGES, NOT_RUN, ROOT, RUN_BY, blocks, documents

ALL = [block for document in documents() for block in blocks(document)]


def test_every_fence_of_a_document_is_found() -> None:
    fences = {name: len(re.findall(r"^ *```", text, re.MULTILINE)) for name, text in documents().items()}
    found = Counter(block.document for block in ALL)
    assert {name: count for name, count in fences.items() if count != 2 * found[name]} == {}
    assert [f"{each.document}:{each.line}" for each in ALL if each.language not in LANGUAGES] == []


def test_every_block_of_code_is_run_or_has_a_reason() -> None:
    open_blocks = [
        f"{each.document}:{each.line}"
        for each in ALL
        if each.language in CODE and each.is_run and each.document not in RUN_BY
    ]
    assert open_blocks == []


def test_reasons_are_about_blocks_that_exist() -> None:
    found = Counter(key for block in ALL for key in block.reasons())
    assert {key: found[key] for key in NOT_RUN if found[key] != 1} == {}


@pytest.mark.parametrize("document", sorted(RUN_BY))
def test_tests_that_run_a_document_name_it(document: str) -> None:
    assert any(block.is_run and block.language in CODE for block in blocks(document))
    for test in RUN_BY[document]:
        text = (ROOT / "tests" / f"{test}.py").read_text(encoding="utf-8")
        assert document.rpartition("/")[2] in text, test


def test_commands_of_blocks_that_are_not_run_parse() -> None:
    for block in ALL:
        if block.language in ("sh", "console") and not block.is_run:
            for line in re.findall(r"^kproc .*$", block.code, re.MULTILINE):
                parse_line(line)


# Words that stand for several, for a choice or for the rest of a line.
_NOT_WHOLE = re.compile(r"\.\.\.|\||<|\bCOMMAND\b")


def test_commands_and_options_in_sentences_exist() -> None:
    """A sentence may leave out arguments, and name a placeholder as the value of an option."""
    wrong = []
    for document, text in documents().items():
        # The changelog tells of options that other versions had, and reports of the command that measured.
        if document == "CHANGELOG.md" or document.startswith("bench/results/"):
            continue
        prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`(kproc [^`]+)`", prose):
            line = " ".join(span.split())
            try:
                if not _NOT_WHOLE.search(line):
                    parse_line(line)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the classes are the parser's own
                if "No such" in str(error) or "unexpected extra" in str(error):
                    wrong.append(f"{document}: {line}: {error}")
    assert wrong == []
