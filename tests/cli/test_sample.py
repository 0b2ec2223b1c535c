"""`trainyard sample`, `chat`, `export` and `push`: the trainer's own programs, on a run in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import export, model_pod, runs, sample
from cli.__main__ import main
from cli.cluster import TrainingJob
from cli.target import Target
from tests.cli.volume import Wire
from trainer.checkpoint.format import Snapshot, write_checkpoint
from trainer.config import schema
from workloads.layout import CONSUMES

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def save(run: Path, step: int, chat: bool) -> None:
    """A checkpoint of a tiny GPT-2, as a training writes it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel

    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    words.train_from_iterator(["the light of the sun and the colours of bodies"], learned)
    torch.manual_seed(step)
    net = GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )

    def write(weights: Any, folder: Path) -> None:
        net.save_pretrained(folder)
        words.save(str(folder / "tokenizer.json"))
        if chat:
            (folder / "chat_template.jinja").write_text(TEMPLATE)

    given = ["data.directory=/data/d", f"run.directory={run}", "model.preset=tiny", "sequence_length=64"]
    settings = schema.load(given)
    write_checkpoint(run, step, Snapshot(dict(net.state_dict()), {}), write, schema.resolved(settings))


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    for name, step in (("plain", 10), ("plain", 20), ("talks", 20)):
        save(folder / "runs" / name, step, chat=name == "talks")
    (folder / "runs" / "begun").mkdir()
    return folder


