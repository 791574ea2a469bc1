"""DFlash 2 speculative decoding for llama.cpp and GGUF."""

from dflash2._native import core as _core

__version__ = _core.__version__
