"""FaultWatch: says in the status and in the metrics that clients can make this broker fail on purpose.

The rules are files that Handlers write (`kproc/broker/faults/`). This module only counts them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.storage.format import FAULT_RULE_SUFFIX, FAULTS_DIRECTORY

if TYPE_CHECKING:
    from kproc.broker.config import Config

WARNING: Final = (
    "fault injection is enabled (kproc.faults.enable=true): every client of this host that may alter the cluster can "
    "make requests fail, so this broker must serve tests only"
)


class FaultWatch:
    """The state of fault injection of one broker. One per process that shows the status."""

    def __init__(self, config: Config) -> None:
        self._is_enabled = config.kproc_faults_enable
        self._may_surprise = may_surprise(config)
        self._directory = Path(config.log_dirs, FAULTS_DIRECTORY)

    @property
    def rules(self) -> int:
        """Number of fault rules now."""
        if not self._is_enabled:
            return 0
        try:
            return sum(name.endswith(FAULT_RULE_SUFFIX) for name in os.listdir(self._directory))
        except FileNotFoundError:
            # The directory is created with the first rule.
            return 0

    @property
    def problem(self) -> str | None:
        """One line for `kproc status` and `top` about active rules or enabled fault injection, or None."""
        rules = self.rules
        if rules:
            return f"requests or writes fail on purpose: {rules} fault rule{'s are' if rules > 1 else ' is'} active"
        return WARNING if self._may_surprise else None

    def describe(self) -> dict[str, Any]:
        """Return the member `faults` of the status."""
        return {"is_enabled": self._is_enabled, "rules": self.rules}


def may_surprise(config: Config) -> bool:
    """Return True if clients may inject faults, and the broker was not started by kproc.Broker or `kproc dev`.

    Those two have a temporary directory, and serve tests only.
    """
    return config.kproc_faults_enable and not config.kproc_temporary_directory
