"""Running a kernel under compute-sanitizer: what is launched, and what the tool says. The GPU: tests/device/cuda."""

import os
import pickle
import select
import stat
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.render import render
from gemmtune.device.base import Job
from gemmtune.device.cuda import alone, sanitizer
from gemmtune.device.cuda.alone import Launches, row_counts
from gemmtune.device.cuda.sanitizer import TOOLS, find_sanitizer, read_verdict, sanitize
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import SettingError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe

MEMCHECK = """\
========= COMPUTE-SANITIZER
m=48: launched
========= Invalid __global__ write of size 4 bytes
=========     at probe+0x2d0
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f2c4e001800 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2c4e000000 of size 6,144 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at probe+0x2d0
=========     by thread (1,0,0) in block (0,0,0)
=========     Access at 0x7f2c4e001804 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Invalid __shared__ read of size 16 bytes
=========     at probe+0x110
=========     by thread (9,0,0) in block (3,0,0)
=========     Access at 0x8000 is out of bounds
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
m=48: launched
========= Error: Race reported between Write access at probe+0x150
=========     and Read access at probe+0x190 [4096 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


SMALL = Gemm(48, 40, 32, "fp32")


def job(problem: Gemm = SMALL, seed: int = 3, **recipe: object) -> Job:
    source = render(problem, Configuration.of("naive", {}))
    if recipe:
        source = replace(source, recipe=replace(source.recipe, **recipe))
    return Job(problem, CompiledKernel(source, "sm_90a", b"cubin", None, "13.0", "", 0.0, False), seed)


# ------------------------------------------------------------------------------------------------------ what it means


def test_memory_errors_are_told_once_a_place_with_what_was_accessed() -> None:
    verdict = read_verdict("memcheck", 99, MEMCHECK)
    assert (verdict.clean, verdict.summary) == (False, "3 errors")
    assert verdict.findings == (
        "Invalid __global__ write of size 4 bytes, at probe+0x2d0, by thread (0,0,0) in block (0,0,0), "
        "Access at 0x7f2c4e001800 is out of bounds",
        "Invalid __shared__ read of size 16 bytes, at probe+0x110, by thread (9,0,0) in block (3,0,0), "
        "Access at 0x8000 is out of bounds",
    )


def test_a_race_is_told_with_both_accesses() -> None:
    verdict = read_verdict("racecheck", 99, RACECHECK)
    assert (verdict.clean, verdict.summary) == (False, "1 hazard displayed (1 error, 0 warnings)")
    assert verdict.findings == (
        "Error: Race reported between Write access at probe+0x150, and Read access at probe+0x190 [4096 hazards]",
    )


@pytest.mark.parametrize("summary", ["ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors)"])
def test_clean_means_launched_and_nothing_found(summary: str) -> None:
    text = f"========= COMPUTE-SANITIZER\nm=48: launched\n========= {summary}\n"
    verdict = read_verdict("memcheck", 0, text)
    assert (verdict.clean, verdict.findings) == (True, ())


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        (1, "", "exit code 1"),
        (1, "========= Error: Target application terminated before first instrumented API call\n", "terminated before"),
        (0, "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "could not check"),  # nothing ran
        (
            3,
            "LaunchError: Kernel k cannot be loaded on this GPU.\n========= Error: Target ended.\n",
            r"be loaded on this GPU\.$",
        ),
    ],
)
def test_a_tool_that_checked_nothing_is_no_clean_bill(code: int, text: str, words: str) -> None:
    with pytest.raises(ToolchainError, match=words):
        read_verdict("memcheck", code, text)


@given(
    st.lists(st.sampled_from(MEMCHECK.splitlines() + RACECHECK.splitlines() + ["", "noise", "========="])),
    st.integers(),
)
def test_no_output_breaks_the_reading(lines: list[str], code: int) -> None:
    try:
        verdict = read_verdict("memcheck", code, "\n".join(lines))
    except ToolchainError:
        return
    assert verdict.clean == (code == 0)
    assert len(verdict.findings) <= 5


# ------------------------------------------------------------------------------------------------------ how it is run


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A stand-in that writes down its arguments and the launches, then prints the file ``said`` and ends with 99."""
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            for word in "$@"; do printf '%s\\n' "$word"; done > {tmp_path}/words
            for word in "$@"; do case "$word" in */launches) cp "$word" {tmp_path}/launches;; esac; done
            cat {tmp_path}/said
            exit 99
            """)
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tool_gets_one_child_that_launches_this_kernel(program: Path, tmp_path: Path, tool: str) -> None:
    (tmp_path / "said").write_text(MEMCHECK)
    asked = job()
    assert not sanitize(asked, tool, 1, program=program).clean
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--tool") + 1] == tool
    assert ("--padding" in words) == (tool == "memcheck")
    launches = pickle.loads((tmp_path / "launches").read_bytes())
    assert launches == Launches(asked, row_counts(asked), 1)
    assert words[-1] == str(os.getpid())
    assert not list(Path(words[-2]).parent.parent.glob(f"{Path(words[-2]).parent.name}*"))  # nothing is left behind


def test_a_tool_that_never_ends_is_ended_with_all_it_started(program: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\ncat {fifo} &\necho $! >> {tmp_path}/pid\ncat {fifo}\n")
    verdict = sanitize(job(), "memcheck", timeout=2.0, program=program)
    assert not verdict.clean
    assert verdict.summary == "it did not end within 2 s, and was killed"
    for pid in map(int, (tmp_path / "pid").read_text().split()):
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([watched], [], [], 10.0)  # killed for sure, but the kernel takes a moment
        os.close(watched)
        assert ended


def test_it_is_found_on_the_path_and_its_absence_names_the_cure(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_sanitizer() == program
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(program.parent.parent))
    assert find_sanitizer() == program
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-sanitizer-api"):
        find_sanitizer()


def test_there_is_no_other_tool() -> None:
    with pytest.raises(SettingError, match="memcheck, racecheck, synccheck, initcheck"):
        sanitize(job(), "hunch")


# ------------------------------------------------------------------------------------------------- what the child does


@given(st.integers(1, 300), st.integers(0, 2**31))
def test_the_rows_are_all_of_them_a_ragged_count_and_one(m: int, seed: int) -> None:
    tile = job().kernel.recipe.tile.rows
    counts = row_counts(job(Gemm(m, 40, 32, "fp32"), seed))
    assert counts[0] == m
    assert len(set(counts)) == len(counts)
    assert all(1 <= count <= m for count in counts)
    assert 1 in counts
    if m >= 2 * tile:
        assert any(tile < count < 2 * tile for count in counts)


def test_rows_that_are_compiled_in_are_the_only_ones() -> None:
    assert row_counts(job(constants={"m": 48, "n": 40, "k": 32})) == (48,)


class FakeCupy:
    """Allocations that remember their size, at addresses far apart; what is copied and set must fit them."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.used: list[int] = []
        self.cuda = SimpleNamespace(
            Memory=self.allocate,
            Device=lambda index: SimpleNamespace(use=lambda: self.used.append(index)),
            runtime=SimpleNamespace(
                memset=self.fill, memcpy=self.copy, memcpyHostToDevice=1, deviceSynchronize=lambda: None
            ),
        )

    def allocate(self, nbytes: int) -> SimpleNamespace:
        address = 2**20 * (1 + len(self.sizes))
        self.sizes[address] = nbytes
        return SimpleNamespace(ptr=address)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        assert self.sizes[address] == nbytes

    def copy(self, address: int, host: int, nbytes: int, kind: int) -> None:
        assert self.sizes[address] == nbytes
        assert kind == 1


