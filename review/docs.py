"""Write the parts of the documentation that come from the code.

Each stands between `<!-- NAME -->` and `<!-- /NAME -->`; tests/infra/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from cli import CommandError
from infra.cost import comparison
from infra.stackfiles import ROOT
from review import layers
from review.graph import draw
from review.reference import table

Parts = dict[str, Callable[[], str]]


def _picture(mermaid: str) -> str:
    return f"```mermaid\n{mermaid}\n```"


ARCHITECTURE = ROOT / "docs" / "architecture.md"
DOCUMENTS: dict[Path, Parts] = {
    ARCHITECTURE: {
        "layers": lambda: _picture(layers.draw()),
        "diagram local": lambda: _picture(draw("local")),
    },
    ROOT / "docs" / "configuration.md": {"configuration": table},
    ROOT / "docs" / "costs.md": {"costs": comparison},
    ROOT / "docs" / "aws.md": {"diagram aws-g4dn": lambda: _picture(draw("aws-g4dn"))},
    ROOT / "docs" / "gcp.md": {"diagram gcp-a100": lambda: _picture(draw("gcp-a100"))},
}


def refreshed(text: str, parts: Parts) -> str:
    """`text` with every one of these parts written anew.

    Raises:
        LookupError: when the marks of a part are missing.
    """
    for name, content in parts.items():
        marks = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marks.search(text):
            raise LookupError(f"no '<!-- {name} --> ... <!-- /{name} -->' to write that part into")
        written = content()
        text = marks.sub(lambda match, written=written: f"{match[1]}{written}\n{match[2]}", text)
    return text


def docs() -> None:
    for path, parts in DOCUMENTS.items():
        try:
            path.write_text(refreshed(path.read_text(), parts))
        except (OSError, LookupError) as error:
            raise CommandError(f"{path.name}: {error}") from None


if __name__ == "__main__":
    from cli.__main__ import main

    sys.exit(main(["docs"]))
