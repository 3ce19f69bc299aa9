"""Settings: the table of names, types, defaults, checks and texts, and the sources of their values.

The command line or a test builds `Config` once and passes it down. No code below kproc/cli reads the environment. The
files *_settings.py have the table, build.py merges the sources, listeners.py parses addresses.
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
