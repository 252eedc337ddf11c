"""Packs of the past: every export is kept in the history, file by file, and can be written again byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.pack.format import MANIFEST, sha256, unpack, write_packed
from gemmtune.pack.jsontext import decode
from gemmtune.space.errors import PackError, UnknownNameError

if TYPE_CHECKING:
    from gemmtune.db import History
    from gemmtune.db.records import ExportRecord


def find_export(history: History, name: str) -> ExportRecord:
    """The export whose id or manifest hash begins with ``name``; ``latest`` is the last one.

    Raises:
        UnknownNameError: there is none, or several.
    """
    exports = history.exports()
    if not exports:
        raise UnknownNameError(f"The history {history.location} has no export: write one with 'gemmtune export'.")
    wanted = name.strip().lower()
    if wanted == "latest":
        return exports[0]
    found = [e for e in exports if wanted and (e.uuid.startswith(wanted) or e.manifest_sha256.startswith(wanted))]
    if not found:
        known = ", ".join(f"{e.uuid[:8]} ({e.name})" for e in exports[:5])
        raise UnknownNameError(f"There is no export {name!r} in the history: the latest are {known}.")
    if len({e.manifest_sha256 for e in found}) > 1:
        raise UnknownNameError(f"{len(found)} exports begin with {name!r}: write more of the id.")
    return found[0]


def restore_pack(path: str | Path, history: History, export: str, *, as_zip: bool | None = None) -> ExportRecord:
    """Write an export of the past again, byte for byte.

    Args:
        path: where; an older pack there is replaced.
        history: the history that kept it.
        export: its id, the beginning of it or of the manifest's hash, or ``latest``.
        as_zip: one zip file; by default where ``path`` ends in ``.zip``.

    Raises:
        UnknownNameError: the history has no such export, or several.
        PackError: the history kept only its cubins, or it cannot be written there.
    """
    record, target = find_export(history, export), Path(path)
    raw = history.cubin(record.manifest_sha256)
    if raw is None:
        raise PackError(
            f"Of the export {record.uuid[:8]} ({record.name}) the history kept the cubins alone, as older versions "
            f"did: export anew."
        )
    files = {MANIFEST: raw}
    for name, entry in decode(raw, MANIFEST)["files"].items():
        content = history.cubin(entry["sha256"])
        if content is None or sha256(content) != entry["sha256"]:
            raise PackError(f"The history lacks the file {name!r} of the export {record.uuid[:8]}: export anew.")
        files[name] = content
    unpack(files)
    write_packed(target, files, as_zip=target.suffix == ".zip" if as_zip is None else as_zip)
    return record
