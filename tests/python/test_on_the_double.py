"""The Python side of the CUDA half, on the driver double: batches and losses, every byte, on streams that lag and
allocators that reuse at once. Each is a program of its own, in whose place of the driver the double is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    """The folder of the library that takes the driver's place."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the driver double needs Linux and a C++ compiler (set CXX, or install g++)")
    folder = tmp_path_factory.mktemp("double")
    source = HERE.parent / "driver" / "double.cpp"
    # As tests/driver/double.rs builds it; the engine's bindings ask the loader for this name.
    options = ["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    include = HERE.parents[1] / "kernels" / "cuda"
    command = [compiler, *options, "-Wl,-soname,libcuda.so", "-I", str(include), str(source), "-o", str(folder / "libcuda.so")]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return folder


@pytest.mark.parametrize(
    "program,said",
    [
        ("batches_on_the_double.py", "as the CPU's, to the byte"),
        ("loss_on_the_double.py", "as the CPU's path"),
        ("captures_on_the_double.py", "no capture was harmed"),
        ("steps_on_the_double.py", "as frameworks make them"),
    ],
)
def test_a_device_made_of_threads_does_what_the_cpu_does(double, program, said):
    environment = os.environ | {"LD_LIBRARY_PATH": f"{double}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run([sys.executable, str(HERE / program)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and said in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
