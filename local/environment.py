"""The environment by which Pulumi, kubectl and the tests find this checkout's toolchain, state and cluster."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from infra.private import private_folder
from local import images, network, paths, toolchain

USER_PULUMI = Path.home() / ".pulumi"
FETCH_SECONDS = 180


#: Stands for a program that Pulumi starts, and ends with it. A killed engine tells its language host nothing: that
#: asks after five minutes, waits for an answer, and ends half an hour later (pulumi sdk v3.79.0, rpcutil/health.go).
TIED = """\
#!/bin/sh
# Written by trainyard: the program beside this file ends with the process that started it.
exec setpriv --pdeathsig KILL "$(readlink -f "$0").real" "$@"
"""
#: The same for a script that is Python's argument: the user's program, which outlives its language host.
TIED_PYTHON = """\
#!/usr/bin/env python
# Written by trainyard: the program beside this file ends with the process that started it.
import ctypes, runpy
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL (linux/prctl.h)
runpy.run_path(f"{__file__}.real", run_name="__main__")
"""
#: Where a shell script starts Python as a child, which outlives it.
STARTS_PYTHON = re.compile(r'^( *)("\S+" -u -m pulumi\.)', re.MULTILINE)


def _outside_path() -> str:
    """Return PATH without our own directories, which `local run` adds: the programs of the machine itself."""
    ours = (str(paths.cache()), str(paths.STATE))
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if not part.startswith(ours))


def installed_pulumi() -> Path | None:
    """Find an installed Pulumi that can run Python programs. It is used as it is, and no other is built."""
    pulumi = shutil.which("pulumi", path=_outside_path())
    if not pulumi:
        return None
    beside = Path(pulumi).resolve().with_name("pulumi-language-python")
    if beside.exists() or shutil.which("pulumi-language-python", path=_outside_path()):
        return Path(pulumi)
    return None


def pulumi_tools() -> tuple[str, ...]:
    """List the tools to build for Pulumi: none where it is installed, because it downloads its plugin."""
    if installed_pulumi():
        return ()
    return toolchain.PULUMI_TOOLS if find_plugin("kubernetes") else (*toolchain.PULUMI_TOOLS, toolchain.PLUGIN)


def plugin_in(name: str) -> Path:
    """Return where our PULUMI_HOME has a plugin, in the version that the program requires."""
    folder = f"resource-{name}-v{version(f'pulumi-{name}')}"
    return paths.PULUMI_HOME / "plugins" / folder / f"pulumi-resource-{name}"


def find_plugin(name: str) -> Path | None:
    """Find a plugin, in the version that the program requires, where the engine looks for it."""
    plugin = plugin_in(name)
    if plugin.exists():
        return plugin
    found = shutil.which(f"pulumi-resource-{name}", path=_outside_path())
    return Path(found) if found else None


def install_plugin() -> Path:
    """Put the Kubernetes plugin that we built where the engine looks for it, as `pulumi plugin install` does."""
    built, plugin = Path(toolchain.program("pulumi-resource-kubernetes")), plugin_in("kubernetes")
    # One of this version that is there is as good: Pulumi's own download, or ours of before.
    if not plugin.exists():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        partial = plugin.with_name(f"{plugin.name}.{os.getpid()}")
        _link(partial, built)
        partial.replace(plugin)
        tie(plugin)
    return plugin


def _link(new: Path, old: Path) -> None:
    """Give a file another name, or copy it: to another file system, and on one that has no hard links."""
    try:
        new.hardlink_to(old)
    except OSError:
        shutil.copy2(old, new)


def share_plugins() -> None:
    """Let our PULUMI_HOME use the plugins that the user already has, unless it has some of its own."""
    link = paths.PULUMI_HOME / "plugins"
    if not (USER_PULUMI / "plugins").is_dir():
        return
    if not link.is_symlink():
        with contextlib.suppress(OSError):
            link.rmdir()
    if not link.exists():
        paths.PULUMI_HOME.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(USER_PULUMI / "plugins")


def fetch_plugin(name: str) -> Path | None:
    """Find a plugin, or download it. If it cannot be downloaded, print why and return None."""
    if found := find_plugin(name):
        return found
    wanted = version(f"pulumi-{name}")
    print(f"local: fetching Pulumi's plugin {name} {wanted}", file=sys.stderr)
    command = [shutil.which("pulumi", path=path()) or "pulumi", "plugin", "install", "resource", name, wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=variables(), timeout=FETCH_SECONDS)
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        told = str(error)
    if not (found := find_plugin(name)):
        print(f"local: Pulumi's plugin {name} {wanted}: not fetched: {told}", file=sys.stderr)
    return found


def path() -> str:
    """Return PATH with the toolchain's directories first. An installed Pulumi keeps precedence: ours is left out."""
    tools = ["kubernetes", "etcd"]
    if not installed_pulumi():
        tools = [*reversed(toolchain.PULUMI_TOOLS), *tools]
    first = [paths.BIN, *(toolchain.bin_directory(toolchain.BY_NAME[name]) for name in tools)]
    return os.pathsep.join([*(str(folder) for folder in first), _outside_path()])


