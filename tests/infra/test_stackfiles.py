"""The mark of a stack, by which its bill and its leftovers are found."""

from __future__ import annotations

import pytest

from infra.stackfiles import is_marked, marks


@pytest.mark.parametrize("stack", ["gcp-a100", "Prod-AWS"])
def test_a_stack_knows_what_it_marked_and_nothing_else(stack: str) -> None:
    assert marks(stack)["stack"] == stack.lower()
    assert is_marked({**marks(stack), "Name": "anything"}, stack)
    assert not is_marked(marks(f"{stack}-2"), stack)
    assert not is_marked({"app": "trainyard"}, stack)
    assert not is_marked(None, stack)
