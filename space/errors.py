"""Every failure a user can meet, as a type of its own.

Each message is one sentence that says what was wrong, with the values, and what to do about it. All of them derive
from :class:`GemmtuneError`, so that ``except GemmtuneError`` catches what gemmtune itself found wrong and lets bugs
through.
"""

from __future__ import annotations

import errno


class GemmtuneError(Exception):
    """Base of every error gemmtune raises on purpose."""


class ProblemError(GemmtuneError, ValueError):
    """A problem that cannot be computed: a size, dtype, layout or epilogue out of range."""


class SettingError(GemmtuneError, ValueError):
    """A setting out of range: trials, time limit, seed, workers, regime, cache."""


class ExpressionError(GemmtuneError, ValueError):
    """An integer expression that is malformed, not allowed, or fails to evaluate."""


class ConfigurationError(GemmtuneError, ValueError):
    """A configuration that does not parse, or does not belong to its family."""


class EmptySpaceError(GemmtuneError):
    """No configuration is valid; the message names the constraints that emptied the space."""


class UnsupportedError(GemmtuneError):
    """What was asked cannot be done on this GPU (a dtype, a family, an architecture)."""


class UnknownNameError(GemmtuneError, LookupError):
    """A name (GPU, family, device, strategy, ...) that gemmtune does not know; the message lists those it does."""


class ToolchainError(GemmtuneError):
    """A GPU, driver, NVRTC, CuPy or C++ compiler that is missing or unusable; the message names the cure."""


class CompileError(GemmtuneError):
    """The compiler refused a kernel; the message carries the head of its log."""


class LaunchError(GemmtuneError):
    """A kernel could not be launched, or died while it ran."""


class RecordingError(GemmtuneError, ValueError):
    """A recorded space that is missing, damaged, of a newer schema, or empty."""


class DatabaseError(GemmtuneError):
    """A history that is locked, read-only, full, of a newer schema, or no database at all."""


class PackError(GemmtuneError):
    """A pack that is truncated, altered, hostile, or of a newer schema."""


class ArrayError(GemmtuneError, ValueError):
    """Arrays handed to a pack that cannot be multiplied: wrong device, dtype, rank or shape."""


def disk_is_full(error: OSError) -> bool:
    """Whether a write failed for want of space, on the disk or in the user's quota."""
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
