"""`kproc api` shows what is served: the registry's rows, and what each api file says of its differences."""

from __future__ import annotations

import json

from kproc.broker.api import load_all
from kproc.broker.request.registry import APIS
from kproc.cli.main import run
from kproc.wire.header import ApiKey
from tests.support.kafka_apis import ADVERTISED


def test_every_served_api_is_in_the_ledger_with_its_versions(capsys):
    load_all()
    assert run(["api", "--format", "json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert APIS.keys() <= rows.keys()
    assert {key for key, row in rows.items() if row["status"] == "served"} == APIS.keys()
    assert rows[1] == {
        "key": 1,
        "api": "Fetch",
        "versions": f"{APIS[1].advertised_lo}-{APIS[1].hi}",
        "status": "served",
        "reason": None,
        "differences": APIS[1].differences,
    }
    assert "no follower" in rows[1]["differences"]
    assert "Versions:" not in rows[1]["differences"]


def test_ledger_has_each_api_of_kafka_with_its_status(capsys):
    """Kafka 4.4 advertises 77 APIs; it serves telemetry only with a plug-in."""
    assert run(["api", "--format", "json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    assert rows.keys() - telemetry == ADVERTISED.keys()
    assert len(ADVERTISED) == 77
    for key, row in rows.items():
        if row["status"] == "served":
            lowest, highest = row["versions"].split("-")
            assert key in telemetry or int(highest) == ADVERTISED[key][1], row
            assert int(lowest) <= int(highest)
        else:
            assert row["status"] in ("moot", "planned")
            assert row["reason"]
    assert run(["api"]) == 0
    shown = capsys.readouterr().out
    assert "- moot, the one controller" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_api_missing_shows_unserved_apis(capsys):
    assert run(["api", "--missing", "--format", "json"]) == 0
    rows = {row["api"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Envelope"]["versions"] is None
    assert run(["api"]) == 0
    shown = capsys.readouterr().out
    assert "Envelope" not in shown
    assert "- Fetch: there is one replica" in shown
