"""Tables of commands, and the table of `kproc status`."""

from __future__ import annotations

from kproc.cli.lines import print_facts, print_text
from kproc.cli.status import COLUMNS, _print_status
from kproc.cli.tables import _cut, _narrowed, print_table
from tests.support.command_line import call_kproc, told

STATUS = {
    "cluster_id": "abc",
    "data": "/data",
    "transport": "process",
    "flush": "group",
    "uptime_ms": 3_723_456,
    "listeners": {"PLAINTEXT": {"bound": "127.0.0.1:1", "advertised": "127.0.0.1:1"}},
    "processes": [
        {
            "role": "supervisor",
            "index": 0,
            "pid": 7,
            "state": "running",
            "restarts": 0,
            "pss_bytes": 2_000_000,
        },
        {
            "role": "processor",
            "index": 10,
            "pid": 12345,
            "state": "running",
            "restarts": 2,
            "cpu_percent": 12.34,
            "cpu_seconds": 1.0,
            "pss_bytes": 1_500_000,
            "connections": 3,
            "requests_per_s": 1234.56,
            "requests_total": 9,
            "ring_fill": 0.5,
            "queue_depth": 4,
            "heartbeat_age_ms": 1.5,
        },
    ],
    "shared_memory_unmapped_bytes": 500_000,
    "topics": 1,
    "partitions": 4,
}


def test_columns_are_aligned_and_numbers_to_the_right(capsys):
    print_table(("NAME", "N"), [("a", 5), ("long name", 12345), ("b", None)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME           N",
        "a              5",
        "long name  12345",
        "b              -",
    ]


def test_a_table_without_rows_is_its_header(capsys):
    print_table(("NAME", "N"), [])
    assert capsys.readouterr().out == "NAME  N\n"


def test_status_shows_each_process_and_the_memory_in_all(capsys):
    _print_status(STATUS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster abc  up 62m  listeners PLAINTEXT=127.0.0.1:1"
    assert lines[1] == "data /data  transport process  flush group  topics 1  partitions 4"
    assert lines[3].split()[:4] == ["ROLE", "INDEX", "PID", "STATE"]
    assert " ".join(lines[4].split()) == "supervisor 0 7 running 0 - - - 2.0 - - - - - -"
    assert " ".join(lines[5].split()) == "processor 10 12345 running 2 12.3 1.0 - 1.5 3 1234.6 9 50.0 4 1.5"
    assert lines[-1] == "memory 4.0 MB: PSS 3.5, shared and not mapped 0.5"


def test_status_counts_internal_topics_apart(capsys):
    _print_status({**STATUS, "internal_topics": 2, "internal_partitions": 100})
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("topics 1 (and 2 internal)  partitions 4 (and 100 internal)")


def test_status_help_explains_each_column(capsys):
    text = told(call_kproc(capsys, "status", "--help"))
    explained = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()}
    assert {name for name, _, _ in COLUMNS} - {"ROLE", "INDEX", "PID"} <= explained


def test_status_counts_transactional_ids_by_state_if_any(capsys):
    counts = {"Empty": 0, "Ongoing": 2, "CompleteCommit": 10}
    _print_status({**STATUS, "transactions": counts})
    assert "partitions 4  transactional ids 2 Ongoing, 10 CompleteCommit\n" in capsys.readouterr().out
    _print_status({**STATUS, "transactions": dict.fromkeys(counts, 0)})
    assert "transactional ids" not in capsys.readouterr().out


def test_status_shows_when_and_why_the_last_reload_failed(capsys):
    reload = {"at_ms": 1_700_000_000_000, "problem": "num.io.threads=3 is refused"}
    for answer in ({**STATUS, "last_reload": reload}, {**STATUS, "last_reload": {**reload, "problem": None}}):
        _print_status(answer)
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].endswith("  last reload 2023-11-14 22:13:20 UTC")
        failure = "the last reload (2023-11-14 22:13:20 UTC) failed: num.io.threads=3 is refused"
        assert (failure in lines) is (answer["last_reload"]["problem"] is not None)
    _print_status({**STATUS, "last_reload": None})
    assert "reload" not in capsys.readouterr().out


