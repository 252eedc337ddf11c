"""Launching a cubin by its recipe alone: the path that the tuner and a pack's runtime share.

Nothing here imports CuPy until a kernel is loaded, and nothing ever imports the code that made the kernel. The launch
itself is one call of ``cuLaunchKernel`` through CuPy's thin driver binding, with arguments packed once: a call costs
a few microseconds of host time (:mod:`gemmtune.device.overhead` measures its parts). Tensor maps are encoded once for
each address and passed by value; clusters are compiled into the kernel and need nothing here.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from gemmtune.device.driver import DependentCall
from gemmtune.device.image import damage
from gemmtune.device.tensor_map import EncodedMaps
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError
from gemmtune.space.expression import expression
from gemmtune.space.recipe import Argument, LaunchRecipe

POINTER_BITS = 0xFF
"""A prepared launch may be reused for other addresses that agree in these bits; preconditions may look at no others."""

_INTEGERS = {"i32": (-(2**31), 2**31), "i64": (-(2**63), 2**63), "u32": (0, 2**32), "u64": (0, 2**64)}
_DEFAULT_SHARED = 48 * 1024  # more than this must be asked for
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MASK = 2**64 - 1
_SM_COUNT = 16  # cudaDevAttrMultiProcessorCount


class Scratch(Protocol):
    """Where a launch finds its workspace and counters."""

    def reserve(self, workspace: int, counters: int) -> tuple[int, int]:
        """Addresses of at least so many bytes each (0 where none are asked for); counters are zero."""
        ...


class Packed:
    """Kernel arguments as cuLaunchKernel wants them: one 8-byte word each and an array of their addresses."""

    __slots__ = ("_addresses", "address", "words")

    def __init__(self, values: Sequence[int]) -> None:
        count = len(values)
        self.words = (ctypes.c_uint64 * count)(*values)
        base = ctypes.addressof(self.words)
        self._addresses = (ctypes.c_void_p * count)(*[base + 8 * i for i in range(count)])
        self.address = ctypes.addressof(self._addresses)

    def refer(self, index: int, address: int) -> None:
        """Let argument ``index`` be what lies at ``address``, which the caller keeps alive, in place of its word."""
        self._addresses[index] = address


def scalar_word(argument: Argument, value: Any) -> int:
    """A scalar's bits in the low bytes of a word (GPUs and their hosts are little-endian).

    Raises:
        LaunchError: the value is not of the argument's type, or out of its range.
    """
    label = argument.name or argument.expr
    if argument.type == "f32":
        try:
            bits: int = struct.unpack("<I", struct.pack("<f", float(value)))[0]
        except OverflowError:
            raise LaunchError(f"Argument {label} is {value!r}, out of the range of fp32.") from None
        except (TypeError, ValueError):
            raise LaunchError(f"Argument {label} must be a number, but is {value!r}.") from None
        return bits
    low, high = _INTEGERS[argument.type]
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise LaunchError(f"Argument {label} must be an integer, but is {value!r}.")
    number = value.__index__()
    if not low <= number < high:
        raise LaunchError(f"Argument {label} is {number}, out of the range of {argument.type}.")
    return int(number) & _MASK


class PreparedLaunch:
    """A launch with its grid worked out and its arguments packed; made by :meth:`LoadedKernel.prepare`.

    ``pointer_names`` is the order in which :meth:`launch_at` takes addresses. Safe to use from several threads.
    """

    __slots__ = (
        "_call",
        "_lock",
        "_packed",
        "_scalar_slots",
        "_scratch_slots",
        "_targets",
        "counter_bytes",
        "grid",
        "kernel",
        "pointer_names",
        "workspace_bytes",
    )

    def __init__(self, kernel: LoadedKernel, env: Mapping[str, Any], pointers: Mapping[str, int]) -> None:
        recipe = kernel.recipe
        self.kernel = kernel
        self.grid = _grid(recipe, env)
        self.workspace_bytes = _size(recipe, "workspace", env)
        self.counter_bytes = _size(recipe, "counters", env)
        words: list[int] = []
        self._scalar_slots: dict[str, tuple[int, Argument]] = {}
        self._scratch_slots: list[tuple[int, int]] = []
        at: dict[str, list[int]] = {name: [] for name in recipe.tensors}
        maps: dict[str, list[tuple[int, EncodedMaps]]] = {name: [] for name in recipe.tensors}
        for index, argument in enumerate(recipe.arguments):
            word = 0
            if argument.map is not None:
                maps[argument.name].append((index, EncodedMaps(argument.name, argument.map.bind(env))))
            elif argument.kind == "pointer":
                word = pointers[argument.name]
                at[argument.name].append(index)
            elif argument.kind == "scalar":
                word = scalar_word(argument, _value(recipe, argument, env))
                if not argument.expr:
                    self._scalar_slots[argument.name] = (index, argument)
            else:
                self._scratch_slots.append((index, 0 if argument.kind == "workspace" else 1))
            words.append(word)
        self.pointer_names = recipe.tensors
        self._targets = tuple((pointers[n] & POINTER_BITS, tuple(at[n]), tuple(maps[n])) for n in recipe.tensors)
        self._packed = Packed(words)
        for name, (_, _, encoded) in zip(recipe.tensors, self._targets, strict=True):
            for index, one in encoded:
                self._packed.refer(index, one.at(pointers[name]))
        self._call = kernel.call(self.grid)
        self._lock = threading.Lock()

    def launch(self, stream: int, scratch: Scratch | None = None) -> None:
        """Launch on the arguments it was prepared with.

        Raises:
            LaunchError: the driver refused, or the kernel needs scratch memory and got none.
        """
        with self._lock:
            self._go(stream, scratch)

    def launch_at(
        self,
        addresses: Sequence[int],
        stream: int,
        scratch: Scratch | None = None,
        scalars: Mapping[str, float] | None = None,
    ) -> None:
        """Launch on other addresses, in the order of ``pointer_names``, and other values of named scalars.

        The addresses must agree in their low 8 bits with those it was prepared with, so that what was checked of
        their alignment still holds.

        Raises:
            LaunchError: one does not agree, the number of addresses is wrong, or the driver refused.
        """
        words = self._packed.words
        with self._lock:
            for (low, indices, maps), address in zip(self._targets, addresses, strict=True):
                if address & POINTER_BITS != low:
                    raise LaunchError(
                        f"Address {address:#x} ends in other bits than the one this launch was prepared for: "
                        "prepare it again."
                    )
                for index in indices:
                    words[index] = address
                for index, encoded in maps:
                    self._packed.refer(index, encoded.at(address))
            if scalars:
                for name, value in scalars.items():
                    slot, argument = self._scalar_slots[name]
                    words[slot] = scalar_word(argument, value)
            self._go(stream, scratch)

    def _go(self, stream: int, scratch: Scratch | None) -> None:
        packed = self._packed
        if self._scratch_slots:
            if scratch is None:
                raise LaunchError(
                    f"Kernel {self.kernel.recipe.entry} needs a workspace or counters, but none were given."
                )
            where = scratch.reserve(self.workspace_bytes, self.counter_bytes)
            for index, which in self._scratch_slots:
                packed.words[index] = where[which]
        try:
            self._call(stream, packed.address, 0)
        except RuntimeError as error:  # CUDADriverError is one
            kernel = self.kernel
            raise LaunchError(
                f"Kernel {kernel.recipe.entry} was refused with grid {self.grid}, block {kernel.recipe.block} and "
                f"{kernel.shared} bytes of shared memory: {error}."
            ) from error


class LoadedKernel:
    """A cubin in the current device, ready to launch by its recipe.

    Args:
        cubin: the image; its architecture must be the device's.
        recipe: how to launch it.

    Raises:
        LaunchError: the driver refuses the image (another architecture, a truncated file), it has no such entry, or
            the recipe asks for more shared memory than a block may have.
        ToolchainError: CuPy is not installed.
    """

    def __init__(self, cubin: bytes, recipe: LaunchRecipe) -> None:
        broken = damage(cubin)
        if broken is not None:
            raise LaunchError(f"The cubin of kernel {recipe.entry} is truncated or damaged: {broken}.")
        cupy = require_cupy()
        from cupy.cuda import driver

        self.recipe = recipe
        self.shared = recipe.dynamic_shared
        self.launch_kernel = driver.launchKernel
        runtime = cupy.cuda.runtime
        try:
            self.sms = int(runtime.deviceGetAttribute(_SM_COUNT, runtime.getDevice()))
            runtime.free(0)  # makes the device's primary context current, where none is yet
            self._module = cupy.cuda.function.Module()
            self._module.load(bytes(cubin))
            self.function: int = self._module.get_function(recipe.entry).ptr
            if self.shared > _DEFAULT_SHARED:
                driver.funcSetAttribute(
                    self.function, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self.shared
                )
        except RuntimeError as error:
            raise LaunchError(f"Kernel {recipe.entry} cannot be loaded on this GPU: {error}.") from error

    def prepare(self, env: Mapping[str, Any], pointers: Mapping[str, int]) -> PreparedLaunch:
        """Check everything and work out grid and arguments.

        Args:
            env: axes, pitches and scalars by name, as :meth:`Problem.environment` gives them; ``sms`` is added here.
            pointers: device addresses by tensor name.

        Raises:
            LaunchError: a precondition does not hold, an argument is missing or out of range, or the grid is.
            ToolchainError: the driver is too old for what the recipe needs.
        """
        for tensor in self.recipe.tensors:
            _check_address(self.recipe, tensor, pointers.get(tensor))
        pointers = {name: address for name, address in pointers.items() if isinstance(address, int)}
        bound = {**env, **{f"ptr_{name}": address for name, address in pointers.items()}}
        reason = self.recipe.unmet(bound)
        if reason is None:  # at addresses that differ beyond POINTER_BITS the answer must be the same
            further = {f"ptr_{name}": address + POINTER_BITS + 1 for name, address in pointers.items()}
            reason = self.recipe.unmet({**bound, **further})
        if reason is not None:
            raise LaunchError(f"Kernel {self.recipe.entry} cannot serve this call: {reason}.")
        return PreparedLaunch(self, {**bound, "sms": self.sms}, pointers)

    def call(self, grid: tuple[int, int, int]) -> Callable[[int, int, int], None]:
        """What launches ``grid`` blocks on a stream, with the address of the arguments' addresses and 0."""
        if self.recipe.programmatic:
            return DependentCall(self.function, grid, self.recipe.block, self.shared)
        # All but stream and arguments is bound once: looking it up again would cost a call a microsecond.
        return partial(self.launch_kernel, self.function, *grid, *self.recipe.block, self.shared)

    def launch(
        self, env: Mapping[str, Any], pointers: Mapping[str, int], stream: int = 0, scratch: Scratch | None = None
    ) -> None:
        """Prepare and launch once; see :meth:`prepare`."""
        self.prepare(env, pointers).launch(stream, scratch)

    def attributes(self) -> dict[str, int]:
        """What the driver says of the kernel: registers a thread, static shared and local bytes, most threads."""
        from cupy.cuda import driver

        return {
            "registers": driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, self.function),
            "shared_bytes": driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self.function),
            "local_bytes": driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, self.function),
            "threads": driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self.function),
        }


