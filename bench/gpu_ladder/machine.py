"""The machine: its GPUs, its driver, and what both say of themselves after something went wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from gpu_ladder import processes

PATIENCE_S = 20.0  # for a program that only says something
CONTROL_S = 5.0  # for MPS to begin or to end

GPU_FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "compute_capability": "compute_cap",
    "compute_mode": "compute_mode",
    "mig": "mig.mode.current",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
    "sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.max.mem",
}


def said_by(command: Sequence[str], patience_s: float = PATIENCE_S) -> str:
    """Standard output of a program; nothing if it cannot be run, fails, or takes long."""
    # Once this program is to end, the rest is brief.
    around = nullcontext() if processes.interrupted() else processes.interruptible()
    try:
        with around:
            done = subprocess.run(list(command), capture_output=True, text=True, timeout=patience_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def gpus() -> list[dict[str, Any]]:
    found = []
    query = "--query-gpu=" + ",".join(GPU_FIELDS.values())
    for line in said_by(["nvidia-smi", query, "--format=csv,noheader,nounits"]).splitlines():
        values = [value.strip() for value in line.split(",")]
        gpu: dict[str, Any] = dict(zip(GPU_FIELDS, values))
        for key, value in gpu.items():
            if key not in ("name", "driver", "compute_capability") and value.isdigit():
                gpu[key] = int(value)
        found.append(gpu)
    return found


def gpu_there() -> bool:
    """The driver's tool may be missing where its devices are not."""
    listed = any(line.startswith("GPU ") for line in said_by(["nvidia-smi", "-L"]).splitlines())
    return listed or any(re.fullmatch(r"nvidia\d+", entry.name) for entry in os.scandir("/dev"))


def mps_runs() -> bool:
    """Processes of one GPU run at the same time only through this daemon; without, they take turns."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # one that has just ended
            if name.read_text(errors="replace").startswith("nvidia-cuda-mps"):
                return True
    return False


@contextmanager
def mps(logs: Path) -> Iterator[tuple[dict[str, str], str]]:
    """A daemon of MPS for programs with this environment, which logs to that folder; or why there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}, "nvidia-cuda-mps-control is not on PATH"
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:  # its sockets' paths must be short
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": str(logs)}

        def ask(command: list[str], words: str) -> str:
            try:
                # A daemon would keep a pipe open.
                with open(Path(folder, "said"), "w+", encoding="utf-8", errors="replace") as said:
                    done = subprocess.run(
                        command,
                        env={**os.environ, **own},
                        input=words,
                        text=True,
                        stdout=said,
                        stderr=said,
                        timeout=CONTROL_S,
                        check=False,
                    )
                    said.seek(0)
                    answer = said.read().strip()
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            return "" if done.returncode == 0 else f"{' '.join(command[1:])}: {answer}".strip()

        problem = ask([control, "-d"], "")
        try:
            yield own, f"nvidia-cuda-mps-control {problem}" if problem else ""
        finally:
            if ends := ask([control], "quit\n"):
                print(f"MPS does not end: {ends}", file=sys.stderr)


@contextmanager
def kept_awake() -> Iterator[None]:
    """Without nvidia-persistenced the driver takes a second or more to begin for each first process: one stays open."""
    try:
        held = os.open("/dev/nvidia0", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        held = -1
    try:
        yield
    finally:
        if held >= 0:
            os.close(held)


def machine() -> dict[str, Any]:
    cpu = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    available = 0
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="utf-8") as file:
        available = next((int(line.split()[1]) for line in file if line.startswith("MemAvailable:")), 0)
    glibc = ""
    with suppress(OSError, ValueError):
        glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return {
        "cpu": cpu,
        "cpu_cores": os.cpu_count(),
        "memory_available_mib": available >> 10,
        "kernel": os.uname().release,
        "glibc": glibc,
        "mps": mps_runs(),
        "gpus": gpus(),
    }


def description() -> dict[str, str]:
    """Texts about the machine by file name, for readers of the results elsewhere."""
    texts = {
        "nvidia-smi-q.txt": said_by(["nvidia-smi", "-q"]),
        "cpu.txt": said_by(["lscpu"]),
        "memory.txt": said_by(["df", "-h", "/dev/shm", "/tmp"]) + said_by(["free", "-m"]),
        "limits.txt": said_by(["sh", "-c", "ulimit -a"]),
    }
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        texts["driver.txt"] = file.read()
    return {name: text for name, text in texts.items() if text}


def aftermath() -> dict[str, str]:
    """Texts that say what the GPU thinks of a step that failed: its state, and the kernel's lines about it."""
    xid = [line for line in said_by(["dmesg"]).splitlines() if "Xid" in line or "NVRM" in line]
    texts = {"nvidia-smi-q.txt": said_by(["nvidia-smi", "-q"]), "xid.txt": "\n".join(xid)}
    return {name: text for name, text in texts.items() if text}
