"""Machine code read back: instructions, where they jump, loops, and what is said where the tool is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmtune.codegen import sass
from gemmtune.codegen.control_flow import Instruction, find_loops, hottest
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.codegen.sass import disassemble, find_disassemblers, parse_sass
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

# A persistent kernel as a real one is laid out: a loop over tiles, inside it the loop over K with a wait whose slow
# path lies behind the end, then an epilogue loop; padding after the last exit.
LISTING = """\
\t.target\tsm_90a

//--------------------- .text.tiled    --------------------------
\t.section\t.text.tiled,"ax",@progbits
        .global         tiled
tiled:
.text.tiled:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   ISETP.GE.AND P0, PT, R5, RZ, PT ;
        /*0020*/              @!P0 EXIT ;
.L_x_1:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3 ;
        /*0040*/              @!P1 BRA `(.L_x_4) ;
.L_x_2:
        /*0050*/                   LDG.E.128 R8, desc[UR6][R10.64+0x80] ;
        /*0060*/                   HMMA.16816.F32.BF16 R4, R8.reuse, R20, R4 ;
        /*0070*/               @P2 BRA `(.L_x_1) ;
.L_x_3:
        /*0080*/                   STG.E desc[UR6][R2.64], R4 ;
        /*0090*/                   FADD R4, R4, 1 ;
        /*00a0*/                   BRA.U !UP0, `(.L_x_3) ;
        /*00b0*/                   BRA `(.L_x_0) ;
.L_x_4:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3 ;
        /*00d0*/              @!P1 BRA `(.L_x_4) ;
        /*00e0*/                   BRA `(.L_x_2) ;
.L_x_5:
        /*00f0*/                   BRA `(.L_x_5) ;
        /*0100*/                   NOP;
.L_x_6:

\t.section\t.text.other,"ax",@progbits
.text.other:
        /*0000*/                   FFMA R0, R1, R2, R3 &req={0} ?trans1;
        /*0010*/                   BRX R4 -0x20    (*"BRANCH_TARGETS .L_y_1,.L_y_2"*);
.L_y_1:
        /*0020*/                   EXIT ;
.L_y_2:
        /*0030*/                   RET.REL.NODEC R2 `(other) ;
