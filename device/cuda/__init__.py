"""A real GPU: verified and timed in a worker process, so that this one never holds a CUDA context."""

from __future__ import annotations

from functools import cached_property

from gemmtune.device.base import Job, Report
from gemmtune.device.worker import Worker
from gemmtune.space.gpu import Gpu


class CudaDevice:
    """GPU ``index`` as CUDA numbers them.

    Raises:
        ToolchainError: CuPy, the driver or a GPU is missing.
        UnknownNameError: there are GPUs, but none of that index.
    """

    kind = "cuda"
    estimates = False

    def __init__(self, index: int = 0) -> None:
        from gemmtune.device.cuda.info import check_index

        check_index(index)
        self._index = index
        self._worker = Worker(self.name)

    @property
    def name(self) -> str:
        """``cuda:N``."""
        return f"cuda:{self._index}"

    @cached_property
    def gpu(self) -> Gpu:
        """What the device says of itself."""
        from gemmtune.device.cuda.info import gpu_of

        return gpu_of(self._index)

    def environment(self) -> dict[str, str]:
        """Versions of driver, CUDA, NVRTC, libcublas, CuPy and Python."""
        from gemmtune.device.cuda.info import environment

        return environment(self._index)

    def run(self, job: Job, timeout: float) -> Report:
        """Prove and time one kernel."""
        return self._worker.request(job, timeout)

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Re-measure several kernels and the baseline in one round-robin."""
        return self._worker.compare(jobs, timeout)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
