"""The alert rules fire when they should, as promtool evaluates them over made-up series."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.monitoring import MONITORING

PROMTOOL = shutil.which("promtool")
RULES = MONITORING / "alerts.yml"
GROUP = 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"}'
FREE = "kproc_disk_free_bytes"
EXPIRY = 'kproc_certificate_expiry_timestamp_seconds{listener="SSL"}'

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def promtool(*arguments: str) -> str:
    """Run promtool and return what it printed, once it has succeeded."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_accepted() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


@pytest.mark.parametrize(
    ("alert", "series", "values", "at", "fires"),
    [
        ("KprocConsumerLagOnlyGrows", GROUP, "5+2x120", "70m", True),
        ("KprocConsumerLagOnlyGrows", GROUP, "5+2x120", "20m", False),
        ("KprocConsumerLagOnlyGrows", GROUP, "100x120", "70m", False),
        # It commits now and then: the lag falls for a moment, and grows over all.
        ("KprocConsumerLagOnlyGrows", GROUP, "5+2x19 20+2x19 40+2x80", "70m", False),
        ("KprocDiskFullWithinADay", FREE, "1000000-750x240", "60m", True),
        ("KprocDiskFullWithinADay", FREE, "1000000-750x240", "10m", False),
        ("KprocDiskFullWithinADay", FREE, "1000000-500x240", "60m", False),
        ("KprocDiskFullWithinADay", FREE, "1000+1x240", "60m", False),
        ("KprocCertificateExpires", EXPIRY, "2591000x120", "70m", True),
        ("KprocCertificateExpires", EXPIRY, "2600000x120", "70m", False),
        ("KprocCertificateExpiresSoon", EXPIRY, "259000x120", "1m", True),
        ("KprocCertificateExpiresSoon", EXPIRY, "300000x120", "1m", False),
    ],
)
def test_alert_fires(alert: str, series: str, values: str, at: str, fires: bool, tmp_path: Path) -> None:
    """One sample a minute from time 0 on. The alert is firing at the time `at`, or it is not."""
    state = f"count(ALERTS{{alertname='{alert}', alertstate='firing'}}) or vector(0)"
    test = tmp_path / "test.yml"
    test.write_text(f"""
rule_files: [{RULES}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series: [{{series: '{series}', values: '{values}'}}]
    promql_expr_test:
      - {{expr: "{state}", eval_time: {at}, exp_samples: [{{labels: "{{}}", value: {int(fires)}}}]}}
""")
    promtool("test", "rules", str(test))
