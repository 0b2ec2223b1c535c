"""The training that a stack file has commented out: it parses, and the documentation's figures are the program's."""

from __future__ import annotations

import re

import pytest
import yaml

from infra.config import StackConfig
from infra.parse import parse
from infra.stackfiles import ROOT, stack_file_values
from tests.infra.billed import estimate
from trainer.config import memory

#: From the models' config.json on the hub.
SHAPES = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": memory.Shape(1_100_048_384, 22, 2048, 32_000, tied=False),
    "Qwen/Qwen2.5-0.5B-Instruct": memory.Shape(494_032_768, 24, 896, 151_936),
}
PAGES = {"aws-g4dn": "aws", "gcp-c3": "gcp"}


def second(stack: str, **more: object) -> StackConfig:
    text = (ROOT / f"Pulumi.{stack}.yaml").read_text("utf-8")
    block = text[text.index("  # A second training") :]
    uncommented = re.sub(r"^  # ?", "", block[block.index("  # trainyard:") :], flags=re.MULTILINE)
    values = {key.removeprefix("trainyard:"): value for key, value in yaml.safe_load(uncommented).items()}
    return parse({**stack_file_values(stack), **values, **more}, stack)


@pytest.mark.parametrize("stack", PAGES)
def test_it_is_a_training_with_the_figures_of_its_page(stack: str) -> None:
    config = second(stack)
    training, workers = config.training, config.workers.count
    assert (training.task, training.adapter.kind) == ("finetune", "lora")
    shape, precision = SHAPES[training.model.name], training.precision
    needed = memory.needed(shape, training, precision, workers)
    bill = estimate(second(stack, nodes=stack_file_values(stack)["nodes"] | {"max": workers}))
    page = (ROOT / f"docs/{PAGES[stack]}.md").read_text("utf-8").partition("## Fine-tune a chat model")[2]
    trained = training.steps * training.tokens_per_step
    assert f"It needs {needed / 1e9:.1f} of " in page
    assert f"x {trained / 1e6:.1f} M tokens" in page
    assert f" at {bill.at_full:.2f} USD an hour." in page
