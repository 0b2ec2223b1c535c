"""Builds the toolchain and starts or repairs the node, from any state, with as much in parallel as possible."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from infra.private import private_folder
from infra.stackfiles import stack_file_values
from local import (
    api,
    certs,
    cgroups,
    credentials,
    environment,
    images,
    kubeconfig,
    leftovers,
    network,
    node,
    paths,
    preflight,
    processes,
    shell,
    teardown,
    toolchain,
)
from local.daemons import daemon
from local.kubeconfig import CONTEXT
from local.phases import Pace, Phases
from local.preflight import Facts
from local.processes import Daemon
from local.shell import LocalError
from trainer.contract import TRAINER_ID

T = TypeVar("T")
ENFORCER = "kube-router"
ENFORCER_READS = {
    "": ["pods", "namespaces", "nodes", "services", "endpoints"],
    "networking.k8s.io": ["networkpolicies"],
    "discovery.k8s.io": ["endpointslices"],
}


@contextmanager
def exclusive() -> Iterator[None]:
    """Let one `up` or `down` of a checkout run at a time; the second waits."""
    private_folder(paths.STATE)
    with (paths.STATE / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_tool(name: str, phases: Phases) -> None:
    tool = toolchain.BY_NAME[name]
    if toolchain.is_built(tool):
        return
    with phases.phase(f"build {name} {toolchain.version(tool)}") as progress:
        pace = Pace("packages")
        toolchain.build(tool, lambda count, total: progress(pace(count, total)))


def build_all(names: Sequence[str], phases: Phases) -> None:
    for name in names:
        build_tool(name, phases)


def build_pulumi(phases: Phases, fetch: bool = False, first: Callable[[], object] = lambda: None) -> str:
    """Build Pulumi unless it is installed, and get its Kubernetes plugin; return a line that names the plugin.

    The plugin is found, else downloaded by an installed Pulumi or to `fetch`, else built, after `first`.
    """
    if not (installed := environment.installed_pulumi()):
        build_all(toolchain.PULUMI_TOOLS, phases)
    environment.share_plugins()
    plugin = (environment.fetch_plugin if fetch or installed else environment.find_plugin)("kubernetes")
    if plugin is None:
        first()
        build_tool(toolchain.PLUGIN, phases)
        plugin = environment.install_plugin()
    return f"Kubernetes plugin: {plugin}"


def up(facts: Facts, phases: Phases, enforce: bool = False, as_is: bool = False) -> None:
    """Do everything, on a machine that passed preflight. `as_is`: the base image may be old."""
    if facts.packages_missing:
        with phases.phase(f"install {' '.join(facts.packages_missing)}"):
            shell.install(facts.packages_missing)
    with phases.phase("network namespace, certificates"):
        prepare()
    leftovers.remove_unused(phases)
    if processes.ensure(daemon("registry")):
        with phases.phase("registry"):
            processes.wait(daemon("registry"))
    with ThreadPoolExecutor() as pool:
        # Run two builds in parallel: while one links, on one processor, the other compiles. Programs that share most
        # packages follow each other, as the plugin Kubernetes, and etcd goes first, alone: two compilers that start
        # together compile the same. The images wait for network and disk more than they compute.
        etcd = pool.submit(build_tool, "etcd", phases)
        kubernetes = pool.submit(_after, etcd, lambda: build_all(("kubernetes", "coredns"), phases))
        pulumi = pool.submit(_after, etcd, lambda: build_pulumi(phases, first=kubernetes.result))
        base = pool.submit(make_base, phases, as_is)
        runtime = pool.submit(_after, base, start_runtime)
        trainer = pool.submit(make_trainer, phases, base, runtime) if facts.new_image and builds_trainer() else None
        kubernetes.result()
        start_node(phases, base, runtime)
        plugin = pulumi.result()
        if trainer is not None:
            trainer.result()
    if enforce or policies_wanted():
        enforce_policies(phases)
    phases.say(plugin)


def make_base(phases: Phases, as_is: bool) -> str:
    """Build and push the base image; return its reference."""
    if not images.base_tar_is_current(as_is):
        try:
            with phases.phase("install Debian into the base image"):
                images.make_base_tar()
        except LocalError as error:
            if not images.base_tar_is_current(any_age=True):
                raise
            phases.say(f"the base image stays as it is, older than {images.BASE_AGE // 86400} days: {error}")
    with phases.phase("base image"):
        return images.base()


def builds_trainer() -> bool:
    """Whether the local stack uses the image that is built here: it does unless its file has a section `image`."""
    try:
        return "image" not in stack_file_values("local")
    except (OSError, ValueError):
        return False  # the Pulumi program reports what is wrong


def make_trainer(phases: Phases, base: "Future[str]", runtime: "Future[None]") -> None:
    """Build the trainer's image while the node is built and starts, and pull it into containerd.

    `pulumi up` then finds the image. If the build failed, `pulumi up` explains it better.
    """
    base_image = base.result()
    from infra.image import build_ahead  # imports Pulumi, which takes time that a healthy node does not need

    with contextlib.suppress(RuntimeError, OSError):
        with phases.phase("trainer image") as progress:
            reference = build_ahead(
                base_image, network.REGISTRY, progress, images.buildah_environment(), str(credentials.file())
            )
        runtime.result()
        with phases.phase("trainer image on the node"):
            node.pull(reference)


def _after(first: "Future[Any]", then: Callable[[], T]) -> T:
    first.result()
    return then()


def start_runtime() -> None:
    """Start containerd, which is not built here: it can pull images while Kubernetes compiles."""
    start([node.containerd(images.pause())])


def start_node(phases: Phases, base: "Future[str]", runtime: "Future[None]") -> None:
    """Start the node. The last step needs `base`, the pushed base image; the kubelet needs `runtime`, containerd."""
    if processes.ensure(daemon("etcd")):
        with phases.phase("etcd"):
            processes.wait(daemon("etcd"))
    with ThreadPoolExecutor(max_workers=2) as pool:
        pushed = pool.submit(push_etcd, phases)
        with phases.phase("control plane"):
            api_started = start([apiserver()])
            start([daemon("kube-controller-manager"), daemon("kube-scheduler")])
            if api_started or not (paths.PROCESSES / "coredns.json").exists():
                node.grant_coredns()
        with phases.phase("node"):
            runtime.result()
            start([daemon("kubelet"), daemon("coredns"), daemon("kube-proxy")])
            await_ready()
    kubeconfig.write_user(base.result(), pushed.result())


def push_etcd(phases: Phases) -> str:
    with phases.phase("etcd image"):
        return images.etcd()


def start(daemons: list[Daemon]) -> bool:
    """Start the daemons that need it in parallel, and wait until all serve. Returns whether any was started.

    One that lives may not serve: the API server answers no write for seconds after etcd under it was healed.
    """
    started = [each for each in daemons if processes.ensure(each)]
    for each in daemons:
        processes.wait(each)
    return bool(started)


def prepare() -> None:
    """Prepare everything that the daemons need before they start."""
    if not network.exists() or network.owner() != str(paths.ROOT):
        # First start, a reboot, or a namespace that was deleted under the daemons: clean up all that is left.
        teardown.stop_node()
        if network.exists():  # another checkout's, without processes: preflight checked
            network.remove()
    paths.RUN.mkdir(mode=0o700, exist_ok=True)
    certs.ensure()
    cgroups.ensure()
    share_mounts()
    network.ensure()
    link_kubelet_root()
    own_storage()


def own_storage() -> None:
    """Give the shared volume to the training's user, which may write nowhere else: a hostPath volume has no fsGroup."""
    paths.STORAGE.mkdir(exist_ok=True)
    if paths.STORAGE.stat().st_uid != TRAINER_ID:
        subprocess.run(
            ["chown", "--recursive", "--no-dereference", f"{TRAINER_ID}:{TRAINER_ID}", paths.STORAGE], check=True
        )


