"""Settings: every name, type, default, check and text declared once, and where their values come from.

`Config` is built once by the command line or by a test and then passed down; nothing below kproc/cli reads
the environment. Read the files *_settings.py for the table, build.py for merging sources, listeners.py for addresses.
"""

from __future__ import annotations

from kproc.broker.config.cpus import available_cpus, default_role_count
from kproc.broker.config.dynamic_unhonoured import DYNAMIC_UNHONOURED
from kproc.broker.config.listeners import EndPoint
from kproc.broker.config.settings import SETTINGS, Config
from kproc.broker.config.sources import Flag, parse_assignments, read_settings_file
from kproc.broker.config.unhonoured import KNOWN_UNHONOURED
from kproc.broker.config.values import ConfigError, Dynamic, Kind, Setting

__all__ = [
    "DYNAMIC_UNHONOURED",
    "KNOWN_UNHONOURED",
    "SETTINGS",
    "Config",
    "ConfigError",
    "Dynamic",
    "EndPoint",
    "Flag",
    "Kind",
    "Setting",
    "available_cpus",
    "default_role_count",
    "parse_assignments",
    "read_settings_file",
]
