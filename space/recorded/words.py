"""Names of other tools as gemmtune's words."""

from __future__ import annotations

import re


def family_word(kernel: str) -> str:
    """A kernel's name as a family's: one word without ``=``, since configurations are printed in one line."""
    return re.sub(r"[^A-Za-z0-9_.:-]+", "_", kernel).strip("_") or "kernel"
