"""DynamicSettings: which value holds for which listener, and the way over a control socket."""

from __future__ import annotations

from kproc.broker.config.dynamic import DynamicSettings, listener_key, split_listener_key

SETTINGS = DynamicSettings(
    {"max.connections": "10", "listener.name.external.max.connections": "3"}, {"": 5.0, "127.0.0.2": 1.5}
)


def test_listener_prefixed_value_overrides_plain_one():
    assert SETTINGS.text("max.connections", "EXTERNAL") == "3"
    assert SETTINGS.text("max.connections", "INTERNAL") == "10"
    assert SETTINGS.text("max.connections") == "10"


def test_unchanged_dynamic_setting_has_its_static_value():
    assert SETTINGS.text("num.network.threads", "EXTERNAL") is None
    assert SETTINGS.integer("num.network.threads", 2) == 2
    assert SETTINGS.integer("max.connections", 7, "external") == 3


def test_a_message_brings_it_whole():
    assert DynamicSettings.of_message(SETTINGS.as_message()) == SETTINGS


def test_a_listener_key_is_split_where_it_was_joined():
    assert split_listener_key(listener_key("EXTERNAL", "num.network.threads")) == (
        "external",
        "num.network.threads",
    )
    assert split_listener_key("num.network.threads") == ("", "num.network.threads")
