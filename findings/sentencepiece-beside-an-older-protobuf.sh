#!/bin/sh
# sentencepiece 0.2.3 names no protobuf in its metadata, so pip installs it beside protobuf 6, which pulumi and others ask
# for, and encodes. Its module of messages was made for protobuf 7 and is refused there; transformers 5.23.0 needs it to read
# a tokenizer.model. It then takes the file for one of tiktoken's and asks for that package, which would not help. Seen on
# 2026-11-29:
#   protobuf 6.33.6: sentencepiece encodes; AutoTokenizer: ValueError `tiktoken` is required to read a `tiktoken` file ...
#   protobuf 7.36.2: both work
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cd "$folder"
cat > try.py <<'PYTHON'
import json
import pathlib
import random
import sys
from importlib.metadata import requires, version

import sentencepiece
import transformers

transformers.logging.set_verbosity_error()
random.seed(0)
words = "the cat cats sat on a mat and then ran into thick theatre".split()
pathlib.Path("text").write_text("\n".join(" ".join(random.choices(words, k=9)) for _ in range(400)))
folder = pathlib.Path("model")
folder.mkdir(exist_ok=True)
sentencepiece.SentencePieceTrainer.train(
    input="text", model_prefix="model/tokenizer", vocab_size=300, model_type="bpe", byte_fallback=True,
    hard_vocab_limit=False, minloglevel=2,
)
(folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
(folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
ids = sentencepiece.SentencePieceProcessor(model_file="model/tokenizer.model").encode("the cats sat")
asked = [each for each in requires("sentencepiece") or [] if each.startswith("protobuf") and "extra" not in each]
print(f"protobuf {version('protobuf')}, asked for by sentencepiece: {asked}, ids {ids}")
try:
    transformers.AutoTokenizer.from_pretrained(folder)
except ValueError as error:
    print(f"  ValueError {error}")
    sys.exit("tiktoken" not in str(error) or sys.argv[1] != "refused" or bool(asked))
print("  loaded")
sys.exit(sys.argv[1] != "loads")
PYTHON
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==6.33.6
"$folder/venv/bin/python" try.py refused
pip protobuf==7.36.2
"$folder/venv/bin/python" try.py loads
