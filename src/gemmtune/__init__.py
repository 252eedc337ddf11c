"""gemmtune: the fastest correct matrix multiplication on the GPU you have, found automatically, remembered, shipped.

The names below are the public interface. The table is lazy: ``import gemmtune`` imports nothing by itself, so that a
program that only loads a pack never pays for Optuna, SQLAlchemy or a compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Configuration": "gemmtune.space.configuration",
    "Gemm": "gemmtune.space.gemm",
    "Gpu": "gemmtune.space.gpu",
    "GemmtuneError": "gemmtune.space.errors",
    "Space": "gemmtune.space.space",
    "open_device": "gemmtune.device",
    "History": "gemmtune.db",
    "tune": "gemmtune.search",
    "benchmark": "gemmtune.search.benchmark",
    "RecordedSpace": "gemmtune.space.recorded",
    "open_space": "gemmtune.search.recorded_study",
    "replay": "gemmtune.search.replay",
    "export_pack": "gemmtune.pack.export",
    "check_pack": "gemmtune.pack.check",
    "load_pack": "gemmtune.pack.runtime",
    "merge_packs": "gemmtune.pack.combine",
}

_MODULES = ("torch", "cupy")
"""Ways into other frameworks, imported when first named: ``gemmtune.torch.optimize_(model, pack)``."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"gemmtune.{name}")
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'gemmtune' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, *_MODULES])


if TYPE_CHECKING:
    from gemmtune.db import History as History
    from gemmtune.device import open_device as open_device
    from gemmtune.pack.check import check_pack as check_pack
    from gemmtune.pack.combine import merge_packs as merge_packs
    from gemmtune.pack.export import export_pack as export_pack
    from gemmtune.pack.runtime import load_pack as load_pack
    from gemmtune.search import tune as tune
    from gemmtune.search.benchmark import benchmark as benchmark
    from gemmtune.search.recorded_study import open_space as open_space
    from gemmtune.search.replay import replay as replay
    from gemmtune.space.configuration import Configuration as Configuration
    from gemmtune.space.errors import GemmtuneError as GemmtuneError
    from gemmtune.space.gemm import Gemm as Gemm
    from gemmtune.space.gpu import Gpu as Gpu
    from gemmtune.space.recorded import RecordedSpace as RecordedSpace
    from gemmtune.space.space import Space as Space
