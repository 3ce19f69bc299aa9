"""A directory that kafka-python's suite takes for Apache Kafka's where it starts brokers itself.

For its tests of TLS and SASL the suite formats a directory, starts a broker with settings that it has written, waits
for lines of its log and asks Kafka's tools for topics. The scripts here do that with kproc or with Kafka's jars,
so that the suite's own functions run as they are. Its templates of settings, and the file that wraps a process, are
not in the source distribution: these stand for them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Final

from tests.support.java_tools import JVM
from tests.support.kafka_jars import jars_dir

_TEMPLATES: Final = {
    "kafka.properties": """\
process.roles=broker,controller
node.id={broker_id}
listeners={transport}://{host}:{port},CONTROLLER://{controller_bootstrap_host}:{controller_port}
advertised.listeners={transport}://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller_bootstrap_host}:{controller_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{transport}:{transport}
security.inter.broker.protocol={transport}
log.dirs={tmp_dir}/data
num.partitions={partitions}
default.replication.factor={replicas}
auto.create.topics.enable={auto_create_topic}
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
{sasl_config}
{ssl_config}
{acl_config}
""",
    "kafka_server_jaas.conf": "KafkaServer {{\n{jaas_config}}};\n",
    "sasl_command.conf": """\
security.protocol={transport}
sasl.mechanism={sasl_mechanism}
sasl.jaas.config={jaas_config}
""",
}
_KAFKA: Final = {
    "kafka-storage.sh": 'exec {java} kafka.tools.StorageTool "$@"',
    "kafka-run-class.sh": 'exec {java} "$@"',
    "kafka-topics.sh": 'exec {java} org.apache.kafka.tools.TopicCommand "$@"',
}
# The suite's command lines: `format --standalone -t ID -c FILE [--add-scram MECHANISM=[name=NAME,password=WORD]]` and
# `kafka.Kafka FILE`, the JAAS file in KAFKA_OPTS: between braces it has what kproc takes as a setting. When it formats,
# the suite has not written all of FILE.
_KPROC: Final = {
    "kafka-storage.sh": """\
[ -n "$8" ] || exit 0
grep -E "^(node.id|log.dirs)=" "$6" > "$6.storage"
name=${{8#*name=}}
password=${{8##*password=}}
echo "${{password%]}}" |
    {kproc} user add "${{name%%,*}}" --config "$6.storage" --mechanism "${{8%%=*}}" --password-file -""",
    "kafka-run-class.sh": """\
file=${{KAFKA_OPTS##*login.config=}}
[ -z "$file" ] || jaas=$(sed -n '/;$/p' "$file" | head -1)
exec {kproc} serve --config "$2" {options} ${{jaas:+--set "sasl.jaas.config=$jaas"}}""",
    "kafka-topics.sh": _KAFKA["kafka-topics.sh"],
}
# Instead of the lines in the log of one version of Kafka: a broker that listens has its users. One that never does is
# ended by the limit on the test's time. It runs in a session of its own: a script may leave more than one process.
SERVICE: Final = """\
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args, env):
        self.args, self.env = args, env
        with open(args[-1]) as properties:
            found = re.search(r"^listeners=\\w+://(.*?):(\\d+)", properties.read(), re.MULTILINE)
        self.address = (found[1], int(found[2]))
        self.child = None
        self.output = tempfile.TemporaryFile()

    def start(self):
        self.child = subprocess.Popen(
            self.args, env=self.env, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait_for(self, _pattern, timeout):
        while self.child.poll() is None:
            try:
                socket.create_connection(self.address, 1).close()
                return True
            except OSError:
                time.sleep(0.1)
        return False

    def dump_logs(self):
        self.output.seek(0)
        sys.stdout.write(self.output.read().decode(errors="replace"))

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
"""


def write_home(directory: Path, options: argparse.Namespace) -> dict[str, str]:
    """Make the directory; what the suite's environment says of it."""
    java = f'java {" ".join(JVM)} $KAFKA_OPTS -cp "{jars_dir()}/*"'
    kproc = f"{shlex.quote(sys.executable)} -m kproc"
    counts = f"--processors {options.processors} --handlers {options.handlers}"
    scripts = directory / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    for name, body in (_KAFKA if options.kafka else _KPROC).items():
        text = body.format(java=java, kproc=kproc, options=f"--transport {options.transport} {counts}")
        (scripts / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (scripts / name).chmod(0o755)
    templates = directory / "servers" / "resources" / "default"
    templates.mkdir(parents=True, exist_ok=True)
    for name, template in _TEMPLATES.items():
        (templates / name).write_text(template, encoding="utf-8")
    return {"KAFKA_ROOT": str(directory), "PROJECT_ROOT": str(directory)}
