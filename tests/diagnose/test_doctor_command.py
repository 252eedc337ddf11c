"""``gemmtune doctor`` from its command line: order, exit code, what a missing GPU means, noise, JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from gemmtune.cli.main import run
from gemmtune.device.toolchain import device_count
from gemmtune.diagnose import doctor
from gemmtune.diagnose.check import Check, Status
from gemmtune.search import noise
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

ORDER = ["precision", "operands", "size", "target", "first kernel", "warm-up", "memory"]


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history" / "h.db"))


def test_an_emulated_device_is_well_and_the_questions_come_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "512x512x512", "--device", "emulator:h200", "--format", "json"]) == 0
    checks = json.loads(capsys.readouterr().out)
    asked = [c["name"] for c in checks if c["group"] == "gemm 512x512x512 bf16 nt"]
    assert asked == ORDER
    by_name = {c["name"]: c for c in checks}
    assert by_name["first kernel"]["status"] == "ok"
    assert by_name["first kernel"]["data"]["rel_error"] <= by_name["first kernel"]["data"]["error_bound"]
    assert by_name["warm-up"]["status"] == by_name["clocks"]["status"] == "skipped"
    assert {c["status"] for c in checks} <= {"ok", "skipped", "warning"}


def test_a_problem_ends_with_code_1_and_every_line_that_needs_it_has_its_cure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "100x101x102", "--device", "emulator:t4", "--dtype", "tf32"]) == 1
    out = capsys.readouterr().out
    (line,) = [text for text in out.splitlines() if text.startswith("  problem  precision")]
    assert "-> use --dtype" in line
    assert out.splitlines()[-1].startswith("1 problem and ")


def test_a_gpu_that_was_asked_for_and_is_missing_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gemmtune.device.toolchain.driver_present", lambda: False)
    assert run(["doctor", "--device", "cuda:0"]) == 1
    out = capsys.readouterr().out
    assert "  problem  device" in out
    assert "libcuda.so.1" in out
    assert "Self-check of gemm 4096x4096x4096 bf16 nt" in out


def test_where_there_is_no_gpu_the_emulator_stands_in_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmtune.device.toolchain.driver_present", lambda: False)
    checks = list(doctor.examine([Gemm(64, 64, 64)]))
    assert checks[0].status is Status.WARNING
    assert "emulator:h200 stands in" in checks[0].value
    (driver,) = [c for c in checks if c.name == "driver"]
    assert driver.status is Status.SKIPPED
    assert "libcuda.so.1" in driver.cure
    assert doctor.worst(checks) is Status.WARNING


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--format", "xml"], "table or json"),
        (["--device", "tpu:0"], "cuda:0"),
        (["8x8"], "MxNxK"),
        (["8x8x8", "--dtype", "fp7"], "fp32"),
        (["8x8x64", "--lda", "32"], "lda is 32"),
    ],
)
def test_bad_input_ends_with_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    assert run(["doctor", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_estimates_have_no_noise() -> None:
    (*_, last) = doctor.examine([Gemm(64, 64, 64)], "emulator:h200", noise=True)
    assert last.group == doctor.NOISE
    assert last.status is Status.SKIPPED


@pytest.mark.parametrize(("false", "status"), [(4, Status.OK), (5, Status.WARNING)])
def test_noise_is_well_up_to_two_per_cent(monkeypatch: pytest.MonkeyPatch, false: int, status: Status) -> None:
    told: list[str] = []

    def measured(device: object, problem: Gemm, progress: Any) -> noise.Noise:
        progress(105, 210)
        return noise.Noise(210, false, 0.005, 0.0031, 0, problem.key, "mma bm=64", ())

    monkeypatch.setattr(noise, "measure_noise", measured)
    (*_, last) = doctor.examine([Gemm(64, 64, 64)], "emulator:h200", noise=True, progress=told.append)
    assert last.status is status
    assert f"{false} seemed to differ by more than 0.5 %" in last.value
    assert last.data["rate"] == false / 210
    assert "noise: 105 of 210 pairs" in told


def test_no_history_is_left_behind(tmp_path: Path) -> None:
    checks: list[Check] = list(doctor.examine([Gemm(64, 64, 64)], "emulator:h200"))
    assert "none yet" in next(c for c in checks if c.name == "history").value
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_a_real_gpu_is_looked_at_in_full() -> None:
    try:
        device_count()
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA GPU: {error}")
    checks = {c.name: c for c in doctor.examine([Gemm(4096, 4096, 4096)], "cuda:0")}
    for name in ("device", "driver", "CuPy", "cuBLAS", "NVRTC", "precision", "target", "first kernel", "memory"):
        assert checks[name].status is Status.OK, checks[name]
    assert checks["clocks"].data["sm_max_mhz"] >= checks["warm-up"].data["loaded_mhz"]
    assert checks["power"].data["limit_watts"] > 0
    assert checks["warm-up"].data["ratio"] > 0
