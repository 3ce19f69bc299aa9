"""Lines of `kproc produce` with a separator, and its options that need no broker."""

from __future__ import annotations

import pytest

from kproc.cli.common import Failure
from kproc.cli.produce import _LineParser
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc, refused


def parser(separator: str | None, key: str | None = None) -> _LineParser:
    return _LineParser(key, separator, [], is_null=False)


@in_one_test(
    ("separator", "line"),
    [
        (":", b"k:v"),
        (r"\t", b"k\tv"),
        (r"\x1f", b"k\x1fv"),
        (r"\\", b"k\\v"),
        (r"=\t", b"k=\tv"),
        ("é", "kév".encode()),
    ],
)
def test_key_separator_takes_escapes_of_a_format(separator: str, line: bytes) -> None:
    assert parser(separator)(line)[:2] == (b"k", b"v")


@pytest.mark.parametrize(
    ("separator", "problem"),
    [
        (r"\q", r"--key-separator: \\q is not known"),
        ("\\", r"--key-separator: \\ is not known"),
        (r"\n", "--key-separator: a newline ends the line"),
        ("", "--key-separator: must not be empty"),
    ],
)
def test_wrong_key_separator_is_a_usage_error(separator: str, problem: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        parser(separator)
    assert caught.value.exit_code == 2


def test_missing_separator_is_reported_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    read = parser(r"\t")
    assert [read(line)[:2] for line in (b"a\tb", b"c", b"d")] == [(b"a", b"b"), (None, b"c"), (None, b"d")]
    read.report_missing()
    assert capsys.readouterr().err == (
        "kproc: line 2 has no separator '\\t': it is sent as a value without a key\n"
        "kproc: 2 of 3 lines had no separator '\\t' and were sent without a key\n"
    )


def test_line_without_a_separator_option_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    read = parser(None, key="k")
    assert read(b"a:b")[:2] == (b"k", b"a:b")
    read.report_missing()
    assert capsys.readouterr().err == ""


def test_timeout_beyond_that_of_a_transaction_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--transactional-id", "x", "--transaction-timeout", "5", "--timeout", "6")
    problem = refused(call_kproc(capsys, "produce", "t", *options), 2)
    assert problem == "kproc: --timeout 6 is longer than --transaction-timeout 5\n"
