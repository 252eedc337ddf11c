"""A pack for CuPy arrays, and for anything that CuPy can read where it lies: DLPack and ``__cuda_array_interface__``.

    import gemmtune.cupy

    d = gemmtune.cupy.matmul(a, b, pack="h200.kpack")      # a CuPy array

The same look-up as :meth:`gemmtune.pack.runtime.Pack.matmul`, which takes CuPy arrays and torch tensors alone, 2-D, of
the dtypes that packs have. Here a may be [..., K]; what a pack has no form for (integers, complex or double numbers,
batches on both sides) is multiplied by CuPy itself, with one warning for each cause.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

from gemmtune.device.toolchain import require_cupy
from gemmtune.pack.runtime import Pack, load_pack
from gemmtune.space.errors import ArrayError, UnsupportedError

_DTYPES = frozenset({"float32", "float16", "bfloat16"})
_causes: set[str] = set()


class PackWarning(UserWarning):
    """A pack has no form for the arrays, so CuPy multiplies. Given once for each cause."""


def matmul(a: Any, b: Any, *, pack: Pack | str | Path, strict: bool = False, **options: Any) -> Any:
    """``a @ b`` for a [..., K] and b [K, N], on CuPy's current stream.

    Args:
        a: a CuPy array, or anything with ``__cuda_array_interface__`` or ``__dlpack__`` on a GPU; nothing is copied.
        b: the same.
        pack: a loaded pack, or the path of one (read once).
        strict: raise where the pack has no form for the arrays, in place of one warning.
        options: those of :meth:`Pack.matmul` for 2-D arrays: out, bias, c, alpha, beta, out_dtype, precision.

    Returns:
        A CuPy array [..., N].

    Raises:
        ArrayError: an array on the host, or arrays that cannot be multiplied.
        PackError: there is no good pack at the path.
        ToolchainError: CuPy is not installed.
        UnsupportedError: with ``strict``, arrays that a pack has no form for.
    """
    left, right = as_array(a, "a"), as_array(b, "b")
    reason = _hindrance(left, right)
    if reason is not None:
        return _by_cupy(left, right, reason, strict, options)
    loaded = pack if isinstance(pack, Pack) else _load(str(pack))
    for name in ("out", "bias", "c"):
        if options.get(name) is not None:
            options[name] = as_array(options[name], name)
    if left.ndim == 2:
        return loaded.matmul(left, right, **options)
    if options.get("out") is not None or options.get("c") is not None:
        raise ArrayError(f"a has the shape {left.shape}: out and c are for 2-D arrays, so reshape it.")
    rows = left.reshape(-1, left.shape[-1]) if left.size else left.reshape(_rows(left.shape), left.shape[-1])
    return loaded.matmul(rows, right, **options).reshape(*left.shape[:-1], right.shape[1])


def as_array(array: Any, name: str = "array") -> Any:
    """The CuPy array of what lies on a GPU, without a copy.

    Raises:
        ArrayError: it lies on the host, or is no array.
        ToolchainError: CuPy is not installed.
    """
    cupy = require_cupy()
    if isinstance(array, cupy.ndarray):
        return array
    try:
        if hasattr(array, "__cuda_array_interface__"):
            return cupy.asarray(array)
        if hasattr(array, "__dlpack__") and _on_gpu(array):
            return cupy.from_dlpack(array)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise ArrayError(f"CuPy cannot read {name}, a {type(array).__name__}, where it lies: {error}.") from None
    raise ArrayError(f"{name} is a {type(array).__name__} that lies on no GPU: move it there with cupy.asarray.")


def _on_gpu(array: Any) -> bool:
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged (dlpack.h)


def _rows(shape: tuple[int, ...]) -> int:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


@functools.lru_cache(maxsize=16)
def _load(path: str) -> Pack:
    return load_pack(path)


def _hindrance(a: Any, b: Any) -> tuple[str, str] | None:
    """Why a pack has no form for the arrays: a cause, and a sentence; None where it has."""
    for name, array in (("a", a), ("b", b)):
        if str(array.dtype) not in _DTYPES:
            return f"dtype {array.dtype}", f"{name} is {array.dtype}: packs have float32, float16 and bfloat16"
    if a.ndim < 2 or b.ndim != 2:
        return f"rank {a.ndim} {b.ndim}", f"a has {a.ndim} dimensions and b {b.ndim}: packs have [..., K] and [K, N]"
    return None


def _by_cupy(a: Any, b: Any, reason: tuple[str, str], strict: bool, options: dict[str, Any]) -> Any:
    cause, sentence = reason
    if strict or any(value is not None for value in options.values()):
        raise UnsupportedError(f"{sentence}, so the pack cannot multiply them.")
    if cause not in _causes:
        _causes.add(cause)
        warnings.warn(f"{sentence}, so CuPy multiplies.", PackWarning, stacklevel=3)
    return require_cupy().matmul(a, b)
