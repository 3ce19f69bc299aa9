"""The rules of `promtool check metrics`, for machines without promtool."""

from __future__ import annotations

import re
from collections.abc import Iterator

# promlint's table: units that are no base units, and the prefixes that make another unit of a base unit.
OTHER_UNIT = re.compile(
    "(pico|nano|micro|milli|centi|deci|deca|hecto|kilo|kibi|mega|mibi|giga|gibi|tera|tebi|peta|pebi)"
    "(amperes|bytes|celsius|grams|joules|kelvin|meters|metres|moles|seconds|volts)"
    "|minutes|hours|days|weeks|kelvins|fahrenheit|rankine|inches|yards|miles|bits|calories|pounds|ounces"
)
ABBREVIATED = re.compile("s|ms|us|ns|sec|b|kb|mb|gb|tb|pb|m|h|d")
TYPE = re.compile("counter|gauge|histogram|summary")


def problems_of(text: str) -> list[str]:
    """Return the problems that promtool would find in a scrape."""
    found = []
    seen: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        found += [f"{name}: {problem}" for problem in _problems_of_name(name, kind)]
        if name in seen:
            found.append(f"{name}: two families")
        seen.add(name)
        if not re.search(rf"^# HELP {name} \S", text, re.MULTILINE):
            found.append(f"{name}: no help text")
    labels = set(re.findall(r'[{,]([A-Za-z_]+)="', text))
    return found + [f"{each}: a label in camelCase" for each in labels if re.search("[a-z][A-Z]", each)]


def _problems_of_name(name: str, kind: str) -> Iterator[str]:
    first, *others = name.lower().split("_")
    for word in (first, *others):
        if OTHER_UNIT.fullmatch(word):
            yield f"{word} is no base unit"
        if TYPE.fullmatch(word):
            yield f"{word} is a type"
    for word in others:
        if ABBREVIATED.fullmatch(word):
            yield f"{word} is an abbreviated unit"
    if ":" in name:
        yield "a colon"
    if re.search("[a-z][A-Z]", name):
        yield "camelCase"
    if kind != "untyped" and (kind == "counter") != name.endswith("_total"):
        yield "_total is for counters"
    if kind in ("counter", "gauge") and name.endswith(("_count", "_sum", "_bucket")):
        yield "a suffix of histograms"
