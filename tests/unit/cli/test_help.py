"""The help of every command: groups, whole summaries, plain placeholders, examples that parse, flags."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kproc.cli import main
from kproc.cli.examples import EXAMPLES, example_lines
from kproc.cli.failure import Failure, usage_error
from kproc.cli.help import COMMAND_GROUPS, SUMMARY_CHARACTERS_MAX, placeholder, summary
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc
from tests.support.command_parser import OWN_PARSER, parse_line, root

PLACEHOLDERS = {
    "ADDRESS", "BYTES", "DIR", "DIRECTORY", "DURATION", "FILE", "FILE|-", "FORMAT", "FROM", "GROUP", "HOST:PORT", "ID",
    "IP", "KIND", "LIST", "M", "MECHANISM", "MINUTES", "MS", "N", "NAME", "NAME:N", "NAME=RANGE", "NAME=VALUE",
    "OPERATION", "PATH", "PID", "PRINCIPAL", "QUOTA", "QUOTA=VALUE", "RANGE", "REGEX", "S", "SINK", "SPEC.toml",
    "STATE", "TEXT", "TOPIC", "TOPIC[:P,...]", "TYPE:NAME", "WHERE",
}  # fmt: skip
# A number of partitions and the number of one are both -p in rpk, too. --records of perf counts, as --count does.
SAME_MEANING = ({"--partition", "--partitions"}, {"--count", "--records"})


def _walk(command: Any, path: str, parent: Any = None):
    context = command.context_class(command, info_name=path.rpartition(" ")[2] or "kproc", parent=parent)
    yield path, command, context
    for name, each in getattr(command, "commands", {}).items():
        yield from _walk(each, f"{path} {name}".strip(), context)


def _runs_alone(command: Any) -> bool:
    return not getattr(command, "commands", None) or command.invoke_without_command


ROOT = root()
TREE = {path: (command, context) for path, command, context in _walk(ROOT, "")}
LEAVES = [path for path, (command, _) in TREE.items() if path and _runs_alone(command)]
# Their help is that of the programs in bench/, which need a checkout.
OURS = [path for path in LEAVES if not path.startswith("bench ")]


def test_every_command_has_a_group() -> None:
    grouped = [name for names in COMMAND_GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(ROOT.commands) - set(grouped) == set()


def test_every_summary_is_short_and_whole() -> None:
    long = {path: summary(command) for path, (command, _) in TREE.items() if path}
    assert {path: text for path, text in long.items() if len(text) > SUMMARY_CHARACTERS_MAX} == {}
    assert [path for path, text in long.items() if not text.endswith(".") or text.endswith("...")] == []


def test_placeholders_are_known_words() -> None:
    unknown = []
    for path, (command, context) in TREE.items():
        if path in OWN_PARSER:
            continue
        for each in command.get_params(context):
            word = placeholder(command, each)
            if each.opts[0].startswith("-") and "|" in word and word != "FILE|-":
                continue  # A short list of choices is shown as it is.
            if word and word not in PLACEHOLDERS:
                unknown.append(f"{path} {each.opts[0]} {word}")
    for path, parser in OWN_PARSER.items():
        words = [each.metavar for each in parser.shown_options() if each.metavar]
        unknown += [f"{path} {word}" for word in words if word not in PLACEHOLDERS]
    assert unknown == []


def test_short_flags_have_one_meaning() -> None:
    meanings = defaultdict(set)
    for command, context in TREE.values():
        for each in command.get_params(context):
            names = [*each.opts, *each.secondary_opts]
            for name in names:
                if re.fullmatch("-[^-]", name):
                    meanings[name].add(max(names, key=len))
    several = {name: long for name, long in meanings.items() if len(long) > 1 and long not in SAME_MEANING}
    assert several == {}


@in_one_test("path", LEAVES)
def test_examples_parse(path: str) -> None:
    lines = example_lines(path)
    assert len(lines) >= 2
    for line in lines:
        assert len(line) < 79
        parse_line(line)


def test_examples_name_commands() -> None:
    assert set(EXAMPLES) - {""} - set(LEAVES) == set()
    for line in example_lines(""):
        parse_line(line)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_is_plain_and_fits(capsys, monkeypatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.delenv("KPROC_BOOTSTRAP", raising=False)
    for path in ("", "topic", *OURS):
        shown = call_kproc(capsys, *path.split(), "--help").stdout
        assert max(map(len, shown.splitlines())) <= int(columns), path
        assert not re.search(r"<\w+( range|\[\w+\])?>|\{|x<=|<=x|COMMAND \[ARGS\]|\]\.\.\.", shown), path


@in_one_test(
    ("line", "said"),
    [
        ("topic create t -p x", "--partitions x: expected a whole number from -1 to 2147483647"),
        ("topic create t --partitions=-5", "--partitions -5: expected a whole number from -1 to 2147483647"),
        ("topic create t -px", "--partitions x: expected a whole number from -1 to 2147483647"),
        ("group list --sort foo", "--sort foo: expected one of name, "),
        ("latency -n 0", "--count 0: expected a whole number of at least 1"),
        ("ping --timeout soon", "--timeout soon: expected a number from 0"),
        ("consume t -p x -p 3", "--partition: expected a whole number of at least 0"),
    ],
)
def test_rejected_value_is_named_with_what_is_expected(capsys, line: str, said: str) -> None:
    answer = call_kproc(capsys, *line.split())
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"kproc: {said}"), answer.stderr
    assert answer.stderr.endswith(
        f"(see kproc {' '.join(line.split()[: 2 if line[0] in 'tg' else 1])} --help)\n"
    )


def test_empty_path_is_not_the_working_directory(capsys, monkeypatch, tmp_path) -> None:
    """An unset variable in `--data "$DATA"` made a data directory of it."""
    monkeypatch.chdir(tmp_path)
    for arguments, problem in (
        (("user", "add", "x", "--data", ""), "--data: must not be empty"),
        (("user", "add", "x", "-c", ""), "--config: must not be empty"),
        (("tune", "--config="), "--config: must not be empty"),
        (("stop", "--ready-file", "."), ". is not the ready file of a broker"),
    ):
        done = call_kproc(capsys, *arguments, stdin="password\n")
        assert done.returncode in (1, 2), arguments
        assert done.stderr.startswith(f"kproc: {problem}"), arguments
    assert list(tmp_path.iterdir()) == []


def test_exit_codes_are_those_of_the_document(capsys, monkeypatch) -> None:
    document = (Path(main.__file__).parents[1] / "COMMANDS.md").read_text(encoding="utf-8")
    table = document.partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}

    def raises(error: BaseException):
        def command() -> int:
            raise error

        return command

    monkeypatch.setattr(main, "_abandon_stdout", lambda: None)
    commands = [
        lambda: 0,
        raises(Failure("no broker")),
        raises(KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)),
        lambda: usage_error("wrong"),
        raises(KeyboardInterrupt()),
        raises(BrokenPipeError()),
    ]
    assert {main.exit_code_of(command) for command in commands} == documented


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaError(ErrorCode.GROUP_ID_NOT_FOUND), "kproc: the group does not exist (GROUP_ID_NOT_FOUND)\n"),
        (KafkaError(ErrorCode.INVALID_RECORD, "too long"), "kproc: too long (INVALID_RECORD)\n"),
        (PermissionError(1, "Operation not permitted"), "kproc: Operation not permitted (the system denies "),
        (PermissionError(13, "Permission denied", "/f"), "kproc: /f: Permission denied (user "),
    ],
)
def test_bare_names_of_errors_are_explained(capsys, error: Exception, said: str) -> None:
    def command() -> int:
        raise error

    assert main.exit_code_of(command) == 1
    assert capsys.readouterr().err.startswith(said)
