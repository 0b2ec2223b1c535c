#!/bin/sh
# transformers 5.23.0, a folder with a SentencePiece model (tokenizer.model) and tokenizer_class LlamaTokenizer. Version 4
# asked the model itself how to cut. This one takes the pieces alone and cuts as Llama 2 does, and says nothing: a unigram
# model is merged like BPE, and add_dummy_prefix=False is passed over. Seen on 2026-11-29, text "the cats sat":
#   bpe, as Llama 2: equal to sentencepiece's own
#   bpe without dummy prefix: the, ▁cats, ▁sat; transformers ▁the, ▁cats, ▁sat
#   unigram: ▁the, ▁cats, ▁sat; transformers ▁, t, h, e, ▁, c, a, t, s, ▁, s, a, t
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
words = "the cat cats sat on a mat and then ran into thick theatre where another catcher rested".split()
random.seed(0)
pathlib.Path("text").write_text("\n".join(" ".join(random.choices(words, k=9)) for _ in range(400)))
as_llama = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
models = {
    "bpe, as Llama 2": {"model_type": "bpe"},
    "bpe without dummy prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "unigram": {"model_type": "unigram"},
}
equal = {}
for number, (name, options) in enumerate(models.items()):
    folder = pathlib.Path(str(number))
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input="text", model_prefix=f"{folder}/tokenizer", vocab_size=330, hard_vocab_limit=False, minloglevel=2,
        **as_llama, **options,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    own = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    text = "the cats sat"
    ids, found = own.encode(text), loaded(text, add_special_tokens=False)["input_ids"]
    equal[name] = ids == found
    print(f"  {name}: {own.encode(text, out_type=str)} {loaded.convert_ids_to_tokens(found)}")
sys.exit(list(equal.values()) != [True, False, False])
PYTHON
