"""Whether this node's processor can do what the training was planned for, asked before anything else.

A training in bf16 on a processor without AMX runs, at a tenth of the speed, until somebody looks at the bill. Linux
lists what it may use in /proc/cpuinfo: a flag that the hypervisor or an old kernel hides is missing there, too.
"""

from pathlib import Path

from trainer.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
KNOWN = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
"""Flags that a training may ask for: the matrix units and vector registers that oneDNN's kernels differ by."""


def require(flag: str, cpuinfo: Path = CPUINFO) -> None:
    """Raise UserError when the processor lacks `flag`; "" asks for nothing."""
    if not flag:
        return
    model, flags = read(cpuinfo)
    if flag not in flags:
        present = [name for name in KNOWN if name in flags]
        raise UserError(
            f"require_capability: this node ({model}) has no {flag}, only {', '.join(present) or 'less'}; "
            "use a machine type that has it (amx_bf16: Sapphire Rapids, such as c3-highmem-8), or remove the setting"
        )


def read(cpuinfo: Path = CPUINFO) -> tuple[str, set[str]]:
    """Name and flags of the first processor."""
    model, flags = "unknown processor", set[str]()
    try:
        text = cpuinfo.read_text()
    except OSError:
        return model, flags
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
    return model, flags
