"""`kproc profile add|list|use|show|remove`: saved connections, as rpk's profiles and the contexts of nats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kproc.cli.common import Failure, Format, OutputFormat, print_json, usage_error
from kproc.cli.connection import bootstrap_addresses
from kproc.cli.lines import print_line
from kproc.cli.profile_store import (
    Profile,
    change_profiles,
    check_name,
    complete_profiles,
    find_connection,
    load_profiles,
)
from kproc.cli.tables import print_table

app = typer.Typer(help="Save connections by name and choose one.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=complete_profiles)
]
# Do not name these parameters `bootstrap` and `command_config`: with_command_config would add connection options to
# commands that do not connect.
Address = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", help="The broker's address, or a list with commas."
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties file for TLS and login. The profile keeps its path, and no password.",
    ),
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new profile.")],
    address: Address,
    file: File = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of this name.")] = False,
) -> None:
    """Save a connection under a name."""
    check_name(name)
    bootstrap_addresses(address)
    if file is not None and not file.is_file():
        usage_error(f"--command-config {file}: there is no such file")
    with change_profiles() as profiles:
        if name in profiles.by_name and not replace:
            raise Failure(f"profile {name} exists already; change it with --replace")
        profiles.by_name[name] = Profile(address, str(file.absolute()) if file is not None else None)
        if use:
            profiles.current = name
    print_line(f"saved {name}" + (", used from now on" if use else f"; use it by --profile {name}"))


@app.command("list")
def list_profiles(output: OutputFormat = Format.TABLE) -> None:
    """List the saved connections. The star marks the one in use."""
    profiles = load_profiles()
    rows = [
        {"name": name, "current": name == profiles.current, **profile._asdict()}
        for name, profile in sorted(profiles.by_name.items())
    ]
    if output is Format.JSON:
        print_json(rows)
    elif not rows:
        print_line("no profiles yet: kproc profile add NAME --bootstrap HOST:PORT")
    else:
        shown = [
            (f"{row['name']}{'*' * bool(row['current'])}", row["bootstrap"], row["command_config"])
            for row in rows
        ]
        print_table(("PROFILE", "BOOTSTRAP", "COMMAND-CONFIG"), shown, cut=("BOOTSTRAP", "COMMAND-CONFIG"))


@app.command("use")
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=complete_profiles),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile any more.")] = False,
) -> None:
    """Choose the profile for later commands."""
    if none == (name is not None):
        usage_error("give the NAME of a profile, or --none")
    with change_profiles() as profiles:
        if name is not None:
            profiles.get(name)
        profiles.current = name
    _print_use(name)


def _print_use(name: str | None) -> None:
    """Print the profile in use, and a line if an environment variable overrides it."""
    print_line(f"using {name}" if name is not None else "using no profile")
    connection = find_connection(None, None)
    if connection.profile != name:
        print_line(f"but {connection.source} overrides it, so commands connect to {connection.bootstrap}")


@app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A profile. Default: the connection in use.",
            autocompletion=complete_profiles,
        ),
    ] = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the connection in use, or one profile.

    The source says what names the broker: a variable, a profile or the default.
    """
    from kproc.cli.connection import command_config_in_force, connection_settings

    connection = find_connection(None, name)
    with connection_settings(connection, None):
        file = command_config_in_force()
    row = {
        "profile": connection.profile,
        "bootstrap": connection.bootstrap,
        "command_config": str(file) if file is not None else None,
        "source": connection.source if name is None else None,
    }
    if output is Format.JSON:
        print_json(row)
        return
    for key, value in row.items():
        if value is not None:
            print_line(f"{key.replace('_', '-'):<16}{value}")


@app.command("remove")
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Names of profiles.", autocompletion=complete_profiles),
    ],
) -> None:
    """Remove saved connections.

    The client configuration files that they name stay.
    """
    with change_profiles() as profiles:
        for name in names:
            profiles.get(name)
        for name in names:
            profiles.by_name.pop(name, None)
        was_used = profiles.current in names
        if was_used:
            profiles.current = None
    print_line(f"removed {', '.join(names)}" + ("; no profile is in use now" if was_used else ""))
