"""From a history to a pack: winners, losers, estimates, cubins that are lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exported import PROBLEM, compiled, record

from gemmtune.codegen import nvrtc
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.db import History
from gemmtune.pack.export import export_pack
from gemmtune.pack.format import read_pack
from gemmtune.space.errors import CompileError, PackError, ToolchainError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu


def test_a_winner_and_a_loser(history: History, cache: KernelCache, tmp_path: Path) -> None:
    won, lost = Gemm(64, 48, 32), Gemm(64, 40, 32)
    kernel, loser = record(history, cache, won, 1.25), record(history, cache, lost, 0.8)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    pack = read_pack(tmp_path / "p.kpack")
    rows = {row.problem().key: row for table in pack.tables for row in table.rows}
    assert rows[won.key].kernel == kernel.cubin_sha256
    assert rows[won.key].candidate is None
    assert rows[won.key].ratio == 1.25
    assert rows[lost.key].kernel == "baseline"
    assert rows[lost.key].candidate == loser.cubin_sha256
    assert pack.cubins[kernel.cubin_sha256] == kernel.cubin
    assert pack.sources[kernel.cubin_sha256] == kernel.source.text
    assert pack.kernels[kernel.cubin_sha256].recipe == kernel.recipe
    assert pack.tables[0].environment == {"driver": "580"}
    assert (report.kernels, len(report.rows), report.left_out) == (2, 2, ())
    assert "baseline" in str(report)
    assert "1.250 x the baseline" in str(report)


def test_the_export_is_recorded_with_its_cubins(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, cache)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    (export,) = history.exports()
    assert export.uuid == report.export_id
    assert (export.name, export.manifest_sha256) == ("p.kpack", report.manifest_sha256)
    assert history.cubin(kernel.cubin_sha256) == kernel.cubin


def test_equal_histories_give_equal_zips(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    for name in ("a.zip", "b.zip"):
        export_pack(tmp_path / name, str(tmp_path / "h.db"), cache=cache)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_estimates_are_marked_and_give_way_to_measurements(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    other = Gemm(64, 40, 32)
    record(history, cache, PROBLEM, None, us=1.0)
    record(history, cache, other, None)
    record(history, cache, PROBLEM, 1.1)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    rows = {r.problem().key: r for t in read_pack(tmp_path / "p.kpack").tables for r in t.rows}
    assert not rows[PROBLEM.key].estimated
    assert rows[other.key].estimated
    assert rows[other.key].ratio is None
    export_pack(tmp_path / "q.kpack", history, cache=cache, allow_estimates=False)
    assert [r.problem().key for t in read_pack(tmp_path / "q.kpack").tables for r in t.rows] == [PROBLEM.key]


def test_problems_that_differ_in_m_share_a_kernel(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    record(history, cache, Gemm(128, 48, 32))
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert (report.kernels, len(report.rows)) == (1, 2)


def test_gpus_and_regimes_are_kept_apart(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    record(history, cache, regime="burst")
    record(history, cache, device=gpu("a100"))
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    tables = read_pack(tmp_path / "p.kpack").tables
    assert {(t.name, t.regime, t.arch) for t in tables} == {
        ("NVIDIA H200", "sustained", "sm_90a"), ("NVIDIA H200", "burst", "sm_90a"),
        ("NVIDIA A100-SXM4-80GB", "sustained", "sm_80"),
    }  # fmt: skip
    export_pack(tmp_path / "a100.kpack", history, "a100", cache=cache)
    assert [t.name for t in read_pack(tmp_path / "a100.kpack").tables] == ["NVIDIA A100-SXM4-80GB"]


def test_a_lost_cubin_is_compiled_again(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, None)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert read_pack(tmp_path / "p.kpack").cubins == {kernel.cubin_sha256: kernel.cubin}


def test_a_cubin_that_comes_out_different_is_left_out(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None, Gemm(64, 48, 32), source="// altered\n" + compiled(Gemm(64, 48, 32)).source.text)
    good = record(history, cache, Gemm(64, 40, 32))

    def another(source: Any, arch: str, cache: Any = None) -> CompiledKernel:
        return replace(compiled(Gemm(64, 48, 32)), source=source, cubin=b"another", nvrtc="99.0")

    monkeypatch.setattr(nvrtc, "compile_kernel", another)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert list(read_pack(tmp_path / "p.kpack").kernels) == [good.cubin_sha256]
    assert len(report.left_out) == 1
    assert "NVRTC 99.0 makes another" in report.left_out[0]
    assert "left out" in str(report)


def test_an_estimate_may_be_compiled_by_another_nvrtc(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None, PROBLEM, None)
    another = replace(compiled(PROBLEM), cubin=b"another", nvrtc="99.0")
    monkeypatch.setattr(nvrtc, "compile_kernel", lambda *_: another)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    (kernel,) = read_pack(tmp_path / "p.kpack").kernels.values()
    assert kernel.nvrtc == "99.0"


def test_an_earlier_export_saves_a_cubin(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = record(history, cache)
    export_pack(tmp_path / "p.kpack", history, cache=cache)

    def fails(*_: object) -> None:
        raise CompileError("no.")

    monkeypatch.setattr(nvrtc, "compile_kernel", fails)
    export_pack(tmp_path / "q.kpack", history, cache=KernelCache(tmp_path / "empty"))
    assert list(read_pack(tmp_path / "q.kpack").kernels) == [kernel.cubin_sha256]


def test_without_nvrtc_the_reason_is_told(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None)

    def missing(*_: object) -> None:
        raise ToolchainError("NVRTC is missing: install it.")

    monkeypatch.setattr(nvrtc, "compile_kernel", missing)
    with pytest.raises(PackError, match=r"no kernel.*NVRTC is missing"):
        export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert not (tmp_path / "p.kpack").exists()
    assert history.exports() == []


def test_nothing_to_export(history: History, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="gemmtune tune"):
        export_pack(tmp_path / "p.kpack", history)
    with pytest.raises(UnknownNameError):
        export_pack(tmp_path / "p.kpack", history, "no such gpu")


def test_nothing_but_estimates_to_export_is_said(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, ratio=None)
    with pytest.raises(PackError, match=r"is estimated \(1 kernel\), and estimates were to stay out"):
        export_pack(tmp_path / "p.kpack", history, cache=cache, allow_estimates=False)


def test_what_is_no_pack_is_not_replaced(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    (tmp_path / "p.kpack").write_text("mine")
    with pytest.raises(PackError, match="not a pack"):
        export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert history.exports() == []