def test_each_buffer_is_an_allocation_of_exactly_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, calls = FakeCupy(), []

    class Loaded:
        def __init__(self, cubin: bytes, recipe: LaunchRecipe) -> None:
            self.recipe = recipe

        def prepare(self, env: dict[str, int], pointers: dict[str, int]) -> SimpleNamespace:
            def launch(stream: int, scratch: object) -> None:
                workspace, counters = scratch.reserve(100, 0)
                assert (cupy.sizes[workspace], counters) == (100, 0)
                calls.append((env["m"], {name: cupy.sizes[p] for name, p in pointers.items()}))

            return SimpleNamespace(launch=launch)

    monkeypatch.setattr("gemmtune.device.launch.LoadedKernel", Loaded)
    monkeypatch.setattr("gemmtune.device.toolchain.require_cupy", lambda: cupy)
    asked = job(Gemm(48, 40, 32, "bf16"))
    said = alone.launch(Launches(asked, (48, 17, 1), 2))
    assert said == ["m=48: launched", "m=17: launched", "m=1: launched"]
    assert cupy.used == [2]
    assert calls == [(m, {"a": m * 32 * 2, "b": 40 * 32 * 2, "d": m * 40 * 2}) for m in (48, 17, 1)]


def test_rows_that_a_kernel_does_not_serve_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.space.recipe import Precondition

    class Loaded:
        def __init__(self, cubin: bytes, recipe: LaunchRecipe) -> None:
            self.recipe = recipe

        def prepare(self, env: object, pointers: object) -> SimpleNamespace:
            return SimpleNamespace(launch=lambda stream, scratch: None)

    monkeypatch.setattr("gemmtune.device.launch.LoadedKernel", Loaded)
    monkeypatch.setattr("gemmtune.device.toolchain.require_cupy", FakeCupy)
    asked = job(preconditions=(Precondition("m % 16 == 0", "m must be a multiple of 16"),))
    assert alone.launch(Launches(asked, (48, 17), 0)) == [
        "m=48: launched",
        "m=17: not served (m must be a multiple of 16)",
    ]


def test_the_child_ends_with_a_sentence_where_there_is_no_gpu(tmp_path: Path) -> None:
    """The real child, started as a tool would start it."""
    process = alone.popen(alone.command(Launches(job(), (48,), 0), tmp_path / "launches"))
    text, _ = process.communicate(timeout=120)
    assert process.returncode in (0, alone.FAILED)
    assert text.startswith(("m=48", "ToolchainError", "LaunchError", "CUDARuntimeError"))
