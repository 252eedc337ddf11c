"""The state of a card for people: clocks, power, temperature, settings and load, from NVML. Reads only, and creates no
CUDA context.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmtune.device.cuda.info import check_index
from gemmtune.device.cuda.nvml import Monitor
from gemmtune.device.toolchain import require_cupy

# Arguments of the calls below (nvml.h: nvmlClockType_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t).
_SM, _MEMORY = 1, 2
_GPU_SENSOR = 0
_SLOWDOWN = 1

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""nvmlComputeMode_t."""


@dataclass(frozen=True)
class Card:
    """What NVML says now, each None where it does not answer: clocks in MHz, temperatures in degrees Celsius, power in
    watts. ``throttle`` is what holds the clock down, in words; ``compute_mode`` one of :data:`COMPUTE_MODES`;
    ``memory_used`` counts bytes, by whomever; ``processes`` how many hold a CUDA context, as far as NVML tells.
    """

    clock_mhz: int | None
    max_clock_mhz: int | None
    memory_clock_mhz: int | None
    max_memory_clock_mhz: int | None
    temperature: int | None
    slowdown_temperature: int | None
    power: float | None
    power_limit: float | None
    default_power_limit: float | None
    persistence: bool | None
    compute_mode: str | None
    throttle: str
    memory_used: int | None
    processes: int


def monitor(index: int) -> Monitor:
    """The monitor of GPU ``index``, as CUDA numbers them.

    Raises:
        ToolchainError: CuPy, the driver or a GPU is missing.
        UnknownNameError: there are GPUs, but none of that index.
    """
    check_index(index)
    return Monitor(require_cupy().cuda.runtime.deviceGetPCIBusId(index))


def read_card(watch: Monitor) -> Card:
    """The card's state now."""
    persistence = watch.number("nvmlDeviceGetPersistenceMode")
    mode = watch.number("nvmlDeviceGetComputeMode")
    return Card(
        clock_mhz=watch.number("nvmlDeviceGetClockInfo", _SM),
        max_clock_mhz=watch.number("nvmlDeviceGetMaxClockInfo", _SM),
        memory_clock_mhz=watch.number("nvmlDeviceGetClockInfo", _MEMORY),
        max_memory_clock_mhz=watch.number("nvmlDeviceGetMaxClockInfo", _MEMORY),
        temperature=watch.number("nvmlDeviceGetTemperature", _GPU_SENSOR),
        slowdown_temperature=watch.number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
        power=_watts(watch.number("nvmlDeviceGetPowerUsage")),
        power_limit=_watts(watch.number("nvmlDeviceGetEnforcedPowerLimit")),
        default_power_limit=_watts(watch.number("nvmlDeviceGetPowerManagementDefaultLimit")),
        persistence=None if persistence is None else bool(persistence),
        compute_mode=None if mode is None else COMPUTE_MODES.get(mode, str(mode)),
        throttle=watch.throttle(),
        memory_used=watch.memory_used(),
        processes=len(watch.processes()),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3
