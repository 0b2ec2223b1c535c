"""A preview refuses a model that no worker can hold and names what would fit; it accepts what fits or is unknown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import stack_file_values


def said(stack: str, training: dict[str, Any], **workers: Any) -> str:
    """The problems with memory, one per line; "": none."""
    values = stack_file_values(stack)
    values["workers"] = values["workers"] | workers
    values["training"] = values["training"] | {"microBatch": 1} | training
    values["nodes"] = values.get("nodes", {}) | ({"max": workers["count"]} if "count" in workers else {})
    try:
        parse({key: value for key, value in values.items() if value}, stack)
    except ConfigError as error:
        return "\n".join(line for line in error.lines if "GiB" in line)
    return ""


XL = {"model": {"preset": "xl"}}


def test_xl_under_ddp_needs_more_than_a_t4_and_what_would_fit_is_named() -> None:
    line = said("aws-g4dn", XL, count=4)
    assert line.startswith("training.engine.name: xl with ddp needs 36.2 GiB a worker, nvidia-tesla-t4 has 15; use ")
    assert "engine.name: fsdp on 4 workers (10.8 GiB), engine.name: fsdp on 4 workers with model.checkpointing" in line
    assert "lora" not in line, "an adapter is for weights that there are"
    assert "adapter.kind: lora (6.9 GiB)" in said("aws-g4dn", {"model": {"name": "gpt2-xl"}})
    assert said("gcp-a100", XL) == ""


def test_an_adapter_counts_by_rank_and_targets() -> None:
    def adapted(**adapter: Any) -> str:
        return said(
            "aws-g4dn",
            {"task": "finetune", "model": {"name": "Qwen/Qwen2.5-1.5B"}, "adapter": {"kind": "lora", **adapter}},
        )

    assert "adapter.rank: 16 (" in adapted(rank=1024)
    assert adapted(rank=16) == ""
    assert adapted(rank=1024, targets="q_proj,v_proj") == ""


def test_what_is_proposed_is_taken() -> None:
    machine = {"machineType": "g4dn.4xlarge", "alternatives": []}
    values = stack_file_values("aws-g4dn")
    training = values["training"] | XL | {"microBatch": 1, "engine": {"name": "fsdp"}}
    parse({**values, "nodes": values["nodes"] | machine, "workers": {"count": 4}, "training": training}, "aws-g4dn")


def test_a_checkpoint_has_to_fit_the_first_workers_host() -> None:
    """A g4dn.xlarge has 16 GiB; weights and moments of GPT-2 XL are 17."""
    line = said("aws-g4dn", XL | {"engine": {"name": "fsdp"}}, count=4)
    assert "workers.memoryGib: 1" in line
    assert "a checkpoint of xl takes 17.4 GiB of the first worker's host memory" in line


def test_on_processors_the_memory_of_the_pod_counts() -> None:
    assert said("local", {"model": {"preset": "micro"}}) == ""
    line = said("local", {"model": {"preset": "large"}})
    assert "training.engine.name: large with ddp needs" in line
    assert "workers.memoryGib is 2" in line


def test_a_run_that_may_just_fit_is_not_refused() -> None:
    """The formula counts what autograd keeps without the compiler, which keeps less."""
    large = {"model": {"preset": "large"}}
    needed = re.search(r"needs ([\d.]+) GiB", said("local", large))
    assert needed
    assert said("local", large, memoryGib=0.9 * float(needed[1])) == ""
    assert said("local", large, memoryGib=0.8 * float(needed[1])) != ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("meta-llama/Llama-2-7b-hf", "by the size in its name"),
        ("Qwen/Qwen2.5-0.5B", ""),
        ("gpt2", ""),
        ("mistralai/Mixtral-8x7B-v0.1", ""),
        ("somebody/model", ""),
        ("/data/weights/llama-70b", ""),
    ],
)
def test_a_name_on_the_hub_is_judged_by_the_size_in_it_or_not_at_all(name: str, told: str) -> None:
    line = said("aws-g4dn", {"model": {"name": name}})
    assert bool(line) == bool(told)
    assert told in line


def test_a_config_json_on_this_machine_is_read(tmp_path: Path) -> None:
    shape = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    shape |= {"intermediate_size": 14_336, "num_key_value_heads": 8, "vocab_size": 128_256}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"tie_word_embeddings": False}))
    line = said("gcp-a100", {"model": {"config": str(tmp_path / "config.json")}})
    assert "config.json with ddp needs" in line
    assert "fsdp on 16 workers" in line
    assert "by the size" not in line
