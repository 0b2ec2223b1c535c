"""Regenerate the parts of the documentation that come from the code.

Each part stands between `<!-- NAME -->` and `<!-- /NAME -->`; tests/review/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from cli import CommandError
from infra.cost import comparison, dollars, estimate
from infra.features import features
from infra.gke.doctor.checks import BUCKETS
from infra.parse import parse
from infra.stackfiles import ROOT, stack_file_values, stacks
from review.reference import commands, figures, table
from trainer.contract import EXIT_USAGE, EXITS

Parts = dict[str, Callable[[], str]]


def stack_table() -> str:
    """A row for each stack: the first sentence of its file, and its costs."""
    rows = ["| stack | what it does | at rest | full |", "|---|---|---:|---:|"]
    for stack in stacks():
        bill = estimate(parse(stack_file_values(stack), stack))
        costs = ("", "") if bill is None else (dollars(bill.at_rest), dollars(bill.at_full))
        rows.append(f"| `{stack}` | {_purpose(stack)} | {' | '.join(costs)} |")
    return "\n".join(rows)


def _purpose(stack: str) -> str:
    """The first sentence of a stack file."""
    comment = re.match(r"(#.*\n)+", (ROOT / f"Pulumi.{stack}.yaml").read_text())
    assert comment, f"Pulumi.{stack}.yaml begins with a sentence about the stack"
    return " ".join(comment[0].replace("#", " ").split()).split(". ")[0].rstrip(".") + "."


def google_roles() -> str:
    """The command that grants the roles that `pulumi up` may need in a project, by infra/gke/features.yaml."""
    needed = {
        role.removeprefix("roles/")
        for feature in features("gke").values()
        for right, role in feature.permissions.items()
        if not right.startswith(BUCKETS)
    }
    roles = textwrap.fill(f"for role in {' '.join(sorted(needed))}", 138, subsequent_indent="  ").replace("\n", " \\\n")
    grant = "gcloud projects add-iam-policy-binding YOUR-PROJECT --member MEMBER --role roles/$role"
    return f"```bash\n{roles}; \\\n  do {grant}; done  # ☁\n```"


def exit_codes() -> str:
    """A row for each exit code of a training's pod."""
    rows = ["| exit code | meaning | the Job |", "|---|---|---|"]
    told = {code: entry for code, entry in EXITS.items() if code != EXIT_USAGE}
    return "\n".join([*rows, *(f"| {code} | {meaning} | {does} |" for code, (_, meaning, does) in told.items())])


DOCUMENTS: dict[Path, Parts] = {
    ROOT / "README.md": {"stacks": stack_table},
    ROOT / "docs" / "commands.md": {"commands": commands},
    ROOT / "docs" / "configuration.md": {"configuration": table},
    ROOT / "docs" / "elastic.md": {"exits": exit_codes},
    ROOT / "docs" / "model.md": {"figures": figures},
    ROOT / "docs" / "costs.md": {"costs": comparison},
    ROOT / "docs" / "gcp.md": {"roles": google_roles},
}


def refreshed(text: str, parts: Parts) -> str:
    """`text` with each of these parts regenerated.

    Raises:
        LookupError: the marks of a part are missing.
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
