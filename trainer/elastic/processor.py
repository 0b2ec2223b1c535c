"""This node's CPU: whether it has the feature that the training requires, and which core each thread runs on."""

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path

from trainer.contract import BIND_CORES
from trainer.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
OPENMP = {"OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""


def require_capability(flag: str, cpuinfo: Path = CPUINFO) -> None:
    """Raise UserError when the processor lacks `flag`; "" asks for nothing.

    On a CPU without AMX a bf16 training runs at a tenth of the speed, until somebody looks at the bill.
    """
    if not flag:
        return
    model, flags = read_processor(cpuinfo)
    if flag not in flags:
        raise UserError(
            f"require_capability: this node ({model}) has no {flag}; use a machine type that has it (amx_bf16: "
            "Sapphire Rapids, such as c3-highmem-8), or remove the setting"
        )


def read_processor(cpuinfo: Path = CPUINFO) -> tuple[str, set[str]]:
    """Name and usable flags of the first processor, without flags that the hypervisor or an old kernel hides."""
    try:
        first = cpuinfo.read_text().split("\n\n")[0]
    except OSError:
        first = ""
    lines = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    return fields.get("model name", "unknown processor"), set(fields.get("flags", fields.get("Features", "")).split())


def bind_workers(workers: int) -> None:
    """Have OpenMP, once it is loaded, bind its threads to cores, if the training owns them (BIND_CORES=1).

    Two threads that share a core share its matrix unit. Several workers on a node would all begin with the first core:
    they are left to the scheduler.
    """
    if os.environ.get(BIND_CORES) == "1" and workers == 1:
        for name, value in OPENMP.items():
            os.environ.setdefault(name, value)


def keep_memory() -> None:
    """Keep what is freed: otherwise glibc maps and clears pages for the large activations again at each step."""
    if "GLIBC_TUNABLES" not in os.environ:
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_MMAP_MAX, 0)
        allocator.mallopt(M_TRIM_THRESHOLD, -1)


def share_compilation(workers: int) -> None:
    """Divide this node's cores among the workers' compilers.

    Inductor starts a process for each core, up to 32, in every worker: 256 on a node with 8 accelerators
    (torch/_inductor/config.py, decide_compile_threads).
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(min(32, max(1, cores // workers))))


def own_compile_cache() -> None:
    """Keep what torch compiles in a folder of this user alone, unless the environment names one, as the image does.

    By default it is /tmp/torchinductor_NAME, which any account of the machine may have made first; it holds code.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "trainyard", "compiled").resolve()
    trusted = {os.getuid(), 0, os.stat("/").st_uid}  # in a user namespace root has another number
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = [each.stat() for each in (folder, *folder.parents)]
        # Whoever owns a folder above, or may write in it without a sticky bit, can put another in this one's place.
        own = all(each.st_uid in trusted and each.st_mode & 0o1002 != 0o002 for each in owned)
    except OSError:  # no home, or a read-only one
        own = False
    if not own:
        folder = Path(tempfile.mkdtemp(prefix="trainyard-compiled-"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def free_main_thread() -> None:
    """Let this process's main thread run on all cores of its parent; OpenMP's other threads stay where they are."""
    if os.environ.get(BIND_CORES) == "1" and "OMP_PROC_BIND" in os.environ:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
