"""Two small transformers in plain torch with random weights, and bytes to train them on.

``llama``: four layers with the sizes of an 8B model (width 4096, 32 heads, 8 of them for keys and values, gated inner
width 14336). ``gpt2``: twelve layers of width 768 with biases. ``tiny``: to try a script without a GPU. Both models
speak bytes (a vocabulary of 256), so that training needs no tokeniser.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """What a model is made of; ``gated``: SiLU gates, RMS norms and rotary positions, else GELU and layer norms."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    gated: bool
    vocabulary: int = 256
    context: int = 4096

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads


MODELS = {
    "llama": Sizes(4096, 4, 32, 8, 14336, gated=True),
    "gpt2": Sizes(768, 12, 12, 12, 3072, gated=False),
    "tiny": Sizes(64, 2, 4, 2, 128, gated=True, context=128),
    "tiny-gpt2": Sizes(64, 2, 4, 4, 256, gated=False, context=128),
}


class Attention(nn.Module):
    """Causal self-attention; with a cache, of one new token against all tokens so far."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        bias = not s.gated
        self.q, self.o = nn.Linear(s.width, s.width, bias), nn.Linear(s.width, s.width, bias)
        self.k, self.v = (nn.Linear(s.width, s.kv_heads * s.head, bias) for _ in "kv")

    def forward(self, x: Any, angles: Any, cache: Any, past: Any) -> Any:
        """``x`` is [batch, tokens, width]; ``angles`` turn queries and keys; ``cache`` and ``past`` as in a block."""
        batch, tokens, _ = x.shape
        heads = (batch, tokens, -1, self.s.head)
        q = _turned(self.q(x).view(heads), angles).transpose(1, 2)
        k = _turned(self.k(x).view(heads), angles).transpose(1, 2)
        v = self.v(x).view(heads).transpose(1, 2)
        if cache is None:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            (keys, values), (position, mask) = cache, past
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            # Queries that share keys stand side by side, as tokens would: fused attention with a mask knows no groups.
            q = q.reshape(batch, self.s.kv_heads, -1, self.s.head)
            out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            out = out.reshape(batch, -1, tokens, self.s.head)
        return self.o(out.transpose(1, 2).reshape(batch, tokens, -1))


def _turned(x: Any, angles: Any) -> Any:
    """Rotary positions: the halves of every head in ``x`` [batch, tokens, heads, head] turned against each other."""
    if angles is None:
        return x
    cos, sin = angles
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class Inner(nn.Module):
    """The two (or, gated, three) products between attentions."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(s.width, s.inner, bias=False) if s.gated else None
        self.up, self.down = nn.Linear(s.width, s.inner, not s.gated), nn.Linear(s.inner, s.width, not s.gated)

    def forward(self, x: Any) -> Any:
        """``x`` is [batch, tokens, width]."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and inner layer, each after a norm and beside a residual."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.first, self.second = ((nn.RMSNorm if s.gated else nn.LayerNorm)(s.width) for _ in range(2))
        self.attention, self.inner = Attention(s), Inner(s)

    def forward(self, x: Any, angles: Any, cache: Any, past: Any) -> Any:
        """``x`` is [batch, tokens, width]; ``cache``: keys and values; ``past``: the new token's place and the mask."""
        x = x + self.attention(self.first(x), angles, cache, past)
        return x + self.inner(self.second(x))


class Transformer(nn.Module):
    """Bytes in, logits out."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.tokens = nn.Embedding(s.vocabulary, s.width)
        self.places = None if s.gated else nn.Embedding(s.context, s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = (nn.RMSNorm if s.gated else nn.LayerNorm)(s.width)
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * s.layers) ** 0.5 if deep else 0.02)

    def forward(self, tokens: Any, caches: Any = None, position: Any = None) -> Any:
        """Logits [batch, tokens, vocabulary]; with ``caches``, tokens is [batch, 1], at ``position`` (a tensor [1])."""
        places = torch.arange(tokens.shape[1], device=tokens.device) if position is None else position
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places(places)
        angles = self._angles(places, x.dtype) if self.places is None else None
        past = None if caches is None else (position, _mask(caches[0][0].shape[2], position, x.dtype))
        for i, block in enumerate(self.blocks):
            x = block(x, angles, None if caches is None else caches[i], past)
        return self.head(self.norm(x))

    def _angles(self, places: Any, dtype: Any) -> tuple[Any, Any]:
        half = self.s.head // 2
        rates = torch.exp(torch.arange(half, device=places.device, dtype=torch.float32) * (-log(10000.0) / half))
        angles = places[:, None, None].float() * rates
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def caches(self, batch: int, room: int) -> list[Any]:
        """Empty keys and values of every layer, for ``room`` tokens."""
        shape = (batch, self.s.kv_heads, room, self.s.head)
        like = self.head.weight
        return [tuple(torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in "kv") for _ in self.blocks]


def _mask(room: int, position: Any, dtype: Any) -> Any:
    """What is added to the scores of ``room`` cached tokens: nothing up to ``position``, minus infinity beyond."""
    beyond = torch.arange(room, device=position.device) > position
    return torch.zeros(1, room, dtype=dtype, device=position.device).masked_fill(beyond, float("-inf"))


def cross_entropy(logits: Any, tokens: Any) -> Any:
    """Mean cross entropy (nats) of each byte after the first; ``logits`` are those of ``tokens[:, :-1]``."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def loss_of(model: Any, tokens: Any) -> Any:
    """The same of a model; tokens is [batch, length]."""
    return cross_entropy(model(tokens[:, :-1]), tokens)


def library_bytes(limit: int = 2**24) -> Any:
    """The sources of Python's standard library, one after another, as a uint8 tensor of at most ``limit``."""
    data = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        data += path.read_bytes()
        if len(data) >= limit:
            break
    return torch.frombuffer(data[:limit], dtype=torch.uint8)


def batches(data: Any, count: int, batch: int, length: int, seed: int, device: Any) -> Any:
    """``count`` batches [batch, length] of random places in ``data``, the same for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(data) - length, (batch,), generator=generator).tolist()
        yield torch.stack([data[i : i + length] for i in starts]).long().to(device)
