"""Configuration -> CUDA source (Jinja2) -> cubin (NVRTC) with its launch recipe."""
