"""Which kernel of a pack a benchmark times: one that lost to the baseline only where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.db import History
from gemmtune.pack.format import write_pack
from gemmtune.search.known import KnownKernels
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

WON, LOST = Gemm(512, 512, 512), Gemm(256, 512, 512)


@pytest.fixture
def known(maker: Any, tmp_path: Path) -> Iterator[Any]:
    """Looks kernels up in a pack of two rows."""
    won, lost = maker.add(WON), maker.add(LOST, 0.9, won=False)
    path = tmp_path / "p.kpack"
    write_pack(path, maker.data())
    device = SimpleNamespace(gpu=gpu("h200"), kind="cuda", name="cuda:0", estimates=False)
    with History(tmp_path / "h.db") as history:

        def make(**options: Any) -> KnownKernels:
            where: Any = device
            return KnownKernels(where, history, path, "sustained", "cold", **options)

        yield SimpleNamespace(make=make, won=won, lost=lost)


def test_a_row_of_the_baseline_gives_its_candidate_only_where_asked(known: Any) -> None:
    assert known.make().best(WON).kernel.configuration == known.won.configuration
    with pytest.raises(UnknownNameError, match=r"p\.kpack dispatches gemm 256x512x512 .* to the baseline.*--candidate"):
        known.make().best(LOST)
    assert known.make(candidate=True).best(LOST).kernel.configuration == known.lost.configuration


def test_a_pack_has_one_kernel_which_overlaps_its_launches_or_does_not(known: Any) -> None:
    assert known.make(programmatic=False).best(WON).kernel.configuration == known.won.configuration
    with pytest.raises(UnknownNameError, match="does not overlap its launches"):
        known.make(programmatic=True).best(WON)
