"""What one call does, worked out once for each kind of call: a kernel of the pack, or torch itself.

Torch serves wherever the pack has no winner: it calls the library that the pack's baseline is, with its own memory and
settings, so nothing here is ever slower than what it replaces for want of a row. The hot path of a tuned shape is
:func:`serve`: read shapes and addresses, look up, allocate the result, launch; nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from gemmtune.device.launch import POINTER_BITS
from gemmtune.pack.arrays import View
from gemmtune.pack.call import Call, Operands, plan_call
from gemmtune.pack.dispatch import Choice
from gemmtune.pack.executor import DeviceState, Run
from gemmtune.pack.runtime import MAX_PLANS, Pack
from gemmtune.space.errors import ArrayError, GemmtuneError, ProblemError
from gemmtune.space.gemm import Gemm
from gemmtune.torch.registry import Handle, handle_of
from gemmtune.torch.worth import Way, expected, reason, worth

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
DEFAULT_STREAM = 0
"""The handle of CUDA's legacy default stream, which is torch's too."""
_NO_SCALARS: dict[str, float] = {}


# What torch's compiled code uses: the public calls cost a microsecond more.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: torch.cuda.current_stream(device).cuda_stream
)
"""The handle of the current stream of the GPU with that index."""


class Machine:
    """Where tensors live; tests put one that launches on host memory in its place."""

    def __init__(self) -> None:
        core = torch._C
        self.stream = current_stream
        self.current: Callable[[], int] = getattr(core, "_cuda_getDevice", None) or torch.cuda.current_device
        self._captures: Callable[[], bool] = (
            getattr(core, "_cuda_isCurrentStreamCapturing", None) or torch.cuda.is_current_stream_capturing
        )

    def index(self, tensor: Any) -> int:
        """The index of the GPU that a tensor is on; -1 where it is on none that a pack can serve."""
        return tensor.get_device() if tensor.is_cuda else -1

    def captured(self, tensor: Any) -> bool:
        """Whether what is called now on a tensor goes into a CUDA graph, which replays without the host.

        The default stream is never captured (CUDA runtime API, ``cudaStreamBeginCapture``), so that most calls need not
        ask the driver.
        """
        if not tensor.is_cuda:  # where there is no GPU, torch may raise
            return False
        return self.stream(tensor.get_device()) != DEFAULT_STREAM and self._captures()

    def on(self, device: int) -> AbstractContextManager[Any]:
        """A context in which ``device`` is current."""
        return torch.cuda.device(device)  # type: ignore[no-any-return]

    def state(self, pack: Pack, device: int) -> DeviceState:
        """The pack on that GPU."""
        return pack.state(device)

    def driver(self) -> str | None:
        """The driver's version, ``"580.159.04"``; None where it does not say."""
        from gemmtune.device.cuda.nvml import driver_version

        return driver_version()


machine = Machine()


@dataclass(slots=True)
class Plan:
    """What calls of one kind do: ``run`` launches into a new tensor of ``shape``; without it torch serves.

    ``copies``: the operands that are made contiguous first. ``why``: the reason, for people.
    """

    run: Run | None
    shape: tuple[int, ...]
    why: str
    copies: frozenset[str] = frozenset()


# ------------------------------------------------------------------------------------------------------------ the call


