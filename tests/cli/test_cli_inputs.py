"""What people type: shapes, files of shapes, durations."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.cli import inputs
from gemmtune.space.errors import ProblemError

SIZE = st.integers(-(2**70), 2**70)


@given(SIZE, SIZE, SIZE, st.sampled_from("xX×*,"))
def test_shapes_read_back(m: int, n: int, k: int, sign: str) -> None:
    assert inputs.read_shape(f" {m}{sign}{n}{sign}{k} ") == (m, n, k)


@pytest.mark.parametrize("text", ["", "512", "5x5", "1x2x3x4", "axbxc", "1.5x2x3", "1e3x2x3", "x1x2", "1x2x", "१x2x-"])
def test_malformed_shapes_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="MxNxK"):
        inputs.read_shape(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("1H2M", 3720), ("1m30", 90)],
)
def test_durations(text: str, seconds: float) -> None:
    assert inputs.read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "m", "10x", "10 m m", "s10", "nan", "1e3"])
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="Duration"):
        inputs.read_duration(text)


def test_shape_files(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text("[square]\nshapes = [[8, 8, 8], [16, 16, 16]]\n[tall]\nshapes = [[64, 8, 8]]\n")
    assert inputs.read_shape_file(str(path)) == [(8, 8, 8), (16, 16, 16), (64, 8, 8)]
    assert inputs.read_shape_file(f"{path}:tall") == [(64, 8, 8)]
    path.write_text("shapes = [[1, 2, 3]]\n")
    assert inputs.read_shape_file(str(path)) == [(1, 2, 3)]


def test_the_shipped_shape_file_reads() -> None:
    shapes = inputs.read_shape_file(str(Path(__file__).parents[2] / "benchmarks" / "shapes.toml"))
    assert (4096, 4096, 4096) in shapes
    assert len(shapes) == len(set(shapes))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a", "not valid TOML"),
        ("", "no shapes"),
        ("x = 1", "no shapes"),
        ("[a]\nx = 1", "no list of shapes"),
        ("[a]\nshapes = 5", "no list of shapes"),
        ("[a]\nshapes = [[1, 2]]", "is not [M, N, K]"),
        ("[a]\nshapes = [[1, 2, '3']]", "is not [M, N, K]"),
        ("[a]\nshapes = [[1, 2, true]]", "is not [M, N, K]"),
        ("[a]\nshapes = [5]", "is not [M, N, K]"),
        ("[a]\nshapes = []", "no shapes"),
        ("[a]\nshapes = [[1, 2, 3]]\ndtype = 'fp32'", "unknown field 'dtype' in the table [a] of "),
        ("[a]\nshapes = [[1, 2, 3]]\n[b]\nshapes = []\nlayout = 'nn'", "unknown field 'layout' in the table [b] of "),
        ("[a]\nshapes = [[1, 2, 3]]\n[a.b]\nshapes = [[4, 5, 6]]", "unknown field 'b' in the table [a] of "),
        ("dtype = 'fp32'\n[a]\nshapes = [[1, 2, 3]]", "unknown field 'dtype' in '"),
        ("dtype = 'fp32'\nshapes = [[1, 2, 3]]", "unknown field 'dtype' in '"),
        ("dtype = 'fp32'\n[[problem]]\nm = 1\nn = 2\nk = 3", "unknown field 'dtype' beside the problems of "),
        ("[[problem]]\nm = 1\nn = 2\nk = 3\n[a]\nshapes = [[1, 2, 3]]", "unknown field 'a' beside the problems of "),
    ],
)
def test_malformed_shape_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(text)
    with pytest.raises(ProblemError) as caught:
        inputs.read_shape_file(str(path))
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_unreadable_shape_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text("[a]\nshapes = [[1, 1, 1]]")
    with pytest.raises(ProblemError, match="has no table 'b'"):
        inputs.read_shape_file(f"{path}:b")
    for name in (tmp_path / "nowhere.toml", tmp_path, f"{tmp_path / 'nowhere.toml'}:a"):
        with pytest.raises(ProblemError, match="cannot be read"):
            inputs.read_shape_file(str(name))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProblemError, match="UTF-8"):
        inputs.read_shape_file(str(path))


def test_shapes_from_everywhere_in_order(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text("[a]\nshapes = [[7, 8, 9]]")
    assert inputs.read_shapes(["1x2x3"], 4, 5, 6, [str(path)]) == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    with pytest.raises(ProblemError, match="--k"):
        inputs.read_shapes([], 1, 2, None, [])
    with pytest.raises(ProblemError, match="No shape"):
        inputs.read_shapes([], None, None, None, [])


def test_problems_are_dtypes_times_shapes_each_once() -> None:
    found = inputs.problems([(1, 2, 3), (4, 5, 6), (1, 2, 3)], ["fp32", "bf16"], "fp32", "tn", "bias")
    assert [p.key for p in found] == [
        "gemm 1x2x3 fp32 tn epilogue=bias",
        "gemm 4x5x6 fp32 tn epilogue=bias",
        "gemm 1x2x3 bf16 tn out=fp32 epilogue=bias",
        "gemm 4x5x6 bf16 tn out=fp32 epilogue=bias",
    ]


@pytest.mark.parametrize("text", ["0", "0s", "0h0m", "0.0m"])
def test_a_duration_of_zero_is_said_to_be_zero(text: str) -> None:
    with pytest.raises(ProblemError, match="more than 0") as error:
        inputs.read_duration(text)
    assert "malformed" not in str(error.value)


def test_a_folder_that_takes_no_file_is_found_out_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("/proc/b.json", str(tmp_path), str(tmp_path / "file" / "b.json"), str(tmp_path / ("x" * 300))):
        with pytest.raises(ProblemError, match="cannot be written"):
            inputs.check_destination(name)
    for name in ("/dev/null", str(tmp_path / "new" / "b.json"), str(tmp_path / "file")):
        inputs.check_destination(name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_takes_the_place_of_a_database(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"SQLite format 3\0" + bytes(84))
    (tmp_path / "link").symlink_to(tmp_path / "history.db")
    for name in ("history.db", "link"):
        with pytest.raises(ProblemError, match="is a database, a history perhaps"):
            inputs.check_destination(str(tmp_path / name))
    (tmp_path / "short").write_bytes(b"SQLite")
    inputs.check_destination(str(tmp_path / "short"))
