"""Programs on 8 devices, in a process of their own, as plain JAX runs them: values, gradients,
collectives, how results are divided; and they end.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
    "--xla_cpu_collective_call_terminate_timeout_seconds=120",  # a device may wait for a busy core
    "--xla_llvm_disable_expensive_passes=true",
)
ENDS_WITHIN = 900  # seconds: a tenth of it on two idle cores
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("kind", ["auto", "explicit", "manual"])
def test_as_plain_jax(kind):
    env = os.environ | {"XLA_FLAGS": " ".join(FLAGS), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.sharding.check", kind]
    run = subprocess.run(
        command, check=False, cwd=ROOT, env=env, timeout=ENDS_WITHIN, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert run.stdout.endswith("the same\n")
