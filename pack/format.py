"""A pack as data, read and written whole: manifest, dispatch tables, kernels.

``manifest.json`` names the schema, the versions of gemmtune and NVRTC, and SHA-256 and size of every other file; its
``seal`` is the SHA-256 of the manifest itself without the seal. So a pack that is truncated, altered, or has a file too
many or too few is refused before anything in it is believed. Hashes prove that a pack is whole, not who made it: a
kernel is a program, so load packs from people you trust.

Standard library and :mod:`gemmtune.space` only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtune.pack.jsontext import Reader, decode, encode
from gemmtune.pack.schema import (
    BASELINE,
    SCHEMA,
    Kernel,
    Row,
    Table,
    check_schema,
    dispatch_from_json,
    dispatch_to_json,
    kernel_from_json,
    kernel_to_json,
)
from gemmtune.pack.storage import MAX_FILE, MAX_FILES, check_name, read_files, write_files
from gemmtune.space.epilogue import epilogue
from gemmtune.space.errors import ExpressionError, PackError, UnknownNameError
from gemmtune.space.expression import expression
from gemmtune.space.gpu import sms_of
from gemmtune.space.problem import Problem

FORMAT = "gemmtune-pack"
MANIFEST, DISPATCH = "manifest.json", "dispatch.json"
MAX_WORKSPACE = 2**36
"""Bytes of workspace or counters that a recipe may ask for at the sizes its rows serve."""


@dataclass(frozen=True)
class PackData:
    """Everything a pack holds. ``cubins`` and ``sources`` are by the cubin's SHA-256, as ``kernels`` are.

    ``tool`` is the version of gemmtune that wrote it.
    """

    tables: tuple[Table, ...]
    kernels: Mapping[str, Kernel]
    cubins: Mapping[str, bytes]
    sources: Mapping[str, str]
    tool: str = ""
    manifest_sha256: str = ""


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def bindings(problem: Problem) -> dict[str, int]:
    """The integers that a recipe's expressions may use: axes, leading dimensions, sizes; and addresses, aligned (0)."""
    whole = {name: value for name, value in problem.environment().items() if isinstance(value, int)}
    return {**whole, **{f"ptr_{t.name}": 0 for t in problem.tensors()}}


def _sms(device: str) -> int:
    try:
        return sms_of(device)
    except UnknownNameError as error:
        raise PackError(f"A dispatch table is for a device that cannot be: {error}") from None


# ------------------------------------------------------------------------------------------------------------- writing


def pack_files(data: PackData) -> dict[str, bytes]:
    """The files of a pack by name: equal data, equal bytes.

    Raises:
        PackError: the data is not one a reader would accept (a row without its kernel, say).
    """
    files = {DISPATCH: encode(dispatch_to_json(data.tables))}
    for sha, kernel in data.kernels.items():
        files[f"kernels/{sha}.cubin"] = data.cubins[sha]
        files[f"kernels/{sha}.cu"] = data.sources[sha].encode()
        files[f"kernels/{sha}.json"] = encode(kernel_to_json(kernel))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "tool": data.tool,
        "nvrtc": sorted({k.nvrtc for k in data.kernels.values()}),
        "files": {name: {"sha256": sha256(raw), "size": len(raw)} for name, raw in files.items()},
    }
    manifest["seal"] = sha256(encode(manifest))
    files[MANIFEST] = encode(manifest)
    unpack(files)
    return files


def write_pack(path: Path, data: PackData, *, as_zip: bool = False) -> str:
    """Write a pack: all of it or nothing; an older pack at ``path`` is replaced.

    Returns:
        The SHA-256 of its ``manifest.json``.

    Raises:
        PackError: ``path`` holds something that is not a pack of this form, or the disk refuses.
    """
    files = pack_files(data)
    write_packed(path, files, as_zip=as_zip)
    return sha256(files[MANIFEST])


def write_packed(path: Path, files: Mapping[str, bytes], *, as_zip: bool = False) -> None:
    """Write the files of a pack (:func:`pack_files`) byte for byte.

    Raises:
        PackError: as for :func:`write_pack`.
    """
    write_files(path, files, as_zip=as_zip, replaceable=is_pack(path) and path.is_file() == as_zip)


