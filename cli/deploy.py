"""Run Pulumi in a CI job: `up`, `destroy` or `drift`, and `settle` after a job that was cancelled."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

from cli import CommandError
from cli.target import PROOF, RunningStack, StackName, configuration, known
from infra.config import StackConfig
from infra.eks.section import KEEP_RELEASES, EksConfig
from infra.stackfiles import ROOT

# GitHub cancels a step with SIGINT to its first process, SIGTERM 7.5 s later, and kills it and its children 2.5 s after
# that (docs.github.com/en/actions/reference/workflow-cancellation-reference, 2026-11-22). Steps with `if: cancelled()`
# then have five minutes. A killed Pulumi leaves the stack locked, and resources that its state does not know. So Pulumi
# runs in a session of its own and writes to a file. The step that follows the file may be killed; `settle` then waits
# until Pulumi has finished what it began.
app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode="markdown")
QUIET = ("--non-interactive", "--color", "never", "--suppress-outputs", "--suppress-progress")
COMMANDS = {
    "up": ("up", "--yes", "--skip-preview", "--policy-pack", "policy"),
    "destroy": ("destroy", "--yes", "--skip-preview"),
    "drift": ("preview", "--refresh", "--expect-no-changes", "--diff"),
}
#: Minutes for everything without a timeout key: control plane, nodes, image, storage (infra/scope.py, LONG).
MINUTES = {"up": 75, "destroy": 120, "drift": 30}
#: GitHub's limit for a job on its own machines, and the life of a job's AWS credentials, which nothing renews
#: (aws-actions/configure-aws-credentials#359), less 10 minutes for the steps before and after Pulumi.
JOB_MINUTES = 360 - 10
#: Of GitHub's five minutes, seconds that Pulumi gets to finish what it began, and then to give up.
PATIENCE, LAST = 210.0, 30.0
#: Pulumi prints this line once it holds the stack's lock (backend/diy/backend.go; with Pulumi Cloud a line earlier).
LOCKED = re.compile(r"^(Updating|Destroying) \(", re.MULTILINE)
#: Characters of the log on the summary page of a run.
SHOWN = 60_000


def minutes(command: str, config: StackConfig) -> int:
    """Time limit of a command: `up` waits for the dataset Job and the node check, not for the training."""
    limit = MINUTES[command]
    if command == "up":
        limit += config.dataset.timeout_minutes + (config.check.timeout_minutes if config.check.enabled else 0)
    return limit


def unreachable(config: StackConfig) -> str | None:
    """Why this machine cannot reach the cluster's API; None: it can. GKE admits IAM's principals from anywhere."""
    eks = config.cloud
    if not isinstance(eks, EksConfig):
        return None
    # Only EKS needs the AWS SDK.
    from infra.eks.doctor.aws_client import NoAnswer, connect, own_address

    allowed, address = eks.api_allowed_cidrs, own_address()
    if address and any(ipaddress.ip_address(address) in ipaddress.ip_network(cidr) for cidr in allowed):
        return None
    try:
        cluster = connect(eks.region).ask("eks", "describe_cluster", name=config.name)["cluster"]
    except NoAnswer:
        cluster = {}
    host = str(cluster.get("endpoint") or "").removeprefix("https://")
    if (host and _answers(host)) or (not host and not address):
        return None
    return (
        f"eks.apiAllowedCidrs: {', '.join(allowed)} excludes {address or 'the address'} of this machine, which cannot "
        "reach the cluster; set the variable RUNNER to a runner inside its network or with an allowed address "
        "(docs/operations.md)"
    )


def _answers(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=10).close()
    except OSError:
        return False
    return True


class Run:
    """One Pulumi process, which the starting and the settling step find through its files."""

    def __init__(self) -> None:
        folder = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir())
        self.log, self.pid_file = folder / "trainyard-pulumi.log", folder / "trainyard-pulumi.pid"
        self.told = folder / "trainyard-pulumi.told"

    def start(self, command: str, stack: str) -> subprocess.Popen[bytes]:
        arguments = ["pulumi", *COMMANDS[command], "--stack", stack, *QUIET]
        self.told.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                arguments,
                cwd=ROOT,
                # AWS publishes a new node image every few weeks: no drift.
                env={**os.environ, KEEP_RELEASES: "true"} if command == "drift" else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid_file.write_text(str(process.pid))
        return process

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def pid(self) -> int | None:
        """Process id of Pulumi while it runs."""
        try:
            pid = int(self.pid_file.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        return None if state == "Z" else pid

    def tell(self, number: int) -> None:
        if pid := self.pid():
            os.kill(pid, number)

    def kill(self) -> None:
        """Kill the whole session: a plugin has its own process group, and a survivor goes on making resources."""
        if session := self.pid():
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, ValueError):
                    if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                        os.kill(int(folder.name), signal.SIGKILL)

    def interrupt(self) -> None:
        """Send one SIGINT only: a second one makes Pulumi abandon what it has begun."""
        if not self.told.exists():
            self.told.touch()
            self.tell(signal.SIGINT)

    def ended(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True


def follow(run: Run, process: subprocess.Popen[bytes], limit: float) -> int:
    """Print Pulumi's output until it ends, or for `limit` seconds at most; return the exit code."""
    until, said = time.monotonic() + limit, 0
    while True:
        code = process.poll()
        text = run.text()
        print(text[said:], end="", flush=True)
        said = len(text)
        if code is not None:
            return code
        if time.monotonic() > until:
            print(f"error: not done after {limit / 60:g} minutes; interrupting Pulumi", file=sys.stderr, flush=True)
            return 1
        time.sleep(0.5)


