"""What a live run multiplies, recorded as a file of shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from blocks import Block  # noqa: E402

import gemmtune.torch as gt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")


@pytest.mark.parametrize("timed", [True, False])
def test_a_live_run_is_recorded_forward_and_backward(timed: bool, tuned: Any, host: Any, tmp_path: Path) -> None:
    from gemmtune.search.shape_file import read_problems

    model = Block()
    gt.optimize_(model, tuned)
    with gt.record(model, timed=timed) as seen:
        for _ in range(2):
            model(torch.randn(2, 4, 16)).square().sum().backward()
    found = {w.problem.key: w for w in seen.problems()}
    assert found["gemm 8x32x16 fp32 nt epilogue=bias"].count == 2
    assert found["gemm 8x32x16 fp32 nt epilogue=bias"].where == ("up",)
    assert found["gemm 32x16x8 fp32 tn"].count == 2
    assert found["gemm 8x32x16 fp32 nn"].where == ("down",)
    assert sum(w.share for w in found.values()) == pytest.approx(1)
    shares = [w.share for w in seen.problems()]
    assert shares == sorted(shares, reverse=True)
    seen.write(tmp_path / "model.toml")
    again = read_problems(tmp_path / "model.toml")
    assert again is not None
    assert [w.problem for w in again] == [w.problem for w in seen.problems()]


def test_a_model_without_memory_is_recorded_at_full_size_with_its_layers(tmp_path: Path) -> None:
    from gemmtune.search.shape_file import read_problems
    from gemmtune.space.gpu import gpu

    def passes(device: str, rows: int) -> Any:
        model = Block().to(device)
        with gt.record(model) as seen:
            for _ in range(2):
                model(torch.randn(rows, 16, device=device)).square().sum().backward()
        return seen

    live, meta = passes("cpu", 8), passes("meta", 8)
    assert {w.problem: (w.count, w.where) for w in meta.problems()} == {
        w.problem: (w.count, w.where) for w in live.problems()
    }
    by_operations = meta.problems()
    assert sum(w.share for w in by_operations) == pytest.approx(1)
    assert [w.problem.flops * w.count for w in by_operations] == sorted(
        (w.problem.flops * w.count for w in by_operations), reverse=True
    )
    large = passes("meta", 2**22)
    assert max(w.problem.m for w in large.problems()) == 2**22
    large.write(tmp_path / "model.toml", gpu("h200"))
    again = read_problems(tmp_path / "model.toml")
    assert again is not None
    assert [w.problem for w in again] == [w.problem for w in large.problems(gpu("h200"))]


def test_the_least_time_of_a_gpu_may_stand_for_the_time_measured() -> None:
    from gemmtune.space.gpu import gpu

    with gt.record() as seen:
        for a, b in ((torch.ones(1, 512), torch.ones(512, 512)), (torch.ones(32, 64), torch.ones(64, 32))):
            torch.mm(a, b)
    first, second = seen.problems(gpu("h200"))
    assert (first.problem.k, second.problem.k) == (512, 64)  # more bytes, by far
    assert first.share / second.share == pytest.approx(first.problem.bytes / second.problem.bytes)


def test_what_no_pack_multiplies_is_not_recorded() -> None:
    with gt.record() as seen:
        torch.mm(torch.ones(2, 3, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64))
        torch.addmm(torch.ones(2, 4), torch.ones(2, 3), torch.ones(3, 4))
        torch.addmm(torch.ones(4), torch.ones(2, 3), torch.ones(3, 4), beta=2)
        torch.mm(torch.ones(2, 0), torch.ones(0, 4))
    assert seen.problems() == []
