"""The Python side of batches on a device, on the driver double: every byte, on streams that lag and allocators that reuse at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def test_batches_and_images_cross_to_a_device_made_of_threads(tmp_path):
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the driver double needs Linux and a C++ compiler (set CXX, or install g++)")
    source = HERE.parent / "driver" / "double.cpp"
    # As tests/driver/double.rs builds it; the engine's bindings ask the loader for this name.
    options = ["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    include = HERE.parents[1] / "kernels" / "cuda"
    command = [compiler, *options, "-Wl,-soname,libcuda.so", "-I", str(include), str(source), "-o", str(tmp_path / "libcuda.so")]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    environment = os.environ | {"LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run(
        [sys.executable, str(HERE / "on_the_double.py")], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "as the CPU's, to the byte" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
