"""Exact, then range, then baseline; estimates and unmeasured kernels only where allowed; and the words for it."""

from __future__ import annotations

from typing import Any

import pytest

from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ProblemError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

H200, H100, A100 = gpu("h200"), gpu("h100"), gpu("a100")
N, K = 64, 32


def dispatch(maker: Any, device: Any = H200, **options: Any) -> Dispatch:
    return Dispatch(maker.data(), device.key, device.arch, **options)


def test_exact_before_range_before_baseline(maker: Any) -> None:
    exact = maker.add(Gemm(128, N, K), 1.2, tag="exact")
    ranged = maker.add(Gemm(128, N, K), 1.1, span=(64, 256), tag="range")
    d = dispatch(maker)
    assert d.choose(Gemm(128, N, K)).kernel == exact
    for m in (64, 127, 129, 256):
        choice = d.choose(Gemm(m, N, K))
        assert (choice.how, choice.kernel) == ("range", ranged)
    for m in (63, 257):
        assert d.choose(Gemm(m, N, K)).how == "baseline"


@pytest.mark.parametrize(
    "other",
    [Gemm(128, N, K, "fp16"), Gemm(128, N, K, layout="nn"), Gemm(128, N, K, epilogue="bias"),
     Gemm(128, N, K, "bf16", "fp32"), Gemm(128, N + 1, K), Gemm(128, N, K + 1)],
)  # fmt: skip
def test_nothing_else_serves(other: Gemm, maker: Any) -> None:
    maker.add(Gemm(128, N, K), span=(1, 1000))
    assert dispatch(maker).choose(other).how == "baseline"


def test_a_loser_keeps_the_baseline_even_inside_a_range(maker: Any) -> None:
    maker.add(Gemm(128, N, K), 1.1, span=(64, 256))
    loser = maker.add(Gemm(100, N, K), 0.7, won=False, tag="loser")
    choice = dispatch(maker).choose(Gemm(100, N, K))
    assert (choice.how, choice.kernel) == ("baseline", None)
    assert choice.row.candidate == loser.sha
    assert "0.700" in choice.why
    assert dispatch(maker).choose(Gemm(101, N, K)).how == "range"


def test_other_devices_serve_only_where_asked(maker: Any) -> None:
    kernel = maker.add(Gemm(128, N, K), device=H200)
    maker.add(Gemm(128, N, K), device=A100, tag="other architecture")
    assert dispatch(maker, H100).choose(Gemm(128, N, K)).how == "baseline"
    choice = dispatch(maker, H100, allow_unmeasured=True).choose(Gemm(128, N, K))
    assert (choice.how, choice.kernel) == ("unmeasured", kernel)
    assert "never measured" in choice.why


def test_unmeasured_takes_the_nearest_size(maker: Any) -> None:
    near = maker.add(Gemm(256, N, K), tag="near")
    maker.add(Gemm(4096, N, K), tag="far")
    maker.add(Gemm(256, N, K + 8), tag="another k is compiled in")
    choice = dispatch(maker, allow_unmeasured=True).choose(Gemm(300, N, K))
    assert (choice.how, choice.kernel) == ("unmeasured", near)
    assert dispatch(maker).choose(Gemm(300, N, K)).how == "baseline"


def test_estimates_are_refused_unless_allowed(maker: Any) -> None:
    kernel = maker.add(Gemm(128, N, K), None)
    refused = dispatch(maker).choose(Gemm(128, N, K))
    assert refused.how == "baseline"
    assert "estimated" in refused.notes[0]
    assert "allow_estimates" in refused.notes[0]
    assert dispatch(maker, allow_estimates=True).choose(Gemm(128, N, K)).kernel == kernel
    assert dispatch(maker, allow_unmeasured=True).choose(Gemm(128, N, K)).how == "baseline"


def test_preconditions_decide_on_the_call(maker: Any) -> None:
    kernel = maker.add(Gemm(128, N, K), vector=8)
    d = dispatch(maker)
    problem = Gemm(128, N, K)
    assert d.choose(problem, {"ptr_a": 256, "ptr_b": 16}).kernel == kernel
    unaligned = d.choose(problem, {"ptr_a": 258})
    assert unaligned.how == "baseline"
    assert "the address of a is not a multiple of 16 bytes" in unaligned.notes[0]
    assert d.choose(Gemm(128, N, K, lda=K + 8)).kernel == kernel
    assert "leading dimension of a" in d.choose(Gemm(128, N, K, lda=K + 1)).notes[0]


def test_an_unaligned_call_falls_to_the_next_row(maker: Any) -> None:
    maker.add(Gemm(128, N, K), vector=8)
    narrow = maker.add(Gemm(128, N, K), 1.1, span=(64, 256), tag="narrow")
    choice = dispatch(maker).choose(Gemm(128, N, K), {"ptr_b": 2})
    assert (choice.how, choice.kernel) == ("range", narrow)
    assert len(choice.notes) == 1


def test_a_condition_on_high_address_bits_is_never_met(maker: Any) -> None:
    """Launches are reused for all addresses that agree in their low 8 bits."""
    maker.add(Gemm(128, N, K), vector=256)
    assert dispatch(maker).choose(Gemm(128, N, K), {"ptr_a": 512, "ptr_b": 512}).how == "baseline"


