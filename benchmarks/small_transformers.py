"""Two small transformers in plain torch with random weights, and bytes to train them on.

``llama``: four layers with the sizes of an 8B model (width 4096, 32 heads, 8 of them for keys and values, gated inner
width 14336). ``gpt2``: twelve layers of width 768 with biases. ``tiny``: to try a script without a GPU. Both models
speak bytes (a vocabulary of 256), so that training needs no tokeniser.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
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

    def forward(self, x: Any, turn: Any, cache: Any, position: Any) -> Any:
        """``x`` is [batch, tokens, width]; ``turn`` turns queries and keys by their position."""
        batch, tokens, _ = x.shape
        heads = (batch, tokens, -1, self.s.head)
        q, k, v = (layer(x).view(heads).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = turn(q), turn(k)
        if cache is None:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values = cache
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            seen = torch.arange(keys.shape[2], device=x.device) <= position
            out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None], enable_gqa=True)
        return self.o(out.transpose(1, 2).reshape(batch, tokens, -1))


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

    def forward(self, x: Any, turn: Any, cache: Any, position: Any) -> Any:
        """``x`` is [batch, tokens, width]."""
        x = x + self.attention(self.first(x), turn, cache, position)
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
        turn = self._turn(places, x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x, turn, None if caches is None else caches[i], position)
        return self.head(self.norm(x))

    def _turn(self, places: Any, dtype: Any) -> Any:
        if self.places is not None:
            return lambda x: x
        half = self.s.head // 2
        rates = 10000.0 ** (-torch.arange(half, device=places.device, dtype=torch.float32) / half)
        angles = places[:, None].float() * rates
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

        def turn(x: Any) -> Any:
            a, b = x[..., :half], x[..., half:]
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

        return turn

    def caches(self, batch: int) -> list[Any]:
        """Empty keys and values of every layer, for the whole context."""
        shape = (batch, self.s.kv_heads, self.s.context, self.s.head)
        like = self.head.weight
        return [tuple(torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in "kv") for _ in self.blocks]


def loss_of(model: Any, tokens: Any) -> Any:
    """Mean cross entropy (nats) of each byte after the first; tokens is [batch, length]."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


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
