"""A real Apache Kafka as the yardstick: one combined KRaft node, default settings, G1 with 1 GB of heap.

The jars are the test suite's (`tests.support.kafka_jars`); Kafka's own start script is a shell around the
same command line.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import Peer, PeerFailed, free_ports
from tests.support.kafka_jars import KAFKA_VERSION, classpath, fetch_jars, jars_dir, short_lived_jvm

FORMAT_SECONDS_MAX = 60.0
JVM = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class KafkaPeer(Peer):
    """Apache Kafka; `settings` are added to server.properties (leave them out when you compare: defaults)."""

    name = f"kafka {KAFKA_VERSION}"

    def __init__(
        self,
        *,
        settings: dict[str, str] | None = None,
        keep_data: bool = False,
        under: Path | None = None,
        jvm: Sequence[str] = JVM,
    ) -> None:
        super().__init__(keep_data=keep_data, under=under)
        self._settings = settings or {}
        self._jvm = jvm
        self.format_options: list[str] = []

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def prepare(self) -> None:
        fetch_jars()
        broker_port, controller_port = free_ports(2)
        node_id = self._settings.get("node.id", "1")
        self.bootstrap = f"127.0.0.1:{broker_port}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": node_id,
            "controller.quorum.voters": f"{node_id}@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            # One node cannot hold the three replicas that these default to.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._format(node_id)

    def _format(self, node_id: str) -> None:
        """Let Kafka's tool write its files of a new node, or copy them if it has written the same before.

        The tool takes 0.6 s of CPU. Its files depend on the node's id and on the options, but not on the directory.
        """
        wanted = hashlib.sha256("\0".join([node_id, *self.format_options]).encode()).hexdigest()[:16]
        kept = jars_dir().with_name("formatted") / wanted
        if kept.exists():
            shutil.copytree(kept, self.data)
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A leading dash would be read as an option by the tool.
        cluster_id = cluster_id.replace("-", "A")
        command = ["java", *short_lived_jvm(), "-cp", classpath(), "kafka.tools.StorageTool", "format"]
        command += ["-t", cluster_id, "-c", str(self._properties), *self.format_options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_SECONDS_MAX, check=False
        )
        if done.returncode != 0:
            raise PeerFailed(f"the storage could not be formatted:\n{done.stdout}{done.stderr}")
        unfinished = kept.with_name(f"{wanted}.{os.getpid()}")
        shutil.copytree(self.data, unfinished)
        try:
            unfinished.rename(kept)
        except OSError:
            # Another run was first.
            shutil.rmtree(unfinished)

    def command(self) -> list[str]:
        return ["java", *self._jvm, "-cp", classpath(), "kafka.Kafka", str(self._properties)]
