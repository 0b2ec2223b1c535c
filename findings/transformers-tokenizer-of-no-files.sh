#!/bin/sh
# transformers 5.23.0: AutoTokenizer.from_pretrained of a local folder that holds a config.json and no file of a tokenizer
# (weights that were saved without theirs) gives a tokenizer with no words, without an error or a warning: any text
# becomes no ids. One would expect an error that names the missing files, as for a folder without config.json.
# Seen on 2026-11-28:
#   empty folder: ValueError
#   gpt2: GPT2Tokenizer of 1 word, 'All the text that there is.' -> [], warnings 0
#   qwen2: Qwen2Tokenizer of 1 word, 'All the text that there is.' -> [], warnings 0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import json
import os
import sys
import warnings
from importlib.metadata import version

from transformers import AutoTokenizer

print("transformers", version("transformers"))
TEXT = "All the text that there is."
os.makedirs("empty")
try:
    AutoTokenizer.from_pretrained("./empty")
    same = False
except (OSError, ValueError) as error:
    print(f"empty folder: {type(error).__name__}")
    same = True
for kind in ("gpt2", "qwen2"):
    os.makedirs(kind)
    with open(f"{kind}/config.json", "w") as file:
        json.dump({"model_type": kind}, file)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = AutoTokenizer.from_pretrained(f"./{kind}")
        except OSError as error:
            print(f"{kind}: {error}"[:100])
            same = False
            continue
    ids = found(TEXT)["input_ids"]
    print(f"{kind}: {type(found).__name__} of {len(found)} word, {TEXT!r} -> {ids}, warnings {len(told)}")
    same &= not ids and not told
sys.exit(not same)
PYTHON
