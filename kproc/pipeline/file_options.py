"""Validation of the options of Spark's file formats and `rate`, because Spark silently ignores an unknown name.

Names with a dot are settings of Hadoop or of the file format (`fs.s3a.endpoint`, `parquet.block.size`). Their set is
open, so they are passed on without a check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from kproc.pipeline.toml_table import SpecTable, did_you_mean

Complaint = Callable[[str], str | None]


def _text(_value: str) -> None:
    """Accept any value. Spark itself reports a wrong one."""


def _flag(value: str) -> str | None:
    return None if value.lower() in ("true", "false") else f"expected true or false, not {value!r}"


def _whole(least: int) -> Complaint:
    def check(value: str) -> str | None:
        if not re.fullmatch(r"[+-]?\d+", value):
            return f"expected a whole number, not {value!r}"
        return f"{value} is below {least}" if int(value) < least else None

    return check


def _share(value: str) -> str | None:
    try:
        is_share = 0 < float(value) <= 1
    except ValueError:
        is_share = False
    return None if is_share else f"expected a number above 0 and up to 1, not {value!r}"


def _character(value: str) -> str | None:
    return None if len(value) <= 1 else f"expected one character, not {value!r}"


def _one_of(*words: str, or_class: bool = False) -> Complaint:
    def check(value: str) -> str | None:
        if value.lower() in words or (or_class and "." in value):
            return None
        return f"{value!r} is none of {', '.join(words)}{did_you_mean(value.lower(), words)}"

    return check


def _each(check: Complaint, names: str) -> dict[str, Complaint]:
    return dict.fromkeys(names.split(), check)


_CODEC: Final = _one_of(
    "none", "uncompressed", "bzip2", "gzip", "lz4", "snappy", "deflate", "zstd", or_class=True
)
_REBASE: Final = _one_of("exception", "legacy", "corrected")
_TEXT_FILES: Final[Mapping[str, Complaint]] = {
    # Spark would treat an unknown mode as permissive, without an error.
    "mode": _one_of("permissive", "dropmalformed", "failfast"),
    "compression": _CODEC,
    "codec": _CODEC,
    "samplingRatio": _share,
    **_each(_flag, "multiLine enableDateTimeParsingFallback"),
    **_each(_text, "columnNameOfCorruptRecord singleVariantColumn locale encoding charset lineSep timeZone"),
    **_each(_text, "dateFormat timeFormat timestampFormat timestampNTZFormat"),
}
_OF_FORMAT: Final[Mapping[str, Mapping[str, Complaint]]] = {
    "csv": {
        **_TEXT_FILES,
        **_each(_flag, "header inferSchema enforceSchema preferDate columnPruning escapeQuotes quoteAll"),
        **_each(_flag, "ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace"),
        **_each(_character, "quote escape comment charToEscapeQuoteEscaping"),
        **_each(_text, "sep delimiter emptyValue nullValue nanValue positiveInf negativeInf extension"),
        "maxColumns": _whole(1),
        "maxCharsPerColumn": _whole(-1),
        "inputBufferSize": _whole(1),
        "unescapedQuoteHandling": _one_of(
            "stop_at_closing_quote", "back_to_delimiter", "stop_at_delimiter", "skip_value", "raise_error"
        ),
    },
    "json": {
        **_TEXT_FILES,
        **_each(_flag, "allowComments allowUnquotedFieldNames allowSingleQuotes allowNumericLeadingZeros"),
        **_each(_flag, "allowNonNumericNumbers allowBackslashEscapingAnyCharacter allowUnquotedControlChars"),
        **_each(
            _flag, "primitivesAsString prefersDecimal dropFieldIfAllNull ignoreNullFields inferTimestamp"
        ),
        **_each(_flag, "pretty sortKeys writeNonAsciiCharacterAsCodePoint useUnsafeRow explodeEmbeddedArray"),
        **_each(_whole(1), "maxNestingDepth maxNumLen maxStringLen"),
    },
    "parquet": {
        "mergeSchema": _flag,
        "compression": _one_of(
            "none", "uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "lz4_raw", "zstd"
        ),
        **_each(_REBASE, "datetimeRebaseMode int96RebaseMode"),
    },
}
_READ: Final[Mapping[str, Complaint]] = {
    **_each(_flag, "ignoreCorruptFiles ignoreMissingFiles ignoreInvalidPartitionPaths recursiveFileLookup"),
    **_each(_text, "basePath modifiedBefore modifiedAfter pathGlobFilter"),
    **_each(_text, "ignoredPathSegmentRegex archivePathFilter"),
}
_READ_STREAM: Final[Mapping[str, Complaint]] = {
    **_each(_whole(1), "maxFilesPerTrigger maxBytesPerTrigger"),
    **_each(_flag, "latestFirst fileNameOnly"),
    **_each(_text, "maxFileAge sourceArchiveDir"),
    "cleanSource": _one_of("archive", "delete", "off"),
    "maxCachedFiles": _whole(0),
    "discardCachedInputRatio": _share,
}
_WRITE: Final[Mapping[str, Complaint]] = {
    "maxRecordsPerFile": _whole(0),
    "partitionOverwriteMode": _one_of("static", "dynamic"),
    "retention": _text,
}
_RATE: Final[Mapping[str, Complaint]] = {"numPartitions": _whole(1), "rampUpTime": _text}


def check_source_options(table: SpecTable, kind: str, *, is_stream: bool) -> None:
    """Check the options of a source of files or `rate`. Raise SpecError for one that Spark would ignore or reject."""
    if kind == "rate":
        _check(table, "options", _RATE, {"rowsPerSecond": "is given by rate"})
        return
    known = {**_OF_FORMAT[kind], **_READ, **(_READ_STREAM if is_stream else {})}
    elsewhere = {"path": f"is given by {kind}", "schema": "has a key of its own: schema"}
    if not is_stream:
        elsewhere |= dict.fromkeys(_READ_STREAM, 'is for streams: read = "stream"')
    _check(table, "options", known, elsewhere)


def check_parser_options(table: SpecTable, format_: str) -> None:
    """Check the options in `parse`, for the values of a topic. Raise SpecError."""
    _check(table, "parse", _OF_FORMAT[format_], {"schema": "has a key of its own: schema"})


def check_sink_options(table: SpecTable, kind: str) -> None:
    """Check the options of a sink that is not a topic. Only files have options. Raise SpecError."""
    if kind not in _OF_FORMAT:
        if table.scalars("options"):
            raise table.error("options", f"a {kind} sink has no options")
        return
    elsewhere = {
        "path": f"is given by {kind}",
        "checkpointLocation": "is given by checkpoint of [pipeline]",
        "partitionBy": "has a key of its own: partition_by",
    }
    _check(table, "options", {**_OF_FORMAT[kind], **_WRITE}, elsewhere)


def option_names() -> set[str]:
    """Return the names of all options of files, in lower case."""
    parts = (*_OF_FORMAT.values(), _READ, _READ_STREAM, _WRITE)
    return {name.lower() for part in parts for name in part}


def _check(table: SpecTable, key: str, known: Mapping[str, Complaint], elsewhere: Mapping[str, str]) -> None:
    """Check the options in the table `key`. Case does not matter in names, as in Spark.

    known: checks of the values by name. elsewhere: names that are rejected, with the reason.
    """
    given = table.scalars(key)
    options = table.table(key)
    checks = {name.lower(): check for name, check in known.items()}
    reasons = {name.lower(): reason for name, reason in elsewhere.items()}
    names = {name.lower(): name for name in (*known, *elsewhere)}
    for name, value in given.items():
        assert options is not None
        low = name.lower()
        if low in reasons:
            raise options.error(name, reasons[low])
        if low in checks:
            complaint = checks[low](value)
            if complaint is not None:
                raise options.error(name, complaint)
        elif "." not in name:
            raise options.error(name, f"Spark has no such option{_meant(low, names)}")


def _meant(low: str, names: Mapping[str, str]) -> str:
    """Return `; did you mean NAME?` for a misspelled option, with the name in Spark's spelling, or an empty string."""
    hint = did_you_mean(low, names)
    return next((f"; did you mean {name}?" for each, name in names.items() if hint.endswith(f" {each}?")), "")
