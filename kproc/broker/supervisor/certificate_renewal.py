"""CertificateRenewal: the certificates that TLS listeners use, and their renewal while the broker runs.

The supervisor checks keys and certificates in a short-lived child (tls_check.py) before a Processor reads them. If a
key or certificate cannot be used, all Processors keep the present certificates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

from kproc.broker.cluster.dynamic_settings import listeners_in_force
from kproc.broker.config import Config
from kproc.broker.role.control_requests import Gathering, Reply
from kproc.broker.role.roles import PROCESSOR
from kproc.broker.supervisor import tls_check
from kproc.broker.supervisor.children import Children

logger = logging.getLogger(__name__)


class CertificateRenewal:
    """Checks and renews the certificates of the TLS listeners, and keeps the result of the check of those in use.

    on_change: called when the certificates in use may have changed or a Processor could not renew them, because the
    status shows both.
    """

    def __init__(
        self,
        config: Config,
        children: Children,
        checked: tls_check.CheckedListeners | None,
        on_change: Callable[[], None],
    ) -> None:
        self._config = config
        self._children = children
        self._on_change = on_change
        # Result of the last successful check. None at first if only the controller knows the settings in force.
        self.checked = checked
        # The reason why the last SIGHUP could not renew the certificates. None if it could.
        self.problem: str | None = None

    @property
    def certificates(self) -> dict[str, dict[str, Any]]:
        """The subject and expiry time of the certificate in use, by listener. Empty before the first check."""
        return {} if self.checked is None else self.checked.certificates

    def recheck(self) -> None:
        """Check the certificates again after a change of settings. The Processors have received the same settings."""
        checked = self._check_in_force()
        # If a certificate cannot be used, the Processors keep the present ones, so keep the last result, too.
        if checked.problem is None:
            self.checked = checked
            self._on_change()

    def renew(self) -> None:
        """Let every Processor read keys and certificates again. If a file cannot be used, all keep the present ones."""
        checked = self._check_in_force()
        self.problem = checked.problem
        if checked.problem is not None:
            logger.error("reload: %s; the certificates in use stay", checked.problem)
            return
        roles = [role for role in self._children.table.of(PROCESSOR) if role.child is not None]

        def on_all(replies: dict[Hashable, Reply]) -> None:
            problems = sorted({each for reply in replies.values() for each in reply.get("problems", ())})
            for problem in problems:
                logger.error("reload: %s; the certificates in use stay", problem)
            self.problem = "; ".join(problems) or None
            if not problems:
                self.checked = checked
                tls_check.log_certificates(checked)
            self._on_change()

        gathering = Gathering(len(roles), on_all)
        for role in roles:
            self._children.send_request(role, "renew_certificates", {}, gathering.receiver(role.agent))

    def _check_in_force(self) -> tls_check.CheckedListeners:
        settings = self._children.settings
        end_points = listeners_in_force(self._config, settings)
        return tls_check.check_listeners(self._config, settings, end_points, in_child=True)
