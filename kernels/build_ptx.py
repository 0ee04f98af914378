#!/usr/bin/env python3
"""Compiles kernels/cuda to kernels/prebuilt with NVRTC: machine code for the GPUs in use, and PTX for all others.

    python3 kernels/build_ptx.py [--variants DIRECTORY] [WORK_DIRECTORY]

With `--variants` it leaves prebuilt/ alone and writes the builds of VARIANTS for 9.0 to DIRECTORY, a file each: the
test of launch shapes (tests/kernels/sweep.rs) times them beside what is shipped.

NVRTC comes from PyPI into WORK_DIRECTORY (default: target/nvrtc) and stays there; neither a CUDA toolkit nor a host
compiler is needed. Two releases, each for a reason:

* 12.0 makes the PTX: it emits ISA 8.0, which every driver from 525 on can load. Newer compilers emit PTX that installed
  drivers refuse.
* 12.9 makes the machine code, because 12.0 knows no GPU after 9.0. Drivers load the machine code of every release of
  their own major version and of older ones, so 525 and later load this; 13.0's would want 580.

Images are stored compressed, by one version of zstd from PyPI: the same image is the same file on every machine.
"""

import argparse
import ctypes
import hashlib
import importlib
import subprocess
import sys
import venv
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PREBUILT = HERE / "prebuilt"
# One translation unit, in this order (src/ptx.rs has the same list).
SOURCES = [f"{name}.cu" for name in ("prelude", "rank", "mail", "finish", "mean", "tiles", "radix", "sums", "score", "gradient", "probability", "sequence", "image", "color", "retouch", "mixing", "gather")]
OPTIONS = ["--std=c++17", "--fmad=true", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"]
PACKAGES = {release: f"nvidia-cuda-nvrtc-cu12=={release}.*" for release in ("12.0", "12.9")}
# File: release, target. Slowest first: two are compiled at a time.
IMAGES = {
    "sm_120.cubin": ("12.9", "sm_120"),
    "sm_100.cubin": ("12.9", "sm_100"),
    "sm_90.cubin": ("12.9", "sm_90"),
    "sm_80.cubin": ("12.9", "sm_80"),
    "lossfeed.ptx": ("12.0", "compute_75"),
}
ZSTANDARD = "zstandard==0.25.0"


def source() -> bytes:
    return b"".join((HERE / "cuda" / name).read_bytes() for name in SOURCES)


def install_package(directory: Path, package: str, place: Path) -> None:
    """Installs a package of PyPI, without what it depends on, in `place`; pip itself comes below `directory`."""
    python = directory / "pip" / "bin" / "python"
    if not python.exists():
        venv.create(directory / "pip", with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target", place]
    subprocess.run([*command, package], check=True)


def zstandard(directory: Path) -> ModuleType:
    """The compressor, installed below `directory` unless it is there."""
    place = directory / f"{ZSTANDARD.replace('==', '-')}-{sys.implementation.cache_tag}"
    if not place.exists():
        install_package(directory, ZSTANDARD, place)
    sys.path.insert(0, str(place))
    return importlib.import_module("zstandard")


def unpack(directory: Path, into: Path) -> list[Path]:
    """Writes every image of prebuilt/, unpacked, to `into`."""
    zstd, unpacked = zstandard(directory), []
    for packed in sorted(PREBUILT.glob("*.zst")):
        unpacked.append(into / packed.stem)
        unpacked[-1].write_bytes(zstd.decompress(packed.read_bytes()))
    return unpacked


def install(directory: Path, release: str) -> Path:
    """Installs that NVRTC below `directory` unless it is there; returns the library's path."""
    place = directory / release
    name = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    if not (place / name).exists():
        install_package(directory, PACKAGES[release], place)
    if not (place / name).exists():
        sys.exit(f"{PACKAGES[release]} holds no libnvrtc.so.12 for this platform; build on Linux, x86-64 or aarch64")
    return place / name


def compile_image(library: Path, text: bytes, target: str) -> bytes:
    """PTX for a virtual target (compute_…), machine code for a real one (sm_…)."""
    nvrtc = ctypes.CDLL(str(library))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(code: int) -> None:
        if code:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(code).decode())

    def fetch(what: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        found = ctypes.create_string_buffer(size.value)
        check(getattr(nvrtc, f"nvrtcGet{what}")(program, found))
        return found.raw

    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"lossfeed.cu", 0, None, None))
    options = [f"--gpu-architecture={target}", *OPTIONS]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
    log = fetch("ProgramLog").rstrip(b"\0\n")
    if log:
        print(f"{target}: {log.decode()}", file=sys.stderr)
    check(code)
    image = fetch("CUBIN" if target.startswith("sm_") else "PTX")
    check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return image


