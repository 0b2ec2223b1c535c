"""The type of the matrix products on each hardware, and why. Optimizer state and trained weights stay fp32.

| hardware                                   | auto | reason                                                |
|--------------------------------------------|------|-------------------------------------------------------|
| compute capability 8.0 on (A100, L4, H100) | bf16 | 16 times the fp32 rate; fp32's range, so no scaling   |
| compute capability 7.0, 7.5 (T4)           | fp16 | their only fast type; range 6e-8 to 65504, so scaled  |
| older accelerators                         | fp32 | no tensor cores                                       |
| CPU with AMX-BF16 (Xeon 4th gen, C3)       | bf16 | 16 times the fp32 rate                                |
| CPU with AVX512-BF16 (EPYC 4th gen)        | bf16 | 4 to 5 times the fp32 rate (bench/results)            |
| other CPUs                                 | fp32 | bf16 is emulated there, and slower than fp32          |

Hardware that torch has no code for is refused: its wheels for CUDA 13 begin with 7.5, which excludes the V100.
Products that stay fp32 use TF32 where it exists (compute capability 8.0 on): 10 bits of mantissa, fp32's range.
"""

from dataclasses import dataclass

import torch

from trainer.errors import UserError
from trainer.gpu_fit import runs_on
from trainer.models import attention

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Hardware:
    """What the choice depends on: made by `hardware`, or by hand to ask about another machine."""

    name: str
    capability: tuple[int, int] | None = None
    """CUDA compute capability; None on a CPU."""
    bf16_instructions: bool = False
    """Whether the CPU has AMX-BF16 or AVX512-BF16."""
    architectures: tuple[str, ...] = ()
    """The architectures that torch was built for, such as sm_80; empty if unknown."""


def hardware(device: torch.device) -> Hardware:
    if device.type == "cuda":
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        return Hardware(name, capability, architectures=tuple(torch.cuda.get_arch_list()))
    return Hardware("CPU", None, attention.has_bf16_units())


def choose(asked: str, machine: Hardware) -> tuple[str, str]:
    """The precision for precision=`asked` on `machine`, and the reason.

    Raises UserError for a precision that the machine cannot compute in.
    """
    capability = machine.capability
    if capability is None:
        if asked == "fp16":
            raise UserError("precision: fp16 needs an accelerator; use fp32, bf16 or auto on a CPU")
        if asked != "auto":
            slow = asked == "bf16" and not machine.bf16_instructions
            return asked, "asked for; emulated on this CPU and slower than fp32" if slow else "asked for"
        if machine.bf16_instructions:
            return "bf16", "the CPU multiplies bf16 natively"
        return "fp32", "the CPU has neither AMX-BF16 nor AVX512-BF16"
    if machine.architectures and not runs_on(capability, machine.architectures):
        raise UserError(
            f"{machine.name} (compute capability {capability[0]}.{capability[1]}): torch {torch.__version__} has no "
            f"code for it, only for {' '.join(machine.architectures)}; use a newer accelerator (T4, L4, A100 or "
            "later), or an image with a torch that was built for this one"
        )
    if asked == "bf16" and capability < (8, 0):
        raise UserError(
            f"precision: {machine.name} (compute capability {capability[0]}.{capability[1]}) has no bf16 units, "
            "which come with 8.0 (A100, L4); use fp16 or auto"
        )
    if asked != "auto":
        return asked, "asked for"
    if capability >= (8, 0):
        return "bf16", "tensor cores take bf16, which needs no loss scaling"
    if capability >= (7, 0):
        return "fp16", "tensor cores of this generation take fp16 only"
    return "fp32", "no tensor cores"
