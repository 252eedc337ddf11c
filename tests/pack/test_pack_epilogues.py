"""What ``Pack.matmul`` adds to a product and makes of it: bias, alpha, beta, c and out, types, and sums of no terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import NUMPY, numbers, place, product, same

from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError
from gemmtune.space.gemm import Gemm

# ------------------------------------------------------------------------------------------------------ epilogues


def test_bias_alpha_beta_and_c(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = numbers((6, 5)), numbers((5, 7)), numbers((6, 7)), numbers((7,))
    wrap = framework.array
    matmul = empty_pack.matmul
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias)), product(a, b) + bias)
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias[None])), product(a, b) + bias)
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c)), product(a, b) + c)
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=2, beta=-1), 2 * product(a, b) - c)
    same(framework, matmul(wrap(a), wrap(b), alpha=0.5), 0.5 * product(a, b))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(np.full_like(c, np.nan)), beta=0), product(a, b))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=3.0), 3 * product(a, b) + c)
    keys = [key for _, key, _ in launches.calls]
    assert [k.partition("epilogue=")[2] for k in keys] == [
        "bias", "bias", "alpha_beta", "alpha_beta", "alpha_beta", "", "alpha_beta",
    ]  # fmt: skip


def test_alpha_changes_without_a_new_plan(framework: Any, launches: Any, maker: Any) -> None:
    maker.add(Gemm(6, 7, 5, "fp32", layout="nn", epilogue="alpha_beta"))
    pack = Pack(maker.data(), "p")
    a, b, c = place(numbers((6, 5))), place(numbers((5, 7))), place(numbers((6, 7)))
    for alpha, beta in ((2.0, 1.0), (3.0, 0.5), (-1.0, 4.0)):
        d = pack.matmul(framework.array(a), framework.array(b), c=framework.array(c), alpha=alpha, beta=beta)
        same(framework, d, alpha * product(a, b) + beta * c)
    assert launches.prepared == 1


@pytest.mark.parametrize("pitch_c", [7, 9])
@pytest.mark.parametrize("pitch_out", [None, 7, 8, 9])
def test_c_and_out_of_any_pitch(
    pitch_c: int, pitch_out: int | None, framework: Any, launches: Any, empty_pack: Pack
) -> None:
    a, b, c = numbers((6, 5)), numbers((5, 7)), numbers((6, pitch_c))[:, :7]
    out = None if pitch_out is None else numbers((6, pitch_out))
    around = None if out is None else out.copy()
    d = empty_pack.matmul(
        framework.array(a),
        framework.array(b),
        None if out is None else framework.array(out[:, :7]),
        c=framework.array(c),
    )
    same(framework, d, product(a, b) + c)
    if out is not None and around is not None:
        assert np.array_equal(out[:, 7:], around[:, 7:])


def test_strided_bias_and_column_major_c(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = numbers((6, 5)), numbers((5, 7)), np.asfortranarray(numbers((6, 7))), numbers((14,))[::2]
    same(
        framework,
        empty_pack.matmul(framework.array(a), framework.array(b), bias=framework.array(bias)),
        product(a, b) + bias,
    )
    same(framework, empty_pack.matmul(framework.array(a), framework.array(b), c=framework.array(c)), product(a, b) + c)


@pytest.mark.parametrize("out_dtype", ["fp32", "fp16", "bf16"])
def test_out_dtype_by_name_or_the_frameworks_own(
    out_dtype: str, framework: Any, launches: Any, empty_pack: Pack
) -> None:
    a, b = numbers((6, 5), np.float16), numbers((5, 7), np.float16)
    for asked in (out_dtype, framework.dtype(out_dtype)):
        d = empty_pack.matmul(framework.array(a), framework.array(b), out_dtype=asked)
        assert framework.host(d).dtype == NUMPY[out_dtype]
        same(framework, d, product(a, b))


def test_tf32_only_where_asked(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = framework.array(numbers((6, 5))), framework.array(numbers((5, 7)))
    empty_pack.matmul(a, b)
    empty_pack.matmul(a, b, precision="tf32")
    assert [key for _, key, _ in launches.calls] == ["gemm 6x7x5 fp32 nn", "gemm 6x7x5 tf32 nn"]
    half = framework.array(numbers((6, 5), np.float16))
    with pytest.raises(ArrayError, match="tf32"):
        empty_pack.matmul(half, framework.array(numbers((5, 7), np.float16)), precision="tf32")
    with pytest.raises(ArrayError, match="fp32, tf32"):
        empty_pack.matmul(a, b, precision="fp8")


# ----------------------------------------------------------------------------------------------------- empty arrays


def test_empty_results(framework: Any, launches: Any, empty_pack: Pack) -> None:
    for m, n, k in ((0, 7, 5), (6, 0, 5), (0, 0, 0), (0, 7, 0)):
        d = empty_pack.matmul(framework.array(numbers((m, k))), framework.array(numbers((k, n))))
        assert framework.host(d).shape == (m, n)
    assert launches.calls == []


def test_no_terms_to_sum(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = np.zeros((6, 0), np.float32), np.zeros((0, 7), np.float32), numbers((6, 7)), numbers((7,))
    wrap, matmul = framework.array, empty_pack.matmul
    same(framework, matmul(wrap(a), wrap(b)), np.zeros((6, 7)))
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias)), np.broadcast_to(bias, (6, 7)))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=float("inf"), beta=2.0), 2 * c)
    out = wrap(numbers((6, 7)))
    assert matmul(wrap(a), wrap(b), out) is out
    same(framework, out, np.zeros((6, 7)))


def test_nan_and_inf_pass_through(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = numbers((4, 4)), numbers((4, 4))
    a[1, 2], b[0, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        same(framework, empty_pack.matmul(framework.array(a), framework.array(b)), product(a, b))
