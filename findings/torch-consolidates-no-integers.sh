#!/bin/sh
# torch 2.15.0's HuggingFaceStorageWriter (torch.distributed.checkpoint) writes integer tensors into its shards and reads
# them back; asked for one consolidated file as well, which transformers could load, it fails once the shards are written.
# One integer buffer is enough. The failure is a CheckpointException, which is no Exception: `except Exception` around a
# save, to go on training without it, does not see it. Seen on 2026-11-29:
#   floats: model-00001-of-00001.safetensors, sharded
#   floats and an integer: CheckpointException, an Exception: False: TypeError: torch.finfo() requires a floating point ...
#   shards of the same: shard-00001-model-00001-of-00001.safetensors
#   read back equal: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 safetensors==0.8.0 numpy
cd "$folder"
cat > try.py <<'PYTHON'
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
floats = {"weight": torch.randn(3, 4)}
mixed = floats | {"tokens_seen": torch.tensor(7)}


def save(tensors, name, consolidated):
    writer = dcp.HuggingFaceStorageWriter(name, save_distributed=True, enable_consolidation=consolidated)
    try:
        dcp.save(dict(tensors), storage_writer=writer)
    except BaseException as error:
        reason = str(error).strip().splitlines()[-1]
        print(f"{name}: {type(error).__name__}, an Exception: {isinstance(error, Exception)}: {reason}")
        return isinstance(error, Exception), reason
    print(f"{name}: {', '.join(sorted(each.name for each in Path(name).iterdir() if 'index' not in each.name))}")
    return None


plain, refused = save(floats, "floats", True), save(mixed, "floats and an integer", True)
shards = save(mixed, "shards of the same", False)
back = {name: torch.zeros_like(value) for name, value in mixed.items()}
dcp.load(back, storage_reader=dcp.HuggingFaceStorageReader("shards of the same"))
same = all(torch.equal(back[name], value) for name, value in mixed.items())
print(f"read back equal: {same}")
sys.exit(not (plain is shards is None and same and refused and not refused[0] and "finfo" in refused[1]))
PYTHON
"$folder/venv/bin/python" try.py
