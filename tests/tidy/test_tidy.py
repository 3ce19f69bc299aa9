"""House rules as tests: layers, sizes, banned calls, docstrings, leftovers. Exceptions have reasons.

An exception that is no longer needed fails too, so the lists only shrink by themselves.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from tests.tidy.sources import (
    PACKAGE,
    ROOT,
    all_files,
    imported_modules,
    module_name,
    package_files,
    relative,
    survey_of,
    text_of,
)

GROUND = {"common", "broker.config"}  # Any room may import these two.
# Room or top-level module -> what it may import besides itself and the ground. Imports point down only: a room may name
# rooms above it in this table. So clients never import a role, `api` never learns how its bytes came, and no role
# imports another one, except the supervisor, which builds them. A type for an annotation may come from any room, under
# TYPE_CHECKING: then a reader gets to the one class that is meant, and no Protocol has to mirror it.
LAYERS: dict[str, set[str]] = {
    "broker.config": set(),
    "common": set(),
    "broker.ipc": set(),
    "broker.metrics": set(),
    "broker.security": set(),
    "wire": set(),
    "broker.storage": {"broker.metrics", "wire"},
    "broker.transport": {"broker.ipc", "wire"},
    "client": {"wire"},
    "broker.cluster": {"broker.security", "wire", "broker.storage"},
    "embedded": {"wire", "client"},
    "spark": {"wire", "broker.storage", "client"},
    "broker.calls": {"broker.storage", "broker.transport", "broker.cluster"},
    "pytest_plugin": {"embedded"},
    "tools": {"broker.metrics", "wire", "client", "embedded"},
    "broker.role": {
        "broker.ipc", "broker.metrics", "broker.storage", "broker.transport", "broker.cluster",
        "broker.calls",
    },
    "pipeline": {"broker.metrics", "wire", "client", "embedded", "spark"},
    "broker.acceptor": {"broker.ipc", "broker.metrics", "broker.transport", "broker.role"},
    "broker.processor": {
        "broker.ipc", "broker.metrics", "broker.security", "wire", "broker.transport", "broker.role",
    },
    "broker.request": {
        "broker.metrics", "broker.security", "wire", "broker.storage",
        "broker.transport", "broker.cluster", "broker.calls", "broker.role",
    },
    "broker.coordinator": {
        "wire", "broker.storage", "broker.cluster", "broker.calls", "broker.request",
    },
    "broker.streams": {"broker.coordinator", "broker.security", "wire"},
    "broker.share.state": {"broker.coordinator", "wire"},
    "broker.share.membership": {"broker.coordinator", "broker.share.state", "wire"},
    "broker.group": {
        "broker.coordinator", "broker.security", "wire", "broker.share.membership", "broker.share.state",
        "broker.streams",
    },
    "broker.transaction": {"broker.coordinator", "wire"},
    "broker.observe": {
        "broker.metrics", "wire", "broker.storage", "broker.transaction", "broker.transport",
        "broker.cluster", "broker.calls", "broker.role",
    },
    "broker.share": set(),
    "broker.peers": {
        "broker.coordinator", "broker.metrics", "broker.security", "wire", "broker.group",
        "broker.transaction", "broker.share.state", "broker.cluster", "broker.calls", "broker.request",
    },
    "broker.api": {
        "broker.coordinator", "broker.security", "wire", "broker.streams", "broker.group",
        "broker.storage", "broker.transaction", "broker.share.membership", "broker.share.state", "broker.cluster",
        "broker.calls", "broker.request", "broker.peers",
    },
    "broker.cleaner": {
        "broker.metrics", "broker.storage", "broker.transport", "broker.cluster", "broker.calls",
        "broker.role", "broker.observe",
    },
    "broker.controller": {
        "broker.metrics", "broker.security", "wire", "broker.storage", "broker.transport",
        "broker.cluster", "broker.calls", "broker.role", "broker.request", "broker.observe",
    },
    "broker.fetch": {
        "broker.metrics", "broker.security", "wire", "broker.transport", "broker.cluster",
        "broker.calls", "broker.role", "broker.request", "broker.peers",
    },
    "broker.share.partition": {
        "wire", "broker.storage", "broker.cluster", "broker.calls", "broker.role", "broker.request",
        "broker.share.state", "broker.peers", "broker.fetch",
    },
    "broker.share.session": {
        "broker.security", "wire", "broker.cluster", "broker.calls", "broker.role", "broker.request", "broker.peers",
        "broker.share.partition", "broker.fetch",
    },
    "broker.faults": {
        "broker.metrics", "wire", "broker.storage", "broker.transport", "broker.cluster", "broker.calls", "broker.role",
        "broker.request",
    },
    "broker.produce": {
        "broker.security", "wire", "broker.storage", "broker.transport", "broker.cluster",
        "broker.calls", "broker.request", "broker.peers",
    },
    "broker.handler": {
        "broker.coordinator", "broker.ipc", "broker.metrics", "broker.security", "wire",
        "broker.group", "broker.storage", "broker.transaction", "broker.share.membership", "broker.share.state",
        "broker.transport", "broker.cluster", "broker.calls", "broker.role", "broker.request",
        "broker.observe", "broker.peers", "broker.api", "broker.fetch",
        "broker.share.partition", "broker.share.session", "broker.produce", "broker.faults",
    },
    "broker.supervisor": {
        "broker.ipc", "broker.metrics", "broker.security", "wire", "broker.storage",
        "broker.transport", "broker.cluster", "broker.role", "broker.acceptor", "broker.processor",
        "broker.request", "broker.observe", "broker.api", "broker.cleaner", "broker.controller",
        "broker.handler", "broker.faults",
    },
    "cli": {
        "broker.metrics", "broker.security", "wire", "broker.storage", "client", "broker.cluster",
        "broker.streams", "broker.group", "broker.share.membership", "broker.share.state", "embedded", "spark", "tools",
        "broker.role", "pipeline",
        "broker.request", "broker.api", "broker.supervisor",
    },
    "__main__": {"cli"},
    "__init__": {"client", "embedded"},
}
# Guards against the extreme only. Files follow ideas: split one because it has two, never because of its length.
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 80
# (file, function) -> why it may be longer.
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}
BANNED_CALLS = {"time.sleep", "time.time", "print", "os.environ", "os.getenv", "os.putenv"}
# The edge where people and environment variables are.
UNBANNED_FOLDER = "kproc/cli/"
# (file, call) -> why it is right there.
BANNED_CALL_EXCEPTIONS = {
    ("kproc/broker/supervisor/directory_lock.py", "time.sleep"): "a start waits for the lock before any role exists",
    ("kproc/spark/access.py", "os.environ"): "a client's file may name a variable that holds a secret",
    ("kproc/spark/user_errors.py", "os.environ"): "a switch that Spark reads in the environment of its worker",
}
# File -> why `pack_into` is safe there: it zeroes the bytes first, so another process must not read them yet.
PACK_INTO_EXCEPTIONS = {
    "kproc/broker/ipc/ring.py": "record headers behind the published tail: nobody reads them before the tail moves",
    "kproc/broker/ipc/words.py": "words between an odd version and the next even one: no reader believes them",
    "kproc/broker/processor/request_forwarder.py": "an envelope's head inside a reserved record, published later",
    "kproc/broker/processor/request_reader.py": "headers and heads of reserved records, published later",
    "kproc/broker/storage/log_append.py": "a batch in a ring or a block that only its Handler reads until its release",
}


def room_of(module: str) -> str:
    """Return the room of a module: the name of a product, or `broker.` with the package below it."""
    parts = module.split(".")[1:] or ["__init__"]
    if parts[0] != "broker":
        return parts[0]
    # The parts of share groups belong to different layers: coordinators, owners of partitions, homes of sessions.
    return ".".join(parts[: 3 if parts[1:2] == ["share"] else 2])


def test_imports_point_down_the_layers() -> None:
    problems: list[str] = []
    for path in package_files():
        room = room_of(module_name(path))
        if room not in LAYERS and room not in ("__init__", "broker"):
            problems.append(f"{relative(path)}: {room} is in no layer")
            continue
        allowed = LAYERS.get(room, set()) | GROUND | {room, "__version__", "__init__"}
        for line, name in imported_modules(path):
            if name.split(".")[0] == "kproc" and room_of(name) not in allowed:
                problems.append(f"{relative(path)}:{line}: {room} must not import {name}")
    assert not problems, "\n".join(problems)


def test_layers_name_only_rooms_above_them() -> None:
    above = set(GROUND)
    for room, allowed in LAYERS.items():
        assert allowed <= above, f"{room} may import {allowed - above}, which stand below it"
        above.add(room)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Only imports that run count: under TYPE_CHECKING two modules may name the types of each other."""
    modules = {module_name(path): path for path in package_files()}
    imports: dict[str, list[str]] = {}
    for module, path in modules.items():
        named = (
            next((m for m in (name, name.rpartition(".")[0]) if m in modules), "")
            for _, name in imported_modules(path)
        )
        imports[module] = [name for name in named if name not in ("", "kproc", module)]
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        done.add(module)
        found = (walk(name, [*way, module]) for name in imports[module])
        return next((circle for circle in found if circle), [])

    circles = [" -> ".join(circle) for module in modules if (circle := walk(module, []))]
    assert not circles, "\n".join(circles)


