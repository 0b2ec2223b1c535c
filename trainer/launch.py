"""Start a node's workers and keep them training through failures: `python -m trainer.launch ... -- ...`.

Like torchrun, with what a pod needs: it handles SIGTERM from the start, its exit codes tell a Job what to do
(contract.py), it ends at once when the run is done, and it writes a termination message.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from trainer import log
from trainer.config.schema import Config, load, run_directory
from trainer.contract import (
    DONE,
    ETCD_PORT,
    EXIT_DONE,
    EXIT_FATAL,
    EXIT_RESTART,
    EXIT_TERMINATED,
    EXITS,
    TERMINATION_LOG,
)
from trainer.elastic import nccl, network, processor
from trainer.errors import Stop, UserError, cause, forbidden
from trainer.files import read_record

KUBERNETES_LOG = "/dev/termination-log"
MESSAGE_BYTES = 4096
"""Kubernetes keeps this much of a container's termination message."""
SAMPLE_CHARACTERS = 1500
REACH_SECONDS = 120
DONE_SECONDS = 75
"""A rendezvous is closed after DONE is written, but an NFS client may miss a new file for 60 s (acdirmax in nfs(5))."""
HEARD_AGAIN_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    """Run the launcher and return its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    sys.unraisablehook = _hear_again
    run: Path | None = None
    try:
        options, rest = parse(arguments)
        settings = load(rest)
        processor.require_capability(settings.require_capability)
        run = run_directory(settings)
        launch(options, rest, run)
        stop = Stop(EXIT_RESTART, "the workers ended before the run was finished")
    except UserError as error:
        stop = Stop(EXIT_FATAL, str(error) or cause(error))
    except PermissionError as error:
        stop = Stop(EXIT_FATAL, str(forbidden(error)))
    except Stop as reason:
        stop = reason
    result = read_record(run / DONE) if run is not None and stop.code in (EXIT_DONE, EXIT_RESTART) else {}
    if result:
        log.event("done", **{key: result.get(key) for key in ("step", "validation_loss", "checkpoint")})
        last_words({**result, "sample": str(result.get("sample", ""))[:SAMPLE_CHARACTERS]})
        return EXIT_DONE
    log.say(stop.message, sys.stderr)
    last_words({"state": EXITS[stop.code][0], "message": stop.message})
    return stop.code


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's options, and the arguments for the workers after `--`. argparse ends it with 2 for any other."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.launch", description=__doc__, usage="%(prog)s [options] -- section.key=value ..."
    )
    parser.add_argument("--nnodes", type=nodes, default=(1, 1), metavar="MIN:MAX", help="nodes in a round")
    parser.add_argument("--nproc-per-node", type=int, default=1, help="workers on this node")
    parser.add_argument("--standalone", action="store_true", help="this machine alone: needs no etcd")
    parser.add_argument("--rdzv-endpoint", default="", help="HOST:PORT of etcd")
    parser.add_argument(
        "--rdzv-id", default="", help="one name for all nodes of this run, no other run's; default: by its directory"
    )
    parser.add_argument(
        "--rdzv-conf", type=pairs, default={}, help="key=value,... as for torchrun: join_timeout, last_call_timeout ..."
    )
    parser.add_argument("--local-addr", default=os.environ.get("POD_IP"), help="this node's address for the others")
    parser.add_argument("--shutdown-timeout", type=int, default=20, help="seconds the workers get to save on SIGTERM")
    parser.add_argument("--patience", type=int, default=10, help="rounds without a new step before giving up with 42")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    if not options.rdzv_endpoint and not options.standalone:
        parser.error("--rdzv-endpoint: missing; give HOST:PORT, or --standalone on one machine")
    return options, arguments[split + 1 :]


def launch(options: argparse.Namespace, arguments: list[str], run: Path) -> None:
    """Take part in rounds until the run is done. Raises Stop for every other end."""
    if done := read_record(run / DONE):
        _say_other_data(done, load(arguments))
        raise Stop(EXIT_DONE, "done before this launcher began")
    if options.standalone:
        options.nnodes, options.local_addr = (1, 1), "127.0.0.1"
        host, endpoint = "127.0.0.1", ""
    else:
        host, port = network.split_endpoint(options.rdzv_endpoint, ETCD_PORT)
        scheme, separator, _ = options.rdzv_endpoint.rpartition("://")
        endpoint = f"{scheme}{separator}{host}:{port}"
        reason = network.wait_reachable(host, port, REACH_SECONDS)
        if reason is not None:
            raise Stop(EXIT_RESTART, f"--rdzv-endpoint {host}:{port} not reachable for {REACH_SECONDS} s: {reason}")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP"  # SIGTERM and SIGINT stay ours
    nccl.choose()
    processor.share_compilation(options.nproc_per_node)
    processor.own_compile_cache()
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    everywhere = os.sched_getaffinity(0)
    processor.bind_workers(options.nproc_per_node)
    gc.disable()  # nothing that imports make is garbage
    from torch.distributed.elastic.rendezvous.api import (
        RendezvousClosedError,
        RendezvousError,
        RendezvousParameters,
        RendezvousTimeoutError,
    )

    from trainer.elastic import nursery, rendezvous, rendezvous_etcd
    from trainer.elastic.agent import Agent
    from trainer.train import __main__ as train

    train.imports(load(arguments).task)
    gc.freeze()
    gc.enable()
    os.sched_setaffinity(0, everywhere)  # OpenMP ties the thread that loads it to the first place
    if nursery.is_safe():
        nursery.Nursery(train.main).adopt()
    name = options.rdzv_id or rendezvous_id(run)
    parameters = RendezvousParameters(
        "c10d" if options.standalone else "etcd-v3",
        endpoint,
        name,
        options.nnodes[0],
        options.nnodes[1],
        options.local_addr or network.address_towards(host),
        **options.rdzv_conf,
    )
    handler: rendezvous.Handler | None = None
    try:
        # Built here and not through torch's registry: this also works where the entry point is not installed.
        try:
            handler = (rendezvous.create_alone if options.standalone else rendezvous_etcd.create)(parameters)
        except UserError:
            raise
        except (ValueError, OverflowError) as error:
            raise UserError(f"--rdzv-conf: {error}") from None
        if not handler.claim(rendezvous_id(run)):
            raise UserError(
                f"--rdzv-id {name}: another run than the one in {run} has it; leave --rdzv-id out, or give each run "
                "its own, and its directory the same path on all nodes"
            )
        with tempfile.TemporaryDirectory(prefix="trainer-") as logs:
            command = [sys.executable, "-m", "trainer.train", *arguments]
            agent = Agent(
                handler, options.nproc_per_node, command, run, logs, options.shutdown_timeout, options.patience
            )
            agent.run()
        if read_record(run / DONE):
            handler.shutdown()  # closes the rendezvous: nodes that wait for the next round end too
    except RendezvousClosedError:
        if appears(run / DONE, DONE_SECONDS):
            raise Stop(EXIT_DONE, "done while this launcher waited for a round") from None
        raise Stop(
            EXIT_FATAL,
            f"rendezvous {name} is closed, but {run} has no {DONE}: only a launcher that saw {DONE} closes it, so the "
            "directory was emptied since, or somebody else wrote to the store; nothing is lost: start the run with "
            "another --rdzv-id, or on a cluster with `trainyard resume`",
        ) from None
    except RendezvousTimeoutError as error:
        why = str(error) or f"fewer than {options.nnodes[0]} nodes came before join_timeout was over"
        raise Stop(EXIT_RESTART, f"rendezvous {name}: {why}") from None
    except RendezvousError as error:  # out of reach, or a store that refuses
        raise Stop(EXIT_RESTART, f"rendezvous {name}: {cause(error)}") from None
    except Stop:
        if handler is not None:
            handler.leave()
        raise


def _say_other_data(done: dict[str, Any], config: Config) -> None:
    """Say if the data have changed since the run was done: it learns nothing of them."""
    from trainer.data.batches import open_dataset

    with contextlib.suppress(UserError):  # a run that is done needs no data
        now = open_dataset(config.data.directory, conversations=config.task == "finetune").digest
        if (before := done.get("data", now)) != now:
            then = "'this run is done and learns nothing of them; train them in another run.directory'"
            log.warn("data_changed", before=str(before)[:12], now=now[:12], then=then)


def rendezvous_id(run: Path) -> str:
    """One name for all nodes of a run, and no other run's: by the path of its directory, without links."""
    return f"trainyard-{hashlib.sha256(os.fsencode(os.path.realpath(run))).hexdigest()[:16]}"


