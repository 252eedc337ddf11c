"""What holds for every test."""

from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing else: speed is for the benchmarks.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
