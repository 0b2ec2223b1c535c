#!/bin/sh
# lm_eval 0.4.13, TemplateLM, on which its models of transformers stand: of a choice it scores what the whole text has
# behind as many tokens as the context has alone. With a tokenizer that puts an end behind each text (tokenizers 0.23.3,
# TemplateProcessing "$A </s>") that is one token too few: of a choice of one token the end alone is left, so that all
# choices are scored by the same token, without an error or a warning. A longer choice loses its first token.
# Seen on 2026-11-29:
#   " yes" is scored by ['</s>']
#   " no" is scored by ['</s>']
#   " maybe yes" is scored by ['yes', '</s>']
#   without the end " yes" is scored by ['yes']; warnings 0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3 jinja2==3.1.6 requests==2.34.2
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps lm_eval==0.4.13
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings
from importlib.metadata import version

from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["</s>", "is", "it", "yes", "no", "maybe"]


class Scored(TemplateLM):
    """A causal model of which only the tokenizer is asked."""

    backend, eot_token_id = "causal", 0
    _loglikelihood_tokens = loglikelihood_rolling = generate_until = lambda self, *_, **__: []

    def __init__(self, end):
        super().__init__()
        self.made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="</s>"))
        self.made.pre_tokenizer = pre_tokenizers.Whitespace()
        if end:
            self.made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 0)])

    def tok_encode(self, text, add_special_tokens=None, **_):
        return self.made.encode(text, add_special_tokens=add_special_tokens is not False).ids

    def choice(self, text):
        return [WORDS[number] for number in self._encode_pair("is it", text)[1]]


print("lm_eval", version("lm_eval"), "tokenizers", version("tokenizers"))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ended, plain = Scored(end=True), Scored(end=False)
    seen = {text: ended.choice(text) for text in (" yes", " no", " maybe yes")}
    right = plain.choice(" yes")
for text, scored in seen.items():
    print(f'"{text}" is scored by {scored}')
print(f'without the end " yes" is scored by {right}; warnings {len(told)}')
same = seen[" yes"] == seen[" no"] == ["</s>"]
sys.exit(not (same and seen[" maybe yes"] == ["yes", "</s>"] and right == ["yes"] and not told))
PYTHON
