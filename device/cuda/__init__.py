"""A real GPU: verified and timed in a worker process, so that this one never holds a CUDA context."""

from __future__ import annotations

from functools import cached_property

from gemmtune.device.worker import Worker, WorkerDevice
from gemmtune.space.gpu import Gpu


class CudaDevice(WorkerDevice):
    """GPU ``index`` as CUDA numbers them.

    Raises:
        ToolchainError: CuPy, the driver or a GPU is missing.
        UnknownNameError: there are GPUs, but none of that index.
    """

    kind = "cuda"
    estimates = False

    def __init__(self, index: int = 0) -> None:
        from gemmtune.device.cuda.info import check_index, monitor
        from gemmtune.device.cuda.sanity import Traces

        check_index(index)
        self._index = index
        self._worker = Worker(self.name, aftermath=Traces(monitor(index)))

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
