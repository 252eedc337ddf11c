"""Tuner and runtime name a GPU by one function: what was tuned here is found here, and on no other slice of it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gemmtune.device.cuda import info
from gemmtune.device.identity import identity
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gpu import TABLE, gpu

H200 = gpu("h200")


class Runtime:
    """CUDA's runtime as CuPy binds it, for one H200 or a slice of one."""

    def __init__(self, name: str = H200.name, sms: int = H200.sms, memory: int = H200.memory) -> None:
        self.properties = {
            "name": name.encode(), "major": 9, "minor": 0, "multiProcessorCount": sms, "totalGlobalMem": memory,
        }  # fmt: skip

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        return self.properties

    def deviceGetAttribute(self, which: str, index: int) -> int:
        return {"cudaDevAttrMaxThreadsPerBlock": 1024}.get(which, 1000)

    def __getattr__(self, name: str) -> str:
        return name


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a runtime in place of CuPy's."""

    def put(runtime: Runtime) -> None:
        module: Any = ModuleType("cupy")
        module.cuda = SimpleNamespace(runtime=runtime)
        monkeypatch.setitem(sys.modules, "cupy", module)
        monkeypatch.setattr(info, "check_index", lambda index: None)

    return put


SLICE = Runtime("NVIDIA H200 MIG 1g.18gb", 16, 17 * 2**30)


@pytest.mark.parametrize("runtime", [Runtime(), SLICE], ids=["whole", "slice"])
def test_tuner_and_runtime_agree(cuda: Any, runtime: Runtime) -> None:
    cuda(runtime)
    assert (identity(0).key, identity(0).arch) == (info.gpu_of(0).key, info.gpu_of(0).arch)


def test_a_present_gpu_has_the_key_of_its_row_in_the_table(cuda: Any) -> None:
    cuda(Runtime())
    assert (identity(0).key, identity(0).arch) == (H200.key, H200.arch) == ("9.0|NVIDIA H200|132|140|", "sm_90a")


def test_a_slice_is_another_device_than_the_whole(cuda: Any) -> None:
    cuda(SLICE)
    assert identity(0).mig == "1g.18gb"
    assert identity(0).key not in {row.key for row in TABLE.values()}
    assert identity(0).arch == "sm_90a"


def test_without_cupy_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolchainError, match=r"CuPy .*: (pip install|reinstall).*gemmtune\[cuda13\]"):
        identity(0)