def make(library: Path, name: str) -> bytes:
    """An image. Each holds the digest of its sources."""
    text, target = source(), IMAGES[name][1]
    digest = hashlib.sha256(text).hexdigest()
    if name.endswith(".ptx"):
        ptx = compile_image(library, text, target).rstrip(b"\0")
        if b".version 8.0" not in ptx or b".target sm_75" not in ptx:
            sys.exit("the compiler did not emit PTX ISA 8.0 for sm_75; is another NVRTC in its place?")
        return f"// Made by build_ptx.py. Source sha256: {digest}\n".encode() + ptx
    values = ",".join(str(byte) for byte in digest.encode())
    return compile_image(library, text + f'\nextern "C" __constant__ char lossfeed_source_sha256[] = {{{values}}};\n'.encode(), target)


# What a goal that is missed may be mended with: name, words of the sources, and what is tried in their place.
VARIANTS = {
    "six_loads": ("#define IN_FLIGHT 4", "#define IN_FLIGHT 6"),
    "four_blocks": ("(256, 3)", "(256, 4)"),
    "no_l1": ("ld.global.nc.v4.u32", "ld.global.nc.L1::no_allocate.v4.u32"),
    "first_rows_first": ("gridDim.x - 1 - blockIdx.x", "blockIdx.x"),
}


def variant(name: str) -> bytes:
    """The sources of a variant: forward and backward of bf16 and f32, without smoothing."""
    text = b"".join((HERE / "cuda" / file).read_bytes() for file in SOURCES[: SOURCES.index("gradient.cu") + 1]).decode()
    words, tried = VARIANTS[name]
    if words not in text:
        raise ValueError(f"the variant {name} replaces {words!r}, which is nowhere in the sources")
    left_out = ("LOSSFEED_SCORE_KERNELS(F", "LOSSFEED_SCORE_KERNEL(F", "LOSSFEED_BACKWARD_KERNEL(F", "    LOSSFEED_SCORE_KERNEL(T, smooth")
    lines = text.replace(words, tried).splitlines()
    return "\n".join("" if line.startswith(left_out) and "(F32" not in line else line for line in lines).encode()


def build_variants(directory: Path, to: Path) -> None:
    library = install(directory, "12.9")
    to.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2) as pool:
        made = {name: pool.submit(compile_image, library, variant(name), "sm_90") for name in VARIANTS}
    for name, image in made.items():
        (to / f"{name}.cubin").write_bytes(image.result())
        print(f"{to}/{name}.cubin: {len(image.result())} bytes")


def build(directory: Path) -> None:
    libraries, zstd = {release: install(directory, release) for release in PACKAGES}, zstandard(directory)
    # In processes: two libraries of one name do not share one, and a compilation holds on to hundreds of megabytes.
    with ProcessPoolExecutor(2) as pool:
        made = {name: pool.submit(make, libraries[release], name) for name, (release, _) in IMAGES.items()}
    store({name: image.result() for name, image in made.items()}, zstd)


def store(images: dict[str, bytes], zstd: ModuleType) -> None:
    """Replaces what is in prebuilt/."""
    PREBUILT.mkdir(exist_ok=True)
    for old in PREBUILT.iterdir():
        old.unlink()
    sums = {}
    for name, image in sorted(images.items()):
        packed = zstd.ZstdCompressor(level=19, write_checksum=True).compress(image)
        (PREBUILT / f"{name}.zst").write_bytes(packed)
        sums[name] = hashlib.sha256(image).hexdigest()
        print(f"{name}: {len(image)} bytes, {len(packed)} packed")
    digest = hashlib.sha256(source()).hexdigest()
    (PREBUILT / "lossfeed.sha256").write_text(digest)
    # Of what is unpacked, as `sha256sum --check` reads it.
    (PREBUILT / "images.sha256").write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    print(f"source {digest}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=Path, metavar="DIRECTORY", help="write the variants there, and nothing else")
    parser.add_argument("directory", type=Path, nargs="?", default=HERE.parent / "target" / "nvrtc", metavar="WORK_DIRECTORY")
    options = parser.parse_args()
    if options.variants:
        build_variants(options.directory.resolve(), options.variants)
    else:
        build(options.directory.resolve())
