"""Kernels that trap, stray or spin cost one report and one worker, never the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gemmtune.device import open_device
from gemmtune.device.base import Job, Limits, Outcome
from gemmtune.device.cuda import CudaDevice
from gemmtune.device.worker import Worker
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, device_key

pytestmark = pytest.mark.gpu
PROBLEM = Gemm(64, 64, 64)


@pytest.fixture(scope="module")
def worker(needs_gpu: None) -> Iterator[Worker]:
    with Worker("cuda:0") as w:
        yield w


@pytest.mark.parametrize(
    "before", ['asm volatile("trap;");', "*reinterpret_cast<volatile int*>(16) = 1;"], ids=["trap", "illegal address"]
)
def test_a_dying_kernel_is_a_launch_report_and_the_next_one_works(
    worker: Worker, planted: Callable[..., Job], before: str
) -> None:
    report = worker.request(planted(PROBLEM, before=before), Limits())
    assert report.outcome is Outcome.LAUNCH
    assert "died while it ran" in report.detail
    assert worker.pid is None
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT


def test_a_spinning_kernel_times_out(worker: Worker, planted: Callable[..., Job]) -> None:
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT
    spin = "while (*reinterpret_cast<volatile u32*>(counters) == 0u) {}"
    report = worker.request(planted(PROBLEM, before=spin), Limits(verify=5))
    assert report.outcome is Outcome.TIMEOUT
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT


def test_the_device_says_what_it_is(gpu: Gpu) -> None:
    device = open_device()
    try:
        assert isinstance(device, CudaDevice)
        assert device.gpu == gpu
        assert gpu.key == device_key(gpu.capability, gpu.name, gpu.sms, gpu.memory, gpu.mig)
        assert gpu.sms > 0
        assert gpu.l2 > 0
        assert gpu.shared_per_block >= 48 * 1024
        assert gpu.peak["fp32"] > 0
        environment = device.environment()
        assert environment["driver"] != "unknown"
        assert environment["cublas"] != "none"
        assert environment["nvrtc"] != "none"
    finally:
        device.close()
