"""Measure the nodes before a training: `python -m trainer.gpu_check --nodes N --master HOST:PORT ...`, once a node.

It lists the accelerators, refuses those that this image's torch cannot use (gpu_fit.py), times an all-reduce over all
processes of all nodes (NCCL; gloo on CPUs), checks its sum, and writes to the shared volume from every node at once.
The first node prints the result and, in a cluster, stores it in a ConfigMap.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer import api_server, log
from trainer.config.paths import folder
from trainer.contract import EXIT_RESTART
from trainer.elastic import nccl, network
from trainer.errors import UserError, one_line, usage
from trainer.gpu_fit import accelerators, inspect, mismatch

WAIT_SECONDS = 2400
"""How long the first node waits for the others: nodes with accelerators take up to 15 minutes each to start."""
SHARE = 0.4
"""Fraction of a network card's nominal rate that NCCL over plain TCP must reach. A single socket, where eight or more
are due, does not."""
SECONDS = 2.0
"""How long the all-reduce is repeated, after a warm-up."""


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.gpu_check", description="Measure the nodes of a training.")
    parser.add_argument("--nodes", type=int, default=1, help="nodes that take part")
    parser.add_argument("--processes", type=int, default=1, help="processes on each: one an accelerator")
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("NODE_RANK", "0")), help="of this node")
    parser.add_argument("--master", default="127.0.0.1:29500", help="HOST:PORT on the node of rank 0")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the exchanged tensor")
    parser.add_argument("--network-gbit", type=float, help="nominal Gbit/s of a node's network card; default: unknown")
    parser.add_argument("--storage", type=folder, help="folder on the shared volume to write to; default: none")
    parser.add_argument("--storage-megabytes", type=int, default=1024, help="how much to write there, on each node")
    parser.add_argument("--config-map", default="", help="ConfigMap for the result, in this pod's namespace")
    options = parser.parse_args(arguments)
    nccl.choose()  # as for a training: what is measured is the engine that it takes
    try:
        host, port = network.split_endpoint(options.master, 29500, "--master")
        if options.node_rank > 0:
            reason = network.wait_reachable(host, port, WAIT_SECONDS)
            if reason is not None:
                raise RuntimeError(f"the node of rank 0 at {options.master} was not reachable: {reason}")
        own = {"node": os.environ.get("NODE_NAME") or socket.gethostname(), **accelerators()}
        if options.storage is not None:
            own["storage_megabytes_per_second"] = round(write_speed(options.storage, options.storage_megabytes), 1)
        result = exchange(options, host, port, own)
        if result is not None:
            judge(result, options.network_gbit if options.nodes > 1 else None)
            print(json.dumps(result), flush=True)
            if options.config_map:
                publish(options.config_map, result)
    except (RuntimeError, OSError) as error:
        print(f"gpu_check: {one_line(error, 1000)}", file=sys.stderr)
        return EXIT_RESTART
    return 0


def judge(result: dict[str, Any], gbit: float | None) -> None:
    """Add the bandwidth that the nodes' network should give, and a warning if the measured one is lower."""
    if gbit is None:
        return
    # In a ring all-reduce, all traffic between nodes goes through each node's card once: 8 Gbit/s are 1 GB/s.
    result["link_gigabytes_per_second"] = round(gbit / 8, 3)
    result["expected_bus_gigabytes_per_second"] = expected = round(SHARE * gbit / 8, 3)
    measured = result["bus_gigabytes_per_second"]
    if measured < expected:
        result["warning"] = (
            f"{measured:g} GB/s between nodes whose network gives {gbit / 8:g}; expected at least {expected:g}; see "
            "which interface and how many sockets NCCL takes with NCCL_DEBUG=INFO in workers.environment"
        )
        print(f"gpu_check: warning: {result['warning']}", file=sys.stderr, flush=True)


