"""Exceptions. Bad arguments raise ValueError, unreadable files OSError, no memory MemoryError."""

from dflash2._native import core as _core

DFlash2Error = _core.DFlash2Error
ModelFormatError = _core.ModelFormatError
IncompatibleModelsError = _core.IncompatibleModelsError
ContextFullError = _core.ContextFullError
DecodeError = _core.DecodeError

__all__ = [
    "ContextFullError",
    "DFlash2Error",
    "DecodeError",
    "IncompatibleModelsError",
    "ModelFormatError",
]
