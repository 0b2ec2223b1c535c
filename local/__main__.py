"""`python -m local COMMAND`: a real one-node Kubernetes on this machine, with all that Pulumi needs to use it."""

import argparse
import os
import shlex
import shutil
import sys
import time

from rich.console import Console

from local import paths
from local.errors import LocalError
from local.phases import Phases, Timing, add, load, table


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make the toolchain and the node, or heal them; safe to run at any time")
    up.add_argument(
        "--context",
        default="trainyard-local",
        help="the kubeconfig context the stack uses; another than trainyard-local needs no node, so none is made",
    )
    up.add_argument(
        "--policies", action="store_true", help="enforce network policies, as the clouds do, until the node is stopped"
    )
    for command in (up, commands.add_parser("toolchain", help="make only the programs, without root")):
        command.add_argument("--download", action="store_true", help="let Pulumi fetch its real Kubernetes plugin")
        if command is not up:
            command.add_argument("names", nargs="*", metavar="NAME", help="which tools; default: what Pulumi needs")
    down = commands.add_parser("down", help="stop the node; images, the cluster's objects and storage stay on disk")
    down.add_argument("--all", action="store_true", help="remove .local too: images, cluster, Pulumi state, models")
    commands.add_parser("status", help="say what runs; exit code 3 when something does not")
    commands.add_parser("env", help='print the environment: eval "$(python -m local env)"')
    commands.add_parser("timings", help="print how long each phase took when it last ran")
    run = commands.add_parser("run", help="run a command in the environment")
    run.add_argument("--phase", help="keep the command's time in the timings, under this name")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    return top


def refuse(problems: list[str]) -> int:
    for problem in problems:
        print(f"local: {problem}", file=sys.stderr)
    return 2


def up(options: argparse.Namespace) -> int:
    from local import environment, preflight
    from local import up as orchestration
    from local.kubeconfig import CONTEXT

    began = time.monotonic()
    if options.context != CONTEXT:
        options.names = []
        return toolchain(options)
    pulumi = () if environment.installed_pulumi() else preflight.toolchain.PULUMI_TOOLS
    enforcer = ("kube-router",) if options.policies else ()
    facts = preflight.gather((*preflight.toolchain.NODE_TOOLS, *pulumi, *enforcer))
    problems = preflight.node_problems(facts)
    if problems:
        return refuse(problems)
    with orchestration.exclusive():
        phases = Phases(paths.TIMINGS)
        environment.prepare()
        try:
            orchestration.up(facts, phases, options.download, options.policies)
        finally:
            phases.save()
    if any(timing.seconds >= 1 for timing in phases.done):
        Console(stderr=True).print(table(phases.done))
    print(f"local: the node is ready ({time.monotonic() - began:.1f} s); kubeconfig context {CONTEXT}", file=sys.stderr)
    return 0


def toolchain(options: argparse.Namespace) -> int:
    from local import environment, preflight
    from local import toolchain as tools
    from local import up as orchestration

    unknown = [name for name in options.names if name not in tools.BY_NAME]
    if unknown:
        return refuse([f"{unknown[0]!r} is no tool; allowed: {', '.join(tools.BY_NAME)}"])
    names = tuple(options.names) or (() if environment.installed_pulumi() else tools.PULUMI_TOOLS)
    problems = preflight.toolchain_problems(preflight.gather(names))
    if problems:
        return refuse(problems)
    phases = Phases(paths.TIMINGS)
    environment.prepare()
    try:
        orchestration.build_all(names, phases)
    finally:
        phases.save()
    print(f"local: {environment.choose_plugin(options.download)}", file=sys.stderr)
    return 0


def down(options: argparse.Namespace) -> int:
    from local import preflight, teardown
    from local import up as orchestration

    if not paths.STATE.exists():
        print("local: nothing here to stop", file=sys.stderr)
        return 0
    if sys.platform == "linux" and os.geteuid() != 0:
        if not paths.PROCESSES.exists():  # a toolchain alone needed no root, so neither does its end
            if options.all:
                teardown.remove_state()
            return 0
        return refuse([f"the node was started by root; run it with sudo, {preflight.ALTERNATIVE}"])
    with orchestration.exclusive():
        if sys.platform == "linux":
            teardown.stop_node()
    if options.all:
        teardown.remove_state()
    print("local: the node is stopped" + (", .local is removed" if options.all else ""), file=sys.stderr)
    return 0


def status(_: argparse.Namespace) -> int:
    from local import status as report

    return report.show()


def env(_: argparse.Namespace) -> int:
    from local import environment

    environment.prepare()
    for name, value in environment.settings().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def timings(_: argparse.Namespace) -> int:
    Console().print(table(load(paths.TIMINGS)))
    return 0


def run(options: argparse.Namespace) -> int:
    import subprocess

    from local import environment

    command = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not command:
        return refuse(["run needs a command: python -m local run -- pulumi preview --stack local"])
    environment.prepare()
    variables = environment.variables()
    program = shutil.which(command[0], path=variables["PATH"])
    if not program:
        return refuse([f"there is no program {command[0]!r} on PATH; python -m local up makes the toolchain"])
    if not options.phase:
        sys.stdout.flush()
        os.execve(program, command, variables)
    began = time.time()
    code = subprocess.run([program, *command[1:]], env=variables).returncode
    add(paths.TIMINGS, Timing(options.phase, began, round(time.time() - began, 2)))
    return code if code >= 0 else 128 - code


def main() -> int:
    options = parser().parse_args()
    commands = {"up": up, "toolchain": toolchain, "down": down, "status": status, "env": env, "timings": timings}
    commands["run"] = run
    try:
        return commands[options.command](options)
    except LocalError as error:
        return refuse([str(error)]) and 1
    except PermissionError as error:
        return refuse([f"user {os.geteuid()} may not touch {error.filename}, which root's node made; run it with sudo"])
    except OSError as error:
        return refuse([f"{error.filename or 'this machine'}: {error.strerror or error}"]) and 1
    except KeyboardInterrupt:
        print("local: interrupted; run it again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
