"""Fine-tuning on the real node: upload an own model and conversations, change four keys, fetch an adapter.

The model is a tiny Llama with random weights, so it has learnt here what it answers at the end.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.stack import Stack
from infra.stackfiles import ROOT, stack_file_values
from local import paths
from tests.e2e.conftest import succeed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NAME = f"chat-{uuid.uuid4().hex[:8]}"
PYTHON = str(ROOT / ".venv/bin/python")
COLOURS = {"apples": "red", "leaves": "green", "the sky": "blue", "lemons": "yellow"}
"""What the model has to learn by heart."""
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def question(thing: str) -> dict[str, str]:
    return {"role": "user", "content": f"What colour has {thing}?"}


def answer(thing: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"The colour of {thing} is {COLOURS[thing]}."}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as the hub would give it, with a tokenizer other than GPT-2's."""
    import torch
    from tokenizers import AddedToken
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    built = ByteLevelBPETokenizer()
    text = [message["content"] for thing in COLOURS for message in (question(thing), answer(thing))]
    special: list[str | AddedToken] = ["<|end|>", "<|user|>", "<|assistant|>"]
    built.train_from_iterator(iter(text * 3), vocab_size=400, special_tokens=special, show_progress=False)
    ends = {"bos_token": "<|end|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=built._tokenizer, **ends)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    # A wider initialisation than usual: a frozen head of small random weights cannot tell tokens apart.
    net = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, initializer_range=0.2, **shape, **heads)
    )
    folder = tmp_path_factory.mktemp("model") / NAME
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / f"{NAME}.jsonl"
    lines = [json.dumps({"messages": [question(thing), answer(thing)]}) for thing in COLOURS]
    path.write_text("\n".join(lines * 25) + "\n")
    return path


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Iterator[Stack]:
    """The stack with the training of its own file and default names."""
    stack.values = {**stack.values, "training": stack_file_values("local")["training"]}
    del stack.values["dataset"], stack.values["job"]
    yield stack
    for folder in paths.STORAGE.glob(f"**/{NAME}*"):
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink(missing_ok=True)


def test_four_keys_fine_tune_a_model_of_ones_own(stack: Stack, model: Path, chats: Path) -> None:
    for source, more in ((model, ("--to", f"models/{NAME}")), (chats, ())):
        succeed(stack, "upload", str(source), *more)
    four: dict[str, Any] = {
        "task": "finetune",
        "model": {"name": f"/data/models/{NAME}"},
        "adapter": {"kind": "lora"},
    }
    # tokensPerStep holds one window for each of two workers. After so many steps the model knows the answers.
    short = {
        "steps": 250,
        "tokensPerStep": 256,
        "microBatch": 1,
        "evaluation": {"every": 125, "batches": 2},
        "checkpoint": {"everySteps": 125},
        "metrics": {"every": 1},
    }
    stack.write(workers={"count": 2, "cpu": 0.2, "memoryGib": 2}, dataset={"input": [chats.name]})
    stack.write(training=four | short)
    stack.up()
    succeed(stack, "follow")
    index = json.loads(next(paths.STORAGE.glob(f"datasets/{NAME}-*[0-9a-f]/index.json")).read_text())
    assert index["documents"] == 25 * len(COLOURS)


def test_the_adapter_comes_to_this_machine_and_answers_with_peft(stack: Stack, model: Path, tmp_path: Path) -> None:
    fetched = succeed(stack, "fetch", "--to", str(tmp_path / "run"))
    adapter = tmp_path / "run" / "model"
    assert str(adapter) in fetched
    assert "peft" in fetched
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in adapter.iterdir()
    }
    assert not (adapter / "model.safetensors").exists(), "the frozen weights are where they were"
    program = """
import json, sys
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
model, adapter, questions = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(adapter)
net = AutoModelForCausalLM.from_pretrained(model)
def answers():
    said = []
    for messages in json.loads(questions):
        asked = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        words = tokenizer.apply_chat_template(messages, **asked)
        tokens = net.generate(**words, max_new_tokens=24, do_sample=False)[0, words["input_ids"].shape[1]:]
        said.append(tokenizer.decode(tokens, skip_special_tokens=True))
    return said
before = answers()
net = PeftModel.from_pretrained(net, adapter)
print(json.dumps([before, answers()]))
"""
    asked = json.dumps([[question(thing)] for thing in COLOURS])
    command = [PYTHON, "-c", program, str(model), str(adapter), asked]
    done = stack.run(command, timeout=300)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    expected = [answer(thing)["content"] for thing in COLOURS]
    assert after == expected
    assert not {*before} & {*expected}, "what it says it has learnt"
