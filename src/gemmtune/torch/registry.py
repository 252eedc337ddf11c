"""Packs that operators may use, each under a key; and what is said, once, where a pack cannot serve.

An operator in a compiled or exported graph holds no Python object, so it names its pack by a short text. The text
follows from what the pack serves: a program that loads an exported model and calls :func:`use` on the same pack gets
the same key, and the model finds its kernels again.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from gemmtune.pack.runtime import Pack, load_pack
from gemmtune.space.errors import GemmtuneError, SettingError, UnsupportedError

MAX_SERVED = 4096
"""Problems remembered a pack, for :func:`gemmtune.torch.served`."""


class PackWarning(UserWarning):
    """A pack does not serve where one might expect it to; torch does. Given once for each cause."""


@dataclass
class Handle:
    """A pack in use.

    Args:
        key: what operators call it.
        pack: the pack.
        strict: raise where a pack cannot serve, in place of one warning.
        least_ratio: the least expected ratio (baseline time / kernel time) for which a kernel is taken.
        host_us: the least saving (microseconds) for which it is, outside of CUDA graphs; None: by the way of the call.
    """

    key: str
    pack: Pack
    strict: bool
    least_ratio: float
    host_us: float | None = None
    compiled: str = ""
    """What compiled graphs call it (:func:`compiled`)."""
    served: dict[str, str] = field(default_factory=dict)
    """Who serves each problem met so far, in words."""
    left: dict[Any, dict[int, int]] = field(default_factory=dict)
    """By kind of layer, which inputs it leaves to torch (:class:`gemmtune.torch.swapped.Linear`)."""
    _causes: set[str] = field(default_factory=set)
    _local: threading.local = field(default_factory=threading.local)

    def plans(self) -> dict[Any, Any]:
        """The calling thread's plans: a dictionary for each thread needs no lock."""
        try:
            return self._local.plans  # type: ignore[no-any-return]
        except AttributeError:
            plans: dict[Any, Any] = {}
            self._local.plans = plans
            return plans

    def note(self, problem: str, who: str) -> None:
        """Remember who serves a problem."""
        if len(self.served) < MAX_SERVED or problem in self.served:
            self.served[problem] = who

    def complain(self, cause: str, sentence: str, *, serves: bool = False) -> None:
        """Say once for each ``cause`` that torch serves in place of the pack (or, with ``serves``, a doubt).

        Raises:
            UnsupportedError: the pack was taken into use with ``strict=True``.
        """
        if self.strict and not serves:
            raise UnsupportedError(sentence)
        if cause not in self._causes:
            self._causes.add(cause)
            warnings.warn(sentence, PackWarning, stacklevel=4)


_HANDLES: dict[str, Handle] = {}
_COMPILED: dict[str, Handle] = {}
"""The same by what compiled graphs call them."""
_Terms = tuple[bool, float, float | None]
"""``strict``, ``least_ratio`` and ``host_us``."""
_DEFAULT: _Terms = (False, 1.0, None)
_paths: dict[tuple[str, _Terms], str] = {}
"""Keys of packs that were named by their path, so that each is read once."""
_lock = threading.Lock()
_unknown: set[str] = set()