def test_kio_and_client_libraries_are_imported_in_one_place() -> None:
    problems = []
    for path in package_files():
        for line, name in imported_modules(path) + survey_of(path).type_imports:
            package = name.split(".")[0]
            if package == "kio" and relative(path) != "kproc/wire/schema_source.py":
                problems.append(f"{relative(path)}:{line}: {name}")
            if package in ("confluent_kafka", "kafka", "aiokafka") and not relative(path).startswith(
                "kproc/cli/"
            ):
                problems.append(f"{relative(path)}:{line}: {name}")
            if package == "multiprocessing":
                problems.append(
                    f"{relative(path)}:{line}: {name}: its resource tracker unlinks what it did not make"
                )
    assert not problems, "\n".join(problems)


def test_no_slot_shadows_what_a_base_class_defines() -> None:
    """A slot of the name of an inherited property hides it, and reading it before it is set raises AttributeError."""
    problems = []
    for path in package_files():
        if relative(path).startswith(("kproc/spark", "kproc/pipeline")):
            continue  # Which need packages of their own.
        for name, each in vars(importlib.import_module(module_name(path))).items():
            if isinstance(each, type) and each.__module__.startswith("kproc"):
                inherited = {key for base in each.__mro__[1:-1] for key in vars(base)}
                problems += [
                    f"{relative(path)}: {name}.{slot}"
                    for slot in vars(each).get("__slots__", ())
                    if slot in inherited
                ]
    assert not problems, "\n".join(problems)