def test_narrow_terminal_hides_least_important_columns() -> None:
    header, rows = ["NAME", "COUNT", "NOTE"], [["a" * 10, "1", "b" * 10], ["c", "22", "d"]]
    assert _narrowed(header, rows, ("NOTE", "COUNT"), 29) == (header, rows, [])
    assert _narrowed(header, rows, ("NOTE", "COUNT"), 28) == (
        ["NAME", "COUNT"],
        [["a" * 10, "1"], ["c", "22"]],
        ["NOTE"],
    )
    assert _narrowed(header, rows, ("NOTE", "COUNT"), 5)[2] == ["NOTE", "COUNT"]


def test_long_names_lose_their_middle_where_no_column_may_go() -> None:
    name = "orders-of-the-whole-year.v1.events"
    rows = [[name, "7"], ["short", "12345"]]
    _cut(["TOPIC", "RECORDS"], rows, ("TOPIC",), 30)
    assert rows == [["orders-of...v1.events", "7"], ["short", "12345"]]
    rows = [[name, "7"]]
    _cut(["TOPIC", "RECORDS"], rows, ("TOPIC",), 43)
    assert rows == [[name, "7"]]
    _cut(["TOPIC", "RECORDS"], rows, ("TOPIC",), 1)
    assert rows == [["orde...nts", "7"]]
    _cut(["NAME", "NOTE"], rows := [["n", "no effect: one host keeps one replica"]], ("NOTE",), 16)
    assert rows == [["n", "no effect"]]
    _cut(["TOPIC", "RECORDS"], rows := [], ("TOPIC",), 1)
    assert rows == []


def test_columns_of_long_names_share_the_room() -> None:
    rows = [["t" * 249, "User:CN=" + "p" * 100, "READ"], ["short", "User:a", "WRITE"]]
    _cut(["NAME", "PRINCIPAL", "OPERATION"], rows, ("NAME", "PRINCIPAL"), 80)
    assert [len(cell) for cell in rows[0]] == [33, 34, 4]
    rows = [["t" * 249, "User:alice", "READ"]]
    _cut(["NAME", "PRINCIPAL", "OPERATION"], rows, ("NAME", "PRINCIPAL"), 80)
    assert [len(cell) for cell in rows[0]] == [57, 10, 4]


def test_long_cells_of_first_column_get_lines_of_their_own(capsys, monkeypatch) -> None:
    """A name that is cut in the middle cannot be copied."""
    long = "transaction.state.log.num.partitions"
    rows = [("node.id", "1"), (long, "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093")]
    print_table(("NAME", "VALUE"), rows, cut=("VALUE",), fold=True)
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    print_table(("NAME", "VALUE"), rows, cut=("VALUE",), fold=True)
    assert capsys.readouterr().out.splitlines() == [
        "NAME     VALUE",
        "node.id  1",
        long,
        "         PLAINTEXT://127.0.0...SL://127.0.0.1:9093",
    ]
    monkeypatch.setenv("COLUMNS", "70")
    print_table(("NAME", "VALUE"), rows, cut=("VALUE",), fold=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{long}  PLAINTEXT")


def test_a_column_that_can_be_cut_drops_no_other() -> None:
    header, rows = ["NAME", "COUNT"], [["n" * 249, "1"]]
    assert _narrowed(header, rows, ("COUNT",), 80, ("NAME",)) == (header, rows, [])
    assert _narrowed(header, rows, ("COUNT",), 26, ("NAME",))[2] == ["COUNT"]


def test_a_name_with_a_blank_far_in_front_loses_its_middle_too() -> None:
    _cut(["NAME"], rows := [["User:CN=a b" + "c" * 50]], ("NAME",), 30)
    assert rows == [["User:CN=a bccc...ccccccccccccc"]]


def test_text_above_table_is_wrapped_only_on_terminal(capsys, monkeypatch) -> None:
    facts, sentence = ["topic a", "settings b=c d=e"], "not a word is cut in two"
    print_facts(facts)
    print_text(sentence)
    assert capsys.readouterr().out == f"topic a  settings b=c d=e\n{sentence}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "18")
    print_facts(facts)
    print_text(sentence, indent="  ")
    assert capsys.readouterr().out == "topic a\nsettings b=c d=e\nnot a word is cut\n  in two\n"
