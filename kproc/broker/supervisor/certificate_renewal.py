"""CertificateRenewal: the certificates that TLS listeners use, and their renewal while the broker runs.

The supervisor checks keys and certificates in a short-lived child (tls_check.py) before a Processor reads them. If one
of them cannot be used, all Processors keep those in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

from kproc.broker.cluster.dynamic_settings import listeners_in_force
from kproc.broker.config import Config
from kproc.broker.role.asks import Gathering, Reply
from kproc.broker.role.roles import PROCESSOR
from kproc.broker.supervisor import tls_check
from kproc.broker.supervisor.children import Children

logger = logging.getLogger(__name__)


class CertificateRenewal:
    """The last check of the TLS listeners whose certificates are in use.

    on_change: called when other certificates are in use, because the status shows them.
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
        # None until the settings in force are known, if they can differ from the configuration.
        self.checked = checked
        # The reason why SIGHUP could not renew the certificates.
        self.problem: str | None = None

    @property
    def certificates(self) -> dict[str, dict[str, Any]]:
        """The subject and end of the certificate in use, by listener."""
        return {} if self.checked is None else self.checked.certificates

    def recheck(self) -> None:
        """Check the certificates after a change of settings, which the Processors have received, too."""
        checked = self._check_in_force()
        # The Processors keep the certificates in use if one cannot be used.
        if checked.problem is None:
            self.checked = checked
            self._on_change()

    def renew(self) -> None:
        """Let every Processor read keys and certificates again. If one cannot be used, all keep those in use."""
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
            if not problems:
                self.checked = checked
                self._on_change()
                tls_check.log_certificates(checked)

        gathering = Gathering(len(roles), on_all)
        for role in roles:
            self._children.send_request(role, "renew_certificates", {}, gathering.taker(role.agent))

    def _check_in_force(self) -> tls_check.CheckedListeners:
        settings = self._children.settings
        end_points = listeners_in_force(self._config, settings)
        return tls_check.check_listeners(self._config, settings, end_points, in_child=True)
