"""A device that answers from a recorded space: no GPU, the recorded outcomes and times."""

from gemmtune.device.replay.device import ReplayDevice as ReplayDevice
