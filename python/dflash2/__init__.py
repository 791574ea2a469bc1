"""DFlash 2 speculative decoding for llama.cpp and GGUF."""

from dflash2._native import core as _core
from dflash2.engine import Engine
from dflash2.errors import (
    ContextFullError,
    DecodeError,
    DFlash2Error,
    IncompatibleModelsError,
    ModelFormatError,
)
from dflash2.loader import load, plan_memory
from dflash2.types import Response, SamplingParams, Stats, Token

__version__ = _core.__version__

__all__ = [
    "ContextFullError",
    "DFlash2Error",
    "DecodeError",
    "Engine",
    "IncompatibleModelsError",
    "ModelFormatError",
    "Response",
    "SamplingParams",
    "Stats",
    "Token",
    "__version__",
    "load",
    "plan_memory",
]
