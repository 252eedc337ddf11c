"""The launch recipe: everything needed to launch one compiled kernel, as plain data beside its cubin.

Launching uses the recipe alone and never the code of the family that made it, so that a pack outlives the version of
gemmtune that wrote it. Sizes are integer expressions (:mod:`gemmtune.space.expression`) over the problem's axes and the
names a caller binds: for a GEMM ``m n k lda ldb ldd ldc`` (elements) and ``ptr_a ptr_b ptr_d ...`` (byte addresses);
in grid, workspace, counters and scalars also ``sms``, the multiprocessors of the device, which whoever launches binds:
a persistent grid needs it. Preconditions and tensor maps never look at it: one answer holds on every device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from gemmtune.space.errors import PackError
from gemmtune.space.expression import expression
from gemmtune.space.tensor_map import TensorMapSpec

SCHEMA = 2
"""The newest schema. A recipe is written in the oldest that can tell it: 2 has tensor maps and dependent launches."""
ArgumentKind = Literal["pointer", "scalar", "workspace", "counters", "tensor_map"]
SCALAR_TYPES = ("i32", "i64", "u32", "u64", "f32")


@dataclass(frozen=True)
class Argument:
    """One kernel argument, in order.

    ``pointer``: the device pointer of tensor ``name``. ``scalar``: ``name`` or, for integers, ``expr`` over the bound
    names, passed as ``type``. ``workspace`` / ``counters``: the scratch buffer and the zero-initialised counters.
    ``tensor_map``: a TMA descriptor (128 bytes by value) of tensor ``name``, encoded as ``map`` says.
    """

    kind: ArgumentKind
    name: str = ""
    type: str = ""
    expr: str = ""
    map: TensorMapSpec | None = None


@dataclass(frozen=True)
class Precondition:
    """What must hold for the kernel to be right: an expression and the sentence shown where it does not."""

    expr: str
    text: str


@dataclass(frozen=True)
class Tile:
    """Which part of the output a block writes: sizes, and origin as expressions over ``bx by bz`` and the axes.

    Used by the emulator to choose blocks and to know what they must have written. Blocks with the same origin
    (split-K siblings) belong together.
    """

    rows: int
    columns: int
    row: str
    column: str


@dataclass(frozen=True)
class LaunchRecipe:
    """How to launch one kernel: ``dynamic_shared`` in bytes, ``workspace`` and ``counters`` as expressions in bytes.

    ``cluster`` is compiled into the kernel; the grid must be a multiple of it. ``programmatic``: the launch may start
    before the kernels ahead of it in the stream have ended, and the kernel itself waits for their memory.
    """

    entry: str
    block: tuple[int, int, int]
    grid: tuple[str, str, str]
    arguments: tuple[Argument, ...]
    tile: Tile
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared: int = 0
    workspace: str = "0"
    counters: str = "0"
    preconditions: tuple[Precondition, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    """Axes compiled into the kernel: the launch's axes must equal them."""
    programmatic: bool = False

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def schema(self) -> int:
        """The oldest schema that can tell this recipe: older gemmtunes still read what they could launch."""
        return 2 if self.programmatic or any(a.map is not None for a in self.arguments) else 1

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors whose addresses a launch needs, each once, in the order of the arguments."""
        return tuple(dict.fromkeys(a.name for a in self.arguments if a.kind in ("pointer", "tensor_map")))

    def grid_size(self, env: Mapping[str, Any]) -> tuple[int, int, int]:
        """Blocks in x, y, z for the bound names ``env``."""
        x, y, z = (int(expression(g)(env)) for g in self.grid)
        return x, y, z

    def unmet(self, env: Mapping[str, Any]) -> str | None:
        """The sentence of the first condition that ``env`` does not meet, or None."""
        for name, value in self.constants.items():
            if env.get(name) != value:
                return f"{name} is compiled in as {value}, but the call has {env.get(name)}"
        for condition in self.preconditions:
            if not expression(condition.expr)(env):
                return condition.text
        reasons = (a.map.unmet(a.name, env) for a in self.arguments if a.map is not None)
        return next((reason for reason in reasons if reason is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        data = asdict(self)
        if self.schema > 1:
            return {"schema": self.schema, **data}
        for argument in data["arguments"]:
            del argument["map"]
        del data["programmatic"]
        return {"schema": 1, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchRecipe:
        """Read a recipe, checking every field.

        Raises:
            PackError: a missing or unknown field, a value of the wrong type or out of range, a newer schema.
            ExpressionError: an expression that is not allowed.
        """
        fields = dict(data)
        schema = fields.pop("schema", None)
        if not _is_int(schema) or not 1 <= schema <= SCHEMA:
            raise PackError(
                f"The launch recipe has schema {schema!r}, but this gemmtune reads 1 to {SCHEMA}: upgrade gemmtune."
            )
        try:
            recipe = cls(
                entry=fields.pop("entry"),
                block=_triple(fields.pop("block")),
                grid=_triple(fields.pop("grid")),
                arguments=tuple(_argument(a, schema) for a in fields.pop("arguments")),
                tile=Tile(**fields.pop("tile")),
                cluster=_triple(fields.pop("cluster")),
                dynamic_shared=fields.pop("dynamic_shared"),
                workspace=fields.pop("workspace"),
                counters=fields.pop("counters"),
                preconditions=tuple(Precondition(**p) for p in fields.pop("preconditions")),
                constants=dict(fields.pop("constants")),
                programmatic=fields.pop("programmatic") if schema > 1 else False,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PackError(f"The launch recipe is malformed: {error!r}.") from None
        if fields:
            raise PackError(
                f"The launch recipe has unknown fields {sorted(fields)}: it was altered, or is of a newer version."
            )
        recipe._check()
        return recipe

    def _check(self) -> None:
        everywhere = [c.expr for c in self.preconditions]
        everywhere += [text for a in self.arguments if a.map for text in (*a.map.extents, a.map.pitch)]
        _want(
            not any("sms" in expression(text).names for text in everywhere),
            "a precondition or tensor map that depends on the device",
        )
        for text in [*self.grid, self.workspace, self.counters, self.tile.row, self.tile.column]:
            expression(text)
        for condition in self.preconditions:
            expression(condition.expr)
            _want(isinstance(condition.text, str), f"a precondition with the text {condition.text!r}")
        whole = [*self.block, *self.cluster, self.tile.rows, self.tile.columns]
        _want(
            all(_is_int(v) and 0 < v <= 2**31 for v in whole) and self.threads <= 1024,
            f"block {self.block}, cluster {self.cluster} or tile out of range",
        )
        _want(
            _is_int(self.dynamic_shared) and 0 <= self.dynamic_shared <= 2**20,
            f"{self.dynamic_shared!r} bytes of shared memory",
        )
        _want(
            isinstance(self.entry, str) and self.entry.isidentifier(),
            f"the entry {self.entry!r}, which is not a function name",
        )
        for a in self.arguments:
            _want(a.kind in get_args(ArgumentKind), f"an argument of unknown kind {a.kind!r}")
            _want(
                isinstance(a.name, str) and isinstance(a.expr, str), f"an argument whose name or expr is no text: {a}"
            )
            _want(a.kind != "scalar" or a.type in SCALAR_TYPES, f"a scalar argument of unknown type {a.type!r}")
            if a.expr:
                expression(a.expr)
            _want((a.kind == "tensor_map") == (a.map is not None), f"an argument of kind {a.kind!r} with map {a.map}")
            if a.map is not None:
                a.map.check()
        _want(isinstance(self.programmatic, bool), f"programmatic {self.programmatic!r}")
        named = all(isinstance(name, str) for name in self.constants)
        _want(named and all(_is_int(v) for v in self.constants.values()), "a constant that is not a named integer")


def _argument(data: Mapping[str, Any], schema: int) -> Argument:
    fields = dict(data)
    if schema > 1:
        spec = fields.pop("map")
        return Argument(**fields, map=None if spec is None else TensorMapSpec.from_json(spec))
    if "map" in fields:
        raise ValueError("a tensor map in schema 1")
    return Argument(**fields)


def _want(good: bool, otherwise: str) -> None:
    if not good:
        raise PackError(f"The launch recipe has {otherwise}: it was altered, or written by something else.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _triple(value: Any) -> Any:
    x, y, z = value
    return x, y, z
