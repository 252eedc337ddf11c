"""What the shipped families cannot do, or not here, is refused with every family's reason and a way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmtune.space.errors import EmptySpaceError, UnknownNameError, UnsupportedError
from gemmtune.space.families import FAMILIES, families_for
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, gpu
from gemmtune.space.space import Space

H200 = gpu("h200")


def refused(problem: Gemm, name: str, families: list[str] | None = None) -> str:
    with pytest.raises(UnsupportedError) as caught:
        families_for(problem, gpu(name), families)
    message = str(caught.value)
    assert message.startswith(f"No family can serve {problem.key} on {gpu(name).name} (")
    assert message.endswith(").")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", [g.short for g in TABLE.values() if g.capability < (8, 0)])
def test_a_dtype_that_this_gpu_cannot_do(name: str) -> None:
    message = refused(Gemm(64, 64, 64, "tf32"), name)
    assert "simt: " in message
    assert "mma: " in message
    assert "compute capability" in message


def test_a_dtype_that_the_asked_family_cannot_do() -> None:
    assert "use family simt" in refused(Gemm(64, 64, 64, "fp32"), "h200", ["mma"])
    assert "ask for family mma" in refused(Gemm(64, 64, 64, "tf32"), "h200", ["simt"])


@pytest.mark.parametrize("axis", ["m", "n", "k"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**40])
def test_a_size_beyond_the_indices_of_a_kernel(axis: str, size: int) -> None:
    problem = Gemm(**{"m": 8, "n": 8, "k": 8, axis: size})
    assert f"{axis} is {size}: split the problem" in refused(problem, "h200")


def test_a_family_that_does_not_exist() -> None:
    with pytest.raises(UnknownNameError, match=f"Unknown family 'hoper': choose one of {', '.join(FAMILIES)}"):
        families_for(Gemm(64, 64, 64), H200, ["mma", "hoper"])


@pytest.mark.parametrize("name", ["simt", "mma"])
def test_a_gpu_too_small_for_every_configuration_names_the_rules(name: str) -> None:
    tiny = replace(H200, shared_per_block=256, shared_per_sm=256)
    with pytest.raises(EmptySpaceError, match=f"{name}.*shared_memory") as caught:
        len(Space(Gemm(512, 512, 512, "fp16"), tiny, [FAMILIES[name]]))
    assert "\n" not in str(caught.value)
