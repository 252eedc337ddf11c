"""Six configurations of real models, and which matrix multiplications they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.search.model_layers import Layer, Model, read_model
from gemmtune.search.model_shapes import layer_problems, model_problems
from gemmtune.search.shape_file import Weighted, read_problems, write_problems
from gemmtune.space.errors import ProblemError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
H200 = gpu("h200")
# Parameters of the linear layers of each model (embeddings that are not the head excluded), worked out from the models'
# published totals: Llama 3 8B has 8.03e9 of which 0.525e9 embed, DeepSeek V3 671e9, Mixtral 46.7e9, and so on.
PUBLISHED = {
    "llama": 8.03e9 - 128256 * 4096, "qwen2": 7.62e9 - 152064 * 3584, "mistral": 12.25e9 - 131072 * 5120,
    "mixtral": 46.7e9 - 32000 * 4096, "deepseek": 671.0e9 - 129280 * 7168, "gpt2": 124.4e6 - 1024 * 768,
}  # fmt: skip


def layers(name: str, **options: Any) -> dict[str, Layer]:
    return {layer.name: layer for layer in read_model(MODELS / name, **options).layers}


def weights(found: dict[str, Layer]) -> int:
    return sum(x.n * x.k * x.count * (x.experts[0] if x.experts else 1) for x in found.values())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_layers_add_up_to_the_published_number_of_parameters(name: str) -> None:
    assert weights(layers(name)) == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_fusing_changes_no_weight(name: str) -> None:
    assert weights(layers(name, fused=True)) == weights(layers(name))


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("parts", [2, 4])
def test_gpus_share_all_but_the_small_layers(name: str, parts: int) -> None:
    whole, part = weights(layers(name)), weights(layers(name, tensor_parallel=parts))
    assert whole / parts <= part <= whole / parts * 1.05


def test_llama_by_name() -> None:
    found = layers("llama")
    assert {name: (x.n, x.k, x.count) for name, x in found.items()} == {
        "self_attn.q_proj": (4096, 4096, 32), "self_attn.k_proj": (1024, 4096, 32),
        "self_attn.v_proj": (1024, 4096, 32), "self_attn.o_proj": (4096, 4096, 32),
        "mlp.gate_proj": (14336, 4096, 32), "mlp.up_proj": (14336, 4096, 32),
        "mlp.down_proj": (4096, 14336, 32), "lm_head": (128256, 4096, 1),
    }  # fmt: skip
    merged = layers("llama", fused=True, tensor_parallel=8)
    assert (merged["self_attn.qkv_proj"].n, merged["self_attn.qkv_proj"].k) == (512 + 2 * 128, 4096)
    assert (merged["mlp.gate_up_proj"].n, merged["mlp.down_proj"].k) == (2 * 1792, 1792)


def test_more_gpus_than_groups_copy_keys_and_values() -> None:
    assert layers("llama", tensor_parallel=16)["self_attn.k_proj"].n == 128


def test_a_bias_is_the_products_own_only_where_no_other_gpu_adds_to_it() -> None:
    assert layers("qwen2")["self_attn.q_proj"].bias
    assert not layers("qwen2")["self_attn.o_proj"].bias
    assert layers("gpt2")["attn.c_proj"].bias
    assert not layers("gpt2", tensor_parallel=2)["attn.c_proj"].bias
    assert layers("gpt2", tensor_parallel=2)["attn.c_attn"].bias


def test_experts_share_the_tokens() -> None:
    gate = layers("mixtral")["block_sparse_moe.experts.gate_proj"]
    assert gate.calls(4096) == (1024, 32 * 8)
    assert gate.calls(1) == (1, 32 * 2)
    assert layers("deepseek")["mlp.experts.up_proj"].calls(16) == (1, 58 * 128)


def test_the_head_may_see_last_tokens_alone() -> None:
    head = layers("llama")["lm_head"]
    assert head.calls(4096) == (4096, 1)
    assert head.calls(4096, 4) == (4, 1)
    assert head.calls(2, 4) == (2, 1)


@pytest.mark.parametrize("stored", ["nt", "nn"])
def test_the_three_products_of_a_layer_are_those_of_calculus(stored: str) -> None:
    """Gradients of sum(G * (A W)) by the problems' own reference equal G W^T and A^T G."""
    rng = np.random.default_rng(0)
    rows, n, k = 5, 7, 3
    a, g, w = rng.standard_normal((rows, k)), rng.standard_normal((rows, n)), rng.standard_normal((k, n))
    kept = w.T if stored == "nt" else w
    operands = {"forward": (a, kept), "dgrad": (g, kept), "wgrad": (g, a) if stored == "nt" else (a, g)}
    wanted = {"forward": a @ w, "dgrad": g @ w.T, "wgrad": (a.T @ g).T if stored == "nt" else a.T @ g}
    seen = dict(layer_problems(Layer("x", n, k, 1, layout=stored), rows, "fp32", backward=True))
    assert set(seen) == set(wanted)
    for purpose, problem in seen.items():
        shapes = {t.name: t.shape for t in problem.tensors()}
        first, second = operands[purpose]
        assert (shapes["a"], shapes["b"], shapes["d"]) == (first.shape, second.shape, wanted[purpose].shape)
        d, _ = problem.reference({"a": first, "b": second}, np.arange(problem.m), np.arange(problem.n))
        np.testing.assert_allclose(d, wanted[purpose], rtol=1e-12)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_shares_fall_and_add_up_and_count_flops_right(name: str) -> None:
    model = read_model(MODELS / name)
    found = model_problems(model, {1: 3.0, 64: 1.0}, H200, backward=True)
    shares = [w.share for w in found]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert len({w.problem for w in found}) == len(found)
    flops = sum(w.count * w.problem.flops for w in found)
    expected = 0.0
    for tokens, weight in ((1, 3), (64, 1)):
        for layer in model.layers:
            rows, calls = layer.calls(tokens)
            expected += weight * calls * rows * 6 * layer.n * layer.k
    assert flops == pytest.approx(expected)


