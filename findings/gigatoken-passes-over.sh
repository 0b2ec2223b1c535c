#!/bin/sh
# gigatoken 0.10.0 loads a valid tokenizer.json without an error and passes over parts of it: a Digits step between a
# known Split and ByteLevel, and ByteLevel's use_regex: false alone. Its ids then differ from those of tokenizers.
# Unknown Split patterns and normalizers it refuses, so one would expect the same here. Seen on 2026-11-28:
#   digits after a known cutting: tokenizers [16, 17], gigatoken [256]
#   no cutting: tokenizers [257], gigatoken [64, 220, 65]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gigatoken==0.10.0 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version
from gigatoken.gigatoken_rs import load_hf_json
from tokenizers import Regex, Tokenizer, models, pre_tokenizers as cut

print("gigatoken", version("gigatoken"), "tokenizers", version("tokenizers"))
letters = {word: place for place, word in enumerate(sorted(cut.ByteLevel.alphabet()))}
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
steps = [cut.Split(Regex(GPT2), "isolated"), cut.Digits(True), cut.ByteLevel(add_prefix_space=False, use_regex=False)]
cases = {
    "digits after a known cutting": ("12", ("1", "2"), None, cut.Sequence(steps)),
    "no cutting": ("a b", ("a", "Ġ"), ("aĠ", "b"), cut.ByteLevel(add_prefix_space=False, use_regex=False)),
}
same = False
for name, (text, first, second, cutter) in cases.items():
    merges = [pair for pair in (first, second) if pair]
    words = letters | {"".join(pair): 256 + place for place, pair in enumerate(merges)}
    built = Tokenizer(models.BPE(words, merges))
    built.pre_tokenizer = cutter
    expected, found = built.encode(text).ids, load_hf_json(built.to_str()).encode(text).tolist()
    print(f"{name}: tokenizers {expected}, gigatoken {found}")
    same |= expected == found
sys.exit(same)
PYTHON