def _grid(recipe: LaunchRecipe, env: Mapping[str, Any]) -> tuple[int, int, int]:
    grid = recipe.grid_size(env)
    if not all(1 <= size <= most for size, most in zip(grid, _MAX_GRID, strict=True)):
        raise LaunchError(f"Kernel {recipe.entry} would need a grid of {grid} blocks, out of range: 1 to {_MAX_GRID}.")
    if any(size % cluster for size, cluster in zip(grid, recipe.cluster, strict=True)):
        raise LaunchError(
            f"Kernel {recipe.entry} would need a grid of {grid} blocks, which is no multiple of its cluster of "
            f"{recipe.cluster}."
        )
    return grid


def _size(recipe: LaunchRecipe, which: str, env: Mapping[str, Any]) -> int:
    size = int(expression(getattr(recipe, which))(env))
    if size < 0:
        raise LaunchError(f"Kernel {recipe.entry} asks for {size} bytes of {which}.")
    return size


def _check_address(recipe: LaunchRecipe, name: str, address: object) -> None:
    if not isinstance(address, int) or not 0 < address < 2**63:
        raise LaunchError(f"Kernel {recipe.entry} needs the address of {name}, but got {address!r}.")


def _value(recipe: LaunchRecipe, argument: Argument, env: Mapping[str, Any]) -> Any:
    if argument.expr:
        return expression(argument.expr)(env)
    if argument.name not in env:
        raise LaunchError(f"Kernel {recipe.entry} needs a value for {argument.name}, but got none.")
    return env[argument.name]