"""


def by_offset(listing: str, entry: str | None = None) -> dict[int, Instruction]:
    return {i.offset: i for i in parse_sass(listing, entry).instructions}


def test_an_instruction_is_taken_apart() -> None:
    code = by_offset(LISTING)
    load = code[0x50]
    assert (load.opcode, load.name, load.predicate) == ("LDG.E.128", "LDG", "")
    assert load.operands == ("R8", "desc[UR6][R10.64+0x80]")
    branch = code[0x40]
    assert (branch.predicate, branch.opcode, branch.targets) == ("@!P1", "BRA", (0xC0,))
    assert branch.text == "@!P1 BRA `(.L_x_4)"
    assert code[0x60].operands == ("R4", "R8.reuse", "R20", "R4")
    assert code[0x100].text == "NOP"


def test_the_kernel_asked_for_is_read_and_an_unknown_one_named() -> None:
    assert parse_sass(LISTING).entry == "tiled"
    other = by_offset(LISTING, "other")
    assert other[0x00].operands == ("R0", "R1", "R2", "R3")  # without what newer versions say of scheduling
    assert other[0x10].targets == (0x20, 0x30)
    with pytest.raises(ToolchainError, match="no kernel 'third', only: tiled, other"):
        parse_sass(LISTING, "third")
    with pytest.raises(ToolchainError, match="only: none"):
        parse_sass("")


def test_loops_nest_and_a_slow_path_out_of_line_belongs_to_its_loop() -> None:
    loops = {(loop.instructions[0].offset, loop.depth): loop for loop in parse_sass(LISTING).loops}
    assert set(loops) == {(0x10, 1), (0x30, 2), (0x80, 2), (0xC0, 3)}  # and not the padding at 0xf0
    main = loops[0x30, 2]
    assert [i.offset for i in main.own] == [0x30, 0x40, 0x50, 0x60, 0x70, 0xE0]
    assert [i.offset for i in main.instructions] == [0x30, 0x40, 0x50, 0x60, 0x70, 0xC0, 0xD0, 0xE0]


def test_the_hot_loop_is_where_the_multiplying_is() -> None:
    """Neither the deepest loop, which waits, nor the epilogue."""
    assert {i.offset for i in parse_sass(LISTING).hot} == {0x30, 0x40, 0x50, 0x60, 0x70, 0xE0}


def test_without_a_loop_everything_is_hot() -> None:
    code = parse_sass(LISTING, "other")
    assert code.loops == ()
    assert code.hot == code.instructions
    assert find_loops(()) == ()
    assert hottest(()) is None


def tool(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvdisasm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any nvdisasm of its own; the folder on its PATH."""
    monkeypatch.setattr(sass, "_package", lambda name: [])
    monkeypatch.setattr(sass, "_SYSTEM", str(tmp_path / "system"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return tmp_path / "path"


def test_a_missing_tool_is_named_with_its_cure(bare: Path) -> None:
    with pytest.raises(ToolchainError, match=r'nvdisasm.* was not found: .*pip install "gemmtune\[sass\]"'):
        disassemble(b"cubin")


def test_a_kernel_without_a_cubin_is_said_to_have_none() -> None:
    with pytest.raises(ToolchainError, match="no cubin to disassemble"):
        disassemble(b"")


def test_it_is_found_in_the_wheel_the_toolkit_the_path_and_triton(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tool(tmp_path / "nvidia" / "cu13" / "bin", "exit 0")
    triton = tool(tmp_path / "triton" / "backends" / "nvidia" / "bin", "exit 0")
    home, path = tool(tmp_path / "cuda" / "bin", "exit 0"), tool(bare, "exit 0")
    monkeypatch.setattr(sass, "_package", lambda name: [tmp_path / name])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_disassemblers() == (wheel, home, path, triton)


def test_one_that_cannot_read_the_cubin_is_passed_over(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listing").write_text(LISTING)
    tool(tmp_path / "old" / "bin", "echo 'nvdisasm fatal   : Unknown cuda arch' >&2; exit 1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "old"))
    with pytest.raises(ToolchainError, match=r"No nvdisasm here can read this cubin \(.*Unknown cuda arch"):
        disassemble(b"cubin")
    tool(bare, f'while read -r line; do echo "$line"; done < {tmp_path / "listing"}')
    assert disassemble(b"cubin").entry == "tiled"


def test_one_that_never_ends_is_stopped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "while :; do :; done")
    monkeypatch.setattr(sass, "_TIMEOUT", 0.2)
    with pytest.raises(ToolchainError, match=r"no answer within 0\.2 s"):
        disassemble(b"cubin")


@pytest.fixture
def real() -> None:
    if not find_disassemblers():
        pytest.skip("nvdisasm comes with the extra sass")
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_real_kernel_is_read_and_its_inner_loop_found(arch: str) -> None:
    kernel = compile_kernel(render(Gemm(256, 256, 4096), Configuration.of("naive", {})), arch)
    code = disassemble(kernel.cubin)
    assert code.entry == kernel.source.entry
    assert [i.offset for i in code.instructions] == list(range(0, 16 * len(code.instructions), 16))
    assert all(i.opcode[0].isalpha() for i in code.instructions)
    names = {i.name for i in code.hot}
    assert "LDG" in names
    assert any(i.multiplies for i in code.hot)
    assert "STG" not in names
    assert len(code.hot) < len(code.instructions)


@pytest.mark.usefixtures("real")
def test_what_is_no_cubin_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="can read this cubin") as refused:
        disassemble(b"no cubin" * 9)
    assert os.sep + "tmp" not in str(refused.value).split("nvdisasm: ")[-1]