def is_pack(path: Path) -> bool:
    """Whether ``path`` holds a pack of any schema and nothing else, so that replacing it loses nothing of others."""
    try:
        manifest = decode(read_files(path)[MANIFEST], MANIFEST)
    except (PackError, KeyError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


# ------------------------------------------------------------------------------------------------------------- reading


def read_pack(path: Path | str) -> PackData:
    """Read a pack and check all of it.

    Raises:
        PackError: it is missing, truncated, altered, hostile or of a newer schema; one sentence says what is wrong.
    """
    return unpack(read_files(Path(path)))


def unpack(files: Mapping[str, bytes]) -> PackData:
    """The data of a pack's files, every check made.

    Raises:
        PackError: as for :func:`read_pack`.
    """
    tool = _check_manifest(files)
    tables = dispatch_from_json(decode(files[DISPATCH], DISPATCH))
    kernels: dict[str, Kernel] = {}
    cubins: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    for sha in sorted({name[8:72] for name in files if name.startswith("kernels/")}):
        for ending in ("cubin", "cu", "json"):
            if f"kernels/{sha}.{ending}" not in files:
                raise PackError(f"Kernel {sha[:12]} of the pack lacks its .{ending} file: the pack is truncated.")
        cubins[sha] = files[f"kernels/{sha}.cubin"]
        if sha256(cubins[sha]) != sha:
            raise PackError(f"Kernel {sha[:12]} of the pack is not the cubin its name says: the pack was altered.")
        try:
            sources[sha] = files[f"kernels/{sha}.cu"].decode("utf-8")
        except UnicodeDecodeError:
            raise PackError(f"The source of kernel {sha[:12]} is not UTF-8 text: the pack was altered.") from None
        kernels[sha] = kernel_from_json(sha, decode(files[f"kernels/{sha}.json"], f"kernels/{sha[:12]}....json"))
    for table in tables:
        for row in table.rows:
            _check_row(row, table, kernels)
    return PackData(tables, kernels, cubins, sources, tool, sha256(files[MANIFEST]))


def _check_manifest(files: Mapping[str, bytes]) -> str:
    if MANIFEST not in files:
        raise PackError("There is no manifest.json: this is no pack, or it is truncated.")
    data = decode(files[MANIFEST], MANIFEST)
    reader = Reader(data, MANIFEST)
    if reader.take("format") != FORMAT:
        raise PackError(f"manifest.json is not that of a pack: its format is not {FORMAT!r}.")
    check_schema(reader)
    seal = reader.text("seal", 64)
    sealed = {name: value for name, value in data.items() if name != "seal"}
    if sha256(encode(sealed)) != seal or encode(data) != files[MANIFEST]:
        raise PackError("manifest.json does not match its own seal: the pack was altered.")
    tool = reader.text("tool", 40)
    reader.items("nvrtc", 100)
    listed = reader.mapping("files")
    reader.end()
    if len(listed) > MAX_FILES:
        raise PackError(f"manifest.json lists {len(listed)} files, but {MAX_FILES} is the most a pack may have.")
    for name in listed:
        check_name(name)
    for name in sorted({*listed, DISPATCH}):
        if name not in files:
            raise PackError(f"The pack lacks its file {name!r}: it is truncated.")
    for name in sorted(files):
        if name != MANIFEST and name not in listed:
            raise PackError(f"The pack has the file {name!r}, which its manifest does not list: it was altered.")
    for name, entry in listed.items():
        part = Reader(entry, f"manifest.json {name!r}")
        digest, size = part.text("sha256", 64), part.integer("size", 0, MAX_FILE)
        part.end()
        if size != len(files[name]):
            raise PackError(
                f"The pack's file {name!r} has {len(files[name])} bytes instead of {size}: it is truncated or altered."
            )
        if sha256(files[name]) != digest:
            raise PackError(
                f"The pack's file {name!r} does not have the SHA-256 that the manifest lists: it was altered."
            )
    return tool


def _check_row(row: Row, table: Table, kernels: Mapping[str, Kernel]) -> None:
    for sha in (row.kernel, row.candidate):
        if sha is None or sha == BASELINE:
            continue
        if sha not in kernels:
            raise PackError(
                f"A dispatch row names the kernel {sha[:12]}, which the pack does not have: it was altered."
            )
        kernel = kernels[sha]
        if kernel.arch != table.arch:
            raise PackError(
                f"Kernel {sha[:12]} is compiled for {kernel.arch}, but its row is for {table.arch}: it was altered."
            )
        for end in (0, 1):
            check_launch(kernel, row.problem({name: limits[end] for name, limits in row.axes.items()}), table.device)


def check_launch(kernel: Kernel, problem: Problem, device: str) -> None:
    """Check that ``kernel`` computes ``problem`` and that its recipe can be evaluated there, on the device of that key.

    Raises:
        PackError: another dtype, layout, epilogue or compiled-in size; an unknown argument; or an expression that
            fails or gives a grid or workspace out of range.
    """
    short = f"Kernel {kernel.sha[:12]}"
    own, asked = kernel.problem.to_json(), problem.to_json()
    for name in asked:
        if name not in problem.axes and not name.startswith("ld") and own.get(name) != asked[name]:
            raise PackError(
                f"{short} has {name} {own.get(name)!r}, but its row has {asked[name]!r}: the pack was altered."
            )
    env, recipe = bindings(problem), kernel.recipe
    numbers = {*env, *epilogue(str(asked["epilogue"])).scalars}
    pointers = set(recipe.tensors)
    scalars = {a.name for a in recipe.arguments if a.kind == "scalar" and not a.expr}
    for name in pointers ^ {t.name for t in problem.tensors()}:
        raise PackError(f"{short} does not take just the tensors of its problem: {name[:40]!r} is in one of them only.")
    for name in (scalars - numbers) | (numbers - set(env) - scalars):
        raise PackError(f"{short} does not take just the numbers of its problem: {name[:40]!r} is in one of them only.")
    try:
        reason = recipe.unmet(env)
        env["sms"] = _sms(device)
        grid = recipe.grid_size(env)
        scratch = [int(expression(text)(env)) for text in (recipe.workspace, recipe.counters)]
        for argument in recipe.arguments:
            if argument.kind == "scalar" and argument.expr:
                expression(argument.expr)(env)
    except (ExpressionError, TypeError, ValueError) as error:
        raise PackError(f"{short} has a launch recipe that cannot be evaluated for {problem.key}: {error}") from None
    if reason is not None:
        raise PackError(f"{short} cannot serve its own row {problem.key}: {reason}.")
    if not (0 < grid[0] < 2**31 and 0 < grid[1] < 2**16 and 0 < grid[2] < 2**16):
        raise PackError(f"{short} has the grid {grid} for {problem.key}, which no GPU can launch.")
    if not all(0 <= size <= MAX_WORKSPACE for size in scratch):
        raise PackError(f"{short} asks for {scratch} bytes of scratch for {problem.key}, more than {MAX_WORKSPACE}.")
