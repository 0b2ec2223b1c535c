"""LoRA: what is trained and saved, on any number of workers and engine; what peft makes of it; what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mamba.configuration_mamba import MambaConfig

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start, done, losses, newest, wait_until
from trainer import evaluate, sample
from trainer.checkpoint.format import list_checkpoints
from trainer.errors import UserError
from trainer.export import __main__ as export
from trainer.models import adapters, loading, networks
from trainer.models.adapters import Adapter
from trainer.models.causal import CausalModel
from trainer.train import resume
from trainer.train.loop import build_engine

Capture = pytest.CaptureFixture[str]
LORA = {"adapter__kind": "lora", "adapter__rank": 4, "optimizer__learning_rate": 1e-2, "evaluation__sample_tokens": 4}
INPUTS = torch.arange(40).reshape(2, 20)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "gpt2"
    networks.from_preset("tiny", 500, 0, seed=5).save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    shape = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def read(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def adapt(folder: Path, **changes: Any) -> tuple[Any, Adapter]:
    net = read(folder)
    return net, Adapter(net, toy.configuration(model__name=folder, adapter__kind="lora", **changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run that several tests look at, made by the first that needs it."""
    return {"folder": tmp_path_factory.mktemp("runs") / "lora"}


@pytest.fixture
def finished(run: dict[str, Path], gpt2: Path, start_workers: Start, settings: Settings) -> Path:
    folder = run["folder"]
    if not folder.exists():
        changes = {**LORA, "model__name": gpt2, "steps": 6, "adapter__dropout": 0.1, "evaluation__every": 3}
        workers = start_workers(1, settings(folder, **changes))
        assert workers.wait() == [0], workers.output
    return folder


def test_two_workers_that_are_killed_and_resume_make_the_steps_of_one(
    finished: Path, gpt2: Path, start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """With dropout: its draws depend on the micro-batch, not on the rank that computes it or on a resume."""
    changes = {**LORA, "model__name": gpt2, "adapter__dropout": 0.1, "checkpoint__every_steps": 2, "steps": 6}
    arguments = settings(tmp_path / "run", **changes)
    first = start_workers(2, arguments)
    wait_until(lambda: len(list_checkpoints(tmp_path / "run")) > 0, 60, "a checkpoint")
    first.kill()
    first.wait()
    again = start_workers(2, arguments)
    assert again.wait() == [0, 0], again.output
    assert "event=resume" in again.output
    ours, theirs = losses(tmp_path / "run"), losses(finished)
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert theirs[6] < theirs[1]
    weights = [load_file(newest(each).path / "model" / adapters.WEIGHTS) for each in (tmp_path / "run", finished)]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=2e-4)