def serve(a: Any, b: Any, bias: Any, key: str, linear: bool, taken: bool = False) -> Any:
    """``a @ b + bias`` (``a @ b.T + bias`` where ``linear``), below autograd, on the current stream.

    Args:
        a: tensor [..., K].
        b: tensor [K, N]; [N, K] where ``linear``.
        bias: tensor [N], or None.
        key: the pack's (:func:`gemmtune.torch.registry.use`).
        linear: how b is stored.
        taken: the host's cost of the call is paid already, so that every kernel that wins serves.

    Raises:
        UnsupportedError: the pack cannot serve, and is in use with ``strict=True``.
    """
    handle = handle_of(key)
    if handle is None:
        return by_torch(a, b, bias, linear)
    device = machine.index(a)
    at_a, at_b = a.data_ptr(), b.data_ptr()
    if bias is None:
        extra: Any = None
        addresses = {"a": at_a, "b": at_b}
    else:
        at_bias = bias.data_ptr()
        extra = (bias.shape, bias.stride(), bias.dtype, bias.get_device(), at_bias & POINTER_BITS)
        addresses = {"a": at_a, "b": at_b, "bias": at_bias}
    stream = machine.stream(device) if device >= 0 else 0
    taken = taken or machine.captured(a)
    kind = (
        a.shape, a.stride(), a.dtype, at_a & POINTER_BITS, b.shape, b.stride(), b.dtype, at_b & POINTER_BITS,
        b.get_device(), device, stream, taken, linear, extra, a.dtype is torch.float32 and tf32_allowed(),
    )  # fmt: skip
    plans = handle.plans()
    plan = plans.get(kind)
    if plan is None:
        plan = keep(plans, kind, plan_of(handle, a, b, bias, linear, addresses, device, stream, way_of(taken)))
    if plan.run is None:
        if plan.copies:
            a, b, bias = (t.contiguous() if n in plan.copies else t for n, t in (("a", a), ("b", b), ("bias", bias)))
            return serve(a, b, bias, key, linear, taken)
        return by_torch(a, b, bias, linear)
    if machine.current() != device:
        with machine.on(device):
            return serve(a, b, bias, key, linear, taken)
    d = a.new_empty(plan.shape)
    at_d = addresses["d"] = d.data_ptr()
    if at_d & POINTER_BITS:  # from an allocator of the user's own, which the launch was not prepared for
        return by_torch(a, b, bias, linear)
    try:
        plan.run(addresses, _NO_SCALARS)
    except (GemmtuneError, MemoryError) as error:
        keep(plans, kind, Plan(None, plan.shape, f"the kernel could not be launched: {error}"))
        handle.complain("launch", f"A kernel of the pack could not be launched, so torch multiplies: {error}")
        return by_torch(a, b, bias, linear)
    return d


def way_of(taken: bool) -> Way:
    """How eager code calls: at no cost (into a CUDA graph, or where that is paid) or at the host's."""
    return "graph" if taken else "eager"


def by_torch(a: Any, b: Any, bias: Any, linear: bool) -> Any:
    """What torch itself does, as a row-major result."""
    if linear:
        return torch.nn.functional.linear(a, b, bias).contiguous()
    if bias is None:
        return torch.matmul(a, b).contiguous()
    return torch.addmm(bias, as_rows(a), b).view(*a.shape[:-1], b.shape[1])


