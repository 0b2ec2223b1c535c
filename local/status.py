"""Prints what runs and what does not."""

import time

from rich.console import Console
from rich.table import Table

from local import api, certs, network, node, paths, preflight, processes, toolchain, up
from local.kubeconfig import CONTEXT


def show() -> int:
    """Exit code: 0 when everything serves, 3 when not."""
    console = Console()
    unbuilt = [
        name
        for name in (*toolchain.NODE_TOOLS, *toolchain.PULUMI_TOOLS)
        if not toolchain.is_built(toolchain.BY_NAME[name])
    ]
    if not certs.MANIFEST.exists() or not network.exists() or network.owner() != str(paths.ROOT):
        other = preflight.other_checkout()
        where = f"; that of {other} does" if other else ""
        console.print(f"the node does not run{where}; trainyard local up starts it", markup=False, soft_wrap=True)
        if unbuilt:
            console.print(f"to be built: {', '.join(unbuilt)}", markup=False)
        return 3
    result = Table(title=f"local node, context {CONTEXT}", title_justify="left")
    for column in ("daemon", "process", "up, s", "health"):
        result.add_column(column)
    bad = False
    for daemon in up.daemons():
        record = processes.read_record(daemon.name)
        if not processes.is_alive(record) or record is None:
            result.add_row(daemon.name, "-", "-", "does not run")
            bad = True
            continue
        reason = daemon.health()
        bad = bad or reason is not None
        result.add_row(daemon.name, str(record.pid), f"{time.time() - record.since:.0f}", reason or "serves")
    console.print(result)
    reason = node.ready()
    console.print(f"node: {reason or 'ready'}", markup=False)
    if not reason:
        pods = api.get("/api/v1/pods")["items"]
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        console.print(f"pods: {len(pods)}, {running} running")
    return 3 if bad or reason else 0
