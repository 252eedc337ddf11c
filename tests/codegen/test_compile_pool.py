"""The pool: a compiler that crashes, hangs or refuses costs one kernel, and the pool goes on."""

from __future__ import annotations

import os
import signal
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.pool import CompilePool, CompileTimeout
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, SettingError, ToolchainError
from gemmtune.space.gemm import Gemm

COMPILER = """
import os, signal, time
from gemmtune.codegen.kernel import CompiledKernel, KernelResources
from gemmtune.space.errors import CompileError, ToolchainError

def compile(source, arch, root):
    if arch == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if arch == "exit":
        os._exit(3)
    if arch == "hang":
        time.sleep(1000)
    if arch == "refuse":
        raise CompileError("refused")
    if arch == "missing":
        raise ToolchainError("missing")
    if arch == "bug":
        raise ZeroDivisionError("bug")
    return CompiledKernel(source, arch, str(os.getpid()).encode(), KernelResources(1, 0, 0, 0), "0", "", 0.0, False)
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "planted_compiler.py").write_text(COMPILER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "planted_compiler:compile"


@pytest.fixture
def source() -> KernelSource:
    return render(Gemm(64, 64, 64), Configuration.of("naive", {}))


def test_a_crash_costs_one_kernel(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        crash, fine = pool.submit(source, "crash"), pool.submit(source, "sm_90a")
        with pytest.raises(CompileError, match="died of SIGSEGV"):
            crash.result()
        assert fine.result().arch == "sm_90a"


def test_an_exit_costs_one_kernel(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        with pytest.raises(CompileError, match="exit code 3"):
            pool.submit(source, "exit").result()
        assert pool.submit(source, "sm_90a").result().source == source


def test_an_endless_compile_costs_one_kernel(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler, timeout=1.5) as pool:
        hang = pool.submit(source, "hang")
        with pytest.raises(CompileTimeout, match=r"naive for hang took longer than 1\.5 s"):
            hang.result()
        pool.timeout = 60.0
        assert pool.submit(source, "sm_90a").result().arch == "sm_90a"


def test_errors_keep_their_type_and_the_process_lives_on(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        before = pool.submit(source, "sm_90a").result().cubin
        with pytest.raises(CompileError, match="refused"):
            pool.submit(source, "refuse").result()
        with pytest.raises(ToolchainError, match="missing"):
            pool.submit(source, "missing").result()
        with pytest.raises(CompileError, match="ZeroDivisionError"):
            pool.submit(source, "bug").result()
        assert pool.submit(source, "sm_90a").result().cubin == before


def test_close_ends_what_runs_and_cancels_what_waits(compiler: str, source: KernelSource) -> None:
    pool = CompilePool(1, compiler=compiler)
    process = int(pool.submit(source, "sm_90a").result().cubin)
    running, waiting = pool.submit(source, "hang"), pool.submit(source, "sm_90a")
    while not running.running():
        pass
    pool.close()
    pool.close()
    with pytest.raises(CompileError):
        running.result(timeout=0)
    with pytest.raises(CancelledError):
        waiting.result(timeout=0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(RuntimeError, match="after close"):
        pool.submit(source, "sm_90a")


def test_workers_ignore_ctrl_c(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        process = pool.submit(source, "sm_90a").result().cubin
        os.kill(int(process), signal.SIGINT)
        assert pool.submit(source, "sm_90a").result().cubin == process


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_a_pool_has_workers(workers: Any) -> None:
    with pytest.raises(SettingError, match=f"workers must be an integer of at least 1, but is {workers}"):
        CompilePool(workers)


def test_real_kernels_compile_in_the_pool_and_meet_in_the_cache(source: KernelSource, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")
    cache = KernelCache(tmp_path / "cache")
    with CompilePool(1, cache=cache) as pool:
        first: CompiledKernel = pool.submit(source, "sm_90").result()
        second = pool.submit(source, "sm_90").result()
    assert (first.cached, second.cached) == (False, True)
    assert first.cubin == second.cubin != b""
