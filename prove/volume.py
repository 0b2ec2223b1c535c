"""Steps for the shared volume between pods, own text in and the model out."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time

from cli import last_line
from cli.pods import UNCHANGED, Pod, command_pod, kubectl_of
from faults.fault import expect
from infra.stackfiles import ROOT
from prove.subject import Subject
from trainer.contract import DONE
from trainer.plain import counted
from workloads.layout import DATA

VISIBLE_SECONDS = 90
"""NFS clients cache a folder's attributes for up to 60 s (nfs(5), acdirmax)."""
OWN = "prove-own-text"
# Writes a hidden file, flushes it and renames it, as checkpoints are written.
WRITE = 'mkdir -p "$1" && printf %s "$3" > "$1/.$2" && sync "$1/.$2" && mv "$1/.$2" "$1/$2"'
LOAD = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True)
with torch.no_grad():
    out = model(torch.arange(16)[None] % model.config.vocab_size).logits
print(json.dumps({"parameters": model.num_parameters(), "finite": bool(out.isfinite().all()),
                  "architecture": type(model).__name__, "transformers": transformers.__version__}))
"""


def shared(subject: Subject) -> str:
    """Write and read in both directions between a worker and the pod that commands use, on two nodes if it can be."""
    target = subject.target()
    with command_pod(target, subject.stack.say, UNCHANGED) as pod:
        node = subject.core.read_namespaced_pod(pod.name, target.namespace).spec.node_name
        workers = subject.worker_pods()
        worker = next((each for each in workers if each["spec"]["nodeName"] != node), workers[0])
        told = _to_and_fro(subject, Pod(kubectl_of(target), worker["metadata"]["name"]), pod)
    other = worker["spec"]["nodeName"]
    return f"{told}; {f'on {other} and {node}' if other != node else f'both on {node}: nothing crossed between nodes'}"


def _to_and_fro(subject: Subject, one: Pod, two: Pod) -> str:
    folder, text = f"{DATA}/prove-{secrets.token_hex(4)}", secrets.token_hex(16)
    seconds = []
    for writer, reader, name in ((one, two, "there"), (two, one, "back")):
        code, said = writer.run("sh", "-c", WRITE, "write", folder, name, text + name)
        expect(code == 0, f"{writer.name} cannot write: {said[-200:]}")
        clock = time.monotonic()
        _see(subject, reader, f"{folder}/{name}", text + name)
        seconds.append(f"{time.monotonic() - clock:.1f}")
    # A rename by one pod replaces the other's file, and no half-written file is ever seen.
    code, said = one.run("mv", f"{folder}/back", f"{folder}/there")
    expect(code == 0, f"{one.name} cannot rename over the other's file: {said[-200:]}")
    _see(subject, two, f"{folder}/there", text + "back")
    one.run("rm", "-r", folder)
    return f"written, flushed, renamed and read by {one.name} and {two.name}, seen after {' and '.join(seconds)} s"


def _see(subject: Subject, pod: Pod, path: str, text: str) -> None:
    subject.until(lambda: pod.run("cat", path)[1].strip() == text, VISIBLE_SECONDS, f"{path} read by {pod.name}")


def own_data(subject: Subject) -> str:
    """Train on the documentation of this repository, as a user's own text."""
    source = subject.folder / OWN
    source.mkdir(exist_ok=True)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        shutil.copy(page, source / f"{page.stem}.txt")
    subject.tool("upload", str(source), "--to", OWN)
    run = f"{subject.state.notes['run']}-own"
    steps = 20 if subject.state.short else 40
    subject.up(
        dataset={"name": run, "input": [OWN]},
        job={"name": run},
        training={"steps": steps, "evaluation": {"every": steps, "batches": 4}},
    )
    subject.tool("follow")
    files = counted(len(list(source.iterdir())), "file")
    return f"{files} uploaded, tokenised in the cluster, {counted(steps, 'step')} on them"


def model_out(subject: Subject) -> str:
    folder = subject.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    subject.tool("fetch", "--to", str(folder))
    done = json.loads((folder / DONE).read_text("utf-8"))
    before, after = done["initial_validation_loss"], done["validation_loss"]
    expect(after < before, f"the validation loss went from {before:.2f} to {after:.2f}")
    loaded = subject.stack.run([sys.executable, "-c", LOAD, str(folder / "model")])
    where, code, said = "here", loaded.returncode, loaded.stderr + loaded.stdout
    if "No module named" in said:
        where = "in a pod, for this machine has no transformers"
        with command_pod(subject.target(), subject.stack.say, UNCHANGED) as pod:
            code, said = pod.run("python3", "-c", LOAD, f"{done['checkpoint']}/model")
    expect(code == 0, f"transformers does not load it: {last_line(said)}")
    found = json.loads(next(line for line in reversed(said.splitlines()) if line.startswith("{")))
    expect(found["finite"], "its logits are not finite")
    return (
        f"validation loss {before:.2f} to {after:.2f}; {found['architecture']} of {found['parameters']:,} parameters "
        f"loaded by transformers {found['transformers']} {where}, logits finite"
    )
