"""`kproc api` shows what is served: the registry's rows, and what each api file says of its differences."""

from __future__ import annotations

import json

from kproc.broker.api import load_all
from kproc.broker.request.registry import APIS
from kproc.cli.main import run


def test_every_served_api_is_in_the_ledger_with_its_versions(capsys):
    load_all()
    assert run(["api", "--format", "json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == APIS.keys()
    assert rows[1] == {
        "key": 1,
        "api": "Fetch",
        "versions": f"{APIS[1].advertised_lo}-{APIS[1].hi}",
        "differences": APIS[1].differences,
    }
    assert "no follower" in rows[1]["differences"]
    assert "Versions:" not in rows[1]["differences"]


def test_what_is_not_served_is_shown_when_asked_for(capsys):
    assert run(["api", "--missing", "--format", "json"]) == 0
    rows = {row["api"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Vote"]["versions"] is None
    assert run(["api"]) == 0
    shown = capsys.readouterr().out
    assert "Vote" not in shown
    assert "- Fetch: there is one replica" in shown
