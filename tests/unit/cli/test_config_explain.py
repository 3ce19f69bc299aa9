"""`kproc config explain` without a broker."""

from __future__ import annotations

import json
import os
import textwrap

import pytest

from tests.support.command_line import call_kproc

NOBODY = ("-b", "127.0.0.1:1")


@pytest.fixture
def explain(capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("KPROC_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: call_kproc(capsys, "config", "explain", *arguments, *NOBODY)


def test_explain_without_broker_prints_reference(explain) -> None:
    done = explain("log.flush.interval.ms")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        textwrap.dedent("""\
            log.flush.interval.ms
              Time in ms after which unsynced records are synced to disk, accurate to about 1 s.

              type           long, in ms
              default        9223372036854775807 (no limit)
              dynamic        yes
              for one topic  flush.ms
              environment    KPROC_LOG_FLUSH_INTERVAL_MS
              since          0.1.0
              change         kproc config set log.flush.interval.ms=VALUE

            The present value is unknown: """)
    )


def test_explain_shows_all_scopes_of_name(explain) -> None:
    shown = explain("compression.type", "--format", "json")
    assert [row["scope"] for row in json.loads(shown.stdout)] == ["broker", "topic"]
    shown = explain("min.insync.replicas")
    assert "\nmin.insync.replicas (topic)\n" in shown.stdout
    assert shown.stdout.count("no effect  ") == 2
    assert "change " not in shown.stdout
    assert "kproc config set --topic NAME retention.ms=VALUE\n" in explain("retention.ms").stdout
    assert "change " not in explain("log.dirs").stdout


def test_explain_of_misspelt_name_shows_similar_names(explain) -> None:
    done = explain("log.flush.intervall.ms")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "kproc: no setting is called log.flush.intervall.ms; similar: log.flush.interval.ms, "
    )
    done = explain("num.io.threads", "--topic", "orders")
    assert (done.returncode, done.stderr.partition(";")[0]) == (
        2,
        "kproc: no setting of a topic is called num.io.threads",
    )


def test_explain_of_unsupported_setting_of_kafka_says_so(explain) -> None:
    done = explain("zookeeper.connect")
    assert done.returncode == 0
    assert "A setting of Kafka that kproc does not support." in done.stdout
