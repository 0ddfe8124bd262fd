"""Programs on 8 devices, in a process of their own, as plain JAX runs them: values, gradients,
collectives, how results are divided; and they end.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
    "--xla_cpu_collective_call_terminate_timeout_seconds=120",  # a device may wait for a busy core
    "--xla_llvm_disable_expensive_passes=true",
)
ENDS_WITHIN = 900  # seconds: a tenth of it on two idle cores
ROOT = Path(__file__).parent.parent


def start(*arguments, devices=8, **variables):
    """A process that compares programs; it prints `the same`."""
    flags = " ".join((f"--xla_force_host_platform_device_count={devices}", *FLAGS))
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, "-m", "tests.sharding.check", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)


def finish(*processes):
    """Wait for processes; one that does not end is killed, and what it ran is told."""
    try:
        for process in processes:
            said, _ = process.communicate(timeout=ENDS_WITHIN)
            assert process.returncode == 0, said[-4000:]
            assert said.endswith("the same\n"), said[-4000:]
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it hangs: {(error.output or b'')[-500:]!r}")
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("kind", ["auto", "explicit", "manual", "batched"])
def test_as_plain_jax(kind):
    finish(start(kind))


@pytest.mark.parametrize(
    ("kind", "name"), [("auto", "updated"), ("explicit", "dense"), ("manual", "hidden sum")]
)
def test_two_processes(kind, name):
    """Each has four of the devices; they reach each other through gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    both = ({"COORDINATOR": coordinator, "PROCESS": str(i)} for i in range(2))
    finish(*[start(kind, name, devices=4, **each) for each in both])
