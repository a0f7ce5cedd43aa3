"""What PyTorch says of the device that a plan is for."""

from __future__ import annotations

import torch

from samplewise.planning.budget import CPU, DEFAULT_CPU, Device, gpu, gpu_budget


def default_budget(device: torch.device) -> int:
    """A workspace that is safe and fast: 64 MiB on a CPU; on a GPU a quarter of what is free, at most 2 GiB.

    What PyTorch holds without using it is free, too. A power of two, so that a little more or less of it changes no plan, and
    the same inputs give the same bits.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return gpu_budget(torch.cuda.mem_get_info(device)[0] + unused)
    return DEFAULT_CPU


def device_of(device: torch.device) -> Device:
    """What a plan must know about a device. On a GPU a tile takes half of the second-level cache, or LEAST_GPU_CACHE."""
    if device.type == "cuda":
        return gpu(torch.cuda.get_device_properties(device).L2_cache_size)
    return CPU if device.type in ("cpu", "meta") else gpu(0)
