"""Connections of a pipeline's parts: a file of the pipeline or of a part, and which has precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.access import access_of, security_options
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.spec import Outside, parse_spec

SECRET = "s3cret-marker"
SPEC = """
pipeline = { name = "p", checkpoint = "state", client_config = "all.properties" }
source = [{ name = "lines", topic = "words" }, { name = "more", topic = "m", client_config = "own.properties" }]
sink = [
  { name = "out", input = "lines", topic = "copy" },
  { name = "stock", input = "more", topic = "copy", connector = "kafka" },
]
"""
LINES = f"""security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.username={{}}
sasl.password={SECRET}
acks=all
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("all", "own", "given"):
        (tmp_path / f"{name}.properties").write_text(LINES.format(name))
    return tmp_path


def test_each_part_connects_by_its_own_file_or_the_pipelines(directory: Path) -> None:
    pipeline = parse_spec(SPEC, directory / "p.toml")
    users = [access_of(part).security.login for part in (*pipeline.sources, *pipeline.sinks)]
    assert [login and login.username for login in users] == ["all", "own", "all", "all"]


def test_command_file_precedes_pipelines_and_environments(directory: Path) -> None:
    given = str(directory / "given.properties")
    before = parse_spec(SPEC, directory / "p.toml", Outside(client_config=given))
    assert [part.client_config for part in before.sources] == [given, str(directory / "own.properties")]
    after = parse_spec(SPEC, directory / "p.toml", Outside(default_client_config=given))
    assert after.sources[0].client_config == str(directory / "all.properties")
    alone = parse_spec(
        SPEC.replace(', client_config = "all.properties"', ""),
        directory / "p.toml",
        Outside(default_client_config=given),
    )
    assert alone.sources[0].client_config == given


def test_access_file_is_named_and_secrets_stay_outside(directory: Path) -> None:
    pipeline = parse_spec(SPEC, directory / "p.toml")
    ours, stock = pipeline.sinks
    assert security_options(ours) == {"kproc.client.config": str(directory / "all.properties")}
    # Spark's own connector reads no file: it gets what is in it, without what is not about security.
    assert security_options(stock) == {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="all" password="{SECRET}";'
        ),
    }
    assert SECRET not in repr(pipeline) + repr(access_of(ours)) + str(access_of(ours))


def test_secret_in_part_options_is_hidden(directory: Path) -> None:
    line = f'x.PlainLoginModule required username=\\"a\\" password=\\"{SECRET}\\";'
    text = SPEC.replace(
        'topic = "words"', f'topic = "words", options = {{ "kafka.sasl.jaas.config" = "{line}" }}'
    )
    pipeline = parse_spec(text, directory / "p.toml")
    login = access_of(pipeline.sources[0]).security.login
    assert login is not None
    assert login.password == SECRET
    assert SECRET not in repr(pipeline)


def test_missing_file_error_names_the_part(tmp_path: Path) -> None:
    pipeline = parse_spec(SPEC, tmp_path / "p.toml")
    with pytest.raises(PipelineError, match=r"^lines: cannot read .*all\.properties"):
        access_of(pipeline.sources[0])
    with pytest.raises(PipelineError, match=r"^stock: cannot read"):
        security_options(pipeline.sinks[1])
