"""The linear layers of a transformer, read from the ``config.json`` that Hugging Face models carry.

Known are the kinds Llama (and Mistral, Qwen2, Qwen3), their mixtures of experts (Mixtral, Qwen2-MoE, Qwen3-MoE),
DeepSeek V2 and V3, and GPT-2. The names of the fields, and the layers they make, are those of the ``transformers``
library (``configuration_*.py`` and ``modeling_*.py`` of each kind). Products of two activations (attention scores) are
batched and have no weights, so they are no layers here.

Tensor parallelism is that of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): Q, K, V, gate, up and the head are
cut by columns, the output and down projections by rows; a small K or V head is copied rather than cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtune.space.errors import ProblemError, UnsupportedError

_TYPES = ("dtype", "torch_dtype")
"""Where a configuration says the element type: transformers 5, and before."""
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Layer:
    """One kind of linear layer on one of the GPUs that share the model.

    Attributes:
        name: as ``transformers`` calls it, e.g. ``self_attn.q_proj``.
        n, k: output and input features, on one GPU.
        count: how many the model has; of experts, in one layer of it only (see ``experts``).
        bias: whether the product itself adds one.
        layout: of the forward product: ``nt`` for ``nn.Linear``, ``nn`` where the weight is stored [in, out].
        experts: (experts, how many of them a token visits) where a router spreads the tokens; else None.
        logits: it is the head, which serving engines run on the last token of each sequence alone.
        dtype: element type where it is not the model's, else "".
    """

    name: str
    n: int
    k: int
    count: int
    bias: bool = False
    layout: str = "nt"
    experts: tuple[int, int] | None = None
    logits: bool = False
    dtype: str = ""

    def calls(self, tokens: int, sequences: int | None = None) -> tuple[int, int]:
        """Rows of A and the number of products in one pass over ``tokens``.

        A router is taken to spread the tokens evenly: each of the experts that are met gets an equal share, rounded up.
        """
        if self.logits and sequences is not None:
            return min(tokens, sequences), self.count
        if self.experts is None:
            return tokens, self.count
        experts, visits = self.experts
        met = min(experts, tokens * visits)
        return -(-tokens * visits // experts), self.count * met


@dataclass(frozen=True)
class Model:
    """A model as its linear layers: ``kind`` is the configuration's ``model_type``, ``dtype`` that of its weights.

    ``stored`` says in words what the configuration names where ``dtype`` only stands in for it.
    """

    name: str
    kind: str
    dtype: str
    layers: tuple[Layer, ...]
    stored: str = ""


class _Config:
    """The fields of a ``config.json``, each of which must be what it should."""

    def __init__(self, data: Mapping[str, Any], where: str, parts: int, fused: bool) -> None:
        self.data, self.where, self.parts, self.fused = data, where, parts, fused

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer; null and a missing field are ``default`` where there is one."""
        value = self.data.get(name)
        if value is None:
            value = default
        if value is None:
            raise ProblemError(f"The configuration {self.where} lacks the field {name!r}.")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProblemError(
                f"The configuration {self.where} has {name} {value!r}, but a positive integer is needed."
            )
        return value

    def count(self, name: str) -> int:
        """A number that may be 0, missing or null."""
        return self.size(name) if self.data.get(name) else 0

    def flag(self, name: str) -> bool:
        return bool(self.data.get(name, False))

    def cut(self, size: int, what: str) -> int:
        """``size`` on one GPU.

        Raises:
            ProblemError: the GPUs cannot share it evenly.
        """
        if size % self.parts:
            raise ProblemError(f"{what} of {self.where} is {size}, which {self.parts} GPUs cannot share evenly.")
        return size // self.parts


