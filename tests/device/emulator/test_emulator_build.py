"""Finding a compiler, building into the cache, and what is said where either cannot be."""

from __future__ import annotations

import concurrent.futures
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gemmtune.device.emulator import build, toolchain
from gemmtune.device.emulator.build import build_core, build_kernel, prune_kernels
from gemmtune.device.emulator.launch import KernelLibrary
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.space.errors import CompileError, ToolchainError

SOURCE = '#include "gemmtune/hw.cuh"\nextern "C" __global__ void nothing(int i) {}\n'


@pytest.fixture(autouse=True)
def _fresh_search() -> None:
    toolchain._find.cache_clear()


class TestToolchain:
    def test_cxx_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        wrapper = tmp_path / "my c++"
        wrapper.write_text('#!/bin/sh\necho "wrapped compiler 1.2"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", f"'{wrapper}' -m64")
        found = find_toolchain()
        assert found.command == (str(wrapper), "-m64")
        assert found.version == "wrapped compiler 1.2"

    def test_cxx_that_does_not_run_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "/nowhere/c++")
        with pytest.raises(ToolchainError, match=r"\$CXX is '/nowhere/c\+\+', which does not run"):
            find_toolchain()

    def test_no_compiler_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ToolchainError, match=r"pip install gemmtune\[ziglang\]"):
            find_toolchain()

    def test_ziglang_is_the_last_resort(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: name == "ziglang" or None)
        assert toolchain._candidates() == [(sys.executable, "-m", "ziglang", "c++")]


class TestBuild:
    def test_kernels_are_built_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = build_kernel(SOURCE, "nothing")
        monkeypatch.setattr(toolchain.Toolchain, "compile", lambda *_: pytest.fail("built again"))
        assert build_kernel(SOURCE, "nothing") == first

    def test_capability_reaches_the_source(self) -> None:
        text = SOURCE + "static_assert(__CUDA_ARCH__ == 750);\n"
        build_kernel(text, "nothing", capability=75)
        with pytest.raises(CompileError):
            build_kernel(text, "nothing", capability=80)

    @pytest.mark.parametrize("damage", [b"", b"truncated", None])
    def test_a_damaged_library_is_built_again(self, damage: bytes | None) -> None:
        text = SOURCE + "// to be damaged\n"
        path = build_kernel(text, "nothing")
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
        again = build_kernel(text, "nothing")
        assert again == path
        KernelLibrary(again).close()

    def test_source_at_fault_gives_the_compilers_words(self) -> None:
        with pytest.raises(CompileError, match=r"Kernel broken does not compile.*broken\.cu:2.*not_a_name"):
            build_kernel(
                '#include "gemmtune/hw.cuh"\nextern "C" __global__ void broken() { not_a_name(); }\n', "broken"
            )

    def test_unwritable_cache_is_said(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("not a directory")
        monkeypatch.setenv("GEMMTUNE_CACHE", str(blocked))
        with pytest.raises(ToolchainError, match="set GEMMTUNE_CACHE"):
            build_kernel(SOURCE, "nothing")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
    def test_a_full_disk_is_no_fault_of_the_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compile_to = toolchain.Toolchain.compile

        def into_nothing(self: toolchain.Toolchain, arguments: list[str], timeout: float) -> None:
            compile_to(self, ["-E" if a == "-shared" else a for a in arguments[:-1]] + ["/dev/full"], timeout)

        monkeypatch.setattr(toolchain.Toolchain, "compile", into_nothing)
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        with pytest.raises(ToolchainError, match=r"The disk of .* is full: free some space"):
            build_kernel(SOURCE + "// never built\n", "nothing")

    def test_many_may_build_the_same_at_once(self) -> None:
        build_core()
        text = SOURCE + f"// {os.getpid()} at once\n"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            paths = {f.result() for f in [pool.submit(build_kernel, text, "nothing") for _ in range(4)]}
        assert len(paths) == 1
        KernelLibrary(paths.pop()).close()

    def test_pruning_keeps_the_newest(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path))
        kernels = build.cache_root() / "key" / "kernels"
        kernels.mkdir(parents=True)
        for age in range(5):
            (kernels / f"{age}.so").write_text("")
            (kernels / f"{age}.so.sha256").write_text("")
            os.utime(kernels / f"{age}.so", (1000 - age, 1000 - age))
        prune_kernels(2)
        assert sorted(p.name for p in kernels.iterdir()) == ["0.so", "0.so.sha256", "1.so", "1.so.sha256"]


def test_one_process_loads_any_number_of_kernels() -> None:
    """Kernel libraries have no thread-local data and are unloaded: the limit of static TLS is never met."""
    path = build_kernel(SOURCE, "nothing")
    for _ in range(600):
        KernelLibrary(path).close()
    held = [KernelLibrary(build_kernel(SOURCE + f"// copy {i}\n", "nothing")) for i in range(3)]
    dynamic = subprocess.run(["readelf", "-Wl", str(path)], capture_output=True, text=True, check=False)
    assert "TLS" not in dynamic.stdout
    for library in held:
        library.close()