def use(
    pack: Pack | str | Path, *, strict: bool = False, least_ratio: float = 1.0, host_us: float | None = None
) -> str:
    """Take a pack into use; returns the key by which operators name it.

    Args:
        pack: a loaded pack, the path of one (read once), or a key that this function gave, which stands for its terms
            too: what is not said stays as it was.
        strict: raise where the pack cannot serve (CPU tensors, another GPU, a dtype), in place of one warning.
        least_ratio: take a kernel only where it is expected to reach this ratio to the baseline at least.
        host_us: outside of CUDA graphs, take a kernel only where it saves so many microseconds at least or is so long
            that the host's time does not matter; by default what a call may cost the host
            (:data:`gemmtune.torch.worth.HOST_US`), 0 for every kernel that wins.

    Raises:
        PackError: there is no good pack at the path.
        SettingError: a pack that is none of these, a ratio that is no positive number, or a negative saving.
    """
    terms = (strict, least_ratio, host_us)
    if isinstance(pack, str) and pack in _HANDLES:
        if terms in (_DEFAULT, _terms(_HANDLES[pack])):
            return pack
        pack = _HANDLES[pack].pack
    for handle in list(_HANDLES.values()):
        if handle.pack is pack and _terms(handle) == terms:
            return handle.key
    if not isinstance(pack, Pack | str | Path):
        raise SettingError(
            f"The pack is {pack!r}, but must be a loaded one, the path of one, or a key of gemmtune.torch.use."
        )
    if not (isinstance(least_ratio, Real) and 0 < least_ratio < float("inf")):
        raise SettingError(f"least_ratio is {least_ratio!r}, but must be a positive number, e.g. 1.02.")
    if host_us is not None and not (isinstance(host_us, Real) and 0 <= host_us < float("inf")):
        raise SettingError(f"host_us is {host_us!r}, but must be a number of microseconds, 0 or more, or None.")
    named = None if isinstance(pack, Pack) else (str(pack), terms)
    if named is not None and _paths.get(named) in _HANDLES:
        return _paths[named]
    loaded = pack if isinstance(pack, Pack) else load_pack(pack)
    digest = hashlib.sha256("\n".join(loaded.problems).encode()).hexdigest()[:16]
    key = _key_of(loaded, digest, named is not None, terms)
    if named is not None:
        _paths[named] = key
    return key


def _terms(handle: Handle) -> _Terms:
    return handle.strict, handle.least_ratio, handle.host_us


def _key_of(loaded: Pack, digest: str, by_path: bool, terms: _Terms) -> str:
    """The key of a pack, which is entered where it is new."""
    with _lock:
        for handle in _HANDLES.values():
            same = handle.pack is loaded or (by_path and handle.key.startswith(digest))
            if same and _terms(handle) == terms:
                return handle.key
        count = sum(1 for key in _HANDLES if key.startswith(digest))
        key = digest if not count else f"{digest}-{count + 1}"
        handle = Handle(key, loaded, *terms, compiled=f"{key}@{_fingerprint(loaded, terms)}")
        _HANDLES[key] = _COMPILED[handle.compiled] = handle
    return key


def _fingerprint(loaded: Pack, terms: _Terms) -> str:
    """Of all that decides which products a compiled graph leaves to torch: times, and the terms of use."""
    rows = [
        f"{row} {[(point.us, point.baseline_us) for point in row.points]}"
        for table in loaded.tables
        for row in table.rows
    ]
    return hashlib.sha256("\n".join([str(terms), *rows]).encode()).hexdigest()[:12]


def compiled(key: str) -> str:
    """What graphs call a pack that torch compiles, and may keep for other programs: not to be found again there.

    Torch's caches know a graph by the text of its calls. This one changes with the pack's times and its terms of use,
    by which products were left to torch.
    """
    handle = _HANDLES.get(key)
    return key if handle is None else handle.compiled


def handle_of(key: str) -> Handle | None:
    """The pack in use under ``key``; None, with one warning a key, where this process knows none."""
    handle = _HANDLES.get(key) or _COMPILED.get(key)
    if handle is None and key not in _unknown:
        _unknown.add(key)
        warnings.warn(
            f"No pack is in use under the key {key!r}, so torch multiplies: call gemmtune.torch.use(pack) first.",
            PackWarning,
            stacklevel=4,
        )
    return handle


def served(pack: Pack | str | Path) -> dict[str, str]:
    """Who served each problem met so far: by the problem's key, ``"kernel ..."`` or ``"torch: why"``.

    Raises:
        GemmtuneError: the pack is not in use.
    """
    found = [h for h in _HANDLES.values() if pack in (h.key, h.pack.name) or h.pack is pack or str(pack) == h.pack.name]
    if not found:
        raise GemmtuneError(f"The pack {pack!r} is not in use: call gemmtune.torch.use(pack) first.")
    return {problem: who for handle in found for problem, who in handle.served.items()}
