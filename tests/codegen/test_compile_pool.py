"""The pool: a compiler that crashes, hangs, eats the memory or refuses costs one kernel, and the pool goes on."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen import pool as pool_module
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.pool import LEAST_MEMORY, CompileMemoryError, CompilePool, CompileTimeout, memory_share
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, SettingError, ToolchainError
from gemmtune.space.gemm import Gemm

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits on data are Linux's")
COMPILER = """
import logging, os, resource, signal, sys, time
from gemmtune.codegen.kernel import CompiledKernel, KernelResources
from gemmtune.space.errors import CompileError, ToolchainError

spoilt = []

def compile(source, arch, root):
    if arch == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if arch == "abort":
        print("LLVM ERROR: out of memory", file=sys.stderr, flush=True)
        os.abort()
    if arch == "eat":
        eaten = [bytearray(1 << 24) for _ in range(4096)]
    if arch == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if arch == "spoilt":
        spoilt.append(arch)
    elif spoilt:
        os.abort()
    if arch == "log":
        logging.getLogger("gemmtune.planted").warning("the disk is full")
    if arch == "core":
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
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
        with pytest.raises(CompileError, match=r"^The compiler crashed over naive for crash \(it died of SIGSEGV"):
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


@LINUX
@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("eat", "it was refused memory; 0.5 GB are allowed each of 1 compile processes"),
        ("abort", "it died of SIGABRT, saying 'LLVM ERROR: out of memory'"),
        ("killed", "it died of SIGKILL"),
    ],
)
def test_a_compile_that_runs_out_of_memory_costs_one_kernel(
    compiler: str, source: KernelSource, fault: str, how: str
) -> None:
    with CompilePool(1, compiler=compiler, memory=1 << 29) as pool:
        lost, fine = pool.submit(source, fault), pool.submit(source, "sm_90a")
        with pytest.raises(CompileMemoryError, match=f"^Compiling naive for {fault} ran out of memory .*{how}"):
            lost.result()
        assert fine.result().arch == "sm_90a"


@LINUX
def test_a_real_compiler_that_runs_out_of_memory_costs_one_kernel(source: KernelSource) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")
    head = "#define A(x) x x x x x x x x x x"  # ten million terms
    many = "__device__ int f() { return 0 A(A(A(A(A(A(A(+1))))))); }"
    text = f'{head}\n{many}\nextern "C" __global__ void {source.entry}(float* p) {{ *p = f(); }}'
    with CompilePool(1, memory=200 << 20) as pool:
        fine = pool.submit(source, "sm_90a").result()
        with pytest.raises(CompileMemoryError, match=r"ran out of memory .*0\.195 GB are allowed"):
            pool.submit(dataclasses.replace(source, text=text), "sm_90a").result()
        assert pool.submit(source, "sm_90a").result().cubin == fine.cubin


def test_a_kernel_is_not_blamed_for_what_an_earlier_one_left_behind(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        before = pool.submit(source, "spoilt").result().cubin
        assert pool.submit(source, "sm_90a").result().cubin != before


def test_what_the_processes_log_is_logged_here_once(
    compiler: str, source: KernelSource, caplog: pytest.LogCaptureFixture
) -> None:
    with CompilePool(1, compiler=compiler) as pool, caplog.at_level(logging.WARNING):
        for _ in range(2):
            pool.submit(source, "log").result()
    assert [(r.name, r.message) for r in caplog.records] == [("gemmtune.planted", "the disk is full")]


def test_a_crash_leaves_no_core_file(compiler: str, source: KernelSource) -> None:
    with CompilePool(1, compiler=compiler) as pool:
        assert pool.submit(source, "core").result().arch == "core"


def test_a_compiler_that_cannot_be_started_is_no_fault_of_the_kernel(
    compiler: str, source: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(pool_module, "Child", refuse)
    with CompilePool(1, compiler=compiler) as pool, pytest.raises(ToolchainError, match="No process could be started"):
        pool.submit(source, "sm_90a").result()


def test_memory_is_shared_out_among_the_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 4096}.__getitem__)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(pool_module, "_CGROUPS", (str(limit), str(tmp_path / "none")))
    assert memory_share(4) == 8 << 30  # half of 64 GiB by four
    limit.write_text("max\n")
    assert memory_share(4) == 8 << 30
    limit.write_text(f"{32 << 30}\n")  # a container that may have half of it
    assert memory_share(4) == 4 << 30
    assert memory_share(64) == LEAST_MEMORY


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
    with pytest.raises(CompileError, match="the pool was closed"):
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


@pytest.mark.parametrize(
    ("setting", "sentence"), [({"timeout": 0.0}, "compile timeout must be a positive"), ({"memory": 0}, "memory must")]
)
def test_its_limits_are_positive(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        CompilePool(1, **setting)


def test_real_kernels_compile_in_the_pool_and_meet_in_the_cache(source: KernelSource, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")
    cache = KernelCache(tmp_path / "cache")
    with CompilePool(1, cache=cache) as pool:
        first: CompiledKernel = pool.submit(source, "sm_90").result()
        second = pool.submit(source, "sm_90").result()
    assert (first.cached, second.cached) == (False, True)
    assert first.cubin == second.cubin != b""
