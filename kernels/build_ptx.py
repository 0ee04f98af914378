#!/usr/bin/env python3
"""Compiles kernels/cuda to kernels/prebuilt with NVRTC 12.0.

    python3 kernels/build_ptx.py [WORK_DIRECTORY]

NVRTC comes from PyPI into a virtual environment below WORK_DIRECTORY (default: a temporary directory, removed afterwards);
neither a CUDA toolkit nor a host compiler is needed. Version 12.0 is deliberate: it emits PTX ISA 8.0, which every driver from
525 on can load, and newer compilers emit PTX that installed drivers refuse.
"""

import ctypes
import hashlib
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
# One translation unit, in this order (src/ptx.rs has the same list).
SOURCES = [f"{name}.cu" for name in ("prelude", "rank", "mail", "finish", "mean", "tiles", "radix", "sums", "score", "gradient", "probability", "sequence", "image", "gather")]
PACKAGE = "nvidia-cuda-nvrtc-cu12==12.0.*"
OPTIONS = ["--gpu-architecture=compute_75", "--std=c++17", "--fmad=true", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"]


def source() -> bytes:
    return b"".join((HERE / "cuda" / name).read_bytes() for name in SOURCES)


def install(directory: Path) -> Path:
    """Installs NVRTC below `directory` unless it is there; returns the library's path."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    found = sorted(directory.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    if not found:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE], check=True)
        found = sorted(directory.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    if not found:
        sys.exit(f"{PACKAGE} holds no libnvrtc.so.12 for this platform; build on Linux, x86-64 or aarch64")
    return found[0]


def compile_ptx(library: Path, text: bytes) -> str:
    nvrtc = ctypes.CDLL(str(library))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(code: int) -> None:
        if code:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(code).decode())

    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"lossfeed.cu", 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*(o.encode() for o in OPTIONS))
    code = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log))
    if log.value:
        print(log.value.decode(), file=sys.stderr)
    check(code)
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return ptx.value.decode()


def build(directory: Path) -> None:
    text = source()
    digest = hashlib.sha256(text).hexdigest()
    ptx = compile_ptx(install(directory), text)
    if ".version 8.0" not in ptx or ".target sm_75" not in ptx:
        sys.exit("the compiler did not emit PTX ISA 8.0 for sm_75; is another NVRTC in its place?")
    prebuilt = HERE / "prebuilt"
    prebuilt.mkdir(exist_ok=True)
    (prebuilt / "lossfeed.ptx").write_text(f"// Made by build_ptx.py. Source sha256: {digest}\n{ptx}")
    (prebuilt / "lossfeed.sha256").write_text(digest)
    print(f"{len(ptx)} bytes of PTX, source {digest}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        build(Path(sys.argv[1]).resolve() / "nvrtc")
    else:
        with tempfile.TemporaryDirectory() as temporary:
            build(Path(temporary) / "nvrtc")