def read_model(path: str | Path, *, tensor_parallel: int = 1, fused: bool = False) -> Model:
    """The linear layers of the model whose ``config.json`` (or the folder that holds it) is ``path``.

    Args:
        path: the file or its folder.
        tensor_parallel: GPUs that share every layer.
        fused: Q, K and V as one product, gate and up as one, as serving engines compute them.

    Raises:
        ProblemError: the file cannot be read, lacks a field, or the GPUs cannot share a layer evenly.
        UnsupportedError: the kind of model is not known.
    """
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    if isinstance(tensor_parallel, bool) or not isinstance(tensor_parallel, int) or tensor_parallel < 1:
        raise ProblemError(
            f"The tensor-parallel degree is {tensor_parallel!r}, but it must be an integer of at least 1."
        )
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        cure = "name a model's config.json or the folder that holds it"
        raise ProblemError(f"The model {str(path)!r} cannot be read ({error.strerror}): {cure}.") from None
    except ValueError as error:
        raise ProblemError(f"The configuration {str(file)!r} is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise ProblemError(f"The configuration {str(file)!r} is no JSON object.")
    nested = data.get("text_config")
    if data.get("model_type") not in _KINDS and isinstance(nested, dict):  # a model that also sees or hears
        types = {} if any(nested.get(name) for name in _TYPES) else {name: data.get(name) for name in _TYPES}
        quantised = nested.get("quantization_config") or data.get("quantization_config")
        kept = {"_name_or_path": data.get("_name_or_path", ""), "quantization_config": quantised}
        data = {**nested, **types, **kept}
    kind = str(data.get("model_type"))
    if kind not in _KINDS:
        raise UnsupportedError(f"Models of the type {kind!r} are not known: choose one of {', '.join(sorted(_KINDS))}.")
    config = _Config(data, repr(str(file)), tensor_parallel, fused)
    dtype, stored = _dtype(data)
    name = str(data.get("_name_or_path") or "") or (file.parent.name if file.name == "config.json" else file.stem)
    return Model(name or kind, kind, dtype, tuple(layer for layer in _KINDS[kind](config) if layer.count), stored)


def _dtype(data: Mapping[str, Any]) -> tuple[str, str]:
    """The element type to list, and what the configuration names where that only stands in for it."""
    named = next((data[name] for name in _TYPES if data.get(name)), None)
    dtype = _DTYPES.get(str(named), "bf16")
    if quantised := data.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        return dtype, f"weights quantised by {method or 'a method of their own'}"
    if named is None:
        return dtype, "no dtype"
    return dtype, "" if str(named) in _DTYPES else f"the dtype {named}"


# -------------------------------------------------------------------------------------------------------------- parts


def _attention(c: _Config, *, qkv_bias: bool, out_bias: bool) -> list[Layer]:
    """Grouped-query attention: Q of every head, K and V of every group."""
    hidden, depth = c.size("hidden_size"), c.size("num_hidden_layers")
    heads = c.size("num_attention_heads")
    groups = c.size("num_key_value_heads", heads)
    width = c.size("head_dim", max(1, hidden // heads))
    q = c.cut(heads, "num_attention_heads") * width
    if groups % c.parts and c.parts % groups:
        c.cut(groups, "num_key_value_heads")
    kv = max(1, groups // c.parts) * width
    bias = out_bias and c.parts == 1  # else it is added once, after the GPUs' partial sums have met
    out = Layer("self_attn.o_proj", hidden, q, depth, bias)
    if c.fused:
        return [Layer("self_attn.qkv_proj", q + 2 * kv, hidden, depth, qkv_bias), out]
    return [
        Layer("self_attn.q_proj", q, hidden, depth, qkv_bias),
        Layer("self_attn.k_proj", kv, hidden, depth, qkv_bias),
        Layer("self_attn.v_proj", kv, hidden, depth, qkv_bias),
        out,
    ]


def _gated(
    c: _Config, name: str, inner: int, count: int, *, bias: bool = False, experts: tuple[int, int] | None = None
) -> list[Layer]:
    """The gated MLP: gate and up side by side, then down."""
    hidden, part = c.size("hidden_size"), c.cut(inner, f"the width of {name}")
    down = Layer(f"{name}.down_proj", hidden, part, count, bias and c.parts == 1, experts=experts)
    if c.fused:
        return [Layer(f"{name}.gate_up_proj", 2 * part, hidden, count, bias, experts=experts), down]
    return [
        Layer(f"{name}.gate_proj", part, hidden, count, bias, experts=experts),
        Layer(f"{name}.up_proj", part, hidden, count, bias, experts=experts),
        down,
    ]


def _head(c: _Config, hidden: int) -> Layer:
    """The head; a vocabulary that the GPUs cannot share evenly is padded, as Megatron does."""
    return Layer("lm_head", -(-c.size("vocab_size") // c.parts), hidden, 1, logits=True)


# -------------------------------------------------------------------------------------------------------------- kinds


def _llama(c: _Config) -> list[Layer]:
    own = c.flag("attention_bias")
    attention = _attention(c, qkv_bias=own or c.data["model_type"] == "qwen2", out_bias=own)
    mlp = _gated(c, "mlp", c.size("intermediate_size"), c.size("num_hidden_layers"), bias=c.flag("mlp_bias"))
    return [*attention, *mlp, _head(c, c.size("hidden_size"))]


def _mixtral(c: _Config) -> list[Layer]:
    hidden, depth = c.size("hidden_size"), c.size("num_hidden_layers")
    experts = (c.size("num_local_experts"), c.size("num_experts_per_tok"))
    router = Layer("block_sparse_moe.gate", experts[0], hidden, depth)
    mlp = _gated(c, "block_sparse_moe.experts", c.size("intermediate_size"), depth, experts=experts)
    return [*_attention(c, qkv_bias=False, out_bias=False), router, *mlp, _head(c, hidden)]


def _qwen_moe(c: _Config) -> list[Layer]:
    hidden, depth = c.size("hidden_size"), c.size("num_hidden_layers")
    experts = (c.size("num_experts"), c.size("num_experts_per_tok"))
    step, plain = c.size("decoder_sparse_step", 1), c.data.get("mlp_only_layers") or ()
    sparse = sum(1 for i in range(depth) if i not in plain and (i + 1) % step == 0)
    own = c.flag("attention_bias")
    layers = _attention(c, qkv_bias=own or c.data["model_type"] == "qwen2_moe", out_bias=own)
    if sparse:
        layers.append(Layer("mlp.gate", experts[0], hidden, sparse))
        layers += _gated(c, "mlp.experts", c.size("moe_intermediate_size"), sparse, experts=experts)
    if sparse and (shared := c.count("shared_expert_intermediate_size")):
        layers += _gated(c, "mlp.shared_expert", shared, sparse)
        layers.append(Layer("mlp.shared_expert_gate", 1, hidden, sparse))
    if sparse < depth:
        layers += _gated(c, "mlp", c.size("intermediate_size"), depth - sparse)
    return [*layers, _head(c, hidden)]


def _deepseek(c: _Config) -> list[Layer]:
    """Multi-head latent attention (arXiv:2405.04434, section 2.1): the low-rank factors are whole on every GPU."""
    hidden, depth = c.size("hidden_size"), c.size("num_hidden_layers")
    heads = c.cut(c.size("num_attention_heads"), "num_attention_heads")
    nope, rope, value = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim"), c.size("v_head_dim")
    latent, bias = c.size("kv_lora_rank"), c.flag("attention_bias")
    compressed = Layer("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, depth, bias)
    rank = c.count("q_lora_rank")
    if not rank:
        layers = [Layer("self_attn.q_proj", heads * (nope + rope), hidden, depth), compressed]
    else:
        first = Layer("self_attn.q_a_proj", rank, hidden, depth, bias)
        if c.fused:
            both = Layer("self_attn.fused_qkv_a_proj", rank + compressed.n, hidden, depth, bias)
        layers = [both] if c.fused else [first, compressed]
        layers.append(Layer("self_attn.q_b_proj", heads * (nope + rope), rank, depth))
    layers.append(Layer("self_attn.kv_b_proj", heads * (nope + value), latent, depth))
    layers.append(Layer("self_attn.o_proj", hidden, heads * value, depth, bias and c.parts == 1))
    routed = c.count("n_routed_experts")
    first_moe, step = c.count("first_k_dense_replace"), c.size("moe_layer_freq", 1)
    sparse = sum(1 for i in range(depth) if routed and i >= first_moe and i % step == 0)
    if sparse:
        inner, experts = c.size("moe_intermediate_size"), (routed, c.size("num_experts_per_tok"))
        layers.append(Layer("mlp.gate", routed, hidden, sparse, dtype="fp32"))  # its router computes in fp32
        layers += _gated(c, "mlp.experts", inner, sparse, experts=experts)
        if shared := c.count("n_shared_experts"):
            layers += _gated(c, "mlp.shared_experts", inner * shared, sparse)
    if sparse < depth:
        layers += _gated(c, "mlp", c.size("intermediate_size"), depth - sparse)
    return [*layers, _head(c, hidden)]


def _gpt2(c: _Config) -> list[Layer]:
    """GPT-2 stores the weights of its ``Conv1D`` layers as [in, out], so that their forward product is ``nn``."""
    hidden, depth = c.size("n_embd"), c.size("n_layer")
    c.cut(c.size("n_head"), "n_head")
    inner, part = c.cut(c.size("n_inner", 4 * hidden), "n_inner"), c.cut(hidden, "n_embd")
    whole = c.parts == 1
    return [
        Layer("attn.c_attn", 3 * part, hidden, depth, True, "nn"),
        Layer("attn.c_proj", hidden, part, depth, whole, "nn"),
        Layer("mlp.c_fc", inner, hidden, depth, True, "nn"),
        Layer("mlp.c_proj", hidden, inner, depth, whole, "nn"),
        _head(c, hidden),
    ]


_KINDS: dict[str, Callable[[_Config], list[Layer]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
}
