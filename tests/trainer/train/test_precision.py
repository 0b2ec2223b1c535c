"""The precision on machines that are not here: the choice is a function of what they can do."""

from __future__ import annotations

import pytest

from trainer.config.speed import device_peaks, peak_of
from trainer.errors import UserError
from trainer.train.precision import Hardware, choose

T4 = Hardware("Tesla T4", (7, 5))


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (Hardware("NVIDIA A100-SXM4-40GB", (8, 0)), "bf16"),
        (T4, "fp16"),
        (Hardware("Tesla V100-SXM2-16GB", (7, 0), architectures=("sm_70",)), "fp16"),
        (Hardware("Tesla P100", (6, 0)), "fp32"),
        (Hardware("CPU", None, bf16_instructions=True), "bf16"),
        (Hardware("CPU", None, bf16_instructions=False), "fp32"),
    ],
)
def test_auto_takes_the_fastest_type_that_the_hardware_has(machine: Hardware, chosen: str) -> None:
    assert choose("auto", machine)[0] == chosen


def test_bf16_on_a_t4_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match=r"Tesla T4 \(compute capability 7.5\) has no bf16 units.*use fp16 or auto"):
        choose("bf16", T4)


def test_an_accelerator_that_torch_has_no_code_for_is_refused_in_one_line() -> None:
    machine = Hardware("Tesla V100-SXM2-16GB", (7, 0), architectures=("sm_75", "sm_80"))
    said = r"^Tesla V100.*has no code for it, only for sm_75 sm_80; use a newer accelerator[^\n]*$"
    with pytest.raises(UserError, match=said):
        choose("fp32", machine)


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match="fp16 needs an accelerator"):
        choose("fp16", Hardware("CPU", None, True))


def test_bf16_on_a_cpu_without_its_instructions_is_allowed_and_called_slow() -> None:
    precision, reason = choose("bf16", Hardware("CPU"))
    assert precision == "bf16"
    assert "slower" in reason


def test_what_is_asked_for_is_given_where_it_can_be() -> None:
    assert choose("fp32", T4)[0] == "fp32"
    assert choose("fp16", Hardware("NVIDIA A100", (8, 0)))[0] == "fp16"


def test_a_device_name_finds_its_own_peak_first() -> None:
    """The names are searched in order: a general one must not hide a special one after it."""
    names = list(device_peaks())
    for number, name in enumerate(names):
        assert not any(earlier in name for earlier in names[:number]), name
    assert peak_of("NVIDIA H200") == 989e12
    assert peak_of("AMD Instinct MI300X") is None
    assert peak_of("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_of("NVIDIA L40") is None, "it is no L4"
    assert peak_of("NVIDIA A100-SXM4-40GB MIG 3g.20gb") is None, "it is a part of one"
