"""The shipped GPU table: complete, self-consistent, found by any spelling."""

import pytest

from gemmtune.space.errors import UnknownNameError
from gemmtune.space.gpu import TABLE, Gpu, device_key, gpu

PROMISED = ["v100", "t4", "a100", "rtx3090", "l4", "rtx4090", "h100", "h200", "b200", "rtx5090"]


def test_has_every_promised_gpu() -> None:
    assert list(TABLE) == PROMISED


@pytest.mark.parametrize("g", TABLE.values(), ids=lambda g: g.short)
def test_rows_are_sane(g: Gpu) -> None:
    assert g.capability >= (7, 0)
    assert 16 <= g.sms <= 200
    assert 48 * 1024 < g.shared_per_block <= g.shared_per_sm <= 228 * 1024
    assert g.shared_per_sm - g.shared_per_block <= 1024
    assert g.threads_per_sm in (1024, 1536, 2048)
    assert g.blocks_per_sm in (16, 24, 32)
    assert 250e9 < g.bandwidth < 10e12
    assert 1e9 < g.clock < 3e9
    assert g.l2 < g.memory
    assert g.peak["fp16"] >= g.peak["fp32"]
    assert ("bf16" in g.peak) == (g.capability >= (8, 0))
    assert ("tf32" in g.peak) == (g.capability >= (8, 0))
    fma = 2 * g.clock * g.sms * (64 if g.capability in ((7, 0), (7, 5), (8, 0)) else 128)
    assert g.peak["fp32"] == pytest.approx(fma, rel=0.06), "FMA peak = 2 x clock x SMs x lanes"


@pytest.mark.parametrize("g", TABLE.values(), ids=lambda g: g.short)
def test_found_by_any_spelling(g: Gpu) -> None:
    for name in (g.short, g.short.upper(), g.name, g.name.lower()):
        assert gpu(name) is g


def test_keys_are_distinct_and_stable() -> None:
    assert len({g.key for g in TABLE.values()}) == len(TABLE)
    assert TABLE["h200"].key == "9.0|NVIDIA H200|132|140|"
    assert device_key((9, 0), "NVIDIA H200", 16, 18 * 2**30, "1g.18gb") == "9.0|NVIDIA H200|16|18|1g.18gb"


def test_compile_targets() -> None:
    archs = {g.short: g.arch for g in TABLE.values()}
    assert archs["v100"] == "sm_70"
    assert archs["rtx4090"] == "sm_89"
    assert archs["h200"] == "sm_90a"
    assert archs["b200"] == "sm_100a"
    assert archs["rtx5090"] == "sm_120"


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="h200"):
        gpu("voodoo2")
