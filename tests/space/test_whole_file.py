"""Files appear whole or not at all, and take the place of nothing but a file."""

import os
import threading
from pathlib import Path

import pytest

from gemmtune.space.whole_file import is_special, whole_file


def test_a_file_is_replaced_only_once_all_of_it_is_there(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_bytes(b"before")
    with whole_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_file_as_it_was(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"aft", "er"])  # type: ignore[list-item]
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path, there: bool):
    (tmp_path / "far").mkdir()
    path, target = tmp_path / "link", tmp_path / "far" / "a.json"
    if there:
        target.write_bytes(b"before")
    path.symlink_to(Path("far") / "a.json")
    with whole_file(path) as file:
        file.write(b"after")
    assert path.is_symlink()
    assert target.read_bytes() == b"after"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with whole_file(path) as file:
        file.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert path.is_fifo()


def test_a_device_stays_a_device(tmp_path: Path):
    path = tmp_path / "null"
    path.symlink_to("/dev/null")
    with whole_file(path) as file:
        file.write(b"gone")
    assert Path("/dev/null").is_char_device()
    assert path.is_symlink()
    assert is_special(path)


def test_a_directory_takes_no_bytes(tmp_path: Path):
    with pytest.raises(OSError), whole_file(tmp_path) as file:  # noqa: PT011 - which error it is, the system says
        file.write(b"x")
    assert list(tmp_path.iterdir()) == []
    assert not is_special(tmp_path)
