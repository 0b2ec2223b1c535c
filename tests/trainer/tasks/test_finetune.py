"""A model learns to answer: the loss is that of the answers at any number of workers; the run shows a conversation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.trainer import toy
from tests.trainer.conftest import Workers, losses, metrics
from trainer import prepare, report, sample
from trainer.config import schema
from trainer.data.batches import open_dataset
from trainer.data.packing import IGNORED, pack
from trainer.errors import UserError
from trainer.export import __main__ as export
from trainer.export import runs
from trainer.models import adapters, loading
from trainer.models.adapters import Adapter
from trainer.models.causal import CausalModel
from trainer.tasks import finetune, pretrain

Start = Callable[..., Workers]
Settings = Callable[..., list[str]]
COLOURS = ("red", "green", "blue", "violet", "white")
LENGTH = 96


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Conversations of several lengths, prepared."""
    folder = tmp_path_factory.mktemp("talks")
    lines = []
    for number in range(60):
        colour = COLOURS[number % 5]
        messages = [
            {"role": "user", "content": f"Which colour {'indeed ' * (number % 4)}is {number}?"},
            {"role": "assistant", "content": f"It is {colour}."},
        ]
        lines.append({"messages": messages * (1 + number % 2)})
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    prepare.prepare([str(path)], folder / "data", str(tokenizer), 0.2, documents="conversations")
    return folder / "data"


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}


