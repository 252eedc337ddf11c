"""A pack in PyTorch: operators, a swap of a model's linear layers, a context for code that cannot be changed.

    from gemmtune.torch import optimize_, restore_

    report = optimize_(model, "h200.kpack")      # nn.Linear layers use the pack; state_dict keys stay
    print(report)                                # for each layer: what it does, and why not
    restore_(model)

Needs torch; gemmtune itself does not.
"""

from __future__ import annotations

from gemmtune.space.errors import ToolchainError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ToolchainError(f"PyTorch is not installed or does not import ({error}): pip install torch.") from None

from gemmtune.torch.functional import explain as explain
from gemmtune.torch.functional import linear as linear
from gemmtune.torch.functional import matmul as matmul
from gemmtune.torch.layers import LayerReport as LayerReport
from gemmtune.torch.layers import Report as Report
from gemmtune.torch.layers import optimize_ as optimize_
from gemmtune.torch.layers import restore_ as restore_
from gemmtune.torch.recording import record as record
from gemmtune.torch.registry import PackWarning as PackWarning
from gemmtune.torch.registry import served as served
from gemmtune.torch.registry import use as use
from gemmtune.torch.routing import route as route
from gemmtune.torch.swapped import Linear as Linear

__all__ = [
    "use", "linear", "matmul", "optimize_", "restore_", "route", "record", "explain", "served",
    "Linear", "LayerReport", "Report", "PackWarning",
]  # fmt: skip
