"""A real GPU through NVRTC and CuPy."""