def test_no_class_assigns_private_field_of_base_in_other_file() -> None:
    """A class that is split over files by inheritance reads like one long file: it is made of parts instead."""
    problems = []
    for path in package_files():
        if relative(path).startswith(("kproc/spark", "kproc/pipeline")):
            continue  # Which need packages of their own.
        for name, fields in fields_of(path).items():
            kind = getattr(importlib.import_module(module_name(path)), name, None)
            for base in getattr(kind, "__mro__", ())[1:]:
                if base.__module__.startswith("kproc.") and base.__module__ != module_name(path):
                    file = ROOT / (base.__module__.replace(".", "/") + ".py")
                    both = fields & fields_of(file).get(base.__name__, set()) if file.exists() else set()
                    problems += [f"{relative(path)}: {name}.{field} is {base.__name__}'s" for field in both]
    assert not problems, "\n".join(problems)


def fields_of(path: Path) -> dict[str, set[str]]:
    """Of each class the private fields that its methods assign."""
    found: dict[str, set[str]] = {}
    for name, field in survey_of(path).fields:
        if field.startswith("_"):
            found.setdefault(name, set()).add(field)
    return found


def test_no_file_is_extremely_long() -> None:
    problems = []
    for path in package_files():
        count = len(text_of(path).splitlines())
        if count > FILE_LINES_MAX:
            problems.append(f"{relative(path)}: {count} lines; split it")
    assert not problems, "\n".join(problems)


def test_no_function_is_extremely_long_without_a_reason() -> None:
    problems = []
    used: set[tuple[str, str]] = set()
    for path in package_files():
        lines = text_of(path).splitlines()
        for name, line, count in survey_of(path).functions:
            key = (relative(path), name)
            # Comments do not count: a reason must never be cut to make a function short enough.
            body = lines[line - 1 : line - 1 + count]
            count = sum(not each.lstrip().startswith("#") for each in body)
            if count > FUNCTION_LINES_MAX:
                used.add(key)
                if key not in LONG_FUNCTIONS:
                    problems.append(f"{relative(path)}:{line}: {name} has {count} lines")
    problems += [f"no longer long: {key}" for key in LONG_FUNCTIONS.keys() - used]
    assert not problems, "\n".join(problems)


def test_banned_calls_are_not_made() -> None:
    problems = []
    for path in package_files():
        if relative(path).startswith(UNBANNED_FOLDER):
            continue
        problems += [
            f"{relative(path)}:{line}: {name}"
            for line, name in survey_of(path).uses
            if name in BANNED_CALLS and (relative(path), name) not in BANNED_CALL_EXCEPTIONS
        ]
    assert not problems, "\n".join(problems)


def test_converters_are_made_at_import() -> None:
    """msgspec is not safe when threads use a type for the first time (kproc/common/conversion.py)."""
    lazy = re.compile(r"msgspec\.convert\(|msgspec\.\w+\.decode\(.*type=")
    problems = [
        f"{relative(path)}: {found[0]}"
        for path in package_files()
        if path.name != "conversion.py"
        for found in lazy.finditer(text_of(path))
    ]
    assert not problems, "\n".join(problems)


