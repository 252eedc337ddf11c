"""The elementwise kernels of unfused epilogues and conversions, compiled through CuPy on first use.

One kernel template: d[i,j] = T(x[i,j] + beta * c[i,j] + bias[j]) in fp32, terms without a pointer left out. A thread
moves four elements where pitches and addresses allow, so that a baseline built from it is no straw man.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gemmtune.device.launch import Packed
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError, ToolchainError

CTYPES = {"float32": "float", "float16": "f16", "bfloat16": "bf16"}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
_THREADS = 128
_MAX_ROWS_OF_BLOCKS = 65535

TYPES_SOURCE = r"""
typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ void from_float(float& r, float x) { r = x; }
__device__ __forceinline__ void from_float(f16& r, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); }
__device__ __forceinline__ void from_float(bf16& r, float x) {
  u32 b = __float_as_uint(x);
  r.bits = (b & 0x7fffffffu) > 0x7f800000u ? (u16)0x7fff : (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
"""

_SOURCE = (
    TYPES_SOURCE
    + r"""
template <class T, int V> struct __align__(sizeof(T) * V) Pack { T v[V]; };

template <class X, class T, int V>
__device__ __forceinline__ void finish(const X* x, i64 ldx, T* d, i64 ldd, const T* c, i64 ldc, float beta,
                                       const T* bias, i64 m, i64 n) {
  const i64 column = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (column >= n) return;
  for (i64 row = blockIdx.y; row < m; row += gridDim.y) {
    const Pack<X, V> in = *reinterpret_cast<const Pack<X, V>*>(x + row * ldx + column);
    float r[V];
#pragma unroll
    for (int i = 0; i < V; i++) r[i] = to_float(in.v[i]);
    if (c) {
      const Pack<T, V> more = *reinterpret_cast<const Pack<T, V>*>(c + row * ldc + column);
#pragma unroll
      for (int i = 0; i < V; i++) r[i] += beta * to_float(more.v[i]);
    }
    if (bias) {
#pragma unroll
      for (int i = 0; i < V; i++) r[i] += to_float(bias[column + i]);
    }
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; i++) from_float(out.v[i], r[i]);
    *reinterpret_cast<Pack<T, V>*>(d + row * ldd + column) = out;
  }
}
#define FINISH(X, T, V) \
  extern "C" __global__ void finish_##X##_##T##_##V(const X* x, i64 ldx, T* d, i64 ldd, const T* c, i64 ldc, \
                                                    float beta, const T* bias, i64 m, i64 n) { \
    finish<X, T, V>(x, ldx, d, ldd, c, ldc, beta, bias, m, n); \
  }
#define FINISH_ALL(X) \
  FINISH(X, float, 1) FINISH(X, float, 4) FINISH(X, f16, 1) FINISH(X, f16, 4) FINISH(X, bf16, 1) FINISH(X, bf16, 4)
FINISH_ALL(float) FINISH_ALL(f16) FINISH_ALL(bf16)
"""
)


def compile_module(source: str) -> Any:
    """A CuPy module of our own kernels; CuPy caches the binary on disk.

    Raises:
        ToolchainError: CuPy finds no NVRTC to compile with.
    """
    cupy = require_cupy()
    try:
        module = cupy.RawModule(code=source, options=("-std=c++17",), backend="nvrtc")
        module.compile()
    except cupy.cuda.compiler.CompileException:
        raise
    except (ImportError, RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ToolchainError(
            f"CuPy could not compile its helper kernels ({first}): install NVRTC with pip install 'gemmtune[cuda13]'."
        ) from error
    return module


@lru_cache(maxsize=256)
def _function(name: str, device: int) -> int:
    """Address of a kernel on a device (part of the key: modules belong to a context)."""
    return int(_module().get_function(name).kernel.ptr)


@lru_cache(maxsize=1)
def _module() -> Any:
    return compile_module(_SOURCE)


class Finish:
    """One elementwise pass, its arguments packed.

    Args:
        shape: rows and columns.
        source: NumPy name of x's type and its row pitch in elements.
        target: likewise of d (and c and bias, whose type is d's; c has d's pitch).
        beta: factor of c.
    """

    def __init__(
        self, shape: tuple[int, int], source: tuple[str, int], target: tuple[str, int], beta: float = 0.0
    ) -> None:
        self._shape = shape
        self._source = source
        self._target = target
        self._beta = beta

    def launch(self, stream: int, x: int, d: int, c: int = 0, bias: int = 0) -> None:
        """Enqueue; ``c`` and ``bias`` are left out where 0. ``x`` and ``d`` may be one buffer of one type."""
        from cupy.cuda import driver

        from gemmtune.device.launch import scalar_word
        from gemmtune.space.recipe import Argument

        rows, columns = self._shape
        (x_type, ldx), (d_type, ldd) = self._source, self._target
        wide = columns % 4 == 0 and ldx % 4 == 0 and ldd % 4 == 0
        wide = wide and x % (4 * SIZES[x_type]) == 0 and (d | c) % (4 * SIZES[d_type]) == 0
        vector = 4 if wide else 1
        name = f"finish_{CTYPES[x_type]}_{CTYPES[d_type]}_{vector}"
        function = _function(name, int(require_cupy().cuda.runtime.getDevice()))
        beta = scalar_word(Argument("scalar", "beta", "f32"), self._beta)
        packed = Packed([x, ldx, d, ldd, c, ldd, beta, bias, rows, columns])
        blocks = -(-columns // (_THREADS * vector))
        try:
            driver.launchKernel(
                function, blocks, min(rows, _MAX_ROWS_OF_BLOCKS), 1, _THREADS, 1, 1, 0, stream, packed.address, 0
            )
        except RuntimeError as error:
            raise LaunchError(f"The elementwise kernel {name} was refused: {error}.") from error