def end(stack: str, run: Run, patience: float = PATIENCE, last: float = LAST) -> int:
    """Interrupt Pulumi and wait; kill it as the last resort, and unlock the stack if it held the lock."""
    run.interrupt()
    if not run.ended(patience):
        # The second SIGINT: Pulumi records its pending operations.
        run.tell(signal.SIGINT)
        if not run.ended(last):
            run.kill()
            run.ended(last)
            if LOCKED.search(run.text()):
                print(f"error: Pulumi did not end and was killed; {stack} is unlocked", file=sys.stderr)
                return subprocess.run(["pulumi", "cancel", "--yes", "--stack", stack], cwd=ROOT).returncode
    return 0


def pending(stack: str) -> list[str]:
    """Resources whose creation began and whose outcome Pulumi does not know; `destroy` only warns of them."""
    told = _pulumi("stack", "export", "--stack", stack, stdout=subprocess.PIPE).stdout
    found = json.loads(told)["deployment"].get("pending_operations") or []
    return [" ".join(operation["resource"]["urn"].split("::")[-2:]) for operation in found]


def _pulumi(*arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a short Pulumi command, which explains its failure on stderr. Raises CommandError."""
    done = subprocess.run(["pulumi", *arguments], cwd=ROOT, stdout=stdout, text=True)
    if done.returncode:
        raise CommandError(f"pulumi {' '.join(arguments)}: ended with {done.returncode}; mend what Pulumi says above")
    return done


def shortened(config: StackConfig) -> str:
    """Why a job ends after JOB_MINUTES; empty when it does not."""
    where = os.environ.get("RUNNER_ENVIRONMENT")  # set in GitHub's jobs alone
    if where and (isinstance(config.cloud, EksConfig) or os.environ.get("PULUMI_BACKEND_URL", "").startswith("s3://")):
        return "a job's AWS credentials last six hours, on every runner"
    if where == "github-hosted":
        return "GitHub's machines stop after six hours; your own, named in the variable RUNNER, do not"
    return ""


def change(command: str, stack: str, config: StackConfig, run: Run) -> int:
    limit = minutes(command, config)
    if limit > JOB_MINUTES and (reason := shortened(config)):
        print(
            f"warning: {command} may take {limit} minutes by dataset.timeoutMinutes and check.timeoutMinutes; it stops "
            f"after {JOB_MINUTES} minutes ({reason}); run it again to continue",
            flush=True,
        )
        limit = JOB_MINUTES
    if command == "up":
        _pulumi("stack", "select", "--create", stack)

    def leave(number: int, frame: Any) -> None:
        run.interrupt()
        sys.exit(128 + number)

    process = run.start(command, stack)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    code = follow(run, process, limit * 60)
    if process.poll() is None:
        end(stack, run)
    run.pid_file.unlink(missing_ok=True)
    if command == "destroy" and code == 0 and (left := pending(stack)):
        print(
            f"error: an earlier Pulumi was interrupted while creating {', '.join(left)}, which may exist outside the "
            f"state; look for it in the cloud, then `pulumi refresh --clear-pending-creates --stack {stack}`",
            file=sys.stderr,
        )
        code = 1
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a") as page:
            page.write(f"### pulumi {command} {stack}\n\n```\n{run.text()[-SHOWN:]}\n```\n")
    return code


@app.command()
def settle(stack: RunningStack) -> int:
    """Wait until a cancelled job's Pulumi has finished; leave no locked stack."""
    return end(stack, Run())


@app.command()
def reach(stack: StackName) -> None:
    """Check that this machine reaches a stack's cluster, as a job's runner must."""
    if problem := unreachable(configuration(stack)):
        raise CommandError(problem, code=2)


def _change(command: str, stack: str) -> int:
    # A cloud's cluster takes its objects with it (deletedWith), so destroy asks its API server for none of them and
    # works without access to it.
    if command != "destroy":
        reach(stack)
    return change(command, stack, configuration(known(stack.removeprefix(PROOF))), Run())


@app.command()
def up(stack: StackName) -> int:
    """Bring a stack up under the policy pack."""
    return _change("up", stack)


@app.command()
def destroy(stack: RunningStack) -> int:
    """Destroy a stack, or the stack of a proof that died (prove-STACK)."""
    return _change("destroy", stack)


@app.command()
def drift(stack: StackName) -> int:
    """Fail when the cloud differs from the stack."""
    return _change("drift", stack)
