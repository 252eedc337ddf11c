"""Whatever is done to a pack's files, reading it fails with PackError and nothing else."""

from __future__ import annotations

import io
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forged import resealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.pack import storage
from gemmtune.pack.format import pack_files, read_pack, unpack, write_pack
from gemmtune.pack.jsontext import decode
from gemmtune.pack.storage import read_files, zip_bytes
from gemmtune.space.errors import PackError

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def files(small_pack: Any) -> dict[str, bytes]:
    return pack_files(small_pack)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(PackError) as caught:
        read_pack(path)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message


# ------------------------------------------------------------------------------------------- one change, anywhere


@RELAXED
@given(data=st.data())
def test_one_flipped_byte_in_a_file_is_refused(data: st.DataObject, files: dict[str, bytes]) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    raw = bytearray(files[name])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PackError):
        unpack({**files, name: bytes(raw)})


@RELAXED
@given(data=st.data())
def test_one_flipped_byte_in_a_zip_is_refused(data: st.DataObject, files: dict[str, bytes], tmp_path: Path) -> None:
    raw = bytearray(zip_bytes(files))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "p.zip"
    path.write_bytes(raw)
    with pytest.raises(PackError):
        read_pack(path)


@settings(RELAXED, max_examples=80)
@given(data=st.data())
def test_any_change_to_a_folder_is_refused(data: st.DataObject, small_pack: Any, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.kpack"
        write_pack(path, small_pack)
        name = data.draw(st.sampled_from(sorted(files)))
        target, raw = path / name, files[name]
        other = data.draw(st.sampled_from([*sorted(files), f"kernels/{'d' * 64}.cu", "dispatch", "kernels/x.json"]))
        match data.draw(st.sampled_from(["flip", "truncate", "extend", "remove", "rename", "copy"])):
            case "flip":
                at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
                target.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
            case "truncate":
                target.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
            case "extend":
                target.write_bytes(raw + data.draw(st.binary(min_size=1, max_size=9)))
            case "remove":
                target.unlink()
            case "rename" if other != name:
                target.replace(path / other)
            case "copy" if files.get(other) != raw:
                (path / other).write_bytes(raw)
            case _:
                return
        with pytest.raises(PackError):
            read_pack(path)


@RELAXED
@given(data=st.data())
def test_a_truncated_file_or_zip_is_refused(data: st.DataObject, files: dict[str, bytes], tmp_path: Path) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    with pytest.raises(PackError):
        unpack({**files, name: files[name][: data.draw(st.integers(0, len(files[name]) - 1))]})
    whole = zip_bytes(files)
    path = tmp_path / "p.zip"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(PackError):
        read_pack(path)


@RELAXED
@given(extra=st.binary(min_size=1, max_size=40), front=st.booleans())
def test_bytes_around_a_zip_are_refused(extra: bytes, front: bool, files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    path.write_bytes(extra + zip_bytes(files) if front else zip_bytes(files) + extra)
    with pytest.raises(PackError):
        read_pack(path)


@RELAXED
@given(raw=st.binary(max_size=300))
def test_any_bytes_as_zip_or_json_are_refused(raw: bytes, files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    path.write_bytes(raw)
    with pytest.raises(PackError):
        read_pack(path)
    with pytest.raises(PackError):
        unpack({**files, "manifest.json": raw})


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["baseline", "bf16", "nt", "9" * 70, "__import__('os')", "m ** m"]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, child in children for p in _places(child, (*path, key)))]


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], new)
    return copy


@settings(RELAXED, max_examples=300)
@given(data=st.data())
def test_a_forger_who_fixes_the_hashes_still_meets_the_checks(data: st.DataObject, files: dict[str, bytes]) -> None:
    """Any value of any JSON file replaced, with hashes and seal made right: refused, or still a well-formed pack."""
    name = data.draw(st.sampled_from([n for n in sorted(files) if n.endswith(".json") and n != "manifest.json"]))
    content = decode(files[name], name)
    place = data.draw(st.sampled_from(_places(content)))
    forged = _changed(content, place, data.draw(VALUES))
    import json

    raw = json.dumps(forged).encode()  # may hold NaN and huge integers
    try:
        pack = unpack(resealed({**files, name: raw}))
    except PackError:
        return
    assert unpack(pack_files(pack)).tables == pack.tables


# ----------------------------------------------------------------------------------------------------- directories


def test_missing_file(write: Callable[..., Path], small_pack: Any) -> None:
    for victim in ("manifest.json", "dispatch.json", f"kernels/{next(iter(small_pack.kernels))}.cubin"):
        path = write(small_pack, f"{victim[:3]}.kpack")
        (path / victim).unlink()
        refused(path, "truncated")


