"""The prediction for many accelerators is the page's, and its arithmetic that of a person with a pencil."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale
from bench.page import write


def test_the_page_is_what_the_code_computes(tmp_path: Path) -> None:
    assert scale.PAGE.read_text("utf-8") == write(tmp_path / "scale.md", *scale.parts()), "run `python -m bench.scale`"


def test_a_row_is_what_a_person_computes() -> None:
    """GPT-2 small on 16 A100s: each has 32 of the step's 512 windows, which is one pass."""
    embeddings, layers = 768 * (50_257 + 1024), 12 * 12 * 768 * 768
    flops = 6 * (embeddings + layers - 768 * 1024) + 12 * 12 * 768 * 1024
    compute = 32 * 1024 * flops / (scale.MFU * 312e12)
    size = 2 * 2 * (embeddings + layers) * 15 / 16
    planned = scale.step("a2-highgpu-8g", 2, "small")
    assert planned.tokens == 524_288
    assert planned.compute == pytest.approx(compute)
    assert planned.backward == pytest.approx(compute * 2 / 3)
    assert planned.size == pytest.approx(size)
    assert planned.last == pytest.approx(0.316, abs=0.001)
    wire = size / 12.5e9  # 100 Gbit/s
    assert planned.wire(100) == pytest.approx(wire)
    assert planned.exposed(100, overlaps=False) == pytest.approx(wire)
    # All but the embeddings hide behind the backward pass.
    assert planned.exposed(100, overlaps=True) == pytest.approx(wire * embeddings / (embeddings + layers))
    row = next(scale.rows())
    assert row[3] == f"{1e3 * compute:.0f}"
    assert row[6].startswith(f"{0.524288 / (compute + planned.exposed(100, overlaps=True)):.2f} to ")


def test_an_exchange_longer_than_the_backward_pass_is_waited_for() -> None:
    planned = scale.Step(tokens=1, compute=0.9, backward=0.1, size=125_000_000, last=0.2)
    assert planned.wire(1) == pytest.approx(1.0)
    assert planned.exposed(1, overlaps=True) == pytest.approx(0.2 + 0.8 - 0.1)
    assert planned.exposed(100, overlaps=True) == pytest.approx(0.002)
