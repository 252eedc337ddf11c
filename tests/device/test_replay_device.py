"""The replay device: what was recorded, and nothing that was not."""

from types import SimpleNamespace

import pytest

from gemmtune.device import open_device
from gemmtune.device.base import Limits, Outcome
from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import RecordingError, UnknownNameError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recorded import Recorded, Recording, write_recording

PROBLEM = Gemm(64, 64, 64, "bf16")


def configuration(x: int) -> Configuration:
    return Configuration.of("toy", {"x": x})


def job(x: int, problem=PROBLEM):
    return SimpleNamespace(problem=problem, kernel=SimpleNamespace(configuration=configuration(x)))


@pytest.fixture
def path(tmp_path):
    rows = (
        Recorded(configuration(1), "correct", 10.0, 9.0, 12.0, ratio=0.5, seconds={"measure": 0.5}),
        Recorded(configuration(2), "wrong", detail="d[0, 0] is off."),
        Recorded(configuration(3), "timeout"),
        Recorded(configuration(4), "abandoned", 90.0),
    )
    recording = Recording(
        "toys", "NVIDIA H200", {"toy": (Parameter("x", (1, 2, 3, 4, 5)),)}, rows, problem=PROBLEM, gpu=gpu("h200"),
        environment={"driver": "580"},
    )  # fmt: skip
    write_recording(recording, tmp_path / "toys.json.gz")
    return tmp_path / "toys.json.gz"


def test_it_reports_what_was_recorded(path):
    device = open_device(f"replay:{path}")
    assert (device.kind, device.gpu.short, device.estimates) == ("replay", "h200", False)
    assert device.name == f"replay:{path}"
    assert device.environment() == {"driver": "580", "recording": "toys"}
    device.start()
    report = device.run(job(1), Limits())
    assert report.outcome == Outcome.CORRECT
    measured = report.measurement
    assert (measured.us, measured.us_low, measured.us_high) == (10.0, 9.0, 12.0)
    assert (measured.ratio, measured.baseline_us) == (0.5, 5.0)
    assert measured.ratio_low == pytest.approx(5 / 12)
    assert measured.ratio_high == pytest.approx(5 / 9)
    assert report.seconds == {"measure": 0.5}
    assert report.verification is None  # the proof is not in a recording
    wrong, late, beaten = device.compare([job(2), job(3), job(4)], 1.0)
    assert (wrong.outcome, wrong.detail, wrong.measurement) == (Outcome.WRONG, "d[0, 0] is off.", None)
    assert (late.outcome, late.detail) == (Outcome.TIMEOUT, "It was recorded as timeout.")
    assert beaten.outcome == Outcome.ABANDONED
    assert (beaten.measurement.us, beaten.measurement.ratio) == (90.0, None)
    device.close()
    device.close()


def test_what_was_not_recorded_was_not_run(path):
    device = open_device(f"replay:{path}")
    assert device.run(job(5), Limits()).outcome == Outcome.PRUNED
    assert "not in the recording 'toys'" in device.run(job(5), Limits()).detail
    assert device.run(job(1, Gemm(32, 64, 64, "bf16")), Limits()).outcome == Outcome.PRUNED
    with pytest.raises(UnsupportedError, match="is of toy, not of mma"):
        device.space(PROBLEM, ["mma"])
    assert len(device.space(PROBLEM, ["mma", "toy"])) == 4


def test_a_recording_of_another_tools_kernel_is_no_device(tmp_path):
    rows = (Recorded(configuration(1), "correct", 1.0),)
    write_recording(Recording("k", "", {"toy": (Parameter("x", (1,)),)}, rows), tmp_path / "k.json")
    with pytest.raises(UnsupportedError, match="gemmtune replay"):
        open_device(f"replay:{tmp_path / 'k.json'}")
    with pytest.raises(RecordingError, match="cannot be read"):
        open_device(f"replay:{tmp_path / 'none.json'}")
    with pytest.raises(UnknownNameError, match="replay:FILE"):
        open_device("replay")