def appears(path: Path, seconds: float) -> bool:
    """Whether a record is there, or comes within some seconds."""
    deadline = time.monotonic() + seconds
    while not read_record(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True


def last_words(content: dict[str, object]) -> None:
    """Write the termination message, if there is a place for it. In place, not by rename: the file is a mount."""
    path = os.environ.get(TERMINATION_LOG, KUBERNETES_LOG)
    if TERMINATION_LOG not in os.environ and not os.path.exists(path):
        return
    text = json.dumps(content, ensure_ascii=False)
    while len(text.encode()) > MESSAGE_BYTES:
        longest = max(content, key=lambda key: len(str(content[key])))
        content = {**content, longest: str(content[longest])[: len(str(content[longest])) * 3 // 4]}
        text = json.dumps(content, ensure_ascii=False)
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Unwind the stack with Stop; the agent ends the workers on the way. Ignore further signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop(EXIT_TERMINATED, f"asked to end by {signal.Signals(number).name}")


def _hear_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise a Stop again shortly after: Python only reports the exceptions of a callback that a signal interrupted."""
    reason = unraisable.exc_value
    if not isinstance(reason, Stop):
        sys.__unraisablehook__(unraisable)
        return
    code, message = reason.code, reason.message

    def end(*_: object) -> None:
        raise Stop(code, message)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, HEARD_AGAIN_SECONDS)


def nodes(text: str) -> tuple[int, int]:
    """MIN:MAX, or one number for both. Raises ValueError."""
    low, _, high = text.partition(":")
    if not 1 <= int(low) <= int(high or low):
        raise ValueError
    return int(low), int(high or low)


def pairs(text: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in text.split(","))


if __name__ == "__main__":
    log.leave(main(sys.argv[1:]))
