"""How fast a stack trains, about: the arithmetic against the trainer's own, and a row for every machine."""

from __future__ import annotations

import pytest

from infra.clouds import CLOUDS
from infra.parse import parse
from infra.speed import flops_per_second, tokens_of, tokens_per_second
from infra.stackfiles import ROOT, stack_file_values
from trainer.config import memory
from trainer.config.schema import Config
from trainer.config.speed import flops_per_token, peak_of

MACHINES = {name: machine for cloud in CLOUDS.values() for name, machine in cloud.workers().items()}


def test_a_token_takes_the_flops_that_the_trainer_counts() -> None:
    """tests/trainer/models/test_model.py has the same figure of the network itself."""
    config = Config.model_validate({"model": {"preset": "small"}, "sequence_length": 1024})
    assert flops_per_token(memory.of_preset("small", 50257), config) == pytest.approx(855e6, rel=1e-3)


@pytest.mark.parametrize("name", sorted({machine.accelerator for machine in MACHINES.values() if machine.accelerator}))
def test_every_accelerator_that_trains_has_a_peak_and_a_share(name: str) -> None:
    machine = next(machine for machine in MACHINES.values() if machine.accelerator == name)
    of_eks = machine.name in CLOUDS["eks"].workers()
    stack = "aws-g4dn" if of_eks else "gcp-smoke"
    values = stack_file_values(stack)
    disk = machine.boot_disks[0]
    nodes = {"machineType": machine.name, "max": 1} | ({} if of_eks else {"diskType": disk})
    nodes |= {"consumption": machine.ways[0]} if machine.ways else {}
    config = parse(
        {**values, "nodes": nodes, "workers": {"count": 1}, "training": {"model": {"preset": "small"}}}, stack
    )
    found, peak = flops_per_second(config), peak_of(name)
    assert found
    assert peak
    assert 0 < found[0] < found[1] < peak * machine.accelerators


def test_the_local_stack_is_as_fast_as_it_was_seen_to_be_and_accelerators_of_an_existing_cluster_are_unknown() -> None:
    """README's transcript: 31,945 and 37,396 tokens/s on two cores."""
    values = stack_file_values("local")
    found = tokens_per_second(parse(values, "local"))
    assert found
    assert found[0] < 31_945 < 37_396 < found[1]
    assert tokens_per_second(parse({**values, "workers": {"gpus": 1, "processes": 1}}, "local")) is None


def test_the_shipped_stacks_take_what_the_documentation_says() -> None:
    """docs/costs.md: gcp-c3 1.3 to 2.1 hours, aws-g4dn 4 to 6 minutes."""
    for stack, (low, high) in {"gcp-c3": (1.3, 2.1), "aws-g4dn": (4 / 60, 6 / 60)}.items():
        config = parse(stack_file_values(stack), stack)
        rate, total = tokens_per_second(config), config.training.steps * config.training.tokens_per_step
        assert rate
        assert [total / each / 3600 for each in rate[::-1]] == pytest.approx([low, high], rel=0.1)


def test_the_sample_has_as_many_tokens_as_its_bytes_say() -> None:
    assert tokens_of((ROOT / "trainer" / "sample" / "opticks.txt").stat().st_size) == pytest.approx(147_255, rel=0.01)
