"""Lines of `kproc produce` with a separator, and its options that need no broker."""

from __future__ import annotations

import io

import pytest

from kproc.cli.common import Failure
from kproc.cli.produce import _LineParser, _lines, _send_all
from kproc.cli.record_json import Outgoing
from kproc.cli.record_sender import RecordSender
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc, refused


class ListSender(RecordSender):
    """Keeps the numbers of the lines instead of sending their records."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def send(self, number: int, record: Outgoing) -> None:
        self.numbers.append(number)

    def abandon(self) -> str:
        return f"sent {self.numbers}"

    def finish(self) -> int:
        return len(self.numbers)


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


def test_line_above_the_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of /dev/zero is endless, and filled the memory."""
    monkeypatch.setattr("kproc.cli.produce.LINE_BYTES_MAX", 5)
    longest = io.BytesIO(b"12345\n12345")
    assert _send_all(ListSender(), _lines(longest), parser(None), skips_blanks=False) == 2
    with open("/dev/zero", "rb") as endless, pytest.raises(Failure) as raised:
        _send_all(ListSender(), _lines(endless), parser(None), skips_blanks=False)
    assert str(raised.value) == "line 1: longer than 5 bytes; sent []"