def test_extra_file_even_with_a_good_name(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    (path / "kernels" / f"{'a' * 64}.cubin").write_bytes(b"x")
    refused(path, "does not list")


@pytest.mark.parametrize("name", ["README", "kernels/x.cubin", "kernels/.cubin", "Manifest.json", "kernels/evil.py"])
def test_extra_file_with_another_name(name: str, write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    (path / name).write_bytes(b"x")
    refused(path, "no pack has")


def test_extra_folders_are_refused(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    (path / "kernels" / f"{'a' * 64}.cu").mkdir()
    refused(path, "not a plain file")
    shutil.rmtree(path / "kernels" / f"{'a' * 64}.cu")
    (path / "more").mkdir()
    refused(path, "no pack has")


def test_renamed_kernel(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    sha = next(iter(small_pack.kernels))
    (path / "kernels" / f"{sha}.cubin").rename(path / "kernels" / f"{'b' * 64}.cubin")
    refused(path, "truncated")


def test_swapped_kernels(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    one, two = sorted(small_pack.kernels)[:2]
    a, b = (path / "kernels" / f"{sha}.cubin" for sha in (one, two))
    contents = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(contents)
    refused(path)


def test_symbolic_links(write: Callable[..., Path], small_pack: Any, tmp_path: Path) -> None:
    path = write(small_pack)
    target = path / "dispatch.json"
    (tmp_path / "elsewhere").write_bytes(target.read_bytes())
    target.unlink()
    target.symlink_to(tmp_path / "elsewhere")
    refused(path, "symbolic link")
    path = write(small_pack, "other.kpack")
    (path / "kernels").rename(tmp_path / "kernels")
    (path / "kernels").symlink_to(tmp_path / "kernels")
    refused(path, "symbolic link")


def test_nothing_there_and_not_a_pack(tmp_path: Path) -> None:
    refused(tmp_path / "none.kpack", "no pack at")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no pack")
    refused(Path("/dev/null"), "neither")


def test_caps(write: Callable[..., Path], small_pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(small_pack)
    for name, value in (("MAX_FILES", 4), ("MAX_FILE", 100), ("MAX_TOTAL", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(storage, name, value)
            refused(path, "the most")


# ------------------------------------------------------------------------------------------------------------- zips


def other_zip(path: Path, members: list[tuple[Any, bytes]], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("name", "word"),
    [("../evil", "climbs out"), ("/etc/passwd", "absolute"), ("kernels/../../evil", "climbs out"),
     ("C:\\x", "absolute"), ("..\\evil", "climbs out"), ("kernels/", "no pack has"), ("x.py", "no pack has")],
)  # fmt: skip
def test_hostile_member_names(name: str, word: str, files: dict[str, bytes], tmp_path: Path) -> None:
    refused(other_zip(tmp_path / "p.zip", [*files.items(), (name, b"x")]), word)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members(files: dict[str, bytes], tmp_path: Path) -> None:
    members = [*files.items(), ("dispatch.json", files["dispatch.json"])]
    refused(other_zip(tmp_path / "p.zip", members), "twice")


def test_zip_bomb_is_refused_before_it_inflates(files: dict[str, bytes], tmp_path: Path) -> None:
    bomb = bytes(50 * 2**20)
    path = other_zip(tmp_path / "p.zip", [*files.items(), (f"kernels/{'a' * 64}.cu", bomb)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    refused(path, "compressed")


def test_symbolic_link_as_member(files: dict[str, bytes], tmp_path: Path) -> None:
    info = zipfile.ZipInfo(f"kernels/{'a' * 64}.cu")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(other_zip(tmp_path / "p.zip", [*files.items(), (info, b"/etc/passwd")]), "symbolic link")


def test_a_zip_by_another_tool_says_so(files: dict[str, bytes], tmp_path: Path) -> None:
    refused(other_zip(tmp_path / "p.zip", list(files.items())), "another tool")


def test_a_size_that_lies(files: dict[str, bytes], tmp_path: Path) -> None:
    raw = bytearray(zip_bytes(files))
    where = raw.index(b"PK\x01\x02")
    raw[where + 24 : where + 28] = struct.pack("<I", 2**31)
    path = tmp_path / "p.zip"
    path.write_bytes(raw)
    refused(path)


def test_our_zip_is_one_that_other_tools_read(files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(zip_bytes(files))) as archive:
        assert archive.testzip() is None
        assert {n: archive.read(n) for n in archive.namelist()} == files


def test_read_files_gives_back_what_was_written(write: Callable[..., Path], small_pack: Any) -> None:
    files = pack_files(small_pack)
    assert read_files(write(small_pack)) == files
    assert read_files(write(small_pack, "p.zip")) == files
