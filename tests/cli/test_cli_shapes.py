"""``gemmtune shapes``, and that ``tune`` and ``bench`` read what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmtune.cli import inputs
from gemmtune.cli.shapes import read_tokens
from gemmtune.space.errors import ProblemError
from gemmtune.space.gemm import Gemm

Cli = Callable[..., Any]
MODELS = Path(__file__).resolve().parents[1] / "data" / "models"


def test_a_table_and_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "llama.toml"
    done = cli("shapes", str(MODELS / "llama"), "--tokens", "16", "--backward", "-o", str(file))
    assert done.code == 0, done.err
    assert "forward and backward, tokens 16" in done.out
    assert f"gemmtune tune --shapes {file}" in done.out
    found = inputs.wanted((), None, None, None, [str(file)], None, None, "nt", "identity")
    assert found[0].m * found[0].n * found[0].k >= found[-1].m * found[-1].n * found[-1].k
    assert {g.layout for g in found} == {"nt", "nn", "tn"}
    assert {g.dtype for g in found} == {"bf16"}


@pytest.mark.parametrize("name", sorted(p.name for p in MODELS.iterdir()))
def test_every_format_says_the_same(cli: Cli, name: str, tmp_path: Path) -> None:
    command = ("shapes", str(MODELS / name), "--tokens", "1,64:0.5", "--tp", "2", "--fused", "--sequences", "1")
    records = json.loads(cli(*command, "--format", "json").out)
    assert len(cli(*command, "--format", "csv").out.splitlines()) == len(records) + 1
    (tmp_path / "s.toml").write_text(cli(*command, "--format", "toml").out)
    read = inputs.wanted((), None, None, None, [str(tmp_path / "s.toml")], None, None, "nn", "bias")
    assert [(g.m, g.n, g.k, g.layout) for g in read] == [(r["m"], r["n"], r["k"], r["layout"]) for r in records]
    assert sum(r["share"] for r in records) == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "named", "listed"),
    [
        ({"torch_dtype": "float16"}, "", "fp16"),
        ({"dtype": "float32", "torch_dtype": None}, "", "fp32"),
        ({"torch_dtype": "float64"}, "the dtype float64", "bf16"),
        ({"torch_dtype": None}, "no dtype", "bf16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights quantised by fp8", "bf16"),
        ({"torch_dtype": "float16", "quantization_config": {"bits": 4}}, "weights quantised by a method of", "fp16"),
        ({"quantization_config": "fp8"}, "weights quantised by fp8", "bf16"),
    ],
)
def test_a_type_that_is_not_the_models_own_is_told(
    cli: Cli, tmp_path: Path, change: dict[str, Any], named: str, listed: str
) -> None:
    data = json.loads((MODELS / "llama" / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(data))
    nested = tmp_path / "sees" / "config.json"  # a model that also sees, which says the type in either place
    nested.parent.mkdir()
    outer = {name: data.pop(name, None) for name in ("dtype", "torch_dtype", "quantization_config")}
    nested.write_text(json.dumps({"model_type": "sees", "text_config": data, **outer}))
    for path in (tmp_path, nested):
        done = cli("shapes", str(path), "--tokens", "8", "--format", "json")
        assert {r["dtype"] for r in json.loads(done.out)} == {listed}
        assert (f"names {named}" in done.err and done.err.count("\n") == 1) if named else not done.err
        assert not cli("shapes", str(path), "--tokens", "8", "--dtype", "fp16", "--format", "json").err


def test_typed_shapes_come_before_those_of_a_file(cli: Cli, tmp_path: Path) -> None:
    cli("shapes", str(MODELS / "gpt2"), "--tokens", "8", "-o", str(tmp_path / "a.toml"))
    (tmp_path / "b.toml").write_text("shapes = [[3, 4, 5]]\n")
    files = [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]
    found = inputs.wanted(["1x2x3"], None, None, None, files, None, None, "tt", "identity")
    assert found[:2] == [Gemm(1, 2, 3, layout="tt", dtype="bf16"), Gemm(3, 4, 5, layout="tt", dtype="bf16")]
    assert len(found) == 7
    assert len(inputs.read_shape_file(files[0])) == 5


def test_a_file_of_problems_is_tuned_in_its_order(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "s.toml"
    file.write_text(
        "[[problem]]\nm = 24\nn = 16\nk = 16\ndtype = 'fp32'\nlayout = 'nn'\n\n"
        "[[problem]]\nm = 16\nn = 16\nk = 24\ndtype = 'fp32'\nlayout = 'tn'\nshare = 0.25\n"
    )
    history = str(tmp_path / "h.db")
    done = cli(
        "tune", "--shapes", str(file), "--device", "emulator:h200", "--trials", "1", "--family", "simt",
        "--workers", "1", "--db", history,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.index("24x16x16") < done.out.index("16x16x24")
    best = json.loads(cli("query", "best", "--format", "json", "--db", history).out)
    assert {r["problem"] for r in best} == {"gemm 24x16x16 fp32 nn", "gemm 16x16x24 fp32 tn"}


def test_tokens_with_weights() -> None:
    assert read_tokens(["1,16:3", "16:0.5"]) == {1: 1.0, 16: 3.5}
    for text in ("", "x", "4:", "-1", "1,,2"):
        with pytest.raises(ProblemError, match="malformed"):
            read_tokens([text])
    for text in ("0", "4:0", "0:1", "16,0"):
        with pytest.raises(ProblemError, match="must be above 0"):
            read_tokens([text])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "cannot be read"),
        ([str(MODELS / "llama"), "--format", "xml"], "The format 'xml' does not exist"),
        ([str(MODELS / "llama"), "--sequences", "0"], "must be at least 1"),
        ([str(MODELS / "llama"), "--tp", "3"], "cannot share evenly"),
        ([str(MODELS / "llama"), "--no-forward"], "Neither"),
        ([str(MODELS / "llama"), "--gpu", "voodoo"], "voodoo"),
        ([str(MODELS / "llama"), "--dtype", "int8"], "int8"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli("shapes", *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
