"""What Pulumi's engine makes of the values of a stack file, on which tests/infra/test_typed_values.py builds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from local import environment
from tests.infra.test_typed_values import KEPT, RESPELLED

pytestmark = pytest.mark.engine
PROGRAM = """
import json, pulumi
from pulumi.runtime.config import CONFIG, is_config_secret
values = {key: json.loads(value) for key, value in CONFIG.get().items() if value.startswith("{")}
print("GIVEN", json.dumps([values, is_config_secret("values:open"), is_config_secret("values:closed")]))
"""


def test_the_engine_passes_and_rewrites_values_as_the_table_says(tmp_path: Path) -> None:
    environment.prepare()
    (tmp_path / "Pulumi.yaml").write_text(
        f"name: values\nruntime: {{name: python, options: {{virtualenv: {Path(sys.prefix)}}}}}\n"
    )
    (tmp_path / "__main__.py").write_text(PROGRAM)
    texts = [*KEPT, *RESPELLED]
    stack = tmp_path / "Pulumi.mine.yaml"
    (tmp_path / "state").mkdir()
    variables = {**environment.variables(), "PULUMI_BACKEND_URL": (tmp_path / "state").as_uri()}

    def pulumi(*arguments: str) -> str:
        done = subprocess.run(
            ["pulumi", *arguments], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    pulumi("stack", "init", "mine")
    pulumi("config", "set", "--secret", "--path", "closed.token", "x")
    pulumi("config", "set", "--path", "closed.other", "x")
    lines = [f"    v{at}: {text}" for at, text in enumerate(texts)]
    content = stack.read_text().replace("config:\n", "config:\n  values:open:\n" + "\n".join(lines) + "\n")
    stack.write_text(content)
    said = pulumi("preview", "--non-interactive")
    values, open_is_secret, closed_is_secret = json.loads(said.partition("GIVEN ")[2].splitlines()[0])
    assert values["values:open"] == {f"v{at}": ({**KEPT, **RESPELLED})[text] for at, text in enumerate(texts)}
    assert (open_is_secret, closed_is_secret) == (False, True)
    pulumi("config", "set", "--path", "open.more", "8")
    written = stack.read_text()
    assert ": 1.30\n" not in written
    assert ": 2026-11-01 00:00:00 +0000 UTC\n" in written
    assert "more: 8\n" in written