def network(kind: str = "llama") -> Any:
    words = {
        "vocab_size": 500,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **words, **SHAPES[kind]), dtype=torch.float32)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A folder with a random Llama that reads the tokens of the tests."""
    folder = tmp_path_factory.mktemp("base")
    network().save_pretrained(folder)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    return folder


@pytest.fixture
def arguments(settings: Settings, talks: Path, base: Path) -> Settings:
    def build(run: Path, **changes: Any) -> list[str]:
        values = {"task": "finetune", "model__name": base, "data__directory": talks, "sequence_length": LENGTH}
        values |= {"tokens_per_step": 4 * LENGTH, "optimizer__learning_rate": 1e-2, "micro_batch": 2, **changes}
        return settings(run, **values)

    return build


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_packed_row_has_the_losses_of_its_conversations_one_by_one(talks: Path, kind: str) -> None:
    net = network(kind)
    dataset = open_dataset(str(talks), conversations=True)
    packed = pack(dataset.train, LENGTH, "training")
    rows = np.arange(len(packed))
    assert max(np.diff(packed.firsts)) > 1, "no window holds several conversations"
    with torch.no_grad():
        found = CausalModel(net)(*(torch.from_numpy(part) for part in packed.gather(rows)))
        expected = 0.0
        for start, size in zip(packed.starts, packed.sizes, strict=True):
            values = dataset.train.read(int(start), int(size))
            ids = torch.from_numpy((values & 0x3FFFFFFF).astype(np.int64))[None]
            labels = torch.where(torch.from_numpy(values >= 1 << 31)[None], ids, IGNORED)
            logits = net(ids[:, :-1]).logits
            expected += float(F.cross_entropy(logits[0], labels[0, 1:], ignore_index=IGNORED, reduction="sum"))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_what_closes_an_answer_is_looked_up_in_one_that_was_not_cut(
    talks: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """And is saved with the adapter: the model that is made of it stops there."""
    dataset = open_dataset(str(talks), conversations=True)
    longest = int(pack(dataset.validation, LENGTH, "validation").sizes.max())
    packed = pack(dataset.validation, longest - 2, "validation")
    assert packed.cut
    net = network()
    net.generation_config.eos_token_id = 2
    finetune.stop_after_answers(net, packed, tokenizer / "tokenizer.json")
    assert net.generation_config.eos_token_id == [0, 2]
    net.save_pretrained(tmp_path / "base")
    net.generation_config.eos_token_id = 2
    net.generation_config.save_pretrained(tmp_path / "base")
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapter = Adapter(net, toy.configuration(model__name=tmp_path / "base", adapter__kind="lora"))
    net.generation_config.eos_token_id = [0, 2]
    (tmp_path / "adapter").mkdir()
    adapter.save(adapters.trainables(net), tmp_path / "adapter")
    found = loading.load(loading.from_name(str(tmp_path / "adapter"), "--model"))
    assert found.generation_config.eos_token_id == [0, 2]


def test_all_tokens_that_close_answers_are_named_special_or_not(tokenizer: Path, tmp_path: Path) -> None:
    """Calls close with another token than answers (gpt-oss), which add_tokens() need not call special."""
    built = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    built.add_tokens(["[END]", "[CALL]", "[MORE]"])
    built.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role + ': ' }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}[CALL]"
        "{% else %}{{ m.content }}[END]{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "it"}}}]}
    asked, told = {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Yes, [MORE] it rains."}
    lines = [[asked, told]] * 2 + [[asked, call, {"role": "tool", "content": "yes"}, told]]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines * 20))
    data = tmp_path / "data"
    prepare.prepare(
        [str(path)], data, str(tmp_path), 0.2, documents="conversations", chat_template=tmp_path / "t.jinja"
    )
    packed = pack(open_dataset(str(data), conversations=True).train, 128, "training")
    net = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=2))
    finetune.stop_after_answers(net, packed, data / "tokenizer.json")
    assert net.generation_config.eos_token_id == [built.token_to_id("[END]"), built.token_to_id("[CALL]"), 2]


def test_any_workers_and_micro_batch_fsdp_and_a_resume_compute_the_same_run(
    start_workers: Start, arguments: Settings, tmp_path: Path
) -> None:
    started = {}
    for name, world, size, engine in (("one", 1, 2, "ddp"), ("two", 2, 1, "ddp"), ("divided", 2, 1, "fsdp")):
        changes = {"micro_batch": size, "engine__name": engine, "checkpoint__every_steps": 2 if name == "one" else 0}
        given = arguments(tmp_path / name, steps=4, evaluation__batches=64, **changes)
        started[name] = world, start_workers(world, given)
    found = {}
    for name, (world, workers) in started.items():
        assert workers.wait(120) == [0] * world, workers.output
        lines = metrics(tmp_path / name)
        found[name] = [
            line[key] for line in lines for key in ("loss", "gradient_norm", "validation_loss") if key in line
        ]
    assert found["two"] == pytest.approx(found["one"], rel=1e-4)
    assert found["divided"] == pytest.approx(found["one"], rel=1e-4)
    one, resumed = tmp_path / "one", tmp_path / "resumed"
    shutil.copytree(one / "checkpoints" / "step-00000002", resumed / "checkpoints" / "step-00000002")
    workers = start_workers(1, arguments(resumed, steps=4, evaluation__batches=64))
    assert workers.wait(120) == [0], workers.output
    assert losses(resumed) == {step: loss for step, loss in losses(one).items() if step > 2}
    first, second = (run / "checkpoints/step-00000004/model/model.safetensors" for run in (one, resumed))
    assert first.read_bytes() == second.read_bytes()
    # The loss of a step is the mean over its own answer tokens.
    work = finetune.make_work(schema.load(arguments(tmp_path / "fresh")))
    parts = [work.batches.get(0, number) for number in range(work.batches.per_step)]
    with torch.no_grad():
        total = sum(float(work.module(*map(torch.from_numpy, part))) for part in parts)
    answers = sum(int((part[1] != IGNORED).sum()) for part in parts)
    assert answers != work.items_per_step, "this step says nothing of the weight"
    assert losses(tmp_path / "one")[1] == pytest.approx(total / answers, rel=1e-5)


def test_the_model_learns_to_answer_and_the_run_shows_a_conversation(
    start_workers: Start, arguments: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    workers = start_workers(1, arguments(run, steps=40, evaluation__sample_tokens=12))
    assert workers.wait(120) == [0], workers.output
    assert workers.output.count("event=packed ") == 2
    done = json.loads((run / "DONE").read_text())
    assert done["validation_loss"] < 0.5 * done["initial_validation_loss"]
    asked, answered, wanted = done["sample"].split("\n\n--- the ")
    assert asked.startswith("### User:\nWhich colour")
    assert asked.endswith("?\n\n### Assistant:")
    assert answered.startswith("model answers\nIt is ")
    assert "###" not in answered, "the model does not stop after its answer"
    assert wanted.startswith("data answers\nIt is ")
    page = report.page(runs.read_runs([run]), "")
    assert "--- the model answers\nIt is " in page
    folder = Path(done["checkpoint"]) / "model"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    net: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Which colour is 7?"}], add_generation_prompt=True, return_tensors="pt"
    )
    output = net.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(output).startswith("It is ")
    capsys.readouterr()
    asked = ["--prompt", "Which colour is 7?", "--chat", "--temperature", "0", "--tokens", "20"]
    assert sample.main(["--run", str(run), *asked]) == 0
    said = capsys.readouterr().out
    assert said.startswith("It is ")
    assert said.strip() == tokenizer.decode(output, skip_special_tokens=True).strip()
    assert export.main(["--run", str(run), "--output", str(tmp_path / "model")]) == 0
    code = (tmp_path / "model" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    capsys.readouterr()
    exec(code.replace("FOLDER", str(tmp_path / "model")), {})
    assert "### User:\nWho are you?" in capsys.readouterr().out
    assert int(output[-1]) == tokenizer.eos_token_id


def test_data_of_another_kind_is_one_line(arguments: Settings, dataset: Path, talks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds text; for task=finetune prepare the data with --conversations"):
        finetune.make_work(schema.load(arguments(tmp_path, data__directory=dataset)))
    with pytest.raises(UserError, match="holds conversations; set task=finetune"):
        pretrain.make_work(schema.load(arguments(tmp_path, task="language_model")))
