"""Install the trainer's packages into its image: `install.py cuda|cpu PYTHON`, with uv on PATH.

cuda: the lock, requirements/trainer.txt. cpu: the lock with torch's own build for processors, or, where its index
cannot be reached, with the lock's torch less what a processor never loads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
#: Packages of the lock that serve torch's build for CUDA alone.
CUDA = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
#: Those that this build calls without a device: CUDA's runtime, which says that there is none, the profiler's library,
#: and that for files.
CALLED = re.compile(r"(torch|nvidia-(cuda-runtime|cuda-cupti|cufile))==")
#: Parts of torch that are loaded with a device, or compile torch itself.
UNUSED = ("lib/libtorch_cuda_linalg.so", "bin/protoc*")
#: NVIDIA's other libraries, without which torch's are not loaded. libcuda is the driver's.
DEVICE = re.compile(r"lib(cu(?!da\.)|nccl|nv)")
#: What makes a library in the place of one of NVIDIA's.
TOOLS = ("g++", "nm", "objcopy", "readelf")
#: Trains one step in bf16, compiled where there is a compiler.
CHECK = """
import shutil, torch
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
optimizer = torch.optim.AdamW(model.parameters())
before = model[0].weight.clone()
run = torch.compile(model) if shutil.which("g++") else model
with torch.autocast("cpu", torch.bfloat16):
    loss = (run(torch.randn(8, 16)) - 1).pow(2).mean()
loss.backward()
optimizer.step()
assert loss.isfinite() and not model[0].weight.equal(before), loss
import deepspeed
print(f"torch {torch.__version__} trains on this processor")
"""


def main(build: str, python: str) -> None:
    if build not in ("cpu", "cuda"):
        sys.exit(f"TORCH: '{build}' is no build of torch; allowed: cpu, cuda")
    lock = list(requirements((FOLDER / "trainer.txt").read_text()))
    if build == "cuda":
        install_locked(python, lock)
    elif install_cpu_build(python):
        install_locked(python, [each for each in lock if not CUDA.match(each)])
    elif missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        print(f"no {', '.join(missing)} here: CUDA's libraries stay")
        install_locked(python, [each for each in lock if not each.startswith("triton==")])
    else:
        # 15 MB of NVIDIA's packages are downloaded, and not triton.
        install_locked(python, [each for each in lock if not CUDA.match(each) or CALLED.match(each)])
        shrink(python)
    if build == "cpu":
        check(python)


def install(python: str, *arguments: str) -> None:
    # Hard links from the cache avoid a second copy of the files.
    command = ["uv", "pip", "install", "--python", python, "--link-mode", "hardlink", *arguments]
    subprocess.run(command, check=True)


def install_locked(python: str, lines: list[str]) -> None:
    """Install these requirements of the lock, with their hashes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(lines))
        file.flush()
        # The lock is complete; resolving again would ask for what was left out.
        install(python, "--no-deps", "--require-hashes", "--requirement", file.name)


def install_cpu_build(python: str) -> bool:
    """Install torch's own build for processors. Returns False, and says why, where its index does not give it."""
    wanted = FOLDER / "torch-cpu.txt"
    if "--hash" not in wanted.read_text():
        print(
            "torch's build for processors is not checked against hashes: torch-cpu.txt has none; `make lock` adds them"
        )
    try:
        install(python, "--torch-backend", "cpu", "--no-deps", "--requirement", str(wanted))
    except subprocess.CalledProcessError:
        print("torch's index for processors does not give this version: the lock's torch is installed and made smaller")
        return False
    return True


def check(python: str) -> None:
    """Train a step and import DeepSpeed. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        # One thread: each process of torch's pool of compilers imports torch, for two kernels.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment["DS_ACCELERATOR"] = "cpu"
        subprocess.run([python, "-c", CHECK], check=True, env=environment)


def requirements(lock: str) -> Iterator[str]:
    """Each requirement of a lock, with the lines of its hashes."""
    return (each[0] for each in re.finditer(r"^[^\s#].*\n(?:[ \t].*\n?)*", lock, re.MULTILINE))


def shrink(python: str) -> None:
    """Make torch's build for CUDA load without NVIDIA's libraries, and remove its code for devices."""
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    torch = Path(output(python, "-c", purelib).strip(), "torch")
    for each in (path for pattern in UNUSED for path in torch.glob(pattern)):
        each.unlink()
    libraries = sorted(torch.glob("lib/*.so"))
    others = [*torch.glob("lib/*.so.*"), *torch.parent.glob("nvidia/**/*.so*")]
    for name, symbols in absent(libraries, others).items():
        stand_in(torch / "lib" / name, symbols)
    for each in libraries:
        # Debuggers' symbols, and the code for devices.
        subprocess.run(["objcopy", "--strip-all", "--remove-section=.nv_fatbin", each], check=True)


def absent(libraries: list[Path], others: list[Path]) -> dict[str, dict[str, set[str]]]:
    """NVIDIA's libraries with which `libraries` are linked and that are not there -> version -> symbols they need."""
    there = {each.name for each in others}
    defined = {name for each in (*libraries, *others) for _, name, _ in symbols_of(each, "--defined-only")}
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for library in libraries:
        needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", output("readelf", "--dynamic", library))
        linked = {name for name in needed if DEVICE.match(name)} - there
        files = output("readelf", "--version-info", library).split("File: ")[1:]
        versions = {each.split()[0]: re.findall(r"Name: (\S+)", each) for each in files}
        undefined = symbols_of(library, "--undefined-only")
        for each in linked:
            symbols = found[each]  # made also where no symbol is asked
            # A symbol without a version may be of any library without versions.
            asked = versions.get(each, [""])
            for kind, name, version in undefined:
                if kind == "U" and version in asked and (version or name not in defined):
                    symbols[version].add(name)
    return found


def symbols_of(library: Path, which: str) -> list[tuple[str, str, str]]:
    """Kind, name and version, or "", of symbols for the dynamic linker."""
    told = output("nm", "--dynamic", which, "--with-symbol-versions", library)
    return re.findall(r"^(?:\S+)? +([A-Za-z]) ([^@\s]+)(?:@@?(\S+))?$", told, re.MULTILINE)


def stand_in(library: Path, symbols: dict[str, set[str]]) -> None:
    """Make a library with these symbols by version, of which every function ends the process."""
    names = [name for each in symbols.values() for name in sorted(each)]
    source = "static void trap(void) { __builtin_trap(); }\n"
    source += "".join(f'void {name}(void) __attribute__((alias("trap")));\n' for name in names)
    with tempfile.NamedTemporaryFile("w", suffix=".map") as versions:
        versions.writelines(f"{version} {{ {'; '.join(each)}; }};\n" for version, each in symbols.items() if version)
        versions.flush()
        options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname={library.name}"]
        options += [f"-Wl,--version-script={versions.name}"] if any(symbols) else []
        subprocess.run(["g++", "-x", "c", "-", *options, "-o", library], check=True, text=True, input=source)


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