def test_what_gradients_are_made_of_keeps_its_name() -> None:
    found = model_problems(read_model(MODELS / "gpt2"), {8: 1.0}, H200, backward=True)
    by_name = {name: w.problem for w in found for name in w.where}
    assert by_name["mlp.c_fc forward"] == Gemm(8, 3072, 768, layout="nn", epilogue="bias", dtype="bf16")
    assert by_name["mlp.c_fc dgrad"] == Gemm(8, 768, 3072, layout="nt", dtype="bf16")
    assert by_name["mlp.c_fc wgrad"] == Gemm(768, 3072, 8, layout="tn", dtype="bf16")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            Weighted,
            st.builds(
                Gemm, st.integers(1, 9999), st.integers(1, 9999), st.integers(1, 9999),
                dtype=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]),
                layout=st.sampled_from(["nt", "nn", "tn", "tt"]),
                epilogue=st.sampled_from(["identity", "bias", "alpha_beta"]),
            ),
            st.integers(1, 1000).map(float),
            st.sampled_from([0.0, 0.25, 1.0]),
            st.lists(st.text(max_size=8), max_size=2).map(tuple),
        ),
        min_size=1, max_size=5, unique_by=lambda w: w.problem,
    )
)  # fmt: skip
def test_a_file_of_problems_reads_back(tmp_path_factory: pytest.TempPathFactory, problems: list[Weighted]) -> None:
    file = tmp_path_factory.mktemp("shapes") / "s.toml"
    write_problems(file, problems, "a title\nof two lines")
    assert read_problems(file) == problems


def test_another_dtype_replaces_the_files(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    write_problems(file, [Weighted(Gemm(8, 8, 8, "bf16")), Weighted(Gemm(4, 4, 4, "fp16", out_dtype="fp32"))])
    found = read_problems(file, ["fp16", "fp32"])
    assert found is not None
    assert [w.problem for w in found] == [
        Gemm(8, 8, 8, "fp16"), Gemm(8, 8, 8, "fp32"), Gemm(4, 4, 4, "fp16", out_dtype="fp32"), Gemm(4, 4, 4, "fp32"),
    ]  # fmt: skip


def test_a_file_without_problems_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[a]\nshapes = [[1, 2, 3]]\n")
    assert read_problems(tmp_path / "s.toml") is None
    assert read_problems(tmp_path / "missing.toml") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[problem]]\nm = 1\nn = 2\n", "no k"),
        ("[[problem]]\nm = 1\nn = 2\nk = 3\nsize = 4\n", "unknown field 'size'"),
        ("[[problem]]\nm = 1\nn = 2\nk = 3\nlayout = 4\n", "should be text"),
        ("[[problem]]\nm = 1\nn = 2\nk = 3\ncount = -1\n", "at least 0"),
        ("[[problem]]\nm = 1\nn = 2\nk = 3\nwhere = 'x'\n", "list of texts"),
        ("[[problem]]\nm = 0\nn = 2\nk = 3\n", "m"),
        ("problem = [3]\n", r"write \[\[problem\]\]"),
        ("problem = []\n", "empty list"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ProblemError, match=words):
        read_problems(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "lacks the field 'hidden_size'"),
        ({"intermediate_size": "wide"}, "intermediate_size 'wide'"),
        ({"num_attention_heads": 30}, "30, which 4 GPUs cannot share evenly"),
        ({"intermediate_size": 14338}, "14338, which 4 GPUs cannot share evenly"),
    ],
)
def test_a_bad_configuration_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    data = json.loads((MODELS / "llama" / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ProblemError, match=words):
        read_model(tmp_path, tensor_parallel=4)


def test_unknown_kinds_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="cannot be read"):
        read_model(tmp_path)
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "t5"}')
    with pytest.raises(UnsupportedError, match="'t5' are not known: choose one of deepseek_v2"):
        read_model(file)
    for text, words in (("{", "not JSON"), ("[]", "no JSON object")):
        file.write_text(text)
        with pytest.raises(ProblemError, match=words):
            read_model(file)
    with pytest.raises(ProblemError, match="degree is 0"):
        read_model(MODELS / "llama", tensor_parallel=0)


def test_the_text_part_of_a_model_that_sees_is_read(tmp_path: Path) -> None:
    text = json.loads((MODELS / "mistral" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": text}))
    assert read_model(tmp_path).layers == read_model(MODELS / "mistral").layers


def test_a_pass_and_tokens_must_be_asked_for() -> None:
    model = Model("x", "llama", "bf16", (Layer("l", 8, 8, 1),))
    with pytest.raises(ProblemError, match="Neither"):
        model_problems(model, {1: 1.0}, H200, forward=False)
    with pytest.raises(ProblemError, match="No number of tokens"):
        model_problems(model, {}, H200)
    with pytest.raises(ProblemError, match="must be positive"):
        model_problems(model, {0: 1.0}, H200)