def test_rows_measured_at_this_pitch_come_first(maker: Any) -> None:
    packed = maker.add(Gemm(128, N, K), tag="packed")
    wide = maker.add(Gemm(128, N, K, lda=64), tag="wide")
    d = dispatch(maker)
    assert d.choose(Gemm(128, N, K)).kernel == packed
    assert d.choose(Gemm(128, N, K, lda=64)).kernel == wide
    assert d.choose(Gemm(128, N, K, lda=48)).how == "exact"


def test_the_regime_asked_for_comes_first(maker: Any) -> None:
    sustained = maker.add(Gemm(128, N, K), tag="s")
    burst = maker.add(Gemm(128, N, K), regime="burst", tag="b")
    only_burst = maker.add(Gemm(64, N, K), regime="burst", tag="only")
    assert dispatch(maker).choose(Gemm(128, N, K)).kernel == sustained
    assert dispatch(maker, regime="burst").choose(Gemm(128, N, K)).kernel == burst
    assert dispatch(maker).choose(Gemm(64, N, K)).kernel == only_burst


def test_workspace_limit(maker: Any) -> None:
    maker.add(Gemm(128, N, K), workspace="m * n * 4")
    assert dispatch(maker, workspace_limit=128 * N * 4).choose(Gemm(128, N, K)).how == "exact"
    capped = dispatch(maker, workspace_limit=128 * N * 4 - 1).choose(Gemm(128, N, K))
    assert capped.how == "baseline"
    assert "workspace" in capped.notes[0]


# --------------------------------------------------------------------------------------------------------- explain


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pack, "_present", lambda self: None)


def test_explain_an_exact_row(maker: Any, no_gpu: None) -> None:
    kernel = maker.add(Gemm(128, N, K), 1.25, us=8.0)
    found = Pack(maker.data(), "p").explain(128, N, K)
    assert (found.how, found.kernel, found.ratio, found.us) == ("exact", kernel.sha, 1.25, 8.0)
    text = str(found)
    for part in (
        "gemm 128x64x32 bf16 nt",
        "NVIDIA H200",
        kernel.sha[:12],
        "naive bm=16",
        "1.250 x the baseline",
        "8.0 us",
    ):
        assert part in text


def test_explain_a_range_promises_its_worst_point(maker: Any, no_gpu: None) -> None:
    maker.add(Gemm(128, N, K), 1.1, span=(64, 256))
    found = Pack(maker.data(), "p").explain(100, N, K)
    assert (found.how, found.ratio) == ("range", 1.1)
    assert "64 to 256" in found.why
    assert "m = 64, 160, 256" in found.why


def test_explain_the_baseline(maker: Any, no_gpu: None) -> None:
    maker.add(Gemm(128, N, K), 0.5, won=False)
    pack = Pack(maker.data(), "p")
    assert pack.explain(128, N, K).ratio == 1.0
    assert "0.500" in str(pack.explain(128, N, K))
    assert "no row" in str(pack.explain(7, 7, 7))


def test_explain_an_estimate_says_that_a_gpu_refuses_it(maker: Any, no_gpu: None) -> None:
    maker.add(Gemm(128, N, K), None)
    found = Pack(maker.data(), "p").explain(128, N, K)
    assert found.estimated
    assert found.ratio is None
    assert "estimate" in str(found)
    assert "allow_estimates=True" in str(found)
    assert "allow_estimates" not in str(Pack(maker.data(), "p", allow_estimates=True).explain(128, N, K))


def test_explain_chooses_the_gpu(maker: Any, no_gpu: None) -> None:
    maker.add(Gemm(128, N, K), device=H200)
    assert Pack(maker.data(), "p").explain(128, N, K, gpu="h200").how == "exact"
    kernel = maker.add(Gemm(128, N, K), device=A100)
    pack = Pack(maker.data(), "p")
    for name in ("a100", "NVIDIA A100-SXM4-80GB", A100.key):
        assert pack.explain(128, N, K, gpu=name).kernel == kernel.sha
    with pytest.raises(UnknownNameError, match="several GPUs"):
        pack.explain(128, N, K)
    with pytest.raises(UnknownNameError, match="no rows for the GPU 'v100'"):
        pack.explain(128, N, K, gpu="v100")


def test_explain_alignment_and_bad_problems(maker: Any, no_gpu: None) -> None:
    maker.add(Gemm(128, N, K), vector=8)
    pack = Pack(maker.data(), "p")
    assert pack.explain(128, N, K).how == "exact"
    assert pack.explain(128, N, K, alignment=2).how == "baseline"
    with pytest.raises(ProblemError):
        pack.explain(0, N, K)


def test_explain_on_the_gpu_that_is_there(maker: Any, launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pack, "_present", lambda self: 0)
    maker.add(Gemm(128, N, K), None)
    maker.add(Gemm(128, N, K), device=A100)
    found = Pack(maker.data(), "p").explain(128, N, K)
    assert (found.device, found.how) == ("NVIDIA H200", "baseline")
    assert "a GPU refuses it" in str(found)


def test_the_pack_lists_itself(small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    assert len(pack.problems) == 3
    assert any("m=32-96" in line for line in pack.problems)
    assert pack.devices == (H200.key,)
    assert repr(pack) == "Pack('p', 3 rows, 3 kernels, 1 devices)"
