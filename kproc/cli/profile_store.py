"""The file of `kproc profile`: saved connections of this user by name.

A profile has a broker's address and the path of a client configuration file. Passwords stay in the client configuration
file, or in files that it refers to. The file belongs to the user and has mode 600. It is replaced atomically.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.cli.failure import DEFAULT_BOOTSTRAP, Failure, usage_error

BOOTSTRAP_VARIABLE: Final = "KPROC_BOOTSTRAP"
COMMAND_CONFIG_VARIABLE: Final = "KPROC_COMMAND_CONFIG"
PROFILE_VARIABLE: Final = "KPROC_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BYTES_MAX: Final = 1 << 20
_OTHERS_WRITE: Final = 0o022


class Profile(NamedTuple):
    """A saved connection: a bootstrap list, and the path of a client configuration file or None."""

    bootstrap: str
    command_config: str | None = None


@dataclass
class Profiles:
    """The saved profiles. `current` is the one that commands use if no option or variable names a broker."""

    by_name: dict[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Profile:
        """Return a profile. Raise a Failure if it does not exist."""
        if name not in self.by_name:
            known = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none yet"
            raise Failure(f"no profile {name!r}: {known} (kproc profile list)")
        return self.by_name[name]


class ChosenConnection(NamedTuple):
    """The broker that a command connects to, and its source: an option, a variable, a profile or the default."""

    bootstrap: str
    source: str
    profile: str | None = None
    # The profile's client configuration file. None if the connection comes from no profile, or the profile has no file.
    command_config: Path | None = None


def find_connection(bootstrap: str | None, profile: str | None) -> ChosenConnection:
    """Return the connection by the precedence that COMMANDS.md describes. None means that the option is not given.

    The address and the credentials of a profile are only used together, so that its credentials are never sent to an
    address from another source.
    """
    if bootstrap is not None:
        if profile is not None:
            usage_error("--bootstrap and --profile exclude each other: both name the broker")
        return ChosenConnection(bootstrap, "--bootstrap")
    if profile is not None:
        return _connection_of(load_profiles(), profile, "--profile")
    if named := os.environ.get(BOOTSTRAP_VARIABLE):
        return ChosenConnection(named, BOOTSTRAP_VARIABLE)
    if os.environ.get(COMMAND_CONFIG_VARIABLE):
        return ChosenConnection(DEFAULT_BOOTSTRAP, "the default")
    if name := os.environ.get(PROFILE_VARIABLE):
        return _connection_of(load_profiles(), name, PROFILE_VARIABLE)
    profiles = load_profiles()
    if profiles.current is not None:
        return _connection_of(profiles, profiles.current, "kproc profile use")
    return ChosenConnection(DEFAULT_BOOTSTRAP, "the default")


def _connection_of(profiles: Profiles, name: str, source: str) -> ChosenConnection:
    found = profiles.get(name)
    file = Path(found.command_config) if found.command_config is not None else None
    return ChosenConnection(found.bootstrap, source, name, file)


def check_name(name: str) -> str:
    """Return the name. Raise a usage error for a name that needs quotes in a shell or looks like an option."""
    if not _NAME.fullmatch(name):
        usage_error(f"{name!r}: a profile's name has up to 64 letters, digits, dots, dashes and underscores")
    return name


def profiles_path() -> Path:
    """Return the path of the file, in the directory that the XDG Base Directory Specification names."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # XDG Base Directory Specification: a relative path in XDG_CONFIG_HOME is invalid and must be ignored.
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "kproc", "profiles.json")


def load_profiles() -> Profiles:
    """Return the saved profiles. A file that belongs to a user other than root and ours counts as missing.

    Raise a Failure for an invalid file, and for one that other users can write to.
    """
    path = profiles_path()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # EACCES: after sudo, HOME can be a directory of another user. Without a readable file there are no profiles.
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Profiles()
    try:
        info = os.fstat(descriptor)
        if info.st_uid not in (0, os.geteuid()):
            return Profiles()
        if not stat.S_ISREG(info.st_mode):
            raise Failure(f"{path} is not a regular file")
        if info.st_mode & _OTHERS_WRITE:
            raise Failure(f"{path}: other users can change it, so it is not used: chmod 600 {path}")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(_BYTES_MAX)
    finally:
        os.close(descriptor)
    import json

    try:
        return _decode(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Failure(f"{path} is not a file of `kproc profile`: repair or remove it") from None


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that begin with `incomplete`, for shell completion."""
    try:
        return sorted(name for name in load_profiles().by_name if name.startswith(incomplete))
    except Failure:
        return []  # The command itself will report the reason.


@contextmanager
def change_profiles() -> Iterator[Profiles]:
    """Yield the saved profiles, and write them when the block ends without an error.

    A lock lets two concurrent commands change the file one after the other.
    """
    directory = profiles_path().parent
    directory.mkdir(0o700, parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Reject another user's directory, which HOME can be after sudo: that user could replace the file by a symbolic
        # link to any file that root may write.
        if os.fstat(lock).st_uid != os.geteuid():
            raise Failure(
                f"{directory} belongs to another user; set HOME or XDG_CONFIG_HOME to a directory of yours"
            )
        fcntl.flock(lock, fcntl.LOCK_EX)
        profiles = load_profiles()
        yield profiles
        _save(profiles)
    finally:
        os.close(lock)


def _save(profiles: Profiles) -> None:
    import json

    # Replace the target of a symbolic link and not the link, because users link to files in repositories of dotfiles.
    path = profiles_path().resolve()
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    content = json.dumps(_encode(profiles), indent=2) + "\n"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _encode(profiles: Profiles) -> dict[str, Any]:
    rows = {name: profile._asdict() for name, profile in sorted(profiles.by_name.items())}
    return {"current": profiles.current, "profiles": rows}


def _decode(content: Any) -> Profiles:
    """Return the profiles in `content`.

    Raise KeyError, TypeError, AttributeError or ValueError for any other structure.
    """
    by_name = {str(name): _decode_profile(name, row) for name, row in content["profiles"].items()}
    current = content["current"]
    if current is not None and current not in by_name:
        raise ValueError("current")
    return Profiles(by_name, current)


def _decode_profile(name: str, row: dict[str, Any]) -> Profile:
    profile = Profile(**row)
    texts: tuple[Any, ...] = (
        profile.bootstrap,
        "" if profile.command_config is None else profile.command_config,
    )
    if not _NAME.fullmatch(name) or not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ValueError(name)
    return profile
