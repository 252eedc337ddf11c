"""The dispatch table as flat records and as serving engines read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmtune.pack.format import PackData, read_pack
from gemmtune.pack.tables import serving_files, table_records, write_serving_files
from gemmtune.space.errors import PackError
from gemmtune.space.gemm import Gemm

MAIN_JOB = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "main-job.kpack.zip"


def nearest(file: dict[str, Any], m: int) -> Any:
    """As the engines look up."""
    configs = {int(key): value for key, value in file.items()}
    return configs[min(configs, key=lambda size: abs(size - m))]


def test_every_point_is_a_record(small_pack: PackData) -> None:
    records = table_records(small_pack)
    assert len(records) == 5
    assert len({tuple(r) for r in records}) == 1  # one set of columns for all
    ranged = [r for r in records if r["m_first"] != r["m_last"]]
    assert [r["m_measured"] for r in ranged] == [32, 64, 96]
    assert {r["served_by"] for r in records if r["ratio"] and r["ratio"] < 1} == {"baseline"}
    json.dumps(records)


def test_files_for_engines_are_named_and_looked_up_as_theirs(maker: Any) -> None:
    for m in (1, 16, 64):
        maker.add(Gemm(m, 4096, 512, "bf16"), 1.3, tag=str(m))
    maker.add(Gemm(256, 4096, 512, "bf16"), 0.9, won=False, tag="slow")
    maker.add(Gemm(64, 4096, 512, "fp16", layout="nn", epilogue="bias"), 1.3)
    data = maker.data()
    files = serving_files(data)
    assert set(files) == {
        "N=4096,K=512,device_name=NVIDIA_H200,dtype=bfloat16.json",
        "N=4096,K=512,device_name=NVIDIA_H200,dtype=float16,layout=nn,epilogue=bias.json",
    }
    file = files["N=4096,K=512,device_name=NVIDIA_H200,dtype=bfloat16.json"]
    assert list(file) == ["1", "16", "64", "256"]
    near = nearest(file, 20)
    assert data.kernels[near["kernel"]].problem == Gemm(16, 4096, 512, "bf16")
    assert {near[name] for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N")} == {16}
    assert (near["num_warps"], near["num_stages"], near["GROUP_SIZE_M"]) == (4, 1, 1)
    assert nearest(file, 9999)["kernel"] == "baseline"


def test_the_row_for_exactly_a_size_has_the_last_word(maker: Any) -> None:
    maker.add(Gemm(64, 48, 16), 1.1, tag="exact")
    maker.add(Gemm(64, 48, 16), 1.1, span=(32, 96), tag="range")
    data = maker.data()
    (file,) = serving_files(data).values()
    exact = next(r for t in data.tables for r in t.rows if r.exact)
    assert file["64"]["kernel"] == exact.kernel
    assert file["32"]["kernel"] != exact.kernel


def test_estimates_and_other_regimes_are_not_for_engines(maker: Any, tmp_path: Path) -> None:
    maker.add(Gemm(64, 48, 16), None)
    maker.add(Gemm(64, 40, 16), 1.2, regime="burst")
    with pytest.raises(PackError, match="no measured row for sustained clocks and a cold cache"):
        write_serving_files(tmp_path, maker.data())
    assert len(write_serving_files(tmp_path / "new" / "folder", maker.data(), "burst")) == 1


def test_the_table_of_a_real_pack_is_written_whole(tmp_path: Path) -> None:
    data = read_pack(MAIN_JOB)
    written = write_serving_files(tmp_path, data)
    entries = [entry for path in written for entry in json.loads(path.read_text()).values()]
    assert len(entries) == sum(len(t.rows) for t in data.tables)
    served = {r.kernel for t in data.tables for r in t.rows}
    assert {e["kernel"] for e in entries} == served
    tuned = [e for e in entries if e["kernel"] != "baseline"]
    assert all({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages"} <= set(e) for e in tuned)


def test_a_folder_that_cannot_be_written_is_one_sentence(maker: Any, tmp_path: Path) -> None:
    maker.add(Gemm(64, 48, 16), 1.2)
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match="cannot be written"):
        write_serving_files(tmp_path / "file", maker.data())