def link_kubelet_root() -> None:
    paths.KUBELET_DATA.mkdir(parents=True, exist_ok=True)
    if not paths.KUBELET_ROOT.is_symlink() or os.readlink(paths.KUBELET_ROOT) != str(paths.KUBELET_DATA):
        paths.KUBELET_ROOT.unlink(missing_ok=True)
        paths.KUBELET_ROOT.symlink_to(paths.KUBELET_DATA)


def share_mounts() -> None:
    """Make the kubelet's mounts for a pod visible in containerd's mount namespaces, as systemd does at boot."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == "/":
            if not any(field.startswith("shared:") for field in fields[6 : fields.index("-")]):
                subprocess.run(["mount", "--make-rshared", "/"], check=True)
            return


def await_ready() -> None:
    try:
        processes.wait(replace(daemon("kubelet"), health=node.ready))
    except LocalError as error:
        raise LocalError(f"the node does not get ready: {error}") from None


def apiserver() -> Daemon:
    return daemon("kube-apiserver", api.apiserver_health)


def daemons() -> list[Daemon]:
    """List all daemons as they would start now, for `status`."""
    return [
        *map(daemon, ("registry", "etcd")),
        apiserver(),
        *map(daemon, ("kube-controller-manager", "kube-scheduler")),
        node.containerd(images.reference("pause") or ""),
        *map(daemon, ("kubelet", "coredns", "kube-proxy")),
        *([daemon(ENFORCER)] if policies_wanted() else []),
    ]


def policies_wanted() -> bool:
    """Whether an `up --policies` ran, and no `down` since."""
    return processes.read_record(ENFORCER) is not None


def enforce_policies(phases: Phases) -> None:
    """Make the node enforce network policies, as the clouds' networks do and its own bridge does not.

    Only kube-router's firewall runs. It writes iptables rules and IP sets for the pods of this node. It needs a moment
    for a new pod, and until then other pods reject that pod's packets.
    """
    if not shutil.which("ipset"):
        with phases.phase("install ipset"):
            shell.install(("ipset",))
    build_tool(ENFORCER, phases)
    node.grant(ENFORCER, ENFORCER_READS)
    with phases.phase("network policies"):
        if processes.ensure(daemon(ENFORCER)):
            processes.wait(daemon(ENFORCER))


def show_status() -> int:
    """Print which daemons run. Returns the exit code: 0 if all of them serve, else 3."""
    console = Console()
    needed = (*toolchain.NODE_TOOLS, *environment.pulumi_tools())
    unbuilt = [name for name in needed if not toolchain.is_built(toolchain.BY_NAME[name])]
    if not certs.MANIFEST.exists() or not network.exists() or network.owner() != str(paths.ROOT):
        other = preflight.other_checkout()
        then = f", once the node of {other} is stopped" if other else ""
        console.print(
            f"this checkout's node is not running; trainyard local up starts it{then}", markup=False, soft_wrap=True
        )
        if unbuilt:
            console.print(f"to be built: {', '.join(unbuilt)}", markup=False)
        return 3
    result = Table(title=f"local node, context {CONTEXT}", title_justify="left")
    for column in ("daemon", "process", "up, s", "health"):
        result.add_column(column)
    bad = False
    for each in daemons():
        record = processes.read_record(each.name)
        if not processes.is_alive(record) or record is None:
            result.add_row(each.name, "-", "-", "does not run")
            bad = True
            continue
        reason = each.health()
        bad = bad or reason is not None
        result.add_row(each.name, str(record.pid), f"{time.time() - record.since:.0f}", reason or "serves")
    console.print(result)
    reason = node.ready()
    console.print(f"node: {reason or 'ready'}", markup=False)
    if not reason:
        pods = api.get("/api/v1/pods")["items"]
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        console.print(f"pods: {len(pods)}, {running} running")
    return 3 if bad or reason else 0
