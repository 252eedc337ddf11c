"""Kernels that trap, stray or spin cost one report and one worker, never the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gemmtune.device import open_device
from gemmtune.device.base import Job, Limits, Outcome
from gemmtune.device.cuda import CudaDevice
from gemmtune.device.cuda.engine import CudaEngine
from gemmtune.device.cuda.info import monitor
from gemmtune.device.cuda.sanity import SLACK_BYTES, Traces
from gemmtune.device.worker import Worker
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, device_key

pytestmark = pytest.mark.gpu
PROBLEM = Gemm(64, 64, 64)


SPIN = "while (*reinterpret_cast<volatile u32*>(counters) == 0u) {}"


@pytest.fixture(scope="module")
def worker(needs_gpu: None) -> Iterator[Worker]:
    with Worker("cuda:0", aftermath=Traces(monitor(0))) as w:
        yield w


@pytest.mark.parametrize(
    "before",
    [
        'asm volatile("trap;");',
        "*reinterpret_cast<volatile int*>(16) = 1;",
        "*reinterpret_cast<volatile int*>(reinterpret_cast<char*>(d) + 1) = 1;",
        'asm volatile("{ .reg .u64 t; mov.u64 t, 0xfffffff0; st.shared.u32 [t], 0; }" ::: "memory");',
    ],
    ids=["trap", "illegal address", "misaligned", "shared memory out of range"],
)
def test_a_dying_kernel_is_a_launch_report_and_the_next_one_works(
    worker: Worker, planted: Callable[..., Job], before: str
) -> None:
    report = worker.request(planted(PROBLEM, before=before), Limits())
    assert report.outcome is Outcome.LAUNCH
    assert "died while it ran" in report.detail
    assert report.killed
    assert "dead worker" not in report.detail  # all its memory is back
    assert worker.pid is None
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT


def test_a_spinning_kernel_times_out(worker: Worker, planted: Callable[..., Job]) -> None:
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT
    report = worker.request(planted(PROBLEM, before=SPIN), Limits(verify=5))
    assert report.outcome is Outcome.TIMEOUT
    assert report.killed
    assert "did not end its verify stage within 5 s" in report.detail
    assert "dead worker" not in report.detail
    assert worker.request(planted(PROBLEM, measure=False), Limits()).outcome is Outcome.CORRECT


def test_a_dead_worker_leaves_the_gpu(worker: Worker, planted: Callable[..., Job]) -> None:
    assert worker.request(planted(Gemm(4096, 4096, 4096, dtype="bf16"), verify=False, measure=False), Limits())
    worker.close()
    seen = monitor(0)
    before = seen.memory_used()
    worker.request(planted(PROBLEM, before=SPIN), Limits(verify=2))
    assert worker.pid is None
    after = seen.memory_used()
    assert before is not None
    assert after is not None
    assert abs(after - before) <= SLACK_BYTES


def test_the_known_kernel_is_right_and_keeps_its_time(engine: CudaEngine) -> None:
    reference = engine.probe(None)
    assert reference.trouble == ""
    assert reference.us is not None
    assert engine.probe(reference.us).trouble == ""
    assert "something else is running" in engine.probe(reference.us / 100).trouble


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
