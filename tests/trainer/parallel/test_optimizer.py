"""The learning rate at the points that a person would check by hand, and DeepSpeed's to the last digit."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from trainer.config.settings import Optimizer
from trainer.parallel import muon
from trainer.parallel.optimizer import is_hidden_matrix, learning_rate, make_optimizers, set_learning_rate


def rates(schedule: str, steps: int = 100) -> list[float]:
    settings = Optimizer.model_validate(
        {"learning_rate": 1.0, "warmup_steps": 10, "schedule": schedule, "final_fraction": 0.1}
    )
    return [learning_rate(step, steps, settings) for step in range(steps + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
def test_the_warm_up_rises_linearly_to_the_peak(schedule: str) -> None:
    assert rates(schedule)[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates(schedule)) == 1.0


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1), ("wsd", 1, 0.1)]
)
def test_the_decay_passes_its_middle_and_ends_where_it_should(schedule: str, middle: float, end: float) -> None:
    values = rates(schedule)
    assert values[55] == pytest.approx(middle)
    assert values[100] == pytest.approx(end)
    assert values[10:] == sorted(values[10:], reverse=True)


def test_cosine_is_flat_at_both_ends_and_linear_is_not() -> None:
    cosine, linear = rates("cosine"), rates("linear")
    assert cosine[10] - cosine[14] < (linear[10] - linear[14]) / 4
    assert cosine[96] - cosine[100] < (linear[96] - linear[100]) / 4


def test_wsd_is_constant_until_its_last_fifth() -> None:
    values = rates("wsd")
    assert set(values[10:82]) == {1.0}, "90 steps after the warm-up, of which 18 decay"
    assert values[91] == pytest.approx(0.55)


def test_mistrals_log_line_is_reproduced_to_the_last_digit() -> None:
    """`step=150, skipped=17, lr=[0.0003537728376673855]`: skipped steps do not advance the schedule."""
    settings = Optimizer(learning_rate=6e-4, warmup_steps=4000, schedule="warmup_decay_log", schedule_steps=400_000)
    assert learning_rate(150 - 17, 400_000, settings) == 0.0003537728376673855


@pytest.mark.parametrize("kind", ["log", "linear"])
def test_every_rate_is_that_of_deepspeeds_own_scheduler(kind: str) -> None:
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    settings = Optimizer.model_validate(
        {"warmup_steps": 30, "schedule": f"warmup_decay_{kind}", "schedule_steps": 90, "final_fraction": 0.1}
    )
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = WarmupDecayLR(sgd, 90, warmup_max_lr=6e-4, warmup_num_steps=30, warmup_type=kind)
    for update in range(100):
        assert learning_rate(update, 1000, settings) == sgd.param_groups[0]["lr"]
        theirs.step()


def test_decay_shrinks_matrices_and_no_vectors() -> None:
    settings = Optimizer(learning_rate=0.1, weight_decay=0.5, beta1=0.8, beta2=0.9, epsilon=1e-3)
    net = torch.nn.Linear(3, 2)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    (adam,) = make_optimizers(net, settings)
    for value in net.parameters():
        value.grad = torch.zeros_like(value)
    set_learning_rate([adam], settings.learning_rate)
    adam.step()
    assert torch.allclose(net.weight, before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(net.bias, before["bias"])
    assert all((group["betas"], group["eps"]) == ((0.8, 0.9), 1e-3) for group in adam.param_groups)


@pytest.mark.parametrize(("family", "widths"), [("opt", {"ffn_dim": 16}), ("biogpt", {"intermediate_size": 16})])
def test_muon_leaves_embeddings_of_positions_to_adamw(family: str, widths: dict[str, int]) -> None:
    common = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **common, **widths, pad_token_id=None))
    hidden = {name for name, value in net.named_parameters() if is_hidden_matrix(net, name, value)}
    assert {name.split(".")[-2] for name in hidden} == {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}


@pytest.mark.parametrize("width", [16, 256])
@pytest.mark.parametrize("turned", [False, True])
def test_muon_changes_what_a_layer_gives_by_one_size_at_every_width(width: int, turned: bool) -> None:
    """The spectral norm is the rate's, times the root of out / in where that is more; Conv1D's matrices are turned."""
    for out, into in ((width, width), (4 * width, width), (width, 4 * width)):
        net = Conv1D(out, into) if turned else torch.nn.Linear(into, out, bias=False)
        before = net.weight.detach().clone()
        settings = Optimizer(name="muon", weight_decay=0)
        _, matrices = make_optimizers(torch.nn.Sequential(net, torch.nn.LayerNorm(out)), settings)
        net.weight.grad = torch.randn_like(net.weight)
        set_learning_rate([matrices], 0.1)
        matrices.step()
        largest = float(torch.linalg.matrix_norm(net.weight.detach() - before, 2))
        assert largest == pytest.approx(0.1 * max(1, out / into) ** 0.5, rel=0.25)


def test_muons_updates_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "product_type", lambda _: torch.bfloat16)
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6)) for _ in range(2))
    both = muon.Muon([ours], [], 0.1), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1)
    for step in range(3):
        for value, optimizer in zip((ours, theirs), both, strict=True):
            value.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            set_learning_rate([optimizer], 0.1)
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-3)
