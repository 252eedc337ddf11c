"""``gemmtune replay`` and ``gemmtune record``."""

import csv
import io
import json

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
