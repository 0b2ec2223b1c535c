"""What is done with a trained model: evaluate, sample, export; each from a run, a checkpoint and a plain HF folder."""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering, AutoTokenizer

from tests.trainer.processes import start_round
from tests.trainer.tasks.test_squad import QUESTIONS, encoder
from trainer import evaluate, sample
from trainer.data.batches import open_dataset
from trainer.export import __main__ as export
from trainer.models import loading

__all__ = ["encoder"]  # a fixture

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A finished run with checkpoints at steps 10, 20 and 25."""
    folder = tmp_path_factory.mktemp("runs") / "opticks"
    settings = f"""
        model.preset=tiny data.directory={dataset} run.directory={folder} steps=25 tokens_per_step=512
        sequence_length=32 micro_batch=2 precision=fp32 optimizer.learning_rate=0.01
        optimizer.warmup_steps=2 evaluation.batches=5 evaluation.sample_tokens=8 checkpoint.every_steps=10
        metrics.tensorboard=false
    """
    train(settings, folder.with_suffix(".log"))
    return folder


def train(settings: str, log: Path) -> None:
    workers = start_round(1, settings.split(), log)
    assert workers.wait(120) == [0], workers.output


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000025"


def fails(main: Any, arguments: list[str], capsys: Capture) -> str:
    """The one line that the command says when it ends with 2."""
    capsys.readouterr()
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def evaluated(arguments: list[Any], capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_gives_the_loss_that_training_saw(run: Path, capsys: Capture) -> None:
    found = evaluated(["--run", run], capsys)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    assert found["step"] == 25
    assert found["loss"] == seen[25]
    assert found["perplexity"] == pytest.approx(math.exp(seen[25]))
    assert found["tokens"] == 5 * 2 * 32
    told = [json.loads((run / name).read_text())["bits_per_byte"] for name in ("status.json", "DONE")]
    assert [found["bits_per_byte"]] * 3 == [*told, lines[-1]["bits_per_byte"]]
    earlier = evaluated(["--run", run, "--step", 10], capsys)
    assert earlier["step"] == 10
    assert earlier["loss"] > found["loss"]


def test_a_checkpoint_is_evaluated_without_the_file_that_deepspeed_was_configured_by(run: Path, tmp_path: Path) -> None:
    shutil.copytree(newest(run), tmp_path / "step")
    settings = tmp_path / "step" / "config.yaml"
    engine = "engine:\n  name: deepspeed\n  deepspeed_config: /gone/ds.json\n"
    text = re.sub(r"^engine:\n(  .*\n)+", "", settings.read_text(), flags=re.MULTILINE)
    settings.write_text(text + engine)
    options = argparse.Namespace(data=None, batches=None, sequence_length=None)
    source = loading.Source(str(tmp_path / "step" / "model"))
    assert evaluate._of_checkpoint(source, tmp_path / "step", options)[2].engine.name == "ddp"


def test_evaluate_takes_any_model_and_any_data(run: Path, dataset: Path, tmp_path: Path, capsys: Capture) -> None:
    plain = newest(run) / "model"
    moved = tmp_path / "elsewhere"
    shutil.copytree(dataset, moved)
    of_folder = evaluated(["--model", plain, "--data", moved, "--sequence-length", 32, "--batches", 0], capsys)
    of_run = evaluated(["--run", run, "--data", moved, "--batches", 0], capsys)
    assert of_folder["tokens"] == of_run["tokens"] > 5 * 2 * 32, "the whole split"
    assert of_folder["loss"] == pytest.approx(of_run["loss"], abs=1e-5)
    stream = open_dataset(str(dataset)).validation
    words = Tokenizer.from_file(str(dataset / "tokenizer.json"))
    text = words.decode([int(token) for token in stream.read(1, of_run["tokens"])])
    bits = of_run["loss"] * of_run["tokens"] / math.log(2) / len(text.encode())
    assert of_run["bits_per_byte"] == pytest.approx(bits)
    assert evaluate.main(["--run", str(run)]) == 0
    assert "perplexity" in capsys.readouterr().out


def test_sample_continues_the_prompt_and_the_seed_decides(run: Path, capsys: Capture) -> None:
    def drawn(*arguments: Any) -> str:
        capsys.readouterr()
        assert sample.main(["--run", str(run), "--prompt", "The Rays", "--tokens", "12", *map(str, arguments)]) == 0
        return capsys.readouterr().out.removesuffix("\n")

    assert drawn("--seed", 4).startswith("The Rays")
    assert len(drawn("--seed", 4)) > len("The Rays")
    assert drawn("--seed", 4) == drawn("--seed", 4)
    assert drawn("--seed", 4) != drawn("--seed", 5)
    texts = drawn("--count", 3).split("\n---\n")
    assert len(texts) == 3
    assert len(set(texts)) == 3
    likeliest = drawn("--temperature", 0)
    assert drawn("--top-k", 1, "--seed", 9) == likeliest
    assert drawn("--temperature", 1e-4, "--top-k", 0, "--seed", 9) == likeliest
    assert drawn("--top-p", 0.0001, "--top-k", 0, "--seed", 9) == likeliest, "the likeliest alone makes up so little"


def test_sample_reads_checkpoints_folders_and_stdin(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = set()
    for model in (["--run", run], ["--model", newest(run)], ["--model", newest(run) / "model"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("Light is"))
        assert sample.main([*map(str, model), "--prompt", "-", "--tokens", "5"]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1
    assert texts.pop().startswith("Light is")


@pytest.mark.parametrize(("dtype", "exact"), [("fp32", True), ("bf16", False)])
def test_an_exported_model_gives_our_logits(run: Path, tmp_path: Path, dtype: str, exact: bool) -> None:
    output = tmp_path / "model"
    assert export.main(["--run", str(run), "--output", str(output), "--dtype", dtype]) == 0
    theirs: Any = AutoModelForCausalLM.from_pretrained(output)
    assert theirs.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    ours: Any = AutoModelForCausalLM.from_pretrained(newest(run) / "model").eval()
    words: Any = AutoTokenizer.from_pretrained(output)
    tokens = words("The Rays of Light differ in Colour and Refrangibility.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        a, b = theirs.eval()(tokens).logits.float(), ours(tokens).logits
    assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=0.05)


def test_the_model_card_tells_what_it_is(run: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "model"
    assert export.main(["--run", str(run), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"wrote {output} from step 25\n"
    card = (output / "README.md").read_text()
    done = json.loads((run / "DONE").read_text())
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    assert "# opticks" in card
    assert "| step | 25 |" in card
    assert f"| tokens trained on | {25 * 512:,} |" in card
    assert f"| validation loss (nats) | {done['validation_loss']:.4f} |" in card
    assert f"| validation bits per byte | {done['bits_per_byte']:.4f} |" in card
    assert f"> {done['sample'].splitlines()[0]}" in card
    assert str(run.parent) not in card, "no folders of this machine"
    # The code in it works.
    code = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(output))
    exec(code, {})
    assert capsys.readouterr().out.startswith("The")


def test_export_writes_weights_alone_and_replaces_only_when_told(run: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "model"
    output.mkdir()
    (output / "precious").write_text("mine")
    common = ["--run", str(run), "--output", str(output)]
    assert "is there already" in fails(export.main, common, capsys)
    assert (output / "precious").read_text() == "mine"
    shutil.copytree(output, tmp_path / ".model.old")  # as a kill leaves it that comes while the old one is removed
    assert export.main([*common, "--safetensors-only", "--step", "10", "--force"]) == 0
    names = {path.name for path in output.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    assert list(tmp_path.iterdir()) == [output], "nothing is left beside it"


def test_a_chat_template_is_exported_with_the_tokenizer(run: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "chat", tmp_path / "exported"
    shutil.copytree(newest(run) / "model", source)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert export.main(["--model", str(source), "--output", str(output)]) == 0
    words: Any = AutoTokenizer.from_pretrained(output)
    assert words.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "Hi"


def test_an_adapter_whose_layers_have_other_names_is_refused(run: Path, tmp_path: Path, capsys: Capture) -> None:
    """peft skips tensors that it does not know, and the layers keep their initial values."""
    base, folder = newest(run) / "model", tmp_path / "adapter"
    net = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["c_fc"]))
    net.save_pretrained(str(folder))
    shutil.copy(base / "tokenizer.json", folder)
    command = ["--model", str(folder), "--base", str(base), "--tokens", "2"]
    assert sample.main(command) == 0
    tensors = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace("transformer.", "decoder."): value for name, value in tensors.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    assert "has no chat template" in fails(sample.main, [*command, "--chat"], capsys)
    assert "no adapter of GPT2LMHeadModel (8 tensors have no counterpart" in fails(sample.main, command, capsys)


def test_a_model_that_answers_questions_is_evaluated_and_exported_too(
    encoder: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "answers"
    settings = f"""
        task=question_answering model.name={encoder} run.directory={run} steps=2
        question_answering.train={QUESTIONS} question_answering.validation={QUESTIONS} sequence_length=64
        question_answering.document_stride=8 question_answering.question_tokens=16 micro_batch=5
        tokens_per_step=640 precision=fp32 metrics.tensorboard=false
    """
    train(settings, tmp_path / "log")
    done = json.loads((run / "DONE").read_text())
    found = evaluated(["--run", run], capsys)
    assert (found["loss"], found["f1"]) == (done["validation_loss"], done["f1"])
    assert found["perplexity"] is None
    assert "does not continue text" in fails(sample.main, ["--run", str(run)], capsys)
    output = tmp_path / "model"
    assert export.main(["--run", str(run), "--output", str(output)]) == 0
    assert AutoModelForQuestionAnswering.from_pretrained(output)
    assert AutoTokenizer.from_pretrained(output)("Which?")["input_ids"]  # pyrefly: ignore[not-callable]
    card = (output / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    assert f"| F1 | {done['f1']:.2f} |" in card
    assert str(tmp_path) not in card
    capsys.readouterr()
    exec(card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(output)), {})
    assert capsys.readouterr().out, "the code in it answers"


def test_what_is_wrong_with_the_source_is_said(run: Path, tmp_path: Path, capsys: Capture) -> None:
    def said(*arguments: Any) -> str:
        return fails(sample.main, [*map(str, arguments)], capsys)

    assert "is no folder; give the run.directory" in said("--run", tmp_path / "nowhere")
    assert "no checkpoint of that step; there are: 10, 20, 25" in said("--run", run, "--step", 7)
    assert "--step belongs to --run" in said("--model", newest(run), "--step", 10)
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (newest(damaged) / "model" / "model.safetensors").write_bytes(b"nonsense")
    assert "is damaged" in said("--run", damaged, "--step", 25)
    assert "is damaged" in said("--model", newest(damaged))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens", "0"], "--tokens 0: give a positive number"),
        (["--count", "2", "--temperature", "0"], "every text is the same"),
    ],
)
def test_sampling_options_are_checked(run: Path, arguments: list[str], said: str, capsys: Capture) -> None:
    assert said in fails(sample.main, ["--run", str(run), *arguments], capsys)


def test_evaluating_with_unfit_data_is_told(run: Path, dataset: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = newest(run) / "model"
    assert "--data is missing" in fails(evaluate.main, ["--model", str(folder)], capsys)
    assert "holds no index.json" in fails(evaluate.main, ["--run", str(run), "--data", str(tmp_path)], capsys)
    smaller = AutoModelForCausalLM.from_pretrained(folder)
    smaller.resize_token_embeddings(400)
    smaller.save_pretrained(tmp_path / "smaller")
    arguments = ["--model", str(tmp_path / "smaller"), "--data", str(dataset)]
    said = fails(evaluate.main, arguments, capsys)
    assert re.search(r"its largest token is 4\d\d, the model has 400", said)
