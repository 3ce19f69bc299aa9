"""Reloader: on SIGHUP it reads the configuration again and changes the settings that a running broker can change.

A changed setting of the file becomes a dynamic setting of this broker, by the same operation as a client's
IncrementalAlterConfigs: it is validated, stored and sent to the roles. A value that a client has set overrides the
file, as at a start, and does not change. Applied changes are recorded in a note in the data directory. The next start
reads the file itself and removes the dynamic settings of the note. Otherwise an old value would override a newer file
for ever. The log names every change: applied, needs a restart, or refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.broker.cluster.broker_config import is_live, is_tls
from kproc.broker.cluster.config_changes import OP_DELETE, OP_SET
from kproc.broker.cluster.controller import failure_of
from kproc.broker.config import SETTINGS, Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings, listener_key, split_listener_key
from kproc.broker.config.values import HIDDEN, Secret, show, wire_text
from kproc.broker.role.control_requests import OnReply
from kproc.broker.storage.fs import Fs, StorageFailure, replace_file
from kproc.common.json_bytes import parse_json

logger = logging.getLogger(__name__)

Reread = Callable[[], Config | None]
"""Reads the configuration file again. Returns None if the broker was started without a file."""
Ask = Callable[[str, dict[str, Any], OnReply], None]

NOTE_FILE: Final = "kproc-reloaded.json"
_NO_FILE: Final = "reload: there is no file (--config) to read again"
# Kafka's number of the resource type BROKER (ConfigResource.Type) in IncrementalAlterConfigs.
_BROKER: Final = 4
# Limit of the text that the status shows. A refused value can be long.
_SHOWN_CHARACTERS: Final = 1000
# Alternative names of settings, such as log.retention.hours for log.retention.ms. Skip them, because the effective
# values are compared under the main names.
_SPELLINGS: Final = frozenset(
    (
        "broker.id",
        "log.dir",
        "log.flush.scheduler.interval.ms",
        "log.retention.hours",
        "log.retention.minutes",
        "log.roll.hours",
        "log.roll.jitter.hours",
    )
)


class _SettingChange(NamedTuple):
    """A setting to change. A `value` of None removes the dynamic value.

    `done` is the text to log when the change is in force.
    """

    name: str
    value: str | None
    done: str


class Reloader:
    """Applies changes of the configuration file. One per supervisor.

    `ask` sends a request to the controller. `in_force` returns the present dynamic settings. `reread` reads the
    configuration again, or is None if SIGHUP ends the broker instead. `wall_ms` returns the date.
    """

    def __init__(
        self,
        config: Config,
        fs: Fs,
        *,
        reread: Reread | None,
        ask: Ask,
        in_force: Callable[[], DynamicSettings],
        wall_ms: Callable[[], int],
    ) -> None:
        self._started = config
        self._fs = fs
        self._note = Path(config.log_dirs).absolute() / NOTE_FILE
        self._reread = reread
        self._ask = ask
        self._in_force = in_force
        self._wall_ms = wall_ms
        self._file_values = _values(config)  # The settings of the file as last read.
        self._applied: dict[str, str] = {}
        self._open = 0
        self._is_wanted_again = False
        self._reloaded_ms: int | None = None  # The date of the last reload.
        self.problem: str | None = (
            None  # The reasons why the last reload, or parts of it, failed, in one line.
        )

    @property
    def can_reload(self) -> bool:
        """True if SIGHUP reloads the configuration. Otherwise it ends the broker."""
        return self._reread is not None

    @property
    def is_busy(self) -> bool:
        """True while a reply of the controller is outstanding."""
        return self._open > 0

    def describe(self, certificate_problem: str | None) -> dict[str, Any] | None:
        """Return the date of the last reload and its problem for the status, or None if there was no reload."""
        if self._reloaded_ms is None:
            return None
        return _last_reload(self._reloaded_ms, self.problem, certificate_problem)

    def remove_former_settings(self) -> None:
        """Remove the settings that reloads of the last run applied, unless a client has changed them since.

        The supervisor calls this at its start. Raises ConfigError if the note of these settings is not a JSON object.
        """
        content = self._fs.read_file(self._note)
        if content is None:
            return
        try:
            former: Any = parse_json(content)
        except ValueError:
            # A power loss has damaged the note. Its changes were not applied, because the note is written before the
            # change.
            former = {}
        if not isinstance(former, dict):
            raise ConfigError(
                f"{self._note}: expected a JSON object of the settings that a reload applied, "
                f"not {show(json.dumps(former))}; remove the file to keep the settings in force"
            )
        overrides = self._in_force().overrides
        for name, value in former.items():
            # Remove the value that the reload has set. If the value in force is another one, a client has set it after
            # the reload: keep it.
            if overrides.get(name) == value:
                self._change(
                    [_SettingChange(name, None, "removed: this start has read the configuration file")]
                )
        self._applied = {}
        self._write_note()

    def reload(self) -> None:
        """Read the file again and apply its changes. If a reload is in progress, run another one when it has ended."""
        assert self._reread is not None
        if self._open:
            self._is_wanted_again = True
            return
        self._reloaded_ms, self.problem = self._wall_ms(), None
        try:
            config = self._reread()
        except ConfigError as error:
            lines = str(error).splitlines()
            self.problem = "; ".join(lines)
            for line in lines:
                logger.error("reload: %s", line)
            logger.error("reload: nothing was changed")
            return
        if config is None:
            logger.info(_NO_FILE)
            return
        after = _values(config)
        changed = list(_changed(self._file_values, after))
        self._file_values = after
        if not changed:
            logger.info("reload: no setting in the configuration file has changed")
        started = _values(self._started)
        wanted = []
        for name in changed:
            change = self._plan_change(
                name, after.get(name), is_as_started=after.get(name) == started.get(name)
            )
            if change is not None:
                wanted.append(change)
        # Change all settings of TLS in one request, because a key store and its password are valid only together.
        self._change([each for each in wanted if is_tls(each.name)])
        for each in wanted:
            if not is_tls(each.name):
                self._change([each])

    def _plan_change(self, name: str, value: str | None, *, is_as_started: bool) -> _SettingChange | None:
        """Return the change for a setting whose value in the file has changed to `value`.

        value: None if the setting is not in the file any more. is_as_started: the file has again the value with which
        the broker started, so a dynamic value is only removed. If no change is needed or possible, log why and return
        None.
        """
        stored = self._in_force().overrides.get(name)
        if not is_live(name):
            if is_as_started:
                logger.info("reload: %s=%s is in force already", name, _shown(name, value))
            else:
                logger.warning("reload: %s=%s needs a restart", name, _shown(name, value))
        elif stored is not None and stored != self._applied.get(name):
            logger.warning(
                "reload: %s=%s stays %s: the value set on the running broker overrides the file (kproc config "
                "set --unset %s)",
                name,
                _shown(name, value),
                _shown(name, stored),
                name,
            )
        elif is_as_started:
            return _SettingChange(name, None, f"applied: {name}={_shown(name, value)}")
        elif value is not None:
            self._applied[name] = value
            # Write the note before the change is applied. If the broker dies between the two, the next start finds the
            # note but no such dynamic setting, which is harmless. In the other order, the setting would override the
            # file for ever.
            self._write_note()
            return _SettingChange(name, value, f"applied: {name}={_shown(name, value)}")
        return None

    def _change(self, wanted: list[_SettingChange]) -> None:
        """Change these settings by one request, so that all of them change or none."""
        if not wanted:
            return
        configs = [
            {
                "name": each.name,
                "config_operation": OP_DELETE if each.value is None else OP_SET,
                "value": each.value,
            }
            for each in wanted
        ]
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(self._started.node_id),
            "configs": configs,
        }

        self._open += 1
        body = {"resources": [resource], "validate_only": False}
        self._ask("incremental_alter_configs", body, lambda reply: self._on_response(wanted, reply))

    def _on_response(self, wanted: list[_SettingChange], reply: dict[str, Any]) -> None:
        """Log the result of each setting, and record those that are in force in the note."""
        self._open -= 1
        failure = failure_of(reply)
        problem = failure.message if failure is not None else reply["responses"][0]["error_message"]
        for name, value, done in wanted:
            if problem:
                text = f"{name}={_shown(name, value)} is refused: {problem}"
                self.problem = "; ".join(filter(None, (self.problem, text)))
                logger.error("reload: %s", text)
                self._applied.pop(name, None)
                # Remove the value from the file's last known values, so that the next reload sees a difference and
                # tries again.
                self._file_values.pop(name, None)
                continue
            logger.info("reload: %s", done if value is not None or name in done else f"{name} {done}")
            if value is None:
                self._applied.pop(name, None)
        self._write_note()
        if not self._open and self._is_wanted_again:
            self._is_wanted_again = False
            self.reload()

    def _write_note(self) -> None:
        try:
            if self._applied:
                replace_file(self._fs, self._note, json.dumps(self._applied).encode())
            else:
                self._fs.unlink(self._note)
        except StorageFailure as error:
            logger.warning(
                "reload: cannot write %s (%s): from the next start on, the reloaded settings override the "
                "configuration file; remove them then with kproc config set --unset NAME",
                self._note,
                error,
            )


def find_unapplied_changes(
    started: Config, reread: Reread, certificate_problem: str | None, at_ms: int
) -> dict[str, Any]:
    """Log and return the result of a reload for the status of a broker that reads its settings at the start only.

    The problem names the settings that have changed in the file since the start.
    """
    problem = None
    try:
        config = reread()
    except ConfigError as error:
        problem = "; ".join(str(error).splitlines())
    else:
        changed = [] if config is None else list(_changed(_values(started), _values(config)))
        if changed:
            transport = started.kproc_transport
            problem = f"with kproc.transport={transport}, these changes need a restart: {', '.join(changed)}"
        elif certificate_problem is None:
            logger.info(
                _NO_FILE if config is None else "reload: no setting in the configuration file has changed"
            )
    for each in filter(None, (problem, certificate_problem)):
        logger.error("reload: %s", each)
    return _last_reload(at_ms, problem, certificate_problem)


def _last_reload(at_ms: int, *problems: str | None) -> dict[str, Any]:
    problem = "; ".join(filter(None, problems))
    return {"at_ms": at_ms, "problem": problem[:_SHOWN_CHARACTERS] or None}


def _values(config: Config) -> dict[str, str | None]:
    """Return every setting as text, or None if it is not set, by name. Include settings of single listeners."""
    values = {
        name: _text(getattr(config, row.field_name))
        for name, row in SETTINGS.items()
        if not row.is_internal and name not in _SPELLINGS
    }
    own = {listener_key(listener, name): _text(value) for listener, name, value in config.listener_overrides}
    return {**values, **own}


def _text(value: object) -> str | None:
    """Format a value as a client sends it in IncrementalAlterConfigs, secrets in clear text. None if it is not set."""
    return value.reveal() if isinstance(value, Secret) else wire_text(value)


def _shown(name: str, value: str | None) -> str | None:
    """Return a value for the log, with secrets hidden."""
    row = SETTINGS.get(split_listener_key(name)[1])
    # Settings with the prefix of a SASL mechanism are not in SETTINGS under that name, so treat them as secret.
    is_secret = row is None or row.is_secret
    return HIDDEN if is_secret and value is not None else value


def _changed(before: dict[str, str | None], after: dict[str, str | None]) -> Iterator[str]:
    yield from (name for name, value in after.items() if name not in before or before[name] != value)
    yield from (name for name in before if name not in after)
