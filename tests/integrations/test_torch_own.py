"""torch's own tests of its loader, where somebody has their files: see torch_own_tests.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif("LOSSFEED_TORCH_TESTS" not in os.environ, reason="LOSSFEED_TORCH_TESTS names no test files of torch's")
def test_torchs_own_tests_end_as_they_are_expected_to():
    runner = Path(__file__).with_name("torch_own_tests.py")
    ended = subprocess.run([sys.executable, runner], capture_output=True, text=True)
    assert ended.returncode == 0 and "passed" in ended.stdout, ended.stdout[-4000:] + ended.stderr[-2000:]