def test_a_checkpoint_holds_the_adapter_alone_and_peft_opens_it(finished: Path, gpt2: Path) -> None:
    folder = newest(finished).path / "model"
    saved = load_file(folder / adapters.WEIGHTS)
    assert {name.rpartition(".lora_")[2] for name in saved} == {"A.weight", "B.weight"}
    assert all(value.dtype == torch.float32 for value in saved.values())
    assert any(value.abs().max() > 0 for name, value in saved.items() if "lora_B" in name), "nothing was learnt"
    size = sum(file.stat().st_size for file in newest(finished).path.rglob("*.safetensors"))
    assert size < 4 * sum(value.numel() for value in saved.values()) * 3 + 20_000, "the adapter and its two moments"
    described = json.loads((folder / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(gpt2)
    theirs = PeftModel.from_pretrained(read(gpt2), str(folder)).eval()
    ours = loading.load(loading.from_run(finished))
    with torch.no_grad():
        plain = read(gpt2)(input_ids=INPUTS).logits
        found = theirs(input_ids=INPUTS).logits
        torch.testing.assert_close(ours(input_ids=INPUTS).logits, found, rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 1e-3


def test_evaluate_sample_and_export_take_an_adapter_as_it_is(
    finished: Path, gpt2: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert done(finished)["adapter_of"] == str(gpt2)
    assert evaluate.main(["--run", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == done(finished)["validation_loss"]
    assert sample.main(["--run", str(finished), "--tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("The")

    whole, small = tmp_path / "whole", tmp_path / "small"
    assert export.main(["--run", str(finished), "--output", str(whole), "--merge"]) == 0
    assert export.main(["--run", str(finished), "--output", str(small), "--dtype", "bf16"]) == 0
    assert not list(whole.glob("adapter*"))
    assert load_file(small / adapters.WEIGHTS).popitem()[1].dtype == torch.bfloat16
    with torch.no_grad():
        expected = loading.load(loading.from_run(finished))(input_ids=INPUTS).logits
        torch.testing.assert_close(read(whole)(input_ids=INPUTS).logits, expected, rtol=1e-5, atol=1e-5)
        theirs = PeftModel.from_pretrained(read(gpt2), str(small)).eval()
        # Of the rounded adapter: a position whose hidden state is nearly constant makes much of a bit.
        same = PeftModel.from_pretrained(read(gpt2), str(newest(finished).path / "model")).eval()
        for name, value in same.named_parameters():
            value.copy_(value.bfloat16() if ".lora_" in name else value)
        torch.testing.assert_close(theirs(input_ids=INPUTS).logits, same(input_ids=INPUTS).logits, rtol=1e-5, atol=1e-5)
    for folder, words in ((whole, "made of an adapter of | gpt2"), (small, "adapter of | gpt2")):
        card = (folder / "README.md").read_text()
        assert words in card
        assert "`adapter.rank` | 4" in card
        assert ("AutoPeftModelForCausalLM.from_pretrained" in card) == (folder == small)


def test_a_missing_base_is_one_line_that_says_where_it_was_looked_for(
    finished: Path, gpt2: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(newest(finished).path / "model", tmp_path / "adapter")
    for name in (adapters.CONFIG, adapters.BASE):
        path = tmp_path / "adapter" / name
        path.write_text(path.read_text().replace(str(gpt2), "/gone/weights"))
    command = ["--model", str(tmp_path / "adapter"), "--tokens", "2"]
    assert sample.main(command) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert "the base model of this adapter is not in /gone/weights; give its folder" in said
    assert sample.main([*command, "--base", str(gpt2)]) == 0
    networks.from_preset("tiny", 500, 0, seed=6).save_pretrained(tmp_path / "another")
    assert sample.main([*command, "--base", str(tmp_path / "another")]) == 2
    assert "but the model found has other weights; name the right one with --base" in capsys.readouterr().err


class Batches:
    per_step = 4

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        tokens = np.random.default_rng([step, number]).integers(0, 100, (2, 9))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()


HALF: list[tuple[dict[str, Any], torch.dtype]] = [
    ({}, torch.float16),
    ({"engine__name": "deepspeed", "engine__zero_stage": 1}, torch.float16),
    ({"engine__name": "deepspeed", "engine__zero_stage": 2}, torch.bfloat16),
]


def half_precision(world: Any, given: tuple[dict[str, Any], torch.dtype, Path, str]) -> dict[str, Any]:
    """Three steps, and the third again from what a checkpoint of the second would hold."""
    changes, kind, folder, name = given
    config = toy.configuration(model__name=folder, adapter__kind="lora", **changes)

    def begin(saved: Path | None = None) -> tuple[Any, Adapter, Any]:
        net = read(folder)
        adapter = Adapter(net, config)
        if saved:
            adapter.load(saved)
        adapters.hold_frozen(net, kind)
        work = dataclasses.replace(toy.work(), net=net, module=CausalModel(net), batches=Batches(), items_per_step=64)
        return net, adapter, build_engine(work, config, world, kind)

    def frozen(net: Any) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in net.named_parameters() if not value.requires_grad}

    net, adapter, engine = begin()
    before = frozen(net)
    found = toy.steps(engine, world, 0, 2, Batches())
    state = engine.state()
    saved = folder.parent / name
    if world.first:
        saved.mkdir()
        adapter.save({name: value.detach().clone() for name, value in state.weights.items()}, saved)
        torch.save(state.optimizer, saved / "optimizer.pt")
    world.barrier()
    found += toy.steps(engine, world, 2, 3, Batches())
    _, _, again = begin(saved)
    again.load(torch.load(saved / "optimizer.pt"), state.state)
    return {
        "steps": found,
        "resumed": toy.steps(again, world, 2, 3, Batches())[0],
        "kinds": {value.dtype for value in before.values()},
        "unchanged": all(torch.equal(value, before[name]) for name, value in frozen(net).items()),
        "saved": {value.dtype for value in state.weights.values()},
    }


def test_in_half_precision_the_base_stays_as_it_was_and_the_adapter_fp32(llama: Path, tmp_path: Path) -> None:
    """With DDP, ZeRO-1 and ZeRO-2."""
    variants = [(*each, llama, f"saved-{number}") for number, each in enumerate(HALF)]
    by_worker = toy.drive(2, toy.in_turn, half_precision, variants, folder=tmp_path)
    # Two workers' gradient is that of one in fp32, but for rounding.
    alone = half_precision(toy.place(), ({}, torch.float32, llama, "alone"))
    for (_, kind), ours, other in zip(HALF, *by_worker, strict=True):
        assert ours["kinds"] == {kind}
        assert ours["unchanged"]
        assert ours["saved"] == {torch.float32}
        assert torch.equal(ours["resumed"]["weights"], ours["steps"][2]["weights"])
        for mine, theirs, reference in zip(ours["steps"], other["steps"], alone["steps"], strict=True):
            # With ZeRO in bf16 a worker computes with the fp32 weights, rounded.
            held = mine["weights"].bfloat16().float() if kind == torch.bfloat16 else mine["weights"]
            assert torch.equal(held, theirs["weights"])
            assert mine["skipped"] == 0
            assert kind == torch.bfloat16 or mine["norm"] == pytest.approx(reference["norm"], rel=0.02)


def test_fresh_adapters_are_equal_for_a_seed_and_change_nothing_yet(llama: Path, gpt2: Path) -> None:
    for folder in (llama, gpt2):
        (first, _), (second, _), (third, _) = (adapt(folder, run__seed=seed) for seed in (1, 1, 2))
        pairs = zip(*(adapters.trainables(net).values() for net in (first, second, third)), strict=True)
        assert {(torch.equal(one, two), torch.equal(one, three)) for one, two, three in pairs} == {
            (True, False),  # A
            (True, True),  # B is zero
        }
        with torch.no_grad():
            assert torch.equal(first(input_ids=INPUTS).logits, read(folder)(input_ids=INPUTS).logits)
        assert len(adapters.trainables(first)) == 2 * (4 if folder == gpt2 else 7) * 2, "two a linear layer"


def test_loss_and_gradients_are_those_of_peft_alone(llama: Path, tmp_path: Path) -> None:
    net, adapter = adapt(llama)
    torch.manual_seed(11)
    with torch.no_grad():
        for value in adapters.trainables(net).values():
            value.normal_(std=0.3)
    adapter.save({name: value.detach() for name, value in adapters.trainables(net).items()}, tmp_path)
    total = CausalModel(net)(INPUTS, INPUTS)
    total.backward()
    theirs = PeftModel.from_pretrained(read(llama), str(tmp_path), is_trainable=True)
    logits = theirs(input_ids=INPUTS).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, INPUTS.flatten(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-4)
    found = {adapters.PREFIX + name: value.grad for name, value in adapters.trainables(net).items()}
    wanted = {name: value.grad for name, value in theirs.named_parameters() if value.requires_grad}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_one_line(llama: Path, gpt2: Path, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"adapter.targets: q_prj names no layer of this model; it has down_proj, gate_p"
    ):
        adapt(llama, adapter__targets="q_prj,v_proj")
    with pytest.raises(UserError, match=r"adapter.targets: lm_head names no layer"):
        adapt(llama, adapter__targets="lm_head")
    chosen = adapters.trainables(adapt(llama, adapter__targets="q_proj, mlp.up_proj")[0])
    assert {name.split(".")[4] for name in chosen} == {"q_proj", "up_proj"}
    AutoModelForCausalLM.from_config(MambaConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "ssm")
    with pytest.raises(UserError, match=r"adapter.targets: all-linear does not fit a mamba model \(.*out_proj"):
        adapt(tmp_path / "ssm")
    _, wide = adapt(gpt2, adapter__rank=8)
    with pytest.raises(
        UserError, match=r"holds another adapter: .*lora_A.weight is \(4, 32\) there and \(8, 32\) here"
    ):
        wide.load(newest(finished).path / "model")
    _, other = adapt(llama)
    with pytest.raises(UserError, match=r"has other weights than the model that .* was trained on"):
        other.load(newest(finished).path / "model")
    for given in (finished, newest(finished).path, newest(finished).path / "model"):
        with pytest.raises(UserError, match=r"is an adapter, no whole model; make one of it with .*--merge"):
            networks.load(str(given), 100, 8, None)


@pytest.mark.parametrize("targets", ["all-linear", "q_proj, mlp.up_proj"])
def test_an_adapter_that_the_machine_cannot_hold_is_refused_before_it_is_made(
    targets: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = adapt(llama, adapter__targets=targets)
    room = 16 * sum(value.numel() for value in adapters.trained(made).values())
    monkeypatch.setattr("trainer.config.container.machine", lambda: room)
    adapt(llama, adapter__targets=targets)
    for rank in (17, 2**31 - 1):
        with pytest.raises(UserError, match=rf"adapter.rank: an adapter of rank {rank} has [\d,]+ numbers, which take"):
            adapt(llama, adapter__targets=targets, adapter__rank=rank)


def test_an_adapter_that_the_accelerator_cannot_hold_is_refused_although_the_host_can(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = adapt(llama)
    room = 16 * sum(value.numel() for value in adapters.trained(made).values())
    monkeypatch.setattr(adapters.capacity.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(adapters.capacity, "device_memory", lambda: float(room))
    adapt(llama)
    with pytest.raises(UserError, match=r"^adapter.rank: an adapter of rank 17 has .* the accelerator has [\d.]+"):
        adapt(llama, adapter__rank=17)


def test_a_checkpoint_of_another_kind_is_refused(finished: Path, gpt2: Path) -> None:
    with pytest.raises(UserError, match=r"is a checkpoint of adapter.kind=lora, not none; use another run.directory"):
        resume.load_weights(newest(finished), toy.work(), toy.configuration(model__name=gpt2))


def test_a_fingerprint_is_that_of_the_weights_and_not_of_their_files(llama: Path, tmp_path: Path) -> None:
    net = read(llama)
    net.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert adapters.fingerprint(read(tmp_path / "parts")) == adapters.fingerprint(net)
    with torch.no_grad():
        net.model.norm.weight.mul_(1.0001)
    assert adapters.fingerprint(net) != adapters.fingerprint(read(llama))


def test_what_was_fetched_from_the_hub_is_known_by_its_name_there(llama: Path, tmp_path: Path) -> None:
    (llama / "fetched.json").write_text(json.dumps({"model": "someone/llama"}))
    _, adapter = adapt(llama)
    (tmp_path / "adapter").mkdir()
    adapter.save({}, tmp_path / "adapter")
    assert adapters.described(tmp_path / "adapter") == "someone/llama"
    assert adapters.bases(tmp_path / "adapter") == [str(llama), "someone/llama"], "the folder first, then the hub"
