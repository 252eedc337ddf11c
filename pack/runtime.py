"""Load a pack and multiply with it: look up, launch, explain.

Imports no more than :mod:`gemmtune.space`, the launcher and the baselines: a program that uses a pack needs neither
Optuna nor SQLAlchemy nor a compiler. CuPy is imported when a GPU is first touched; torch never is.

    pack = load_pack("h200.kpack")
    d = pack.matmul(a, b)                      # CuPy arrays or torch CUDA tensors
    print(pack.explain(4096, 4096, 4096, dtype="bf16"))
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmtune.device.launch import POINTER_BITS
from gemmtune.device.toolchain import device_count
from gemmtune.pack.arrays import Arrays, Signature, arrays_of
from gemmtune.pack.call import Call, Operands, plan_call
from gemmtune.pack.dispatch import Dispatch, Explanation, table_for
from gemmtune.pack.executor import DeviceState, Run, device_index
from gemmtune.pack.extras import Extras, reach, read_extras, refuse_overlap
from gemmtune.pack.format import PackData, read_pack
from gemmtune.pack.profile import profile
from gemmtune.pack.schema import Table
from gemmtune.space.errors import ArrayError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.settings import check_count, check_regime

MAX_PLANS = 4096
"""Plans kept a thread: one for each combination of shapes, strides, dtypes, alignment and stream seen."""


def load_pack(
    path: str | Path,
    *,
    device: int | str | None = None,
    regime: str = "sustained",
    allow_estimates: bool = False,
    allow_unmeasured: bool = False,
    scratch_limit: int = 2**30,
) -> Pack:
    """Read a pack, check every hash, and make it ready; works without a GPU too, to explain.

    Args:
        path: a ``.kpack`` directory or a zip.
        device: the only GPU to serve (``0`` or ``"cuda:0"``); by default whichever the arrays are on.
        regime: which rows to prefer, ``sustained`` or ``burst``.
        allow_estimates: also use kernels that were never measured, only estimated by the emulator.
        allow_unmeasured: also use kernels measured on another GPU of the same architecture, or at another size.
        scratch_limit: bytes of workspace a kernel may have, for each stream.

    Raises:
        PackError: the pack is missing, truncated, altered, hostile or of a newer schema.
        SettingError: a regime that does not exist, or a negative limit.
        UnknownNameError: a device that is not named like ``cuda:0``.
    """
    return Pack(
        read_pack(path),
        str(path),
        device=device_index(device),
        regime=regime,
        allow_estimates=allow_estimates,
        allow_unmeasured=allow_unmeasured,
        scratch_limit=scratch_limit,
    )


class Pack:
    """A loaded pack. Use :func:`load_pack`; safe to share between threads."""

    def __init__(
        self,
        data: PackData,
        name: str,
        *,
        device: int | None = None,
        regime: str = "sustained",
        allow_estimates: bool = False,
        allow_unmeasured: bool = False,
        scratch_limit: int = 2**30,
    ) -> None:
        check_regime(regime)
        check_count("bytes of scratch memory", scratch_limit, least=0)
        self.name = name
        self._data = data
        self._device = device
        self._options: dict[str, Any] = {"regime": regime, "allow_estimates": allow_estimates}
        self._options["allow_unmeasured"] = allow_unmeasured
        self._scratch_limit = scratch_limit
        self._states: dict[int, DeviceState] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def problems(self) -> tuple[str, ...]:
        """What the pack knows, one line a row: device, problem (with its ranges), and who serves it."""
        return tuple(f"{t.name}: {r}" for t in self._data.tables for r in t.rows)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The dispatch tables, with everything that was measured."""
        return self._data.tables

    @property
    def devices(self) -> tuple[str, ...]:
        """The device keys that the pack has rows for."""
        return tuple(dict.fromkeys(t.device for t in self._data.tables))

    def __repr__(self) -> str:
        rows = sum(len(t.rows) for t in self._data.tables)
        return f"Pack({self.name!r}, {rows} rows, {len(self._data.kernels)} kernels, {len(self.devices)} devices)"

    # ------------------------------------------------------------------------------------------------------ multiply

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        bias: Any = None,
        c: Any = None,
        alpha: float = 1.0,
        beta: float | None = None,
        out_dtype: Any = None,
        precision: str = "fp32",
    ) -> Any:
        """``a @ b``, by the kernel this pack knows for it, else by the baseline; on the current stream.

        The first call of its kind on a stream loads the kernel and allocates scratch memory; before capturing a graph,
        make the same call once on the stream that captures.

        Args:
            a: CuPy array or torch CUDA tensor [M,K] of float32, float16 or bfloat16, any strides. Row-major and
                column-major views are read where they lie, others are copied first.
            b: the same for [K,N], of the same dtype.
            out: where to write, [M,N]; must not overlap an input. A new row-major array by default.
            bias: [N], added to every row; of the result's dtype.
            c: [M,N] of the result's dtype, for ``alpha * a @ b + beta * c``.
            alpha: factor of the product.
            beta: factor of c; 1 where c is given without it. 0 does not read c.
            out_dtype: of the result (``"fp32"``, ``"fp16"``, ``"bf16"`` or the framework's own); by default that of a.
            precision: ``"tf32"`` computes float32 arrays with inputs rounded to 10 bits; never done unasked.

        Returns:
            ``out``, or a new array of the same framework.

        Raises:
            ArrayError: arrays that cannot be multiplied; the message has shapes, dtypes and devices.
            LaunchError, ToolchainError: the GPU refused.
        """
        arrays = arrays_of(a)
        signature_a, address_a = arrays.read(a)
        if type(b) is not type(a) and arrays_of(b) is not arrays:
            raise ArrayError(f"a is of {arrays.name} but b of {arrays_of(b).name}: use one framework.")
        signature_b, address_b = arrays.read(b)
        device = signature_a[3]
        if arrays.current_device() != device:
            with arrays.on_device(device):
                return self.matmul(
                    a, b, out, bias=bias, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision
                )
        stream = arrays.stream(device)
        if out is None and bias is None and c is None and beta is None and type(alpha) is float and alpha == 1.0:
            extras = None
        else:
            extras = read_extras(arrays, out, bias, c, alpha, beta)
        key = _key(signature_a, signature_b, address_a, address_b, stream, out_dtype, precision, extras)
        addresses = {"a": address_a, "b": address_b}
        try:
            plan = self._plans().get(key)
        except TypeError:
            raise ArrayError(f"out_dtype {out_dtype!r} or precision {precision!r} is no dtype or name.") from None
        if plan is None:
            plan = self._plan(arrays, (signature_a, signature_b), addresses, extras, stream, out_dtype, precision)
            self._keep(key, plan)
        call, run = plan.call, plan.run
        if extras is not None:
            addresses |= extras.addresses
            refuse_overlap(plan.given, plan.reached, addresses)
        if run is None:
            return self._prepared(arrays, call, a, b, out, bias, c, alpha, beta, out_dtype, precision)
        d = out
        if d is None or call.staged:
            d = arrays.empty(a, call.shape, call.out_dtype)
            addresses["d"] = arrays.address(d)
        if addresses["d"] & POINTER_BITS and d is not out:  # from an allocator of the user's own
            self.matmul(a, b, d, bias=bias, c=c, alpha=alpha, beta=beta, precision=precision)
        elif extras is None:
            run(addresses, _NO_SCALARS)
        else:
            addresses.setdefault("c", addresses["d"])  # alpha without C: beta is 0, and C is not read
            run(addresses, extras.scalars)
        if call.staged:
            arrays.copy_into(out, d)
            return out
        return d

    def _prepared(
        self, arrays: Arrays, call: Call, a: Any, b: Any, out: Any, bias: Any, c: Any,
        alpha: float, beta: float | None, out_dtype: Any, precision: str,
    ) -> Any:  # fmt: skip
        """A call that no kernel can take as it is: an empty result, K = 0, or arrays to be copied first."""
        if call.action == "empty":
            return arrays.empty(a, call.shape, call.out_dtype) if out is None else out
        if call.action == "zero_k":  # a sum of no terms: of one term that is zero, whatever alpha is
            (m, n), like = call.shape, a
            a, b = arrays.zeros(like, (m, 1), call.dtype), arrays.zeros(like, (1, n), call.dtype)
            alpha = alpha if alpha == 1.0 else 0.0
        else:
            a, b, bias, c = (
                arrays.packed(array) if name in call.copies else array
                for name, array in (("a", a), ("b", b), ("bias", bias), ("c", c))
            )
        return self.matmul(a, b, out, bias=bias, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision)

    # -------------------------------------------------------------------------------------------------------- plans

    def _plans(self) -> dict[Any, _Plan]:
        """The calling thread's plans: a dictionary of its own for each thread needs no lock."""
        try:
            return self._local.plans  # type: ignore[no-any-return]
        except AttributeError:
            plans: dict[Any, _Plan] = {}
            self._local.plans = plans
            return plans

    def _keep(self, key: Any, plan: _Plan) -> None:
        plans = self._plans()
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plans[key] = plan

    def _plan(
        self, arrays: Arrays, signatures: tuple[Signature, Signature], addresses: dict[str, int],
        extras: Extras | None, stream: int, out_dtype: Any, precision: str,
    ) -> _Plan:  # fmt: skip
        device = signatures[0][3]
        if self._device is not None and device != self._device:
            raise ArrayError(f"The arrays are on cuda:{device}, but the pack was loaded for cuda:{self._device}.")
        given = Operands(a=arrays.view(signatures[0], "a"), b=arrays.view(signatures[1], "b"))
        low_bits = {"d": 0, **addresses}
        if extras is not None:
            named = {name: arrays.view(s, "out" if name == "d" else name) for name, s in extras.signatures.items()}
            given = replace(given, c=named.get("c"), bias=named.get("bias"), out=named.get("d"), scaled=extras.scaled)
            low_bits |= extras.addresses
        call = plan_call(given, None if out_dtype is None else arrays.dtype_name(out_dtype), precision)
        if call.problem is None:
            return _Plan(given, reach(given), call, None)
        if call.staged:
            low_bits["d"] = 0
        low_bits.setdefault("c", low_bits["d"])
        tensors = [t.name for t in call.problem.tensors()]
        bits = {name: low_bits[name] & POINTER_BITS for name in tensors}
        return _Plan(given, reach(given), call, self.state(device).plan(call.problem, bits, stream))

    def state(self, device: int) -> DeviceState:
        """The pack on that GPU, its kernels ready to launch; raises ToolchainError where CuPy is not installed."""
        with self._lock:
            state = self._states.get(device)
            if state is None:
                state = DeviceState(self._data, device, self._scratch_limit, self._options)
                self._states[device] = state
            return state

    def profile_call(self, a: Any, b: Any) -> dict[str, float]:
        """Where the host time of ``matmul(a, b)`` goes: microseconds by stage (:func:`gemmtune.pack.profile.profile`).

        ``read``: shapes, strides, dtypes and addresses. ``device`` and ``stream``: which are current. ``look_up``: the
        plan of this call. ``allocate``: the result. ``launch``: the kernel, its arguments bound anew. ``total``: the
        whole call, ``other`` what the stages do not account for, and ``median`` the whole call on a machine as busy as
        this one. Waits for the GPU between batches of calls.

        Raises:
            ArrayError: as for :meth:`matmul`; also arrays that would be copied first, or an empty result.
        """
        arrays = arrays_of(a)
        d = self.matmul(a, b)
        (signature_a, address_a), (signature_b, address_b) = arrays.read(a), arrays.read(b)
        device = signature_a[3]
        stream = arrays.stream(device)

        def look_up() -> _Plan | None:
            key = _key(signature_a, signature_b, address_a, address_b, stream, None, "fp32", None)
            return self._plans().get(key)

        plan = look_up()
        if plan is None or plan.run is None:
            raise ArrayError(
                f"a {signature_a[:2]} and b {signature_b[:2]} are copied first, or empty: nothing to profile."
            )
        call, run = plan.call, plan.run
        addresses = {"a": address_a, "b": address_b, "d": arrays.address(d)}
        stages: dict[str, Callable[[], object]] = {
            "read": lambda: (arrays_of(a), arrays.read(a), arrays.read(b)),
            "device": arrays.current_device,
            "stream": lambda: arrays.stream(device),
            "look_up": look_up,
            "allocate": lambda: arrays.address(arrays.empty(a, call.shape, call.out_dtype)),
            "launch": lambda: run(addresses, _NO_SCALARS),
        }
        return profile(stages, lambda: self.matmul(a, b), arrays.wait)

    # ------------------------------------------------------------------------------------------------------- explain

    def explain(
        self,
        m: int,
        n: int,
        k: int,
        dtype: str = "bf16",
        layout: str = "nt",
        out_dtype: str | None = None,
        epilogue: str = "identity",
        *,
        gpu: str | None = None,
        alignment: int = 256,
        lda: int = 0,
        ldb: int = 0,
        ldd: int = 0,
    ) -> Explanation:
        """Which row serves a problem, why, and what to expect. Needs no GPU.

        Args:
            m: rows of the result.
            n: columns of the result.
            k: length of the sums.
            dtype: fp32, tf32, fp16 or bf16.
            layout: nt, nn, tn or tt; ``nt`` is where b is a transposed [N,K] weight.
            out_dtype: of the result; by default that of A.
            epilogue: identity, bias or alpha_beta.
            gpu: for which GPU (name or device key); by default the one in this machine, else the pack's only one.
            alignment: bytes that the addresses are multiples of.
            lda: leading dimension of A in elements; 0 where packed.
            ldb: the same of B.
            ldd: the same of the result.

        Raises:
            ProblemError: a problem that does not exist.
            UnknownNameError: a GPU the pack has no rows for, or none is given and the pack has rows for several.
        """
        problem = Gemm(m, n, k, dtype, out_dtype or "", layout, epilogue, lda=lda, ldb=ldb, ldd=ldd)
        dispatch, real = self._dispatch(gpu)
        addresses = {f"ptr_{t.name}": alignment for t in problem.tensors()}
        choice = dispatch.choose(problem, addresses)
        if not real and choice.row is not None and choice.row.estimated and not self._options["allow_estimates"]:
            note = "a GPU refuses this estimated kernel, unless the pack is loaded with allow_estimates=True"
            choice = replace(choice, notes=(*choice.notes, note))
        return dispatch.explain(problem, choice)

    def _dispatch(self, gpu: str | None) -> tuple[Dispatch, bool]:
        """The dispatch to explain by, and whether it is that of a GPU in this machine."""
        if gpu is None and (index := self._present()) is not None:
            return self.state(index).dispatch, True
        table = table_for(self._data, gpu)
        # without a GPU nothing is refused, but what one would refuse is said
        options = {**self._options, "allow_estimates": True}
        return Dispatch(self._data, table.device, table.arch, workspace_limit=self._scratch_limit, **options), False

    def _present(self) -> int | None:
        """The index of the GPU that calls would use; None where there is none."""
        if self._device is not None:
            return self._device
        if self._states:
            return next(iter(self._states))
        try:
            device_count()
        except ToolchainError:
            return None
        return 0


_NO_SCALARS: dict[str, float] = {}


def _key(
    a: Signature, b: Signature, address_a: int, address_b: int, stream: int, out_dtype: Any, precision: str,
    extras: Extras | None,
) -> tuple[Any, ...]:  # fmt: skip
    """What tells calls apart that need another plan."""
    low_a, low_b = address_a & POINTER_BITS, address_b & POINTER_BITS
    return a, b, low_a, low_b, stream, out_dtype, precision, None if extras is None else extras.key


@dataclass(frozen=True)
class _Plan:
    """What calls of one key do: ``run`` launches, where the arrays can be read as they are."""

    given: Operands
    reached: tuple[tuple[str, int, int], ...]
    call: Call
    run: Run | None
