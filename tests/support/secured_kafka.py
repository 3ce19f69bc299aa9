"""A real Apache Kafka with a listener of each protocol: what our own clients have to get along with."""

from __future__ import annotations

from pathlib import Path

from bench.peers.base import free_ports
from bench.peers.kafka import KafkaPeer
from tests.support.certificates import Certificates
from tests.support.kafka_jars import short_lived_jvm

PASSWORD = 'a "strange" pass,w=rd'
"""With what JAAS and SCRAM escape; Kafka's own tool that makes users splits at a comma followed by a name."""
_LOGIN = "org.apache.kafka.common.security"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
JVM = ("-Xmx512m", "-Xms256m", *short_lived_jvm())


def jaas(module: str, **options: str) -> str:
    """A line of JAAS."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    words = [f'{name}="{value}"' for name, value in quoted.items()]
    return f"{_LOGIN}.{module} required {' '.join(words)};"


SCRAM_MODULE, PLAIN_MODULE = "scram.ScramLoginModule", "plain.PlainLoginModule"
BEARER_MODULE = "oauthbearer.OAuthBearerLoginModule"


class SecuredKafka(KafkaPeer):
    """Kafka with alice as a user of every mechanism. `bootstrap` is PLAINTEXT; `at(protocol)` the others."""

    def __init__(self, certificates: Certificates, *, reauthentication_ms: int = 0) -> None:
        super().__init__(jvm=JVM)
        self.certificates = certificates
        self._ports: dict[str, int] = {}
        self._reauthentication_ms = reauthentication_ms

    def at(self, protocol: str) -> str:
        """host:port of a listener."""
        return f"localhost:{self._ports[protocol]}"

    def prepare(self) -> None:
        plaintext, controller, *ports = free_ports(2 + len(PROTOCOLS) + 1)
        names = (*PROTOCOLS, "MUTUAL")
        self._ports = dict(zip(names, ports, strict=True))
        listeners = [f"PLAINTEXT://127.0.0.1:{plaintext}"]
        listeners += [f"{name}://localhost:{port}" for name, port in self._ports.items()]
        mechanisms = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
        self._settings = {
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(
                [f"{name}:{name}" for name in ("PLAINTEXT", *PROTOCOLS)]
                + ["MUTUAL:SSL", "CONTROLLER:PLAINTEXT"]
            ),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "sasl.enabled.mechanisms": mechanisms,
            "connections.max.reauth.ms": str(self._reauthentication_ms),
            "listener.name.mutual.ssl.client.auth": "required",
            **self.certificates.broker_settings(client_auth="requested"),
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{name}"
            plain = jaas(PLAIN_MODULE, user_alice=PASSWORD)
            bearer = jaas(BEARER_MODULE, unsecuredLoginStringClaim_sub="broker")
            escaped = plain.replace("\\", "\\\\")
            self._settings |= {
                f"{prefix}.plain.sasl.jaas.config": escaped,
                f"{prefix}.scram-sha-256.sasl.jaas.config": jaas(SCRAM_MODULE),
                f"{prefix}.scram-sha-512.sasl.jaas.config": jaas(SCRAM_MODULE),
                f"{prefix}.oauthbearer.sasl.jaas.config": bearer,
            }
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            self.format_options += ["--add-scram", f"{mechanism}=[name=alice,password={SCRAM_PASSWORD}]"]
        super().prepare()
        self.bootstrap = f"127.0.0.1:{plaintext}"


SCRAM_PASSWORD = "alice's own"


def login_lines(mechanism: str, password: str | None = None) -> dict[str, str]:
    """A client's properties for alice by a mechanism."""
    if mechanism == "OAUTHBEARER":
        line = jaas(BEARER_MODULE, unsecuredLoginStringClaim_sub="alice")
    elif mechanism == "PLAIN":
        line = jaas(PLAIN_MODULE, username="alice", password=password or PASSWORD)
    else:
        line = jaas(SCRAM_MODULE, username="alice", password=password or SCRAM_PASSWORD)
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": line}


def write_properties(path: Path, properties: dict[str, str]) -> Path:
    """A file for --command-config."""
    lines = (f"{name}={value}" for name, value in properties.items())
    path.write_text("".join(line.replace("\\", "\\\\") + "\n" for line in lines))
    path.chmod(0o600)
    return path
