"""Run a real one-node Kubernetes on this machine, with the toolchain that Pulumi needs."""

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from local import paths
from local.kubeconfig import CONTEXT
from local.phases import Phases
from local.shell import LocalError


class Commands(TyperGroup):
    """Print every error that a user can cause as lines that begin with `local:`."""

    def invoke(self, ctx: Any) -> int:
        # Plain `su` keeps the user's PATH, which lacks iptables, sysctl and dpkg's helpers.
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        try:
            return super().invoke(ctx) or 0
        except LocalError as error:
            return refuse([str(error)]) and 1
        except PermissionError as error:
            return refuse([f"{error.filename}: user {os.geteuid()} has no permission; run it with sudo"])
        except OSError as error:
            return refuse([f"{error.filename or 'this machine'}: {error.strerror or error}"]) and 1
        except KeyboardInterrupt:
            print("local: interrupted; run it again to continue", file=sys.stderr)
            return 130


app = typer.Typer(cls=Commands, help=__doc__, add_completion=False, rich_markup_mode="markdown")


def refuse(problems: list[str]) -> int:
    for problem in problems:
        print(f"local: {problem}", file=sys.stderr)
    return 2


@app.command()
def up(
    context: Annotated[
        str, typer.Option(help="The stack's kubeconfig context; any other than trainyard-local needs no node.")
    ] = CONTEXT,
    policies: Annotated[
        bool, typer.Option("--policies", help="Enforce network policies, as the clouds do, until the node stops.")
    ] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="Accept an old base image and a full disk.")] = False,
) -> int:
    """Build the toolchain and start the node, or repair them; safe to run at any time."""
    from infra.buildx import uses_buildkit
    from local import environment, preflight
    from local import up as orchestration

    began = time.monotonic()
    if context != CONTEXT:
        code = _build([], fetch=True)
        if not code and uses_buildkit() and not environment.fetch_plugin("docker-build"):
            lacking = "Pulumi's plugin docker-build, which builds the image with BuildKit, cannot be fetched"
            print(f"local: {lacking}; image.builder: buildah or prebuilt needs none", file=sys.stderr)
        return code
    enforcer = ("kube-router",) if policies else ()
    facts = preflight.gather((*preflight.toolchain.NODE_TOOLS, *environment.pulumi_tools(), *enforcer))
    if as_is:
        facts = replace(facts, disk_free=math.inf, cache_free=None)
    problems = preflight.node_problems(facts)
    if problems:
        return refuse(problems)
    if not as_is and (told := preflight.announcement(facts)):
        print(f"local: {told}", file=sys.stderr)
    with orchestration.exclusive():
        environment.prepare()
        orchestration.up(facts, Phases(), policies, as_is)
    took = f"{time.monotonic() - began:.1f} s"
    print(f"local: the node is ready ({took}); kubeconfig context {CONTEXT}", file=sys.stderr)
    return 0


@app.command()
def toolchain(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOOL", help="Default: what Pulumi needs.")] = None,
) -> int:
    """Build only the toolchain, without root."""
    return _build(names or [])


def _build(names: list[str], fetch: bool = False) -> int:
    """Build tools. `fetch`: of Pulumi's Kubernetes plugin ask the web first."""
    from local import environment, preflight
    from local import toolchain as tools
    from local import up as orchestration

    unknown = [name for name in names if name not in tools.BY_NAME]
    if unknown:
        return refuse([f"unknown tool '{unknown[0]}'; allowed: {', '.join(tools.BY_NAME)}"])
    wanted = tuple(names or environment.pulumi_tools())
    problems = preflight.toolchain_problems(preflight.gather(wanted))
    if problems:
        return refuse(problems)
    phases = Phases()
    environment.prepare()
    orchestration.build_all(names, phases)
    if not names or tools.PLUGIN in names:
        phases.say(f"local: {orchestration.build_pulumi(phases, fetch)}")
    return 0


