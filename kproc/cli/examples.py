"""Examples in the help of each command. tests/unit/cli/test_help.py parses each of them by the command's own parser.

A comment begins with `#`, as in a shell, so that a whole line can be pasted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, str]] = {
    "": """
        kproc dev                              # a broker to try things with
        kproc topic list --sort size           # which topic fills the disk
        kproc consume orders --from -10        # the last 10 records
    """,
    "serve": """
        kproc serve --data /var/lib/kproc
        kproc serve --config server.properties --set log.retention.hours=48
        kproc serve --data /var/lib/kproc --log-file /var/log/kproc.log
    """,
    "dev": """
        kproc dev --topic orders:3 --snippets
        kproc dev --port 0 --tls --user alice
        kproc dev --control 8090     # faults over HTTP, for tests in any language
    """,
    "ping": """
        kproc ping
        kproc ping --bootstrap 127.0.0.1:9091 --timeout 2
    """,
    "stop": """
        kproc stop
        kproc stop --ready-file /run/kproc/ready.json --timeout 120
    """,
    "topic create": """
        kproc topic create orders --partitions 6
        kproc topic create users --config cleanup.policy=compact --if-not-exists
    """,
    "topic list": """
        kproc topic list --sort rate-in        # which topic grows fastest
        kproc topic list 'pay*' --sort size --limit 10
        kproc topic list --interval 0 --format json
    """,
    "topic describe": """
        kproc topic describe orders
        kproc topic describe 'pay*' users --format json
    """,
    "topic alter": """
        kproc topic alter orders --partitions 12
        kproc topic alter orders --config retention.ms=86400000
    """,
    "topic trim": """
        kproc topic trim orders --before -1000 --dry-run
        kproc topic trim orders --before 2026-01-31T12:00:00 --yes
    """,
    "topic delete": """
        kproc topic delete old-orders --dry-run
        kproc topic delete old-orders older-orders --yes
    """,
    "topic verify": """
        kproc topic verify orders
        kproc topic verify                     # all topics
    """,
    "produce": """
        echo 'alice:42' | kproc produce orders -K :
        kproc produce orders --json < orders.jsonl
    """,
    "consume": """
        kproc consume orders --from -10 --follow
        kproc consume orders --group billing --format '%k\\t%s\\n'
        kproc consume 'orders-*' --from 2026-01-31T12:00:00 --grep ERROR
    """,
    "group list": """
        kproc group list --sort lag            # which group lags, since when
        kproc group list --state empty
    """,
    "group describe": """
        kproc group describe billing
        kproc group describe billing audit --format json
    """,
    "group seek": """
        kproc group seek billing --to beginning
        kproc group seek billing --topic orders:0,1 --shift -100 --execute
    """,
    "group delete": """
        kproc group delete billing --dry-run
        kproc group delete billing audit --yes
    """,
    "txn list": """
        kproc txn list
        kproc txn list --longer-than 60 --format json
    """,
    "txn describe": """
        kproc txn describe payments-1
        kproc txn describe payments-1 payments-2 --format json
    """,
    "txn abort": """
        kproc txn abort payments-1
        kproc txn abort --topic orders --partition 0 --start-offset 1234 --yes
    """,
    "txn find-hanging": """
        kproc txn find-hanging
        kproc txn find-hanging --topic orders --longer-than 30
    """,
    "status": """
        kproc status --apis
        kproc status --bootstrap 127.0.0.1:9091 --format json
    """,
    "top": """
        kproc top --page groups                # which group lags, live
        kproc top --page topics --sort SIZE --interval 5
        kproc top --once --page requests --format json
    """,
    "fault add": """
        kproc fault add fail --api Produce --error NOT_LEADER_OR_FOLLOWER --times 2
        kproc fault add drop-answer --close --api Produce --topic orders --every 5
        kproc fault add delay --ms 500 --client 'shop-*'
        kproc fault add advertise --range Produce=3-7 --range Fetch=none
    """,
    "fault list": """
        kproc fault list
        kproc fault list --format json
    """,
    "fault remove": """
        kproc fault remove 3
        kproc fault remove --all
    """,
    "time show": """
        kproc time show
        kproc time show --format json
    """,
    "time advance": """
        kproc time advance 8d      # a retention of 7 days deletes what was older
        kproc time advance 1h30m --dry-run
    """,
    "time freeze": """
        kproc time freeze
        kproc time freeze --dry-run
    """,
    "time unfreeze": """
        kproc time unfreeze
        kproc time unfreeze --format json
    """,
    "monitor": """
        kproc monitor --api Produce --topic orders
        kproc monitor --user alice --seconds 10 --format json
    """,
    "clients": """
        kproc clients --sort bytes --interval 5
        kproc clients --format json
    """,
    "kill-client": """
        kproc kill-client 127.0.0.1:9092-127.0.0.1:40000-0
        kproc kill-client 10.0.0.7:9092-10.0.0.9:40000-0 --bootstrap 10.0.0.7:9092
    """,
    "latency": """
        kproc latency --seconds 5
        kproc latency --end-to-end probe --count 1000
    """,
    "doctor": """
        kproc doctor
        kproc doctor --output report.tar.gz --log /var/log/kproc.log
    """,
    "config get": """
        kproc config get --all
        kproc config get --topic orders retention.ms
    """,
    "config set": """
        kproc config set log.retention.ms=86400000
        kproc config set --topic orders retention.ms=3600000 --dry-run
        kproc config set --loggers kproc.broker.processor=DEBUG
    """,
    "config explain": """
        kproc config explain log.flush.interval.ms
        kproc config explain retention.ms --topic orders
    """,
    "acl add": """
        kproc acl add alice --producer --topic orders
        kproc acl add bob --consumer --topic orders --group billing
        kproc acl add carol --operation read --topic logs- --prefixed
    """,
    "acl list": """
        kproc acl list --principal alice
        kproc acl list --topic orders --covering
    """,
    "acl delete": """
        kproc acl delete alice --dry-run
        kproc acl delete bob --topic orders --operation read --yes
    """,
    "acl check": """
        kproc acl check alice write --topic orders
        kproc acl check bob read --group billing --host 10.0.0.7
    """,
    "user add": """
        kproc user add alice
        kproc user add admin --data /var/lib/kproc --password-file secret.txt
    """,
    "user list": """
        kproc user list
        kproc user list --format json
    """,
    "user delete": """
        kproc user delete alice --dry-run
        kproc user delete alice --yes
    """,
    "quota list": """
        kproc quota list
        kproc quota list --format json
    """,
    "quota set": """
        kproc quota set --user alice producer_byte_rate=1000000
        kproc quota set --every-address connection_creation_rate=20
    """,
    "quota delete": """
        kproc quota delete --user alice producer_byte_rate
        kproc quota delete --every-client request_percentage --yes
    """,
    "profile add": """
        kproc profile add staging --bootstrap 10.0.0.5:9092 --use
        kproc profile add prod -b kafka:9093 --command-config prod.properties
    """,
    "profile list": """
        kproc profile list
        kproc profile list --format json
    """,
    "profile use": """
        kproc profile use staging
        kproc profile use --none
    """,
    "profile show": """
        kproc profile show
        kproc profile show staging --format json
    """,
    "profile remove": """
        kproc profile remove staging
        kproc profile remove staging old-staging
    """,
    "scale": """
        kproc scale --handlers 4
        kproc scale --processors 2 --handlers 2
    """,
    "rebalance": """
        kproc rebalance --dry-run
        kproc rebalance --format json
    """,
    "tune": """
        kproc tune
        kproc tune --workload produce --seconds 5
    """,
    "tune list": """
        kproc tune list --data /var/lib/kproc
        kproc tune list --ignore vm.swappiness
    """,
    "perf produce": """
        kproc perf produce load --create --partitions 4
        kproc perf produce load --rate 10000 --size 1000 --seconds 30
        kproc perf produce load --compression zstd --keys 1000
        kproc perf produce load --transaction-records 500
    """,
    "perf consume": """
        kproc perf consume load --once
        kproc perf consume load --connections 4 --format json
    """,
    "bench compare": """
        kproc bench compare --quick --peers process-group,kafka
        kproc bench compare --cells one-16,bulk-100 --minutes 20
    """,
    "bench report": """
        kproc bench report
        kproc bench report bench/results/monday --against main
    """,
    "bench simulate": """
        kproc bench simulate calibrate
        kproc bench simulate --cores 16,64
    """,
    "bench sweep": """
        kproc bench sweep --layouts 1x1,2x2 --rounds 5
        kproc bench sweep --scale --out sweep
    """,
    "pipeline run": """
        kproc pipeline run orders.toml
        kproc pipeline run orders.toml --keep-trying --json progress.jsonl
    """,
    "pipeline check": """
        kproc pipeline check orders.toml
        kproc pipeline check orders.toml --bootstrap 127.0.0.1:9092
    """,
    "pipeline status": """
        kproc pipeline status orders.toml
        kproc pipeline status orders.toml --format json
    """,
    "pipeline reset": """
        kproc pipeline reset orders.toml --dry-run
        kproc pipeline reset orders.toml --sink daily --yes
    """,
    "dump-log": """
        kproc dump-log kproc-data/orders-0 --records
        kproc dump-log kproc-data --verify
    """,
    "import-log": """
        kproc import-log /old/orders-0 /old/orders-1 --data kproc-data
        kproc import-log kproc-data/orders-0.*-stray --data kproc-data --dry-run
    """,
    "convert-log": """
        kproc convert-log kproc-data/orders-0 --dry-run
        kproc convert-log kproc-data/orders-0 kproc-data/orders-1 --format json
    """,
    "api": """
        kproc api
        kproc api --missing --format json
    """,
    "version": """
        kproc version
        kproc --version
    """,
}


def example_lines(path: str) -> list[str]:
    """Return the examples of a command, such as "topic list"."""
    return [line.strip() for line in EXAMPLES.get(path, "").strip().splitlines()]