@pytest.fixture
def pods(tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The specifications of the pods of their own that commands have made; processes of all pods run here."""
    made: list[dict[str, Any]] = []
    home = {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    @contextmanager
    def volume_pod(target: Any, change: Any = None) -> Iterator[Any]:
        spec: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": "100m"}, "limits": {}}}]}
        if change:
            change(spec)
            made.append(spec)
        given = {item["name"]: item["value"] for item in spec["containers"][0].get("env", [])}
        environment: Any = home | given
        with Wire(tmp_path / "wire", **environment).volume_pod() as found:
            yield found

    def target_of(stack: str, training: str, run: str | None, _: str | None) -> Target:
        return Target("c", "n", "train", None, {}, f"{volume}/runs/{run or 'plain'}")

    for module in (sample, export):
        monkeypatch.setattr(module, "target_of", target_of)
    monkeypatch.setattr(model_pod, "volume_pod", volume_pod)
    monkeypatch.setattr(runs, "DATA", str(volume))
    monkeypatch.chdir(tmp_path)
    return made


def test_a_run_goes_on_with_a_text_and_notes_what_is_shortened(
    pods: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: "the $light' of"))
    assert main(["sample", "--prompt", "-", "--tokens", "100", "--count", "2", "--step", "10"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("the $light' of")
    assert shown.out.count("the $light' of") >= 2
    assert shown.err.startswith("note: ")
    assert shown.err.count("\n") == 1
    assert pods == [], "the stack's warm pod has room"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["sample", "--run", "none"], 2, "runs/none: no such run; `trainyard runs` lists them all"),
        (["sample", "--run", "begun"], 1, "runs/begun has no checkpoint yet; `trainyard status` says"),
        (["chat"], 1, "has no chat template, which fine-tuning on conversations gives"),
        (["export", "--to", "x", "--on-volume", "y"], 2, "--to and --on-volume: give one of them"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    command: list[str], code: int, said: str, pods: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_chat_keeps_what_was_said_and_shows_the_answer_as_it_comes(
    pods: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["the light", "and the sun?", "the colours?", ""])
    sent: list[Any] = []
    listen = sample._listen
    monkeypatch.setattr("builtins.input", lambda _: next(said))
    monkeypatch.setattr(sample, "_listen", lambda pod: sent.append(found := listen(pod)) or found)
    assert main(["chat", "--run", "talks", "--tokens", "12", "--seed", "1", "--system", "Be brief."]) == 0
    shown = capsys.readouterr().out
    first, *answers = sent
    assert first == ""
    assert len(answers) == 3
    assert all(answer in shown for answer in answers), "also where the conversation is longer than the positions"
    assert "runs/talks, step 20; an empty line ends it" in shown


def test_an_export_is_a_folder_that_transformers_loads(
    pods: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["export", "--dtype", "bf16"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("files in models/plain  (transformers.AutoModelForCausalLM.from_pretrained)\n")
    assert said.count("\n") == 1
    folder = tmp_path / "models" / "plain"
    net: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert str(net.dtype) == "torch.bfloat16"
    assert AutoTokenizer.from_pretrained(folder)("the light").input_ids  # pyrefly: ignore[not-callable]
    assert "step" in (folder / "README.md").read_text()
    assert main(["export"]) == 2
    assert "--to models/plain: holds " in capsys.readouterr().err


def test_an_export_may_stay_on_the_volume(
    pods: list[Any], volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(model_pod.ModelPod, "call", lambda _, *words, **given: asked.append((*words, given)))
    assert main(["export", "--on-volume", "models/mine"]) == 0
    assert asked == [("trainer.export", {"output": "/data/models/mine", "step": None, "merge": False, "dtype": "fp32"})]
    assert "--path training.model.name /data/models/mine" in capsys.readouterr().out, "not a name on the hub"


def worker(memory: str = "65536Mi", **annotations: str) -> dict[str, Any]:
    spec = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu"}],
        "containers": [{"resources": {"limits": {"memory": memory, "nvidia.com/gpu": "1"}}}],
    }
    return {"spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}}}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (worker(), ""),
        (worker("8192Mi"), "the model needs 55 GiB of memory, a worker has 8 (workers.memoryGib); `trainyard fetch`"),
        (worker(**{CONSUMES: "x"}), "the stack gets its nodes for a training alone (nodes.consumption queued)"),
    ],
)
def test_a_large_model_gets_a_workers_node_without_its_accelerators(
    job: dict[str, Any], said: str, pods: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = SimpleNamespace(read=lambda: (job, []))
    monkeypatch.setattr(TrainingJob, "of", lambda *_: api)
    monkeypatch.setattr(model_pod.ModelPod, "call", lambda *_, **__: None)
    read = runs.read
    monkeypatch.setattr(runs, "read", lambda *given: [replace(run, weights=32 << 30) for run in read(*given)])
    assert main(["sample", "--tokens", "2"]) == (1 if said else 0)
    assert said in capsys.readouterr().err
    if not said:
        spec = pods[-1]
        assert spec["nodeSelector"] == {"pool": "gpu"}
        assert spec["tolerations"] == [{"key": "gpu"}]
        assert set(spec["containers"][0]["resources"]["limits"]) == {"memory"}
        needed = round((model_pod.BASE_GIB + model_pod.COPIES * 32) * 1024)
        assert spec["containers"][0]["resources"]["requests"]["memory"] == f"{needed}Mi"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ([], "has no token of the hub; give one that may write, then `pulumi up`: pulumi config set --stack local"),
        ([{"name": "HF_TOKEN", "value": ""}], "the Hugging Face token is missing"),
    ],
)
def test_a_push_runs_in_a_pod_that_has_the_token(
    token: list[Any], said: str, pods: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/trainer/test_push.py has the hub's side."""
    monkeypatch.setattr(TrainingJob, "of", lambda *_: None)
    monkeypatch.setattr(export, "hub_token", lambda _: token)
    assert main(["push", "--repository", "me/mine"]) == 1
    assert said in capsys.readouterr().err
    assert [pod["containers"][0]["env"][:1] for pod in pods] == [token] * len(token)


def test_the_answer_of_a_pod_is_text_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [b"noise\n", json.dumps({"text": "a\x1b]52;c;x\x07b"}).encode() + b"\n", b'{"end": true}\n']
    assert sample._listen(SimpleNamespace(stdout=lines)) == "ab"
    assert "\x1b" not in capsys.readouterr().out
