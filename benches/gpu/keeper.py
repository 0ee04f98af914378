"""Holds a context of the GPU until standard input ends, so that no other process pays for waking the device; first
prints what the driver says of it, as JSON. Needs the driver alone."""

from __future__ import annotations

import ctypes
import json
import sys

ATTRIBUTES = {
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "can_use_host_pointer_for_registered_mem": 91,
    "host_register_supported": 99,
    "memory_pools_supported": 115,
}


def main() -> int:
    """0 once standard input has ended."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDriverGetVersion", (ctypes.byref(version),)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
    ):
        if code := getattr(driver, name)(*arguments):
            raise SystemExit(f"{name}: CUDA error {code}")
    found: dict[str, int | None] = {"driver_version": version.value}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        found[name] = value.value if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else None
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
