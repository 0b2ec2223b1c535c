#!/bin/sh
# A GPT-2 model of transformers 5.23.0 whose tokenizer has no unknown token (a byte-level one needs none) is converted by
# CTranslate2 4.8.5 without a word, and cannot be loaded: the converter writes null where the loader wants a string. For
# Llama and Qwen the converter writes an empty string. It helps to give the tokenizer any unk_token, as GPT-2's own has.
# Seen on 2026-11-29:
#   unk_token None: converted, RuntimeError: [json.exception.type_error.302] type must be string, but is null
#   unk_token <|endoftext|>: converted, loaded
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 transformers==5.23.0 ctranslate2==4.8.5
cd "$folder"
cat > try.py <<'PYTHON'
import sys

import ctranslate2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
letters = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
bytewise = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()


def load(unknown):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, bos_token=END, eos_token=END, unk_token=unknown)
    shape = {"vocab_size": len(tokenizer), "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained("model")
    tokenizer.save_pretrained("model")
    ctranslate2.converters.TransformersConverter("model").convert("converted", force=True)
    try:
        ctranslate2.Generator("converted")
    except RuntimeError as error:
        reason = f"RuntimeError: {error}"
    else:
        reason = "loaded"
    print(f"unk_token {unknown}: converted, {reason}")
    return reason


sys.exit(not ("must be string, but is null" in load(None) and load(END) == "loaded"))
PYTHON
"$folder/venv/bin/python" try.py 2>/dev/null
