"""llama.cpp's own server: its arguments, its process, and other engines that serve the pair."""
