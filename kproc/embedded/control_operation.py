"""ControlOperation: a function that tests in other languages call as JSON over HTTP.

An operation is a plain function. Its first parameter is the broker, and its other ones are the members of the request's
JSON object, so that their annotations validate the request. Its result becomes the JSON of the answer:

    @operation("topic/delete")
    def delete_topic(broker: Broker, *, name: str) -> dict[str, Any]:

The first line of its docstring is its line in the list of `GET /` and in the table of TESTING.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from kproc.embedded.broker import Broker


class ControlOperation(NamedTuple):
    """A function of the control API, with the decoder of its JSON arguments."""

    run: Callable[..., dict[str, Any]]
    decoder: msgspec.json.Decoder[msgspec.Struct]

    def call(self, broker: Broker, body: bytes) -> dict[str, Any]:
        """Call the function with the members of a JSON object.

        Raises msgspec.DecodeError, RecursionError, or ValueError (text that is not UTF-8) if they are invalid.
        """
        arguments = self.decoder.decode(body)
        return self.run(broker, **{name: getattr(arguments, name) for name in arguments.__struct_fields__})

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.run.__doc__ or "").partition("\n")[0]

    @property
    def arguments(self) -> str:
        """The names of the arguments with their defaults, as in `name, partitions=1`. `?` means null or {}."""
        _broker, *parameters = inspect.signature(self.run).parameters.values()
        return ", ".join(map(_argument, parameters))


def _argument(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    default = msgspec.json.encode(parameter.default).decode()
    return f"{parameter.name}?" if default in ("null", "{}") else f"{parameter.name}={default}"


def operations_table() -> list[str]:
    """Return the lines of a Markdown table of all operations, as TESTING.md has it."""
    rows = [f"| `{name}` | {f'`{each.arguments}`' if each.arguments else ''} | {each.summary} |"
            for name, each in OPERATIONS.items()]  # fmt: skip
    return [
        "| operation | arguments | effect and answer |",
        "|---|---|---|",
        *(row.replace("|  |", "| |") for row in rows),
    ]


OPERATIONS: Final[dict[str, ControlOperation]] = {}
"""Every operation by its name."""


def operation(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Return a decorator that registers a function as the operation `name` of the control API."""

    def register(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        types = get_type_hints(function, include_extras=True)
        _broker, *parameters = inspect.signature(function).parameters.values()
        fields = [
            (each.name, types[each.name])
            if each.default is each.empty
            else (each.name, types[each.name], each.default)
            for each in parameters
        ]
        arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        OPERATIONS[name] = ControlOperation(function, msgspec.json.Decoder(arguments))
        return function

    return register
