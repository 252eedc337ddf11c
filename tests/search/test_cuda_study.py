"""A small study on a real GPU: measured against the baseline, finals, benchmark."""

import pytest

from gemmtune.search.benchmark import benchmark
from gemmtune.search.result_file import write_result_file
from gemmtune.search.study import tune
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device():
    from gemmtune.device import open_device

    try:
        found = open_device("cuda:0")
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA GPU: {error}")
    yield found
    found.close()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_study_on_a_gpu_is_measured_and_benchmarked(dtype, device, tmp_path):
    problem = Gemm(512, 512, 512, dtype)
    path = tmp_path / "h.db"
    (result,) = tune(problem, device, trials=16, history=path)
    assert result.trials == 16
    assert not result.estimated
    assert result.outcomes.get("wrong", 0) == 0
    best = result.best[0]
    assert best.final is not None
    assert best.final.ratio is not None
    assert best.rel_error <= best.error_bound
    (again,) = tune(problem, device, trials=16, history=path)
    assert (again.resumed, again.trials) == (16, 16)
    rows = benchmark(problem, device, path)
    assert {"cublas", "naive"} <= set(rows[0].peers)
    assert rows[0].ratio("naive") > 1
    assert rows[0].trials == 16
    assert write_result_file(tmp_path / "r.json", rows, device=device).rows == tuple(rows)
