"""BrokerSetup: how an embedded broker is started, and how its clients log in.

It validates the arguments of `kproc.Broker`, creates certificates and users, and builds the command of each start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.embedded.process import BrokerFailed
from kproc.embedded.serve_command import serve_command, settings_for_tests, start_settings

if TYPE_CHECKING:
    from kproc.client.security.settings import ClientSecurity
    from kproc.client.security.throwaway import Throwaway

POWER_DIRECTORY: Final = "power"
"""Name of the subdirectory of the temporary directory in which the broker records what it syncs (power_loss)."""


class BrokerSetup:
    """Settings of one embedded broker, its generated certificates and users, and the command that starts it.

    `throwaway` has the certificates and users while the broker runs, or is None if it has neither.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None,
        *,
        transport: str | None,
        data: str | Path | None,
        port: int,
        has_tls: bool,
        users: Sequence[str],
        client: Mapping[str, str],
        emulate: str | None,
        has_power_loss: bool,
    ) -> None:
        """Validate the arguments. `kproc.Broker.__init__` describes them and the errors."""
        emulated = {"kproc.emulate.release": emulate} if emulate is not None else {}
        if has_power_loss and (data is not None or "log.dirs" in (settings or {})):
            raise ValueError(
                "power_loss=True is for temporary data, because lose_power() destroys data: "
                "leave out data= and log.dirs"
            )
        if data == "":
            raise ValueError(
                'data="" names no directory: use data="." for the present one, or leave out data='
            )
        if isinstance(users, str):
            raise TypeError(f"users are a list of names: use users=[{users!r}]")
        self.settings = settings_for_tests(
            {**(settings or {}), **emulated}, transport, syncs=data is not None or has_power_loss
        )
        self.has_power_loss = has_power_loss
        self.throwaway: Throwaway | None = None
        self._has_tls = has_tls
        self._users = tuple(dict.fromkeys(users))
        self._client = dict(client)
        self._data = Path(data).absolute() if data is not None else None
        self._port = port

    def make_security(self, directory: Path) -> None:
        """Create certificates and users below `directory` if the arguments `tls` or `users` request them."""
        if self._has_tls or self._users:
            from kproc.client.security.throwaway import make_throwaway

            where = directory / "security"
            self.throwaway = make_throwaway(where, has_tls=self._has_tls, users=self._users)

    def discard_security(self) -> None:
        """Discard the certificates and users, whose files were deleted with the broker's temporary directory."""
        self.throwaway = None

    def security(self, user: str | None) -> ClientSecurity:
        """Return the client settings of a generated user, by default the first.

        Without generated certificates and users, return the settings that the argument `client` contains.
        """
        from kproc.client.security.settings import parse_client_security

        if self.throwaway is not None:
            return self.throwaway.security(user)
        return parse_client_security(self._client)

    def client_file(self, user: str | None) -> Path:
        """Return the path of the properties file of a generated user, by default the first. Raises BrokerFailed."""
        if self.throwaway is None:
            raise BrokerFailed("client_file() needs a broker that runs with tls=True or users=[...]")
        self.throwaway.security(user)
        return self.throwaway.client_file(user)

    def start_command(self, directory: Path, last: Mapping[str, Any] | None = None) -> list[str]:
        """Return the command that starts the broker with the temporary directory `directory`.

        last: the ready file of the last start, whose ports the broker uses again.
        """
        port = self._port if last is None else int(last["bootstrap"].rpartition(":")[2])
        own = {"kproc.temporary.directory": str(directory)}
        if self.has_power_loss:
            own["kproc.faults.power.directory"] = str(directory / POWER_DIRECTORY)
        settings = start_settings(own | self.settings, port=port, throwaway=self.throwaway, last=last)
        return serve_command(settings, directory, self._data or directory / "data")
