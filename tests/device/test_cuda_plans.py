"""What the CUDA engine decides before it touches a GPU: rotation, graph lengths, row counts, peaks, sentences."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune import device
from gemmtune.device import toolchain
from gemmtune.device.cuda import info, nvml
from gemmtune.device.cuda.operands import MOST_COPIES, copies_for
from gemmtune.device.cuda.proof import row_counts
from gemmtune.device.cuda.reference import affordable_flops
from gemmtune.device.cuda.source import SOURCE
from gemmtune.device.cuda.timing import LONGEST_GRAPH_US, MOST_LAUNCHES, Series, launches_for, ratios
from gemmtune.device.elementwise import _SOURCE as ELEMENTWISE
from gemmtune.space.errors import ToolchainError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, gpu

H200 = gpu("h200")


@pytest.mark.parametrize("source", [SOURCE, ELEMENTWISE], ids=["verifier", "elementwise"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_the_helper_kernels_compile_without_a_gpu(source: str, arch: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"helpers.cu", 0, [], [])
    options = [b"-std=c++17", f"--gpu-architecture={arch}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = nvrtc.nvrtcGetProgramLogSize(program)[1]
    log = bytearray(size)  # never b" " * size: of one byte, that is the interpreter's own b" "
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(status) == 0, log.decode()


@given(st.floats(0.5, 1e6), st.integers(1, MOST_COPIES))
def test_graphs_are_whole_turns_unless_too_long(us: float, copies: int) -> None:
    launches = launches_for(us, copies)
    assert 1 <= launches <= MOST_LAUNCHES
    assert launches == 1 or launches * us <= LONGEST_GRAPH_US * 1.001
    if copies * us <= 2500 and copies <= 100:
        assert launches % copies == 0
        assert launches * us >= 2499 or launches > MOST_LAUNCHES - copies


@given(st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 8192))
def test_a_rotation_passes_three_times_the_l2_within_half_the_memory(m: int, n: int, k: int) -> None:
    problem = Gemm(m, n, k)
    each = sum(t.elements * t.dtype.bytes for t in problem.tensors())
    count = copies_for(problem, H200.l2, free=100 * 2**30)
    assert 2 <= count <= MOST_COPIES
    assert count * each >= 3 * H200.l2 or count == MOST_COPIES
    tight = copies_for(problem, H200.l2, free=4 * each)
    assert tight == min(count, 2)
    assert copies_for(problem, H200.l2, free=0) == 1


@given(st.integers(1, 5000), st.sampled_from([16, 64, 128, 256]), st.integers(0, 2**31))
def test_rows_verified_are_full_tiles_ragged_and_one(m: int, tile: int, seed: int) -> None:
    counts = row_counts(m, tile, seed, fixed=False)
    assert counts[0] == m
    assert 1 in counts
    assert all(1 <= c <= m for c in counts)
    assert len(set(counts)) == len(counts)
    if m > 2 * tile:
        assert 2 * tile in counts
        assert any(c % tile for c in counts if 1 < c < m)
    assert row_counts(m, tile, seed, fixed=True) == [m]


def test_float64_is_affordable_by_class_of_chip() -> None:
    assert 2 * 2 * 4096**3 <= affordable_flops(H200) <= 2 * 2 * 8192**3  # the bar's shape whole, a large one sampled
    assert affordable_flops(gpu("rtx4090")) < affordable_flops(H200) / 20


def test_peaks_come_from_the_table_or_the_nearest_row() -> None:
    seen = replace(H200, peak={}, short="x", bandwidth=1.0, clock=1.0)
    assert info.with_peaks(seen) == replace(H200, memory=seen.memory)
    half = info.with_peaks(replace(H200, name="NVIDIA H900", sms=66, peak={}))
    assert half.peak["bf16"] == pytest.approx(TABLE["h200"].peak["bf16"] / 2, rel=0.01)
    newer = info.with_peaks(replace(H200, name="Unheard of", capability=(13, 0), peak={}))
    assert newer.peak
    older = info.with_peaks(replace(H200, name="Ancient", capability=(6, 1), peak={}))
    assert older.peak


def test_ratios_pair_samples_of_one_half_round() -> None:
    fake: Any = None
    assert ratios(Series(fake, [1.0, 2.0]), Series(fake, [2.0, 3.0])) == [2.0, 1.5]


def test_without_nvml_there_are_no_clocks_and_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: None)
    monitor = nvml.Monitor("0000:00:00.0")
    assert monitor.clock_mhz() is None
    assert monitor.throttle() == ""
    assert nvml.driver_version() is None


class _Error(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Cupy:
    """CuPy on a machine with a given answer to getDeviceCount."""

    def __init__(self, answer: int | Exception) -> None:
        outer = answer

        class runtime:
            CUDARuntimeError = _Error

            @staticmethod
            def getDeviceCount() -> int:
                if isinstance(outer, Exception):
                    raise outer
                return outer

            @staticmethod
            def runtimeGetVersion() -> int:
                return 13020

        class cuda:
            pass

        cuda.runtime = runtime  # type: ignore[attr-defined]
        self.cuda = cuda


@pytest.mark.parametrize(
    ("driver", "answer", "said"),
    [
        (False, 1, "No NVIDIA driver is installed"),
        (True, _Error(35), r"too old for CUDA 13\.2"),
        (True, _Error(100), "sees no GPU"),
        (True, 0, "sees no GPU"),
        (True, _Error(999), "nvidia-smi"),
    ],
)
def test_each_thing_that_is_missing_has_its_own_sentence(
    monkeypatch: pytest.MonkeyPatch, driver: bool, answer: int | Exception, said: str
) -> None:
    monkeypatch.setattr(toolchain, "driver_present", lambda: driver)
    monkeypatch.setattr(toolchain, "require_cupy", lambda: _Cupy(answer))
    with pytest.raises(ToolchainError, match=said):
        toolchain.device_count()


def test_a_missing_cupy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolchainError, match=r"gemmtune\[cuda13\]"):
        toolchain.require_cupy()


def test_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "driver_present", lambda: True)
    monkeypatch.setattr(toolchain, "require_cupy", lambda: _Cupy(2))
    monkeypatch.setattr("gemmtune.device.cuda.info.monitor", lambda index: None)
    one = device.open_device("cuda:1")
    assert (one.kind, one.name, one.estimates) == ("cuda", "cuda:1", False)
    one.close()
    with pytest.raises(UnknownNameError, match="cuda:0 to cuda:1"):
        device.open_device("cuda:2")
    for bad in ("tpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(UnknownNameError, match="Unknown device"):
            device.open_device(bad)
