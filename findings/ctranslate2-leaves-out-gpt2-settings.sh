#!/bin/sh
# CTranslate2 4.8.5 converts a GPT-2 model of transformers 5.23.0 whatever its configuration says of attention and layer
# norm, and computes it as if these settings had their defaults: another model, and no warning. Models were published with
# them (scale_attn_by_inverse_layer_idx is true in those of Stanford's CRFM). Other settings are honoured (n_inner, gelu,
# untied embeddings). Largest difference of the logits, which reach 7 to 10, seen on 2026-11-29:
#   {}: 0.00
#   {'n_inner': 48, 'tie_word_embeddings': False}: 0.00
#   {'scale_attn_by_inverse_layer_idx': True}: 1.32
#   {'scale_attn_weights': False}: 4.44
#   {'layer_norm_epsilon': 0.1}: 2.11
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 transformers==5.23.0 ctranslate2==4.8.5
cd "$folder"
cat > try.py <<'PYTHON'
import sys

import ctranslate2
import numpy
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END, IDS = "<|endoftext|>", [5, 9, 33, 2, 17, 41, 8]
words = {END: 0} | {f"word{number}": number for number in range(1, 64)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, unk_token=END)), unk_token=END, bos_token=END, eos_token=END
)


def difference(settings):
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 4, "n_head": 2, "initializer_range": 0.4}
    model = GPT2LMHeadModel(GPT2Config(**shape, **settings, bos_token_id=0, eos_token_id=0)).eval()
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    ctranslate2.converters.TransformersConverter("model").convert("converted", force=True)
    found = ctranslate2.Generator("converted").forward_batch([[f"word{number}" for number in IDS]])
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0].numpy()
    most = float(numpy.abs(numpy.array(found)[0] - expected).max())
    print(f"{settings}: {most:.2f}")
    return most


same = [difference({}), difference({"n_inner": 48, "tie_word_embeddings": False})]
others = [
    difference({"scale_attn_by_inverse_layer_idx": True}),
    difference({"scale_attn_weights": False}),
    difference({"layer_norm_epsilon": 0.1}),
]
sys.exit(not (max(same) < 1e-3 and min(others) > 0.5))
PYTHON
"$folder/venv/bin/python" try.py 2>/dev/null
