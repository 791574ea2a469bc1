"""Written by CMake beside the compiled module."""

LLAMA_ROOT: str  # DFLASH2_LLAMA_ROOT; "": the libraries inside llama-cpp-python
