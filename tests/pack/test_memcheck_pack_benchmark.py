"""What of ``benchmarks/memcheck_pack.py`` needs no GPU: which kernels it takes, and that what is not clean is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.device import open_device
from gemmtune.device.cuda.sanitizer import Verdict
from gemmtune.pack.format import PackData
from gemmtune.search.results import read_result_file


class Gpu:
    """The emulated device, but for what it finds of a kernel; and a sanitizer that is told what to find."""

    def __init__(self) -> None:
        self.outcome, self.findings, self.seen = "correct", dict[str, str](), list[tuple[str, str]]()

    def open(self, name: str) -> Any:
        device = open_device("emulator:h200")
        device.run = lambda job, limits: SimpleNamespace(outcome=self.outcome)
        return device

    def sanitize(self, job: Any, tool: str, index: int) -> Verdict:
        self.seen.append((job.problem.key, tool))
        found = self.findings.get(tool)
        return Verdict(tool, found is None, "0 errors" if found is None else "1 error", (found,) if found else (), "")


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def run(
    gpu: Gpu, small_pack: PackData, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    load_benchmark: Callable[[str], Any],
) -> Callable[..., Any]:  # fmt: skip
    script = load_benchmark("memcheck_pack.py")
    monkeypatch.setattr(script, "open_device", gpu.open)
    monkeypatch.setattr(script, "sanitize", gpu.sanitize)

    def _run(*texts: str) -> Any:
        only = [word for text in texts for word in ("--only", text)]
        monkeypatch.setattr(
            sys, "argv", ["memcheck_pack.py", str(write(small_pack)), str(tmp_path / "out.json"), *only]
        )
        with pytest.raises(SystemExit) as ended:
            script.main()
        return ended.value.code

    return _run


def test_kernels_are_chosen_by_their_configuration_and_each_meets_both_tools(
    gpu: Gpu, run: Callable[..., Any], tmp_path: Path, small_pack: PackData
) -> None:
    assert not run("=")
    assert sorted(gpu.seen) == sorted(
        (kernel.problem.key, tool) for kernel in small_pack.kernels.values() for tool in ("memcheck", "racecheck")
    )
    summary = read_result_file(tmp_path / "out.json").summary
    assert {one["cubin"] for one in summary["kernels"]} == set(small_pack.kernels)
    assert summary["not_clean"] == 0


@pytest.mark.parametrize("fault", ["wrong", "memcheck", "racecheck"])
def test_a_wrong_kernel_or_one_that_is_not_clean_is_told(
    fault: str, gpu: Gpu, run: Callable[..., Any], tmp_path: Path
) -> None:
    if fault == "wrong":
        gpu.outcome = "wrong"
    else:
        gpu.findings[fault] = "Invalid __global__ read of size 16 bytes"
    assert run("=")
    kernels = read_result_file(tmp_path / "out.json").summary["kernels"]
    assert not any(one["clean"] for one in kernels)
    assert all(one["findings"] == list(gpu.findings.values()) for one in kernels)


def test_where_no_kernel_is_meant_there_is_no_file(gpu: Gpu, run: Callable[..., Any], tmp_path: Path) -> None:
    assert "has cluster=9x9 or swap=9 in its configuration" in run("cluster=9x9", "swap=9")
    assert gpu.seen == []
    assert not (tmp_path / "out.json").exists()