def kubeconfig() -> str:
    """Return KUBECONFIG: our file first, then the user's, each once."""
    before = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    others = [part for part in before.split(os.pathsep) if part and part != str(paths.KUBECONFIG)]
    return os.pathsep.join([str(paths.KUBECONFIG), *others])


def no_proxy() -> str:
    before = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    parts = [part for part in before.split(",") if part and part != network.NODE_ADDRESS]
    return ",".join([*parts, network.NODE_ADDRESS])


def state_url(folder: Path) -> str:
    """Return the URL of a Pulumi backend in a folder, without an attribute file beside each of its files.

    Those files are not written atomically, and nothing reads them. A Pulumi that is killed meanwhile leaves an empty
    one, which makes the stack unreadable ("failed to load checkpoint: EOF"; gocloud.dev/blob/fileblob v0.37.0,
    setAttrs).
    """
    return f"{folder.as_uri()}?metadata=skip"


def variables() -> dict[str, str]:
    """Return the whole environment for a command that works with this checkout's local stack."""
    return {**os.environ, **settings()}


def settings() -> dict[str, str]:
    """Return the variables that differ from the caller's environment."""
    result = {
        "PATH": path(),
        "PULUMI_HOME": str(paths.PULUMI_HOME),
        "PULUMI_BACKEND_URL": state_url(paths.PULUMI_STATE),
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # At each command, the language host requests the plugin of every Pulumi package in the virtual environment,
        # including those of AWS and Google Cloud, which the local stack does not use.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "KUBECONFIG": kubeconfig(),
        "NO_PROXY": no_proxy(),
        "no_proxy": no_proxy(),
    }
    if paths.KUBECONFIG.exists():
        # These make buildah keep its layers in .local/ and use plain HTTP with our registry.
        result |= {k: v for k, v in images.buildah_environment().items() if k.startswith("CONTAINERS_")}
    return result


def prepare() -> None:
    """Make the directories that the settings name: Pulumi's file backend refuses a missing one."""
    private_folder(paths.STATE)  # Pulumi's state holds tokens and keys, and its passphrase is empty
    for folder in (paths.PULUMI_HOME, paths.PULUMI_STATE):
        folder.mkdir(exist_ok=True)
    _join_pulumi()


def tie(program: Path) -> None:
    """Let a program that Pulumi starts end with it, where Linux's setpriv is."""

    def start(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(len(TIED_PYTHON))

    def is_tied(path: Path) -> bool:
        return b"# Written by trainyard: " in start(path)

    if not (program.exists() and shutil.which("setpriv")) or is_tied(program):
        return
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        wrapper, same = Path(folder) / "wrapper", Path(folder) / "same"
        _link(same, program)
        first = start(same).partition(b"\n")[0]
        wrapper.write_text(TIED_PYTHON if first.endswith(b"python") else TIED)
        wrapper.chmod(0o755)
        # It may be tied by now: another command was faster.
        if not is_tied(same):
            real = program.with_name(f"{program.name}.real")
            same.replace(real)
            if first == b"#!/bin/sh":
                same.write_text(STARTS_PYTHON.sub(r"\1exec \2", real.read_text()))
                same.chmod(0o755)
                same.replace(real)
        wrapper.replace(program)


def _join_pulumi() -> None:
    """Link Pulumi into its language host's folder: Pulumi warns of each plugin that it finds elsewhere on PATH."""
    pulumi, host = (toolchain.BY_NAME[name] for name in toolchain.PULUMI_TOOLS)
    if not (toolchain.is_built(pulumi) and toolchain.is_built(host)):
        return
    for name in host.programs.keys() | {Path(path).name for _, path in host.scripts}:
        tie(toolchain.bin_directory(host) / name)
    built, beside = toolchain.bin_directory(pulumi) / "pulumi", toolchain.bin_directory(host) / "pulumi"
    if not (beside.exists() and beside.samefile(built)):
        with contextlib.suppress(FileExistsError):  # another command was faster
            beside.unlink(missing_ok=True)
            beside.hardlink_to(built)
