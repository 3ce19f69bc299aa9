"""The YAML files that kproc brings, read by a YAML parser: what Prometheus and compose need is there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("yaml", reason="pyyaml is not installed")

import yaml

from kproc.broker.config import SETTINGS, Config
from kproc.cli.serve import SERVE
from kproc.tools import health
from tests.support.broker import ROOT
from tests.support.monitoring import alerts

SCRIPTS = ROOT / "scripts"
DURATION = re.compile(r"(?:\d+[hms])+")
LABEL = re.compile(r"\$labels\.(\w+)")


def read(name: str) -> Any:
    return yaml.safe_load((SCRIPTS / name).read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    (group,) = read("monitoring/alerts.yml")["groups"]
    assert group["name"] == "kproc"
    return list(group["rules"])


def test_every_alert_has_expression_severity_and_summary() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) > 10
    for rule in found:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}, rule
        assert re.fullmatch(r"Kproc[A-Za-z]+", rule["alert"])
        assert isinstance(rule["expr"], str)
        assert DURATION.fullmatch(rule["for"]), rule
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary"}
        assert rule["annotations"]["summary"].count("{{") == rule["annotations"]["summary"].count("}}")


def test_alert_summary_uses_only_labels_kept_by_its_sum() -> None:
    for rule in rules():
        kept = re.search(r"sum by \(([^)]*)\)", rule["expr"])
        if kept:
            labels = set(LABEL.findall(rule["annotations"]["summary"]))
            assert labels <= set(re.split(r",\s*", kept[1])), rule


def test_scraped_alert_expressions_match_the_rules_file() -> None:
    assert alerts() == [rule["expr"] for rule in rules()]


def test_image_takes_settings_from_file_and_environment() -> None:
    lines = (ROOT / "scripts" / "service" / "Dockerfile").read_text().splitlines()
    (entry,) = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT")]
    given = SERVE.parse_args(entry[2:])
    assert entry[:2] == ["kproc", "serve"]
    assert given.from_env
    assert f"COPY scripts/service/image.properties {given.config}" in lines
    # An option of the image would override the variable of its setting.
    assert [name for name, value in vars(given).items() if name in SETTINGS and value is not None] == ["log.dirs"]
    environment = read("service/compose.yml")["services"]["broker"]["environment"]
    file = ROOT / "scripts" / "service" / "image.properties"
    config = Config.build(file=file, environment=environment | {"KPROC_NUM_IO_THREADS": "3"})
    assert [str(each) for each in config.listeners] == ["SASL_PLAINTEXT://:9092"]
    assert [str(each) for each in config.advertised_listeners] == ["SASL_PLAINTEXT://broker:9092"]
    assert config.num_io_threads == 3
    (script,) = read("service/compose.yml")["services"]["broker"]["command"]
    # What the example runs after it has added the user is what the image runs.
    assert script.splitlines()[-1] == f"exec {' '.join(entry)}"


def test_image_opens_no_listener_without_login_to_the_network() -> None:
    config = Config.build(file=ROOT / "scripts" / "service" / "image.properties")
    assert config.kproc_allow_unauthenticated_network == ()
    assert [each.host for each in config.listeners] == ["127.0.0.1"]
    assert config.kproc_metrics_listener == health.DEFAULT_ADDRESS


def test_image_is_based_on_a_digest() -> None:
    lines = (ROOT / "scripts" / "service" / "Dockerfile").read_text().splitlines()
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"ARG BASE=python:3\.12-slim@sha256:[0-9a-f]{64}", base)
    assert {line.split()[1] for line in lines if line.startswith("FROM")} == {"${BASE}"}
    # The health check's file is linked by a path that has the version of the base.
    assert any("lib/python3.12/site-packages/kproc/tools/health.py /opt/kproc/health.py" in line for line in lines)


def test_compose_example_client_waits_for_healthy_broker() -> None:
    services = read("service/compose.yml")["services"]
    assert (ROOT / "scripts" / "service" / services["broker"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["broker"]["build"]["dockerfile"]).is_file()
    assert services["client"]["depends_on"] == {"broker": {"condition": "service_healthy"}}
