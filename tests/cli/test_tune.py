"""`kproc tune` and `kproc bench sweep` as a shell calls them: temporary brokers, the real load generator."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kproc.tools.load.build import compiler
from tests.support.broker import ROOT, run_kproc
from tests.support.command_line import run_here
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.long

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="no C compiler to build the load generator with"
)
PATIENCE = 150.0  # of a busy machine: each of the runs starts a broker
QUICK = ("--seconds", "0.2", "--rounds", "1")


def test_config_list_shows_settings_and_fails_if_one_is_invalid():
    answer = run_here("tune", "list", "--format", "json")
    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    wrong = sorted(name for name, row in rows.items() if row["verdict"] == "change")
    assert answer.returncode == (1 if wrong else 0)
    ignoring = [argument for name in wrong for argument in ("--ignore", name)]
    assert run_here("tune", "list", *ignoring).returncode == 0
    assert {"files.open", "net.core.somaxconn", "clock.source", "data.filesystem"} <= rows.keys()
    assert all(row["why"] and row["change"] and row["wanted"] for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "--ignore", "nothing"), "--ignore nothing: there is no such setting in kproc tune list"),
        (("--yes",), "--yes: there is nothing to write without --config FILE"),
        (("--workload", "big"), "big"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_wrong_usage_is_one_line(arguments, said):
    answer = run_here("tune", *arguments)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert said in answer.stderr


@needs_compiler
@pytest.mark.slow
def test_tune_writes_settings_that_serve_reads(tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("# mine\nnum.io.threads=7\nlog.dirs=/nowhere\n")
    dry = run_kproc("tune", *QUICK, "--config", str(config), "--dry-run", seconds=PATIENCE)
    assert dry.returncode == 0, dry.stderr
    assert "-num.io.threads=7\n" in dry.stdout
    assert "--dry-run" in dry.stdout
    assert config.read_text() == "# mine\nnum.io.threads=7\nlog.dirs=/nowhere\n"

    done = run_kproc("tune", *QUICK, "--config", str(config), "--yes", "--format", "json", seconds=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {row["layout"] for row in answer["layouts"]} >= {"inline", "thread", "1x1"}
    assert all(row["throughput"] > 0 for row in answer["layouts"])
    text = config.read_text()
    assert text.startswith("# mine\n")
    for name in ("num.io.threads", "num.network.threads"):
        assert f"{name}={answer['settings'][name]}\n" in text


def test_tune_rejects_unwritable_config_before_measuring(tmp_path):
    config = tmp_path / "a.toml"
    config.write_text("num.io.threads = 7\n")
    for path, said in (
        (config, "give --yes or --dry-run"),
        (tmp_path / "none" / "a.toml", "give --yes"),
    ):
        answer = run_here("tune", "--config", str(path))
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
        assert said in answer.stderr
    config.write_text("num.io.threads = = 7\n")
    broken = run_here("tune", "--config", str(config), "--yes")
    assert broken.returncode == 2
    assert "not TOML" in broken.stderr


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("workload", ["produce", "fetch", "mixed"])
def test_each_workload_can_be_measured(workload):
    answer = run_kproc("tune", *QUICK, "--workload", workload, "--format", "json", seconds=PATIENCE)
    assert answer.returncode == 0, answer.stderr
    assert all(row["failed"] is None for row in json.loads(answer.stdout)["layouts"])


@pytest.mark.transports("process")
def test_tune_of_idle_broker_has_no_proposal(broker):
    answer = run_here("tune", "--from", broker.bootstrap, "--seconds", "0.2")
    assert answer.returncode == 1
    assert "are needed to measure the cost of one" in answer.stderr
    assert answer.stderr.count("\n") == 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.transports("process")
def test_tune_of_loaded_broker_uses_its_metrics(broker):
    load = [sys.executable, "-c", (
        "from kproc.tools.load.run import run_load\n"
        f"run_load('produce', {broker.bootstrap!r}, connections=16, seconds=6, warmup=0, topic='tuned-live')\n"
    )]  # fmt: skip
    with subprocess.Popen(load, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as running:
        answer = run_kproc("tune", "--from", broker.bootstrap, "--seconds", "2", "--format", "json")
        assert running.wait(PATIENCE_SECONDS) == 0
    assert answer.returncode == 0, answer.stderr
    roles = {row["role"]: row for row in json.loads(answer.stdout)["roles"]}
    for role in ("processor", "handler"):
        assert roles[role]["requests_per_s"] > 500
        assert 0 < roles[role]["busy"] <= roles[role]["count"]
        assert roles[role]["count_wanted"] >= 1
