"""The labels by which a stack's bill and leftovers are found, and mistakes in stack files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cli.doctor import diagnose
from infra import stackfiles
from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import is_marked, marks, stack_file_values
from trainer.config.schema import load, stored
from trainer.errors import UserError


@pytest.mark.parametrize("stack", ["gcp-a100", "Prod-AWS"])
def test_a_stack_knows_what_it_marked_and_nothing_else(stack: str) -> None:
    assert marks(stack)["stack"] == stack.lower()
    assert is_marked({**marks(stack), "Name": "anything"}, stack)
    assert not is_marked(marks(f"{stack}-2"), stack)
    assert not is_marked({"app": "trainyard"}, stack)
    assert not is_marked(None, stack)


BASE = "config:\n  trainyard:cluster: {context: x}\n"
TRAINING = BASE + "  trainyard:training:\n"
NESTED = "x0: &x0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{at}: &x{at} [{', '.join([f'*x{at - 1}'] * 9)}]\n" for at in range(1, 9)
)


def refusal(content: str | bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the doctor says of a stack file; empty: it is valid."""
    monkeypatch.setattr(stackfiles, "ROOT", folder)
    (folder / "Pulumi.mine.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        parse(stack_file_values("mine"), "mine")
    except ConfigError as error:
        return [*error.lines]
    return []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        # Pulumi refuses these (workspace.LoadProjectStack and ValidateStackConfigAndApplyProjectConfig, v3.200.0).
        ("encryptionsalt: v1:x\n", "has no config; copy a stack file: cp Pulumi.local.yaml Pulumi.mine.yaml"),
        ("- a\n", "has no config; "),
        ("config:\n\ttrainyard:cluster: {}\n", "is not YAML: line 2 has a tab before its text; indent with spaces"),
        (TRAINING + "    steps: 300\t\n", "is not YAML: line 4 has a tab behind its text; write spaces"),
        ("config: \x00\n", "is not YAML: has the character U+0000, which"),
        (
            "config:\n  trainyard:cluster: {context: 'kind}\n" + 9 * "  a: b\n",
            "is not YAML: line 2 has a quote that nothing closes",
        ),
        (
            "config:\n  trainyard:cluster: {context: kind\n  trainyard:job: {maxHours: 3}\n",
            "is not YAML: line 2 has a {",
        ),
        ("config:\n  trainyard:dataset:\n    input: [a, b\n    name: x\n", "is not YAML: line 3 has a ["),
        (TRAINING + "    steps: 10\n   seed: 3\n", "is not YAML: line 5 is indented by 3, out of step with the lines "),
        (
            BASE + "  trainyard:dataset:\n    input:\n      - a\n     - b\n",
            "is not YAML: line 6 is indented by 5, out of",
        ),
        (
            TRAINING + "    # why\n\n    steps: 10\n      seed: 3\n",
            "is not YAML: line 7 is indented by 6, below line 6",
        ),
        (TRAINING + "    steps:10\n    seed: 3\n", "is not YAML: line 4 has no ': ' behind its key"),
        (BASE + "  trainyard: workers: {count: 3}\n", "is not YAML: line 3 has ': ' twice"),
        (
            BASE + "  trainyard:job: {name: `a`}\n",
            "is not YAML: line 3 has a value that begins with `; put it in quotes",
        ),
        (BASE + "  trainyard:workers: &a\n    environment: *a\n", "is not YAML: line 4: *a contains itself"),
        (BASE + "  trainyard:dataset: {input: &a [x, *a]}\n", "is not YAML: line 3: *a contains itself"),
        (NESTED + BASE, "is not YAML: line 5: aliases such as *x3 make more than 20,000 values"),
        (
            f"x: &x {'x' * 200_000}\ny: [{', '.join(['*x'] * 20)}]\n{BASE}",
            "is not YAML: line 2: aliases such as *x make",
        ),
        (BASE + "  trainyard:dataset: {input: !!set {a, b}}\n", "is not YAML: line 3: could not determine a const"),
        (BASE + "  trainyard:job: !!pairs [name: a]\n", "is not YAML: line 3: could not determine a const"),
        ("%YAML 1.2\n---\n" + BASE, "is not YAML: begins with %YAML, and Pulumi reads version 1.1 alone"),
        ((BASE + "# \u00fc\n").encode("latin-1"), "is not YAML: line 3 has a byte that is not UTF-8; save it as UTF-8"),
        (
            BASE + "  trainyard:workers:\n    count: 2\n    count: 3\n",
            "is not YAML: line 5: the key count stands twice",
        ),
        # Pulumi reads the first document alone, and we would not get to the end of these.
        (BASE + "---\nconfig: {}\n", "is not YAML: line 3 begins a second document"),
        (BASE + f"  trainyard:sweep: {'[' * 1000}{']' * 1000}\n", "is not YAML: sections stand too deep"),
    ],
)
def test_a_file_that_is_no_stack_file_is_refused_by_its_line(
    content: str | bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is what `pulumi stack init` writes."""
    (line,) = refusal(content, tmp_path, monkeypatch)
    assert line.startswith(f"Pulumi.mine.yaml: {said}")
    assert len(line) < 250


@pytest.mark.parametrize(
    ("content", "said"),
    [
        # Pulumi refuses these too.
        (
            BASE + "  trainyard:training:steps: 3\n",
            "trainyard:training:steps: has more than one ':', which Pulumi refuses",
        ),
        (BASE + "encryptionsalt: [3]\n", "encryptionsalt: is not text"),
        ('config:\n  trainyard:cluster: \'{"context": "x"}\'\n', "cluster: is text, and Pulumi.yaml wants an object"),
        # Python's JSON takes the last of two, or ends with a traceback.
        (BASE + '  trainyard:job: \'{"name": "a", "name": "b"}\'\n', 'job: \'{"name": "a", "name": "b"}\' is not a'),
        (BASE + f"  trainyard:training: '{{\"steps\": {'9' * 5000}}}'\n", 'training: \'{"steps": 9999'),
        (BASE + "  trainyard:job: {name: .inf}\n", "job.name: .inf is no text without quotes"),
        # It takes one of the two.
        (
            BASE + "  workers: {count: 2}\n  trainyard:workers: {count: 3}\n",
            "workers: given twice, as workers and trainy",
        ),
        (BASE + "  config:workers: {}\n", "config:workers: nothing reads it; did you mean trainyard:workers?"),
        # It passes over these.
        (
            BASE + "trainyard:dataset: {input: [a.txt]}\n",
            "trainyard:dataset: stands beside `config:` in Pulumi.mine.yaml",
        ),
        (TRAINING + "    steps: 200\nadapter:\n  kind: lora\n", "adapter: stands beside `config:` in Pulumi.mine.yaml"),
        (
            BASE + "confg: {}\n",
            "confg: stands beside `config:` in Pulumi.mine.yaml, where nothing reads it; did you mean c",
        ),
        (TRAINING + "\u00a0\u00a0\u00a0\u00a0steps: 10\n", "\\xa0\\xa0\\xa0\\xa0steps: stands beside `config:`"),
        (
            BASE + "  trainyrad:workers: {count: 3}\n",
            "trainyrad:workers: nothing reads it; did you mean trainyard:workers?",
        ),
        (BASE + "  gcp:nodes: {max: 3}\n", "gcp:nodes: nothing reads it; did you mean trainyard:nodes?"),
        # A key without a namespace is ours, and the program refuses it.
        (
            TRAINING + "    steps: 200\n  adapter:\n    kind: lora\n",
            "adapter: unknown key; did you mean training.adapter?",
        ),
        (BASE + "  trainyard:\n    workers: {count: 3}\n", "trainyard: unknown key; allowed: cluster"),
        # The cause is told, and nothing that follows from it.
        (BASE + "  trainyard:trainning: {steps: 20}\n", "trainning: unknown key; did you mean training"),
        (TRAINING + "    task: finetune\n    modl: {name: gpt2}\n", "training.modl: unknown key; did you mean model?"),
        (
            "config:\n  trainyard:clster: {kind: gke}\n  trainyard:gke: {project: my-project, zone: us-central1-a}\n"
            "  trainyard:nodes: {machineType: g2-standard-8}\n  trainyard:storage: {kind: nfs}\n",
            "clster: unknown key; did you mean cluster?",
        ),
        (
            "config:\n  trainyard:cluster: {knd: gke}\n  trainyard:gke: {project: my-project, zone: us-central1-a}\n"
            "  trainyard:nodes: {machineType: g2-standard-8}\n  trainyard:storage: {kind: nfs}\n",
            "cluster.knd: unknown key; did you mean kind?",
        ),
        (
            "config:\n  trainyard:cluster: {kind: gke}\n  trainyard:gke: {zone: us-central1-a}\n  project: my-project\n"
            "  trainyard:nodes: {machineType: g2-standard-8}\n  trainyard:storage: {kind: nfs}\n",
            "project: unknown key; did you mean gke.project?",
        ),
        (
            "config:\n  trainyard:cluster: {kind: gke}\n  trainyard:gke: {project: my-project, zone: us-central1-a}\n"
            "  trainyard:nodes.machineType: g2-standard-8\n  trainyard:storage: {kind: nfs}\n",
            "nodes.machineType: was set without --path; pulumi config rm",
        ),
    ],
)
def test_a_key_that_pulumi_refuses_or_passes_over_is_told_alone(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = refusal(content, tmp_path, monkeypatch)
    assert line.startswith(said)


@pytest.mark.parametrize(
    "content",
    [
        BASE,
        BASE.replace("\n", "\r\n"),
        ("\ufeff" + BASE).encode(),
        BASE.encode("utf-16"),  # PowerShell's `>`
        "config:\n  cluster: {context: x}\n  workers: {count: 3}\n",
        BASE + "  trainyard:config:workers: {count: 3}\n",
        BASE + "  pulumi:tags: {a: b}\n  aws:region: us-east-1\n",
        BASE + "environment: [mine]\nsecretsprovider: passphrase\nencryptionsalt: v1:x\n",
        "x: &a {count: 3}\n" + BASE + "  trainyard:workers: {<<: *a, min: 1}\n",
    ],
)
def test_what_pulumi_reads_is_valid(content: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(content, tmp_path, monkeypatch) == []


def test_a_key_of_a_provider_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(BASE + "  aws:region: us-east-1\n  pulumi:tags: {}\n", tmp_path, monkeypatch) == []
    (found,) = [item for item in diagnose("mine") if item.key == "aws:region"]
    assert found.level == "warning"


@pytest.mark.parametrize("bomb", [NESTED + "steps: *x8\n", "a: &a\n  b: *a\n", "a:\n  b: 1\n c: 2\n"])
def test_a_file_of_the_trainer_is_read_with_the_same_care(bomb: str, tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_text(bomb)
    with pytest.raises(UserError, match="is not YAML: line ") as caught:
        load(["--config", str(file)])
    assert len(str(caught.value).splitlines()[0]) < 250 + len(str(file))
    if "&" in bomb:
        with pytest.raises(yaml.YAMLError):
            stored(bomb)
