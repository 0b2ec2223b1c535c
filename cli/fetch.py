"""Brings a run to this machine: `python -m cli.fetch --stack local [--to FOLDER]` (`make fetch`).

The newest complete checkpoint's model, in the form that transformers loads, the metrics, TensorBoard's files, and the
report page, which is made in the cluster. What is here already in the same version is not fetched again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePosixPath

from cli.bar import Bar
from cli.follow import stack_options, target_of
from cli.reach import PORT, SCRATCH, Pod, volume_pod
from cli.transfer import Pair, TransferError, Volume, get
from cli.watch import UnreachableError, connect
from workloads.layout import run_folder

HOME = Path("runs")
MODEL = "model"
REPORT = "report"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.fetch", description="Bring a run to this machine.")
    stack_options(parser, "run")
    parser.add_argument("--run", metavar="NAME", help="another run on the volume than the one that is configured now")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help=f"where it goes (default: {HOME}/NAME)")
    parser.add_argument("--all", action="store_true", help="every checkpoint, with what is needed to train on")
    options = parser.parse_args(arguments)
    try:
        target = target_of(options.stack)
        run = run_folder(options.run) if options.run else str(target.run_directory)
        folder = options.to or HOME / PurePosixPath(run).name
        api = connect(target.context, options.kubeconfig)
        with Bar() as bar, volume_pod(api, target.namespace, bar.waiting) as pod:
            volume = Volume(lambda: pod.connect(PORT))
            pairs = wanted(volume.files(run), run, folder, options.all)
            bar.waiting("making the report")
            problem = make_report(pod, run)
            made = volume.files(f"{SCRATCH}/{REPORT}")
            pairs += [Pair(folder / REPORT / name, f"{SCRATCH}/{REPORT}/{name}", size) for name, size in made.items()]
            get(volume, pairs, bar)
    except (LookupError, UnreachableError, TransferError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on where it stopped.", file=sys.stderr)
        return 130
    print(f"{len(pairs)} files of {run} are in {folder}")
    if problem:
        print(f"  no report: {problem}")
    else:
        print(f"  report: {folder / REPORT / 'index.html'}")
    if (folder / MODEL).is_dir():
        print(f"  model:  {folder / MODEL}  (transformers.AutoModelForCausalLM.from_pretrained)")
    return 0


def wanted(found: dict[str, int], run: str, folder: Path, everything: bool) -> list[Pair]:
    """What of a run's files is fetched, and where it goes. Raises LookupError when there is no run."""
    if not found:
        raise LookupError(f"{run}: holds no file; `make status` says how far the training is, --run takes another one")
    if everything:
        return [Pair(folder / name, f"{run}/{name}", size) for name, size in found.items()]
    newest = newest_checkpoint(found)
    pairs = []
    for name, size in found.items():
        if newest and name.startswith(f"{newest}/{MODEL}/"):
            pairs.append(Pair(folder / name.removeprefix(f"{newest}/"), f"{run}/{name}", size))
        elif newest and name == f"{newest}/config.yaml":
            pairs.append(Pair(folder / "config.yaml", f"{run}/{name}", size))
        elif not name.startswith("checkpoints/"):
            pairs.append(Pair(folder / name, f"{run}/{name}", size))
    return pairs


def newest_checkpoint(found: dict[str, int]) -> str | None:
    """The folder of the newest checkpoint; its manifest is written last. None before the first."""
    complete = [str(PurePosixPath(name).parent) for name in found if name.endswith("/manifest.json")]
    return max((name for name in complete if name.startswith("checkpoints/step-")), default=None)


def make_report(pod: Pod, run: str) -> str | None:
    """Let the pod draw the report page. What was wrong, in one line, when it could not."""
    code, text = pod.run(["python3", "-m", "trainer.report", run, "--output", f"{SCRATCH}/{REPORT}"])
    lines = text.strip().splitlines() or ["no reason given"]
    return None if code == 0 else lines[-1]


if __name__ == "__main__":
    sys.exit(main())
