"""Validates the keys and certificates of TLS listeners before they are used, at the start and before a change.

The supervisor must not load a private key, because every role that it forks later would inherit it. A short-lived child
loads it instead, and reports errors, warnings and the expiry times of certificates through a pipe.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.listeners import EndPoint
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.common.printable import printable

logger = logging.getLogger(__name__)

_WARNING: Final = "warning: "
# Prefix of a report line with the listener's name, the expiry time in ms since 1970, and the certificate's subject.
_CERTIFICATE: Final = "certificate: "


class CheckedListeners(NamedTuple):
    """The result of a check of the TLS listeners."""

    problem: str | None = None
    """The errors as text, or None."""
    certificates: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - nobody changes it
    """By listener, {"subject", "expires_ms"}: the earliest expiry time in the certificate chain, in ms since 1970."""


def check_before_start(config: Config) -> CheckedListeners | None:
    """Validate the keys and certificates of the configuration before anything is created. Raises ConfigError.

    Returns None if the metadata log exists. In that case only the controller knows the settings in force, which may
    differ from the configuration, so the caller must check later.
    """
    if (Path(config.log_dirs) / METADATA_DIRECTORY).exists():
        return None
    checked = check_listeners(config, DynamicSettings(), config.listeners, in_child=True)
    if checked.problem is not None:
        raise ConfigError(checked.problem)
    return checked


def check_listeners(
    config: Config, settings: DynamicSettings, end_points: Iterable[EndPoint], *, in_child: bool
) -> CheckedListeners:
    """Validate the keys and certificates of these listeners. Log the warnings.

    in_child: load the keys in a short-lived child process, so that they never are in this process's memory.
    """
    names = [each.name for each in end_points if each.protocol.endswith("SSL")]
    if not names:
        return CheckedListeners()
    lines = _check_in_child(config, settings, names) if in_child else _check_contexts(config, settings, names)
    problems = []
    certificates = {}
    for line in lines:
        if line.startswith(_WARNING):
            logger.warning("%s", line.removeprefix(_WARNING))
        elif line.startswith(_CERTIFICATE):
            name, expires_ms, subject = line.removeprefix(_CERTIFICATE).split(" ", 2)
            certificates[name] = {"subject": subject, "expires_ms": int(expires_ms)}
        else:
            problems.append(line)
    return CheckedListeners("\n".join(problems) or None, certificates)


def log_certificates(checked: CheckedListeners) -> None:
    """Log which certificate each listener uses after a reload, so that the log confirms a renewal."""
    for listener, certificate in checked.certificates.items():
        ends = datetime.datetime.fromtimestamp(certificate["expires_ms"] / 1000, datetime.UTC)
        logger.info(
            "reload: listener %s uses the certificate of %s, which expires at %s UTC",
            listener,
            certificate["subject"],
            f"{ends:%Y-%m-%d %H:%M}",
        )


def problem_with_change(
    config: Config, listener: str, before: DynamicSettings, after: DynamicSettings
) -> str | None:
    """Return the reason why a listener's settings must not change from `before` to `after`, or None if they may."""
    from kproc.broker.security import tls

    value = tls.settings_of(config, after, listener)
    try:
        new = tls.make_context(listener, value, ticket_secret=b"")
    except ConfigError as error:
        return str(error)
    try:
        old = tls.make_context(listener, tls.settings_of(config, before, listener), ticket_secret=b"")
    except ConfigError:
        return None  # The present settings cannot be used, for example because a file is gone, so any change is better.
    return tls.problem_with_change(old, new, listener, value)


def _check_contexts(config: Config, settings: DynamicSettings, names: list[str]) -> list[str]:
    """Return a report: a line for each listener that cannot be used, for each warning and for each certificate."""
    # Import the TLS code only here, so that a broker without a TLS listener does not load it.
    from kproc.broker.security import tls

    lines = []
    for name in names:
        try:
            made = tls.make_context(name, tls.settings_of(config, settings, name), ticket_secret=b"")
        except ConfigError as error:
            lines.append(f"listener {name}: {error}")
        else:
            lines += [f"{_WARNING}listener {name}: {each}" for each in made.warnings]
            expires_ms = int(made.server.ends.timestamp() * 1000)
            # Escape newlines in the subject, which comes from a file, so that it cannot forge another line of the
            # report.
            lines.append(f"{_CERTIFICATE}{name} {expires_ms} {printable(made.server.subject)}")
    return lines


def _check_in_child(config: Config, settings: DynamicSettings, names: list[str]) -> list[str]:
    """Run `_check_contexts` in a child process and return its lines, so that the loaded keys vanish with the child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.write(writing, "\n".join(_check_contexts(config, settings, names)).encode())
            status = 0
        finally:
            # Exit without the handlers and buffers that fork(2) has copied. They belong to the supervisor,
            # which runs them itself.
            os._exit(status)
    # pipe(7): the reader sees the end only when no process has the pipe open for writing, this one included.
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        # Read to the end before waitpid(2). Otherwise a report that exceeds the pipe's buffer would block the
        # child for ever.
        text = answer.read().decode()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        return [
            "the keys and certificates of the listeners could not be checked: the checking process failed"
        ]
    return text.splitlines()