def test_pack_into_is_used_only_where_nobody_reads_yet() -> None:
    problems = []
    used: set[str] = set()
    for path in package_files():
        for line, name in survey_of(path).attributes:
            if name == "pack_into":
                used.add(relative(path))
                if relative(path) not in PACK_INTO_EXCEPTIONS:
                    problems.append(f"{relative(path)}:{line}")
    problems += [f"no longer needed: {name}" for name in PACK_INTO_EXCEPTIONS.keys() - used]
    assert not problems, "\n".join(problems)


def test_every_module_and_public_class_says_what_it_is() -> None:
    problems = []
    for path in package_files():
        if not survey_of(path).docstring:
            problems.append(f"{relative(path)}: no module docstring")
        for name, line, text, is_top_level in survey_of(path).classes:
            if is_top_level and not name.startswith("_"):
                if not text:
                    problems.append(f"{relative(path)}:{line}: {name} has no docstring")
                elif "\n" not in text and not text.endswith((".", ":")):
                    problems.append(f"{relative(path)}:{line}: {name}: its docstring is not a sentence")
    assert not problems, "\n".join(problems)


def test_names_that_say_nothing_are_not_used() -> None:
    banned = {"Manager", "Helper", "Util", "Utils", "Data", "Info", "Worker", "Engine"}
    problems = [
        f"{relative(path)}:{each.line}: class {each.name}"
        for path in package_files()
        for each in survey_of(path).classes
        if each.name in banned
    ]
    problems += [relative(path) for path in package_files() if path.stem in {name.lower() for name in banned}]
    assert not problems, "\n".join(problems)


def test_annotations_are_postponed_in_every_module() -> None:
    problems = []
    for path in package_files():
        has_code = survey_of(path).statement_count > 1
        if has_code and "from __future__ import annotations" not in text_of(path):
            problems.append(relative(path))
    assert not problems, "\n".join(problems)


def test_nothing_is_left_to_do_in_the_tree() -> None:
    leftover = re.compile(r"\b(FIX" r"ME|TO" r"DO|XX" r"X)\b")
    problems = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in all_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if leftover.search(line)
    ]
    assert not problems, "\n".join(problems)


def test_files_that_the_package_names_are_there() -> None:
    """A reader who follows a docstring or a comment finds what it names; `file.py` stands for a user's."""
    there = {f"/{relative(path)}" for path in all_files()} | {"/file.py"}
    problems = [
        f"{relative(path)}: {named}"
        for path in package_files()
        for named in re.findall(r"(?<![\w*/.-])[\w/]+\.py\b", text_of(path))
        if not any(each.endswith(f"/{named}") for each in there)
    ]
    assert not problems, "\n".join(problems)


def test_no_file_of_an_editor_or_a_merge_is_left_behind() -> None:
    ends = (".orig", ".rej", ".bak", ".swp", "~")
    folders = ("kproc", "examples", "tests", "bench", "scripts")
    left = [
        relative(path)
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.name.endswith(ends)
    ]
    assert not left


def test_tests_sleep_only_in_one_place() -> None:
    allowed = {"tests/support/wait.py"}
    problems = [
        f"{relative(path)}:{line}"
        for path in all_files()
        if relative(path).startswith("tests/") and relative(path) not in allowed
        if "sleep" in text_of(path)  # To parse all the tests would take seconds.
        for line, name in survey_of(path).uses
        if name in ("time.sleep", "asyncio.sleep")
    ]
    assert not problems, "\n".join(problems)


def test_module_names_are_known_to_the_walker() -> None:
    assert module_name(PACKAGE / "wire" / "__init__.py") == "kproc.wire"
    assert module_name(PACKAGE / "pytest_plugin.py") == "kproc.pytest_plugin"


def test_python_processes_are_started_in_three_places_only() -> None:
    """Two leave the working directory out of the module path: `embedded.kproc_command`, and Spark's workers.

    `cli.main` runs its own command line once more, without PYTHONINSPECT.
    """
    allowed = {"kproc/cli/main.py", "kproc/embedded/process.py", "kproc/pipeline/session.py"}
    found = {relative(path) for path in package_files() if "sys.executable" in path.read_text()}
    assert found == allowed


def test_commands_write_text_in_one_place_only() -> None:
    """`cli/lines.py` escapes what others chose. Records go to `sys.stdout.buffer` by a format of their own."""
    calls = {"print", "sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho"}
    problems = [
        f"{relative(path)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in package_files()
        if relative(path).startswith("kproc/cli/") and relative(path) != "kproc/cli/lines.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    ]
    assert not problems, "\n".join(problems)
