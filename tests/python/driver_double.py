"""The driver double of ``tests/driver``, in the driver's place in this process."""

import ctypes

_library = ctypes.CDLL("libcuda.so")
for _name in ("allocate", "stream", "violations", "get"):
    getattr(_library, f"lossfeed_double_{_name}").restype = ctypes.c_uint64
for _name in ("free", "close_stream", "synchronize", "write", "check", "read"):
    getattr(_library, f"lossfeed_double_{_name}").restype = ctypes.c_bool


def call(name, *arguments):
    """A function of the double; ints are 64 bits wide."""
    wide = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
    return getattr(_library, f"lossfeed_double_{name}")(*wide)


def driver(name, *arguments):
    """A function of the driver, called by this thread with the device's context current, as torch calls it; raises as
    torch does."""
    _library.cuCtxSetCurrent(ctypes.c_uint64(0xC0DE))
    code = getattr(_library, name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: CUDA error {code}")


def violations():
    """What a real driver would have punished with wrong bytes, a line each."""
    text = ctypes.create_string_buffer(1 << 16)
    call("violations", text, len(text))
    return text.value.decode()
