"""Listeners: parsed, advertised and validated."""

from __future__ import annotations

import socket

import pytest

from kproc.broker.config import Config, ConfigError, EndPoint
from kproc.broker.config import listeners as listener_rules
from kproc.broker.config.listeners import outward_address, outward_host, parse_listeners, split_address
from tests.support.cases import in_one_test


def build(warnings: list[str] | None = None, **kwargs: object) -> Config:
    sink = warnings if warnings is not None else []
    settings = {name.replace("_", "."): value for name, value in kwargs.items()}
    return Config.build(settings, on_warning=sink.append)


def test_a_listener_may_have_limits_of_its_own():
    warnings: list[str] = []
    settings = {
        "listener.name.PlainText.max.connections": "5",
        "listener.name.other.num.network.threads": "2",
    }
    config = Config.build(settings, on_warning=warnings.append)
    assert config.listener_value("PLAINTEXT", "max.connections") == 5
    assert config.listener_value("PLAINTEXT", "num.network.threads") is None
    assert warnings == ["listener.name.other.* has no effect: listeners has no OTHER"]


def test_inter_broker_listener_is_named_or_by_protocol():
    names = {"listeners": "IN://:1,OUT://:2", "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT"}
    assert Config.build(names).inter_broker_listener == "PLAINTEXT"
    assert Config.build({**names, "inter.broker.listener.name": "in"}).inter_broker_listener == "IN"
    both = {"inter.broker.listener.name": "in", "security.inter.broker.protocol": "PLAINTEXT"}
    with pytest.raises(ConfigError, match="set only one of them"):
        Config.build({**names, **both})
    only_out = {"inter.broker.listener.name": "in", "advertised.listeners": "OUT://host:2"}
    with pytest.raises(ConfigError, match="must be an advertised listener"):
        Config.build({**names, **only_out})


# -- listeners


def listeners(text: str, **settings: object) -> tuple[EndPoint, ...]:
    return build(listeners=text, **settings).listeners


@in_one_test(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://:9092", "", 9092),
        ("plaintext://0.0.0.0:0", "0.0.0.0", 0),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://::1:9092", "::1", 9092),
        ("PLAINTEXT://[0:0::1]:9092", "::1", 9092),
        ("PLAINTEXT://my-host.example_1:65535", "my-host.example_1", 65535),
    ],
)
def test_a_listener_is_parsed(text, host, port):
    assert listeners(text) == (EndPoint("PLAINTEXT", "PLAINTEXT", host, port),)


def test_several_listeners_with_names_of_their_own():
    parsed = listeners(
        " in://a:1 , ,out://b:0, third://c:0",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:plaintext,Third:PLAINTEXT",
    )
    assert [end_point.name for end_point in parsed] == ["IN", "OUT", "THIRD"]


def test_one_ipv4_and_one_ipv6_address_may_share_a_port():
    names = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
    assert len(listeners("A://127.0.0.1:9092,B://[::1]:9092", listener_security_protocol_map=names)) == 2
    for text in (
        "A://127.0.0.1:9,B://127.0.0.2:9",
        "A://:9,B://[::1]:9",
        "A://1.1.1.1:9,B://[::1]:9,C://2.2.2.2:9",
    ):
        with pytest.raises(ConfigError, match="port 9 is used"):
            listeners(text, listener_security_protocol_map=names)


def test_an_end_point_is_written_as_it_was_read():
    assert str(EndPoint("A", "PLAINTEXT", "::1", 5)) == "A://[::1]:5"
    assert EndPoint("A", "PLAINTEXT", "h", 5).address == "h:5"


def test_a_free_port_is_advertised_as_the_bound_one():
    config = build(listeners="PLAINTEXT://127.0.0.1:0")
    told = config.resolve_advertised({"PLAINTEXT": ("127.0.0.1", 40_000)})
    assert told["PLAINTEXT"].address == "127.0.0.1:40000"


def test_an_advertised_port_of_zero_means_the_bound_one():
    config = build(listeners="PLAINTEXT://:0", advertised_listeners="PLAINTEXT://broker.example:0")
    assert config.resolve_advertised({"PLAINTEXT": ("0.0.0.0", 7)})["PLAINTEXT"].address == "broker.example:7"


def test_a_wildcard_is_advertised_as_an_address_of_this_host():
    told = build(listeners="PLAINTEXT://:0").resolve_advertised({"PLAINTEXT": ("0.0.0.0", 7)})["PLAINTEXT"]
    assert not told.is_wildcard
    meant = {found[4][0] for found in socket.getaddrinfo(told.host, None, type=socket.SOCK_STREAM)}
    assert outward_address() in meant


def test_wildcard_is_advertised_as_usable_canonical_name(monkeypatch):
    addresses = {"good.example": "10.0.0.5", "laptop": "127.0.1.1"}

    def resolve(name, *_args, **_more):
        if name not in addresses:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[name], 0))]

    monkeypatch.setattr(listener_rules, "outward_address", lambda _: "10.0.0.5")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for name, told in (("good.example", "good.example"), ("laptop", "10.0.0.5"), ("unknown", "10.0.0.5")):
        monkeypatch.setattr(socket, "getfqdn", lambda name=name: name)
        assert outward_host() == told


def test_running_brokers_listeners_are_checked_like_at_start():
    names = ("A:PLAINTEXT", "B:PLAINTEXT")
    assert [each.name for each in parse_listeners("A://h:1 , B://h:2,", names)] == ["A", "B"]
    for text in ("", "A://h:1,B://h:1", "C://h:1", "A://h:x"):
        with pytest.raises(ConfigError, match="listeners"):
            parse_listeners(text, names)


@pytest.mark.parametrize(
    ("text", "address"),
    [("a:1", ("a", 1)), ("[::1]:2", ("::1", 2)), ("a", ("a", 9092)), ("[::1]", ("::1", 9092))],
)
def test_an_address_is_split(text, address):
    assert split_address(text, default_port=9092) == address


@in_one_test("text", ["", "a:", ":1", "a:0", "a:65536", "a b:1", "::1:2", "http://a:1", "a:x"])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ConfigError, match="is not an address"):
        split_address(text, default_port=9092)


def test_processors_of_all_listeners_together_are_bounded():
    settings = {"num.network.threads": 400, "listener.name.plaintext.num.network.threads": 47}
    assert Config.build(settings).num_network_threads == 400
    with pytest.raises(ConfigError, match=r"at most 447, including the 48"):
        Config.build({**settings, "listener.name.plaintext.num.network.threads": 48})
    Config.build({**settings, "listener.name.absent.num.network.threads": 48})
