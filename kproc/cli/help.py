"""Help texts and usage errors of all commands: plain placeholders, whole summaries, groups and examples.

typer shows Python types (`<int range>`), truncates summaries at the width of the terminal, and reports wrong values in
the words of a validation library. This module builds the texts from the declarations of the options instead.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

from kproc.cli.examples import example_lines
from kproc.cli.failure import usage_error

COMMAND_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Run a broker": ("dev", "serve", "ping", "stop"),
    "Topics and records": ("topic", "produce", "consume", "group", "txn"),
    "Watch": ("status", "top", "monitor", "clients", "latency", "doctor"),
    "Settings and access": ("config", "acl", "user", "quota", "profile"),
    "Processes and load": ("scale", "rebalance", "kill-client", "fault", "time", "tune", "perf", "bench"),
    "Files and pipelines": ("dump-log", "import-log", "convert-log", "pipeline"),
    "About kproc": ("api", "version"),
}
"""The groups in `kproc --help`. A command that no group names is shown last, under "More"."""
SUMMARY_CHARACTERS_MAX: Final = 59
_CHOICES_SHOWN: Final = 20
"""Longer lists of choices stand in the description, because as a placeholder they would fill the line."""
_UNBOUNDED: Final = 2**31 // 1000 - 1
"""The help omits limits of at least this number, because fields of the protocol set them. SECONDS_MAX is the least."""


class Declaration(NamedTuple):
    """The declaration of an option or argument in its command's function."""

    kind: Any
    minimum: float | None
    maximum: float | None
    default: Any
    environment: str

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the allowed values of an option whose type is an enum, or () for another type."""
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(str(each.value) for each in self.kind)
        return ()


class _HelpTexts:
    """Methods that write the parts of the help which commands and groups of commands have in common."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the usage line."""
        command: Any = self
        arguments = [_argument_name(each) for each in command.get_params(ctx) if _is_argument(each)]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of arguments, options and examples."""
        _write_parameters(self, ctx, formatter)
        _write_examples(ctx, formatter)


class HelpCommand(_HelpTexts, TyperCommand):
    """A command with plain help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name. Reject an option with an empty path."""
        _reject_empty_paths(self, ctx, args)
        return super().parse_args(ctx, args)


class HelpGroup(_HelpTexts, TyperGroup):
    """A group of commands with plain help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the group's name. Reject an option with an empty path."""
        _reject_empty_paths(self, ctx, args)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the group's name in the usage line."""
        return [*super().collect_usage_pieces(ctx), "COMMAND ..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options, because a reader of a group's help looks for a command."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its whole summary, in the groups of COMMAND_GROUPS if this is `kproc` itself."""
        shown = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = {name: summary(each) for name, each in shown.items() if each is not None and not each.hidden}
        if not rows:
            return
        width = max(len(name) for name in rows)
        for title, names in _groups(rows, is_root=ctx.parent is None):
            with formatter.section(title):
                for name in names:
                    formatter.write(f"{'':{formatter.current_indent}}{name:{width}}  {rows[name]}\n")


def summary(command: Any) -> str:
    """Return the line that describes a command in the list of commands."""
    text: str = command.get_short_help_str(1000)
    return text


def declaration(command: Any, parameter: Any) -> Declaration:
    """Return the declaration of a parameter in the command's function."""
    declared: Any = None
    if command.callback is not None:
        declared = inspect.signature(command.callback, eval_str=True).parameters.get(parameter.name)
    if declared is None:
        return Declaration(bool, None, None, None, "")
    kind, info = declared.annotation, None
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)[:2]
    default = declared.default if declared.default is not inspect.Parameter.empty else None
    if getattr(info, "show_default", True) is False:
        default = None
    environment = getattr(info, "envvar", None) or ""
    return Declaration(
        _plain_kind(kind),
        getattr(info, "min", None),
        getattr(info, "max", None),
        default,
        environment if isinstance(environment, str) else ", ".join(environment),
    )


def placeholder(command: Any, parameter: Any) -> str:
    """Return the word for the value of an option, or "" for a flag."""
    if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        return ""
    if parameter.metavar:
        return str(parameter.metavar)
    declared = declaration(command, parameter)
    if declared.choices:
        joined = "|".join(declared.choices)
        return joined if len(joined) <= _CHOICES_SHOWN else "KIND"
    if declared.kind in (int, float):
        return "N"
    if isinstance(declared.kind, type) and issubclass(declared.kind, Path):
        return "FILE"
    return "TEXT" if declared.kind is str else str(parameter.name).upper()


def rejected_value(error: Exception, arguments: Sequence[str]) -> str | None:
    """Return a message about a wrong value that says which values are expected.

    Return None for other errors, whose own message is used.
    """
    parameter = getattr(error, "param", None)
    context = getattr(error, "ctx", None)
    # Keep the text of subclasses of BadParameter, such as the error for a missing argument.
    if type(error).__name__ != "BadParameter" or parameter is None or context is None:
        return None
    expected = _expected(declaration(context.command, parameter))
    if not expected:
        return None
    if _is_argument(parameter):
        return f"{_argument_name(parameter)}: expected {expected}"
    given = _given_values(parameter.opts, arguments)
    name = max(parameter.opts, key=len)
    return f"{name} {given[0]}: expected {expected}" if len(given) == 1 else f"{name}: expected {expected}"