def as_rows(tensor: Any) -> Any:
    """[..., K] as [M, K]; ``reshape(-1, K)`` refuses K = 0."""
    return tensor if tensor.dim() == 2 else tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def tf32_allowed() -> bool:
    """Whether torch may compute fp32 products in tf32, so that a pack may too."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # since torch 2.9; the older flag is refused beside it
    if isinstance(precision, str):
        return precision == "tf32"
    return bool(matmul.allow_tf32)


def keep(plans: dict[Any, Any], kind: Any, plan: Any) -> Any:
    """Remember what is known of one kind of call, all of which is forgotten where there are too many kinds."""
    if len(plans) >= MAX_PLANS:
        plans.clear()
    plans[kind] = plan
    return plan


# ------------------------------------------------------------------------------------------------------------ planning


def plan_of(
    handle: Handle, a: Any, b: Any, bias: Any, linear: bool, addresses: dict[str, int], device: int, stream: int,
    way: Way,
) -> Plan:  # fmt: skip
    """Work out what calls like this one do; warns where the pack cannot serve them.

    Raises:
        UnsupportedError: it cannot, and is in use with ``strict=True``.
    """
    columns = b.shape[0 if linear else -1] if b.dim() == 2 else 0
    shape = (*a.shape[:-1], columns)
    sentence = complains(handle, a, b, bias, device)
    if sentence is not None:
        return Plan(None, shape, sentence)
    call = call_of(a, b, bias, linear, device)
    if isinstance(call, str):
        return Plan(None, shape, call)  # torch refuses it in its own words, or has nothing to do
    if call.problem is None:
        return Plan(None, shape, "copied first", call.copies)
    problem = call.problem
    bits = {name: address & POINTER_BITS for name, address in {**addresses, "d": 0}.items()}
    try:
        state = machine.state(handle.pack, device)
        choice = state.dispatch.choose(problem, {f"ptr_{name}": 256 + low for name, low in bits.items()})
        if choice.kernel is None:
            check_device(handle, state)
        why = refused(handle, choice, problem, way)
        run = None if why else state.plan(problem, bits, stream)
    except (GemmtuneError, MemoryError) as error:
        handle.complain(type(error).__name__, f"The pack cannot serve here, so torch multiplies: {error}")
        run, why = None, str(error)
    if run is not None:
        _check_driver(handle, choice)
        why = f"kernel {choice.kernel.sha[:12] if choice.kernel else ''}: {choice.why}"
    handle.note(problem.key, why if run is not None else f"torch: {why}")
    return Plan(run, shape, why)


def complains(handle: Handle, a: Any, b: Any, bias: Any, device: int) -> str | None:
    """Why no pack can serve such tensors, of which there is one warning; None where one may.

    Raises:
        UnsupportedError: the pack is in use with ``strict=True``.
    """
    hindrance = hindered(a, b, bias, device)
    if hindrance is None:
        return None
    cause, sentence = hindrance
    if a.device.type != "meta":  # where nothing is computed at all
        handle.complain(cause, f"{sentence} So torch multiplies, not the pack.")
    return sentence


def hindered(a: Any, b: Any, bias: Any, device: int) -> tuple[str, str] | None:
    """Why no pack can serve such tensors: a cause, and a sentence; None where one may."""
    if device < 0:
        return f"device {a.device.type}", f"A tensor of shape {tuple(a.shape)} is on {a.device}: kernels run on GPUs."
    for tensor in (a, b, bias):
        if tensor is not None and tensor.dtype not in DTYPES:
            return (
                f"dtype {tensor.dtype}",
                f"A tensor of shape {tuple(tensor.shape)} is {tensor.dtype}: packs have float32, float16, bfloat16.",
            )
    return None


def call_of(a: Any, b: Any, bias: Any, linear: bool, device: int, tf32: bool | None = None) -> Call | str:
    """The call as a pack plans it; a reason where it is none: shapes that do not fit, an empty result, K = 0.

    ``tf32``: whether fp32 products may be computed in tf32; by default, whether they may now.
    """
    if a.dim() < 1 or b.dim() != 2 or any(t is not None and t.device != a.device for t in (b, bias)):
        return "the operands are no [..., K] and [K, N] of one device"
    rows = fold(tuple(a.shape), tuple(a.stride()))
    stored = View(tuple(b.shape), tuple(b.stride()), DTYPES[b.dtype], device)
    right = View(stored.shape[::-1], (stored.strides or ())[::-1], stored.dtype, device) if linear else stored
    if rows is None:
        return Call("copy", DTYPES[a.dtype], (0, 0), "", copies=frozenset({"a"}))
    left = View(*rows, DTYPES[a.dtype], device)
    added = None if bias is None else View(tuple(bias.shape), tuple(bias.stride()), DTYPES[bias.dtype], device)
    precision = "tf32" if a.dtype is torch.float32 and (tf32_allowed() if tf32 is None else tf32) else "fp32"
    try:
        call = plan_call(Operands(left, right, bias=added), None, precision)
    except (ArrayError, ProblemError) as error:
        return str(error)
    return call if call.action in ("run", "copy") else "the result is empty, or a sum of no terms"


def fold(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Shape and strides of [..., K] as one matrix [M, K] where it lies; None where it must be copied."""
    rows, step = 1, 0
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 0:
            return (0, shape[-1]), (shape[-1], 1)
        if size == 1:
            continue
        if rows == 1:
            rows, step = size, stride
        elif stride == rows * step:
            rows *= size
        else:
            return None
    return (rows, shape[-1]), (step if rows > 1 else max(1, shape[-1]), strides[-1])


def refused(handle: Handle, choice: Choice, problem: Gemm, way: Way) -> str:
    """Why the pack's choice is not taken for a call of this kind; empty where it is."""
    if choice.kernel is None:
        return choice.why
    ratio = None if choice.row is None else choice.row.ratio
    if ratio is not None and ratio < handle.least_ratio:
        return f"the kernel is expected to reach {ratio:.3f} x the baseline, less than {handle.least_ratio:g}"
    point = expected(choice, problem)
    if point is not None and not worth((point,), problem.m, way, handle.host_us):
        return reason((point,), way, handle.host_us)
    return ""


def check_device(handle: Handle, state: DeviceState) -> None:
    """Say so, once, where the pack was not measured on this GPU.

    Raises:
        UnsupportedError: it was not, and the pack is in use with ``strict=True``.
    """
    if state.key not in handle.pack.devices:
        names = ", ".join(dict.fromkeys(t.name for t in handle.pack.tables)) or "no GPU"
        here = state.key.split("|")[1] if state.key.count("|") >= 4 else state.key
        handle.complain("gpu", f"The pack was measured on {names}, but this GPU is {here}, so torch multiplies.")


def _check_driver(handle: Handle, choice: Choice) -> None:
    """A kernel is as right under another driver, but the measured ratio may no longer be."""
    then = choice.table.environment.get("driver") if choice.table is not None else None
    now = machine.driver() if then else None
    if then and now and then != now:
        handle.complain(
            "driver",
            f"The pack was measured under driver {then}, but this is {now}: its times may differ.",
            serves=True,
        )
