"""``gemmtune replay`` and ``gemmtune record``."""

import csv
import io
import json
import sys

import pytest

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.recorded import Recorded, Recording, read_recording, write_recording


@pytest.fixture
def path(tmp_path):
    knobs = (Parameter("x", tuple(range(8))), Parameter("y", tuple(range(8))))
    rows = tuple(
        Recorded(Configuration.of("bowl", {"x": x, "y": y}), "correct", 5.0 + abs(x - 5) + abs(y - 2))
        for x in range(8)
        for y in range(8)
    )
    write_recording(Recording("bowl", "A100", {"bowl": knobs}, rows), tmp_path / "bowl.json.gz")
    return str(tmp_path / "bowl.json.gz")


RUNS = ("--strategy", "random", "--strategy", "exhaustive", "--repeats", "3", "--budget", "64")


def test_strategies_are_compared_in_a_table(cli, path):
    done = cli("replay", path, *RUNS)
    assert done.code == 0, done.err
    head, titles, first, second, *_ = done.out.splitlines()
    assert head == "bowl: 64 configurations on A100, optimum 5 us; 3 runs of 64 evaluations"
    assert titles.split()[:3] == ["strategy", "at", "25"]
    assert first.startswith("random")
    assert second.startswith("exhaustive")
    assert "1.000" in cli("replay", path, *RUNS[2:]).out or "1.000" in done.out


def test_figures_come_as_json_and_csv_and_into_a_result_file(cli, path, tmp_path):
    data = json.loads(cli("replay", path, *RUNS, "--format", "json").out)
    assert [line["strategy"] for line in data] == ["random", "exhaustive"]
    assert data[0]["repeats"] == 3
    assert 0 < data[0]["worst_25"] <= data[0]["mean_25"] <= 1
    lines = list(csv.DictReader(io.StringIO(cli("replay", path, *RUNS, "--format", "csv").out)))
    assert float(lines[1]["mean_50"]) == data[1]["mean_50"]
    out = tmp_path / "replay.json"
    assert cli("replay", path, *RUNS, "--output", str(out)).code == 0
    assert set(json.loads(out.read_text())["summary"]["spaces"]["bowl"]["strategies"]) == {"random", "exhaustive"}


@pytest.mark.parametrize("form", ["json", "kernel_tuner", "t4", "csv"])
def test_a_space_is_written_in_every_format(cli, path, tmp_path, form):
    target = tmp_path / "out.json"
    done = cli("record", path, str(target), "--format", form, "--name", "basin")
    assert done.code == 0, done.err
    assert "64 configurations written" in done.out
    assert [row.us for row in read_recording(target).rows] == [row.us for row in read_recording(path).rows]


def test_a_study_is_recorded_and_replayed(cli, tuned, tmp_path):
    target = tmp_path / "study.json.gz"
    assert cli("record", "study:1", str(target)).code == 0
    recording = read_recording(target)
    assert len(recording) == 3
    assert recording.estimated
    done = cli("replay", str(target), "--strategy", "random", "--repeats", "2", "--budget", "25")
    assert done.code == 0, done.err
    assert "48x40x32" in done.out
    done = cli("replay", str(target), "--blind", "--strategy", "gp", "--repeats", "2", "--budget", "3")
    assert done.code == 0, done.err
    assert "gp blind" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("replay", "no-such-file.json"), "cannot be read"),
        (("replay", "PATH", "--strategy", "luck"), "Unknown strategy 'luck'"),
        (("replay", "PATH", "--family", "mma"), "holds no family 'mma'"),
        (("replay", "PATH", "--budget", "0"), "--budget"),
        (("record", "PATH", "x", "--format", "xml"), "Unknown format 'xml'"),
        (("tune", "64x64x64", "--device", "replay:PATH"), "gemmtune replay"),
        (("bench", "64x64x64", "--device", "replay:PATH"), "runs no kernel"),
        (("doctor", "64x64x64", "--device", "replay:PATH"), "runs no kernel"),
    ],
)
def test_bad_input_is_one_sentence(cli, path, words, message):
    done = cli(*(word.replace("PATH", path) for word in words))
    assert done.code == 2
    assert done.err.startswith("error:")
    assert done.err.count("\n") == 1
    assert message in done.err


def test_what_a_replay_cannot_write_is_found_out_before_it_begins(cli, path, tmp_path, monkeypatch):
    def begun(*_, **__):
        raise AssertionError("the replay began")

    monkeypatch.setattr("gemmtune.search.replay.replay", begun)
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "folder.svg").mkdir()
    for option, name, message in (
        ("--plot", "/proc/a.svg", "cannot be written"),
        ("--plot", str(tmp_path), "is a directory"),
        ("--plot", str(tmp_path / "folder.svg"), "is a directory"),
        ("--plot", str(tmp_path / "curves"), ".svg, .png, .pdf"),
        ("--plot", str(tmp_path / "curves.txt"), ".svg, .png, .pdf"),
        ("--output", "/proc/a.json", "cannot be written"),
        ("--output", str(tmp_path / "notes.json"), "write to another file"),
    ):
        done = cli("replay", path, *RUNS, option, name)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
        assert message in done.err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli("replay", path, *RUNS, "--plot", str(tmp_path / "a.svg"))
    assert (done.code, done.out) == (1, "")
    assert "gemmtune[plot]" in done.err
    assert (tmp_path / "notes.json").read_text() == "{}"


def test_a_short_replay_explains_no_columns_that_it_does_not_show(cli, path):
    assert "Fractions" in cli("replay", path, *RUNS).out
    done = cli("replay", path, "--strategy", "random", "--repeats", "2", "--budget", "20")
    assert done.code == 0
    assert "Fractions" not in done.out
    assert "95, 99 %" in done.out


@pytest.mark.parametrize("sizes", [("--repeats", "1", "--budget", "99999999999999"), ("--repeats", "9" * 30)])
def test_more_evaluations_than_memory_are_refused(cli, path, sizes):
    done = cli("replay", path, "--strategy", "random", *sizes)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "the space has 64 configurations" in done.err


def test_a_table_carries_its_gpu_and_one_that_names_none_is_of_an_unknown_one(cli, path, tmp_path):
    table, bare = tmp_path / "y.csv", tmp_path / "bare.csv"
    assert cli("record", path, str(table), "--format", "csv").code == 0
    quick = ("--strategy", "random", "--repeats", "2", "--budget", "25")
    assert "configurations on A100," in cli("replay", str(table), *quick).out
    lines = list(csv.DictReader(io.StringIO(table.read_text())))
    with bare.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in lines[0] if name != "gpu"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    out = tmp_path / "out.json"
    done = cli("replay", str(bare), *quick, "--output", str(out))
    assert "configurations on an unknown GPU," in done.out
    assert json.loads(out.read_text())["gpu"] == "unknown"
    table.write_text(table.read_text().replace("A100", "H100", 1))
    assert "several GPUs" in cli("replay", str(table), *quick).err


def test_a_study_that_an_exported_history_lacks_is_looked_for_under_the_files_own_name(cli, tuned, tmp_path):
    exported = tmp_path / "h.gz"
    assert cli("db", "export", str(exported)).code == 0
    done = cli("record", f"{exported}#99", str(tmp_path / "x.json"))
    assert done.code == 2
    assert f"There is no study 99 in {exported}" in done.err
