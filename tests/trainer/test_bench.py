"""What the benches of the trainer write."""

from pathlib import Path

from bench import page


def test_a_bench_replaces_its_own_part_of_a_page_only(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.md"
    page.write(path, "# First\n\n")
    assert path.read_text("utf-8") == "# First\n"
    path.write_text(f"# First\n\n{page.NOTES}\n\nThe machine was busy.\n", "utf-8")
    for _ in range(2):
        page.write(path, "# Second\n")
        assert path.read_text("utf-8") == f"# Second\n\n{page.NOTES}\n\nThe machine was busy.\n"
