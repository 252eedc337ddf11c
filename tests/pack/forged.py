"""Packs as a forger would write them."""

from __future__ import annotations

from typing import Any

from gemmtune.pack.format import sha256
from gemmtune.pack.jsontext import decode, encode


def resealed(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """The files with a manifest that a forger would write for them: right hashes, right seal."""
    others = {name: raw for name, raw in files.items() if name != "manifest.json"}
    manifest = {**decode(files["manifest.json"], "m"), **changes}
    manifest.pop("seal")
    manifest["files"] = {name: {"sha256": sha256(raw), "size": len(raw)} for name, raw in others.items()}
    manifest["seal"] = sha256(encode(manifest))
    return {**others, "manifest.json": encode(manifest)}
