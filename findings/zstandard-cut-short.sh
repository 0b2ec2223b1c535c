#!/bin/sh
# zstandard 0.25.0 reads a .zst file that is cut short to its last whole block and says nothing. gzip, bz2 and lzma of
# the standard library raise EOFError, so one would expect the same here; pyarrow 26.0.1 raises. Seen on 2026-11-28:
#   zstandard.open 393216 of 480000 bytes, pyarrow OSError: Truncated compressed stream
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check zstandard==0.25.0 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import io
import random
import sys
from importlib.metadata import version

import pyarrow
import zstandard

print("zstandard", version("zstandard"), "pyarrow", version("pyarrow"))
text = bytes(random.Random(0).choices(b"abcdefgh \n", k=480_000))
stored = zstandard.compress(text)[:-9]
with zstandard.open(io.BytesIO(stored), "rb") as file:
    found = len(file.read())
try:
    other = str(len(pyarrow.CompressedInputStream(io.BytesIO(stored), "zstd").read()))
except OSError as error:
    other = f"OSError: {error}"
print(f"zstandard.open {found} of {len(text)} bytes, pyarrow {other}")
sys.exit(found == len(text))
PYTHON
