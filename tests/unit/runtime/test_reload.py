"""Noticing that Python files have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.runtime.processes import Changes, changed_files, python_files

if TYPE_CHECKING:
    from pathlib import Path


def test_python_files_are_found_and_nothing_else(tmp_path: Path) -> None:
    """Below the folder, but not in hidden folders, caches and installed packages."""
    for name in ("a.py", "b.txt", "inner/c.py", ".venv/d.py", "__pycache__/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found = {str(path.relative_to(tmp_path)) for path in python_files([tmp_path])}
    assert found == {"a.py", "inner/c.py"}


def test_what_was_written_made_or_removed_has_changed(tmp_path: Path) -> None:
    """Each by its path; what stayed the same is not named."""
    one, two, three, four = (tmp_path / f"{name}.py" for name in ("1", "2", "3", "4"))
    before = {one: (1, 1), two: (1, 1), three: (1, 1)}
    after = {one: (1, 1), two: (2, 1), four: (1, 1)}
    assert changed_files(before, after) == (two, three, four)


async def test_a_change_while_nobody_asked_is_not_missed(tmp_path: Path) -> None:
    """A file that is written while children restart still counts."""
    changes = Changes(tmp_path)
    (tmp_path / "new.py").write_text("x")
    assert await changes() == (tmp_path / "new.py",)
    (tmp_path / "new.py").unlink()
    assert await changes() == (tmp_path / "new.py",)
