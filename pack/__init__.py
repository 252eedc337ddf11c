"""Kernel packs: export, check, and the runtime that loads them."""
