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
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
#: Packages of the lock that serve torch's build for CUDA alone.
CUDA = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
#: Libraries of NVIDIA's that run without a device: CUDA's runtime, which says that there is none, and the profiler's.
KEPT = ("libcudart.so*", "libcupti.so*", "libcudnn.so*", "libcufile.so*")
#: Parts of torch that are loaded with a device, or compile torch itself.
UNUSED = ("lib/libtorch_cuda_linalg.so", "bin/protoc*")
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
    lock = FOLDER / "trainer.txt"
    if build == "cpu" and install_cpu_build(python):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as rest:
            rest.write("".join(each for each in requirements(lock.read_text()) if not CUDA.match(each)))
            rest.flush()
            # The lock is complete; resolving again would ask for a hash of the torch that is there.
            install(python, "--no-deps", "--require-hashes", "--requirement", rest.name)
    else:
        install(python, "--require-hashes", "--requirement", str(lock))
        if build == "cpu":
            prune(python)
    if build == "cpu":
        check(python)


def install(python: str, *arguments: str) -> None:
    # Hard links from the cache avoid a second copy of the files.
    command = ["uv", "pip", "install", "--python", python, "--link-mode", "hardlink", *arguments]
    subprocess.run(command, check=True)


def install_cpu_build(python: str) -> bool:
    """Install torch's own build for processors. Returns False, and says why, where its index does not give it."""
    try:
        install(python, "--torch-backend", "cpu", "--no-deps", "--requirement", str(FOLDER / "torch-cpu.txt"))
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


def prune(python: str) -> None:
    """Remove what a processor never loads of torch's build for CUDA: 4 of its 5 GB."""
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True).stdout.strip())
    subprocess.run(["uv", "pip", "uninstall", "--quiet", "--python", python, "triton"], check=True)
    torch, nvidia = site / "torch", site / "nvidia"
    for each in (path for pattern in UNUSED for path in torch.glob(pattern)):
        each.unlink()
    if not (shutil.which("readelf") and shutil.which("g++")):
        print("no compiler here: CUDA's libraries stay")
        return
    needed = {name for each in torch.glob("lib/*.so") for name in linked(each)}
    for file in [path for path in nvidia.rglob("*") if path.is_file()]:
        if any(file.match(pattern) for pattern in KEPT):
            continue
        if file.name in needed:
            replace(file)
        else:
            file.unlink()
    for each in torch.glob("lib/*.so"):
        # Debuggers' symbols, and the code for devices.
        subprocess.run(["objcopy", "--strip-all", "--remove-section=.nv_fatbin", each], check=True)


def linked(library: Path) -> list[str]:
    """Names of the libraries without which the dynamic linker does not load this one."""
    told = subprocess.run(["readelf", "--dynamic", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", told)


def replace(library: Path) -> None:
    """Put a library with the same symbols in its place, of which every function ends the process."""
    command = ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = re.findall(r"^\S+ [BDTVWu] ([^@\s]+)(?:@@?(\S+))?$", told, re.MULTILINE)
    source = "".join(f".globl {name}\n.type {name}, @function\n{name}:\n" for name, _ in symbols) + "ud2\n.zero 64\n"
    versions = {version: [name for name, of in symbols if of == version] for version in {of for _, of in symbols if of}}
    script = "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items())
    with tempfile.TemporaryDirectory() as folder:
        (assembly, map_file, made) = (Path(folder, name) for name in ("stub.s", "stub.map", "stub.so"))
        assembly.write_text(source)
        map_file.write_text(script)
        options = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["g++", "-shared", "-nostdlib", f"-Wl,-soname={library.name}", *options, assembly, "-o", made]
        subprocess.run(command, check=True)
        library.unlink()
        shutil.move(made, library)


if __name__ == "__main__":
    main(*sys.argv[1:])
