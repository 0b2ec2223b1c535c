"""Writes the parts of the README that come from the code: `python -m infra.docs` (`make docs`).

Each stands between `<!-- NAME -->` and `<!-- /NAME -->`; tests/infra/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from infra.graph import draw
from infra.recording import ROOT
from infra.reference import table

README = ROOT / "README.md"


def refreshed(text: str) -> str:
    """`text` with every generated part written anew.

    Raises:
        LookupError: when the marks of a part are missing.
    """
    parts = {"diagram local": f"```mermaid\n{draw('local')}\n```", "configuration": table()}
    for name, content in parts.items():
        marks = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marks.search(text):
            raise LookupError(f"no '<!-- {name} --> ... <!-- /{name} -->' in the README to write that part into")
        text = marks.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)
    return text


def main(readme: Path = README) -> int:
    try:
        readme.write_text(refreshed(readme.read_text()))
    except (OSError, LookupError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
