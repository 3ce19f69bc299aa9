"""FaultSwitch: a broker without fault rules pays nothing for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.wait import PATIENCE_SECONDS


@pytest.mark.long
def test_broker_without_rules_imports_no_fault_injection() -> None:
    code = (
        "import sys\n"
        "import kproc.broker.supervisor.run, kproc.broker.supervisor.inprocess, kproc.broker.handler.handler\n"
        "from kproc.broker.api import load_all\n"
        "load_all()\n"
        "assert not [name for name in sys.modules if name.startswith('kproc.broker.faults')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
