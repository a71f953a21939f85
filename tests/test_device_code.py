"""The device code of the kernels as the compiler made it: bits that are the CPU's, wide loads, nothing in slow memory.

    test_device_code.py FOLDER LIBRARY       FOLDER: of cuobjdump and nvdisasm; LIBRARY: with the kernels

Prints a table of all kernels on the newest device that the library has code for.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import unittest
from dataclasses import dataclass, field

FOLDER, LIBRARY = sys.argv[1:3]
ARCHITECTURE = "sm_90"
# Kernels that do not go over arrays of fp32 in whole vectors: a few numbers, or a frame of bits or places.
NARROW = ("total_facts", "clear", "count", "take", "topk.cu: decode")
DIVIDES = re.compile(r"(?:div|sqrt|rcp)\.[\w.]*f(?:32|64)$")


def said(*options: str) -> str:
    environment = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}"}
    command = [f"{FOLDER}/cuobjdump", *options, LIBRARY]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@dataclass
class Kernel:
    """Instructions by name; PTX is what ptxas was given, without the inside of divisions and roots."""

    name: str = ""
    sass: collections.Counter[str] = field(default_factory=collections.Counter)
    ptx: collections.Counter[str] = field(default_factory=collections.Counter)
    resources: dict[str, int] = field(default_factory=dict)

    def count(self, pattern: str) -> int:
        return sum(number for name, number in self.sass.items() if re.fullmatch(pattern, name))

    @property
    def divides(self) -> bool:
        return any(DIVIDES.match(name) for name in self.ptx)


def readable(symbols: list[str]) -> dict[str, str]:
    """Names as "file.cu: kernel<arguments>"."""
    plain = subprocess.run(["c++filt", "-p"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    names = {}
    for symbol, name in zip(symbols, plain.stdout.splitlines()):
        file = re.search(r"_\d+_(\w+?)_cu_", symbol)
        name = re.sub(r"\([\w:]*(?:\(anonymous namespace\))?[\w:]+\)(?=\d)", "", name)  # of an enumerator, its type
        name = re.sub(r"tributary::kernels::(?:cuda::)?|\(anonymous namespace\)::", "", name)
        names[symbol] = f"{file.group(1) if file else '?'}.cu: {name}"
    return names


def kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = collections.defaultdict(Kernel)
    symbol = ""
    for line in said("--dump-sass", "--gpu-architecture", ARCHITECTURE).splitlines():
        if function := re.search(r"Function : (\S+)", line):
            symbol = function.group(1)
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", line):
            found[symbol].sass[instruction.group(1)] += 1
    for line in said("--dump-ptx").splitlines():
        if function := re.search(r"\.entry (\w+)\(", line):
            symbol = function.group(1)
        elif instruction := re.match(r"\s*(?:@!?%p\d+ )?([a-z][\w.]*)\s", line):
            found[symbol].ptx[instruction.group(1)] += 1
    usage = said("--dump-resource-usage", "--gpu-architecture", ARCHITECTURE)
    for symbol, numbers in re.findall(r"Function (\S+):\s+(.*)", usage):
        found[symbol].resources = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", numbers)}
    for symbol, name in readable(list(found)).items():
        found[symbol].name = name
    return {kernel.name: kernel for kernel in found.values()}


class DeviceCode(unittest.TestCase):
    all: dict[str, Kernel]

    @classmethod
    def setUpClass(cls) -> None:
        cls.all = kernels()
        print(f"{'kernel on ' + ARCHITECTURE:44} registers shared  loads, wide  stores, wide  divides")
        for name, kernel in sorted(cls.all.items()):
            loads, stores = kernel.count(r"LDG\..*"), kernel.count(r"STG\..*")
            wide = kernel.count(r"LDG\..*128.*"), kernel.count(r"STG\..*128.*")
            numbers = f"{kernel.resources['REG']:9} {kernel.resources['SHARED']:6} {loads:6} {wide[0]:5}"
            numbers += f"{stores:8} {wide[1]:5}"
            print(f"{name:44} {numbers}  {'yes' if kernel.divides else ''}")

    def test_all_kernels_are_read(self) -> None:
        self.assertGreater(len(self.all), 60)
        for name in ("tree_sum.cu: sum_few<8>", "tree_sum.cu: multiply", "optimizer.cu: step<AdamW>"):
            self.assertIn(name, self.all)
        for kernel in self.all.values():
            self.assertTrue(kernel.sass and kernel.ptx and kernel.resources, kernel.name)

    def test_products_are_rounded_before_they_are_added(self) -> None:
        """As on the CPU. The compiler's own divisions and roots may, in their inside: they are rounded right."""
        for kernel in self.all.values():
            fused = [name for name in kernel.ptx if re.match(r"(?:fma|mad)\.(?:rn|rz|ftz|f)", name) and ".f" in name]
            self.assertEqual(fused, [], kernel.name)
            if not kernel.divides:
                self.assertEqual(kernel.count(r"[FD]FMA.*"), 0, kernel.name)
            # Neither approximate functions nor results that lose their small values.
            self.assertEqual([name for name in kernel.ptx if ".approx" in name or ".ftz" in name], [], kernel.name)

    def test_nothing_is_spilled(self) -> None:
        for kernel in self.all.values():
            self.assertEqual(kernel.count(r"LDL.*") + kernel.count(r"STL.*"), 0, kernel.name)

    def test_a_thread_moves_16_bytes_at_a_time(self) -> None:
        for name, kernel in self.all.items():
            if not name.split(": ")[1].startswith(NARROW) and name not in NARROW:
                self.assertGreater(kernel.count(r"(?:LDG|STG)\..*128.*"), 0, name)

    def test_enough_blocks_fit_a_multiprocessor(self) -> None:
        """Two blocks of 256 threads at least, of 65536 registers; no more shared memory than any kernel may have."""
        for name, kernel in self.all.items():
            self.assertLessEqual(kernel.resources["REG"], 128, name)
            self.assertLessEqual(kernel.resources["SHARED"], 48 << 10, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
