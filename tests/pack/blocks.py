"""A small model for tests; needs torch."""

from __future__ import annotations

from typing import Any

import torch


class Block(torch.nn.Module):
    """A layer with a row, one without, one of another class, and a product in the open."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16, bias=False)
        self.odd = torch.nn.modules.linear.NonDynamicallyQuantizableLinear(16, 16)
        self.whole = torch.nn.Linear(4, 4).to(torch.float64)

    def forward(self, a: Any) -> Any:
        return self.odd(self.down(torch.relu(self.up(a))))