def _plain_kind(kind: Any) -> Any:
    """Return the type of one value: that of `int | None` and of `list[int]` is int."""
    if get_origin(kind) in (Union, types.UnionType):
        return _plain_kind(next(each for each in get_args(kind) if each is not type(None)))
    if get_origin(kind) in (list, tuple, Sequence):
        return _plain_kind(get_args(kind)[0])
    return kind


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _argument_name(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    many = f"{name}..." if parameter.nargs == -1 else name
    return many if parameter.required else f"[{many}]"


def _reject_empty_paths(command: Any, ctx: Any, arguments: Sequence[str]) -> None:
    """Raise a usage error for an option whose path is empty.

    Path("") is the working directory, so `--data "$DATA"` would write there if the variable is not set.
    """
    if ctx.resilient_parsing:
        return  # The shell completes a word, and no command runs.
    for parameter in command.get_params(ctx):
        is_empty = not _is_argument(parameter) and "" in _given_values(parameter.opts, arguments)
        if is_empty and declaration(command, parameter).kind is Path:
            name = max(parameter.opts, key=len)
            usage_error(f"{name}: must not be empty (see {ctx.command_path} --help)")


def _groups(names: Iterable[str], *, is_root: bool) -> list[tuple[str, list[str]]]:
    left = list(names)
    if not is_root:
        return [("Commands", left)]
    groups = [
        (title, [each for each in members if each in left]) for title, members in COMMAND_GROUPS.items()
    ]
    grouped = {each for _, members in groups for each in members}
    groups.append(("More", [each for each in left if each not in grouped]))
    return [(title, members) for title, members in groups if members]


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        text = _description(command, parameter)
        if _is_argument(parameter):
            arguments.append((_argument_name(parameter), text))
            continue
        names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
        value = placeholder(command, parameter)
        options.append((f"{names} {value}" if value else names, text))
    for title, rows in (("Arguments", arguments), ("Options", options)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _write_examples(ctx: Any, formatter: Any) -> None:
    lines = example_lines(ctx.command_path.partition(" ")[2])
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in lines))


def _description(command: Any, parameter: Any) -> str:
    declared = declaration(command, parameter)
    notes: list[str] = []
    is_flag = not _is_argument(parameter) and not placeholder(command, parameter)
    if not is_flag:
        if declared.choices and "|" not in placeholder(command, parameter):
            notes.append(", ".join(declared.choices))
        default = _default_text(declared.default)
        if default:
            notes.append(f"default: {default}")
        limits = _limits(declared, is_whole=False)
        if limits:
            notes.append(limits)
        if parameter.required and not _is_argument(parameter):
            notes.append("required")
    if declared.environment:
        notes.append(f"env: {declared.environment}")
    text = str(getattr(parameter, "help", None) or "")
    if not notes:
        return text
    # If the help text already ends with a note in brackets, such as a default in words, add the notes inside the same
    # brackets.
    start = f"{text[:-1]}; " if text.endswith("]") else f"{text}  ["
    return f"{start}{'; '.join(notes)}]"


def _default_text(default: Any) -> str:
    if isinstance(default, Enum):
        default = default.value
    if default is None or isinstance(default, bool) or default == "" or isinstance(default, (list, tuple)):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def _limits(declared: Declaration, *, is_whole: bool) -> str:
    """Return the option's range in words, or "" if it has none.

    Without `is_whole`, omit limits of _UNBOUNDED and above, which the types of fields in the protocol set.
    """
    low, high = declared.minimum, declared.maximum
    if high is not None and high >= _UNBOUNDED and not is_whole:
        high = None
    if low is not None and low <= -_UNBOUNDED and not is_whole:
        low = None
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"at least {low}"
    return f"at most {high}" if high is not None else ""


def _expected(declared: Declaration) -> str:
    """Return the allowed numbers or choices in words, or "" for another kind of value."""
    if declared.choices:
        return f"one of {', '.join(declared.choices)}"
    if declared.kind in (int, float):
        kind = "a whole number" if declared.kind is int else "a number"
        limits = _limits(declared, is_whole=True)
        if not limits:
            return kind
        return f"{kind} {limits}" if limits.startswith("from") else f"{kind} of {limits}"
    return ""


def _given_values(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the values that the command line gives to the option with these names."""
    values: list[str] = []
    for position, word in enumerate(arguments):
        if word in names:
            values += arguments[position + 1 : position + 2]
        for name in names:
            if name.startswith("--") and word.startswith(f"{name}="):
                values.append(word.removeprefix(f"{name}="))
            elif not name.startswith("--") and word.startswith(name) and word != name and word[:2] != "--":
                values.append(word.removeprefix(name))
    return values
