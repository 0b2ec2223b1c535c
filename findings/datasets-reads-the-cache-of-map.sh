#!/bin/sh
# datasets 5.2.0: `load_dataset(FOLDER)` refuses a folder that Dataset.save_to_disk wrote, and names load_from_disk. A folder
# that DatasetDict.save_to_disk wrote it reads. After `load_from_disk(FOLDER).map(...)`, whose result nobody has saved,
# it gives twice as many rows: the cache file that map left beside the shards is read as a shard, with the mapped rows
# before the stored ones, without an error or a warning. load_from_disk still gives the stored rows alone.
# Seen on 2026-11-29:
#   a Dataset: ValueError
#   a DatasetDict: 3 rows
#   after map: 6 rows ['KEEP ME', 'AND ME', 'ME TOO', 'keep me', 'and me', 'me too']; load_from_disk: 3 rows; warnings 0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import datasets

print("datasets", datasets.__version__)
datasets.disable_progress_bars()
rows = datasets.Dataset.from_dict({"text": ["keep me", "and me", "me too"]})
rows.save_to_disk("one")
datasets.DatasetDict(train=rows).save_to_disk("several")
try:
    datasets.load_dataset("./one")
    refused = False
except ValueError as error:
    refused = "load_from_disk" in str(error)
    print("a Dataset:", type(error).__name__)
before = datasets.load_dataset("./several", cache_dir="before")["train"]
print("a DatasetDict:", len(before), "rows")
datasets.load_from_disk("several").map(lambda row: {"text": row["text"].upper()})
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    after = datasets.load_dataset("./several", cache_dir="after")["train"]
stored = datasets.load_from_disk("several")["train"]
print(f"after map: {len(after)} rows {after['text'][:]}; load_from_disk: {len(stored)} rows; warnings {len(told)}")
sys.exit(not (refused and len(before) == len(stored) == 3 and len(after) == 6 and not told))
PYTHON
