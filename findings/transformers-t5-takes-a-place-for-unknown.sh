#!/bin/sh
# transformers 5.23.0, a unigram SentencePiece model (spiece.model) and tokenizer_class T5Tokenizer. The model says which of
# its pieces stands for unknown text, and unk_token of the loaded tokenizer is that piece. Yet text that the model does not
# know becomes the piece with number 2, which is right for T5's own files alone: with SentencePiece's defaults it is the end
# of a text, </s>. Nothing is said. Seen on 2026-11-29, text "cat 漢":
#   unk_id=2: <unk>
#   defaults (unk_id=0): </s>
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import random
import sys

import sentencepiece
import transformers

print("transformers", transformers.__version__, "sentencepiece", sentencepiece.__version__)
transformers.logging.set_verbosity_error()
random.seed(0)
words = "the cat cats sat on a mat and then ran into thick theatre".split()
pathlib.Path("text").write_text("\n".join(" ".join(random.choices(words, k=9)) for _ in range(400)))
cases = {"unk_id=2": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "defaults (unk_id=0)": {}}
last = {}
for number, (name, options) in enumerate(cases.items()):
    folder = pathlib.Path(str(number))
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input="text", model_prefix=f"{folder}/spiece", vocab_size=60, hard_vocab_limit=False, minloglevel=2, **options
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    own = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/spiece.model")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    found = loaded("cat 漢", add_special_tokens=False)["input_ids"]
    last[name] = loaded.convert_ids_to_tokens(found)[-1]
    print(f"  {name}: the model's {own.id_to_piece(own.encode('cat 漢')[-1])}, unk_token {loaded.unk_token}, found {last[name]}")
sys.exit(list(last.values()) != ["<unk>", "</s>"])
PYTHON