def write_speed(folder: Path, megabytes: int) -> float:
    """MB/s of writing and fsyncing a file in `folder`; the file is deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"write-{socket.gethostname()}-{os.getpid()}"
    block = os.urandom(1 << 20)
    begun = time.perf_counter()
    try:
        with open(path, "wb") as file:
            for _ in range(megabytes):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return megabytes * len(block) / 1e6 / (time.perf_counter() - begun)
    finally:
        path.unlink(missing_ok=True)


def exchange(options: argparse.Namespace, host: str, port: int, own: dict[str, Any]) -> dict[str, Any] | None:
    """Run this node's processes; return the result of all nodes on the first node, None on the others.

    Raises:
        UserError: a node cannot train, whatever it measures.
    """
    import torch.multiprocessing as processes
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        # A file and not a queue: a pipe holds 64 KiB, 184 nodes with 8 GPUs, and nobody reads it before spawn returns.
        result = Path(folder) / "result.json"
        try:
            processes.spawn(_process, (options, host, port, own, result), nprocs=options.processes)
        except (ProcessRaisedException, ProcessExitedException) as error:
            # The process has printed its traceback to stderr; the last line names the error.
            raise RuntimeError(one_line((str(error).strip().splitlines() or [error])[-1])) from None
        found = json.loads(result.read_text("utf-8")) if result.exists() else None
        if found and "mismatch" in found:
            raise UserError(f"gpu_check: {found['mismatch']}")
        return found


def _process(
    local_rank: int, options: argparse.Namespace, host: str, port: int, own: dict[str, Any], result: Path
) -> None:
    import torch
    import torch.distributed as dist

    from trainer.parallel.world import World

    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := network.interface_towards(host)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    rank, size = options.node_rank * options.processes + local_rank, options.nodes * options.processes
    timeout = timedelta(seconds=WAIT_SECONDS)
    # Over gloo, which works on a node without a usable accelerator, the nodes agree on whether to measure.
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=timeout)
    try:
        place = World(rank, size, local_rank, 1, torch.device("cpu"))
        nodes = [node for node in place.gather({**own, **inspect(own)} if local_rank == 0 else None) if node]
        if reason := mismatch(nodes):
            if local_rank == 0:
                result.write_text(json.dumps({"mismatch": reason}), encoding="utf-8")
            return
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        group = dist.new_group(backend="nccl", timeout=timeout) if cuda else None
        seconds, correct = _all_reduce(options.megabytes, rank, size, device, group)
        if rank == 0:
            volume = options.megabytes * 1e6
            found = {
                "correct": correct,
                "nodes": nodes,
                "processes": size,
                "backend": "nccl" if cuda else "gloo",
                "megabytes": options.megabytes,
                "all_reduce_seconds": round(seconds, 6),
                # Traffic on each process's link in a ring: what NCCL's own tests call busbw.
                "bus_gigabytes_per_second": round(2 * (size - 1) / size * volume / seconds / 1e9, 3),
                "storage_megabytes_per_second": round(
                    sum(node.get("storage_megabytes_per_second", 0) for node in nodes), 1
                ),
            }
            result.write_text(json.dumps(found), encoding="utf-8")
        if not correct:
            raise RuntimeError("the all-reduce gave a wrong sum: an accelerator or its link is faulty")
    finally:
        dist.destroy_process_group()


def _all_reduce(megabytes: int, rank: int, size: int, device: Any, group: Any) -> tuple[float, bool]:
    """(Seconds of one all-reduce, whether its sum is right). group: of the measured exchange; None: the default."""
    import torch
    import torch.distributed as dist

    tensor = torch.empty(megabytes * 1_000_000 // 4, dtype=torch.float32, device=device)

    def timed(times: int) -> float:
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(tensor, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / times

    tensor.fill_(rank + 1.0)
    dist.all_reduce(tensor, group=group)
    # Whole numbers below 2^24 are exact in fp32.
    correct = bool((tensor == size * (size + 1) / 2).all())
    tensor.zero_()
    timed(2)
    estimate = torch.tensor([timed(2)], dtype=torch.float64)
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX)
    return timed(max(3, min(100, int(SECONDS / max(float(estimate), 1e-6))))), correct


def publish(name: str, result: dict[str, Any]) -> None:
    """Write the result into a ConfigMap of this pod's namespace, with the pod's service account."""
    namespace = api_server.namespace()
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"result": json.dumps(result)},
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=gpu-check&force=true"
    try:
        api_server.ask(path, content, api_server.APPLY)
    except api_server.RefusedError as error:
        raise RuntimeError(f"ConfigMap {namespace}/{name} cannot be written: {error}") from None


if __name__ == "__main__":
    log.leave(main())