@app.command()
def use(
    context: Annotated[
        str,
        typer.Argument(
            metavar="CONTEXT",
            help="A context of your kubeconfig, such as kind-kind; trainyard-local selects the local node again.",
        ),
    ],
    registry: Annotated[
        str | None,
        typer.Option(help="Where its nodes pull from, such as localhost:5001; another context's is not kept."),
    ] = None,
) -> int:
    """Let `make up` train on a cluster you have."""
    from infra.buildx import choose_builder
    from infra.config import ConfigError
    from infra.existing import find_context
    from infra.stackfiles import stack_file_values

    if registry and context == CONTEXT:
        return refuse([f"--registry {registry}: {CONTEXT} has a registry of its own; leave --registry out"])
    cluster: dict[str, Any] = {}
    if context != CONTEXT:  # the local node needs no stack file yet
        try:
            cluster = stack_file_values("local").get("cluster") or {}
            find_context(context, cluster.get("kubeconfig"), "local")
        except ConfigError as error:
            return refuse(error.lines)
    code = up(context) or _pulumi("stack", "select", "--create", "local")
    code = code or _pulumi("config", "set", "--stack", "local", "--path", "cluster.context", context)
    if registry and not code:
        code = _pulumi("config", "set", "--stack", "local", "--path", "image.registry", registry)
        try:
            builder = choose_builder(registry)
        except RuntimeError as error:
            raise LocalError(str(error)) from None
        if builder and not code:
            code = _pulumi("config", "set", "--stack", "local", "--path", "image.buildx", builder)
    # Another cluster's registry need not be reachable from this one: without any, the program asks for it in a line.
    keeps = registry or cluster.get("context") == context
    for key in () if keeps else ("registry", "buildx"):
        code = code or _pulumi("config", "rm", "--stack", "local", "--path", f"image.{key}")
    return code


def _pulumi(*arguments: str) -> int:
    from local import environment

    variables = environment.variables()
    program = shutil.which("pulumi", path=variables["PATH"]) or "pulumi"
    return subprocess.run([program, *arguments], env=variables, cwd=paths.ROOT).returncode


@app.command()
def down(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove .local too: images, cluster, Pulumi state, models; and Go's caches.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")] = False,
) -> int:
    """Stop the node; images, the cluster's objects and storage stay on disk."""
    from local import preflight, teardown
    from local import up as orchestration

    if everything and (living := teardown.living_stacks()):
        said = (
            "stack {} still has resources outside this node, and only {} has its state; destroy it first: "
            "trainyard local run -- pulumi destroy --stack {}"
        )
        return refuse([said.format(name, paths.PULUMI_STATE, name) for name in living])
    if everything and (mounted := teardown.storage_mounts()):
        return refuse([f"{mounted[0]} is mounted, and its files would go with .local: umount it first"])
    if not paths.STATE.exists():
        print("local: nothing here to stop", file=sys.stderr)
        return 0
    if everything and not yes and (refused := _unasked()):
        return refuse([refused])
    if sys.platform == "linux" and os.geteuid() != 0:
        if not paths.PROCESSES.exists():  # only a toolchain: it was built without root
            if everything:
                teardown.remove_state()
            return 0
        return refuse([f"the node was started by root; run it with sudo, {preflight.ALTERNATIVE}"])
    with orchestration.exclusive():
        if sys.platform == "linux":
            teardown.stop_node()
    if everything:
        teardown.remove_state()
    rest = f", .local is removed; the built programs stay in {paths.cache()}" if everything else ""
    print(f"local: the node is stopped{rest}", file=sys.stderr)
    return 0


def _unasked() -> str:
    """Ask whether .local may go; return why it may not, empty with consent. Nobody gets a model back."""
    runs = sorted(path.name for path in paths.STORAGE.glob("**/runs/*") if path.is_dir())
    lost = (
        f"{len(runs)} run{'s' * (len(runs) > 1)} with models ({', '.join(runs[:5])})"
        if runs
        else "images, caches and state"
    )
    if not sys.stdin.isatty():
        return f"{paths.STATE} holds {lost}; to remove it for good: make clean YES=1 (`make down` keeps it)"
    if typer.confirm(f"Remove {paths.STATE} for good, with {lost}?", err=True):
        return ""
    return f"{paths.STATE} is kept, and so is the node; `make down` stops it"


@app.command()
def status() -> int:
    """Show what runs; exit code 3 when something does not."""
    from local.up import show_status

    return show_status()


@app.command()
def env() -> None:
    """Print the local node's environment: `eval "$(trainyard local env)"`."""
    from local import environment

    environment.prepare()
    for name, value in environment.settings().items():
        print(f"export {name}={shlex.quote(value)}")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="After --, with its arguments.")]) -> int:
    """Run a command in the local node's environment."""
    from local import environment

    environment.prepare()
    variables = environment.variables()
    program = shutil.which(command[0], path=variables["PATH"])
    if program:
        sys.stdout.flush()
        os.execve(program, command, variables)
    return refuse([f"there is no program '{command[0]}' on PATH; `trainyard local up` makes the toolchain"])
