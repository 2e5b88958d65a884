"""Noticing that Python files have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.runtime.processes import Changes, changed_files, python_files

if TYPE_CHECKING:
    from pathlib import Path


def test_python_files_are_found_without_hidden_folders_and_packages(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "inner/c.py", ".venv/d.py", "__pycache__/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found = {str(path.relative_to(tmp_path)) for path in python_files([tmp_path])}
    assert found == {"a.py", "inner/c.py"}


def test_changed_files_lists_written_new_and_removed_files(tmp_path: Path) -> None:
    one, two, three, four = (tmp_path / f"{name}.py" for name in ("1", "2", "3", "4"))
    before = {one: (1, 1), two: (1, 1), three: (1, 1)}
    after = {one: (1, 1), two: (2, 1), four: (1, 1)}
    assert changed_files(before, after) == (two, three, four)


async def test_change_between_two_checks_is_reported(tmp_path: Path) -> None:
    changes = Changes(tmp_path)
    (tmp_path / "new.py").write_text("x")
    assert await changes() == (tmp_path / "new.py",)
    (tmp_path / "new.py").unlink()
    assert await changes() == (tmp_path / "new.py",)
