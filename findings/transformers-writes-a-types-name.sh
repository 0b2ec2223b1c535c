#!/bin/sh
# transformers 5.23.0: apply_chat_template writes the name of a type in place of a value that JSON does not have. A date,
# as a Parquet or YAML reader gives it, becomes `<date>` in the arguments of a call and as a content alike, without an
# error or a warning, so that each date of a data set becomes the same text. json.dumps raises TypeError for all of them.
# Seen on 2026-11-29:
#   datetime.date(2024, 1, 2): 'call {"when": "<date>"}'
#   datetime.datetime(2024, 1, 2, 0, 0): 'call {"when": "<datetime>"}'
#   Decimal('1.5'): 'call {"when": "<Decimal>"}'
#   a content that is a date: 'user <date>'; warnings 0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
import datetime
import decimal
import sys
import warnings

import transformers
from tokenizers import Tokenizer, models

print("transformers", transformers.__version__)
made = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
made.chat_template = (
    "{% for message in messages %}{% for call in message.tool_calls or [] %}call {{ call.function.arguments | tojson }}"
    "{% else %}{{ message.role }} {{ message.content }}{% endfor %}{% endfor %}"
)


def written(message):
    return made.apply_chat_template([message], tokenize=False)


def call(value):
    function = {"name": "book", "arguments": {"when": value}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


values = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2), decimal.Decimal("1.5")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    seen = [written(call(value)) for value in values]
    content = written({"role": "user", "content": values[0]})
for value, text in zip(values, seen):
    print(f"{value!r}: {text!r}")
print(f"a content that is a date: {content!r}; warnings {len(told)}")
expected = [f'call {{"when": "<{type(value).__name__}>"}}' for value in values]
sys.exit(not (seen == expected and content == "user <date>" and not told))
PYTHON
