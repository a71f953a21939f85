"""The rooms, and the rooms that each may use; the test reads every include of the product, and every import.

A room is a folder, or a Python module that rooms next to it stand on. It may use the rooms that ROOMS names for it, and
those that these may use. The test fails on an include that points another way, a file in a folder that is no room, an
include of a missing file, and an unused permission, so the table stays true.
"""

import ast
import pathlib
import re
import sys
import tempfile
import unittest

# From below: a room stands below those that it uses.
ROOMS: dict[str, list[str]] = {
    "schema": [],
    "kernels": [],
    "kernels/step": ["kernels"],
    "common/base": [],
    "common/system": ["common/base"],
    "common/math": ["common/base", "kernels/step"],
    "common/config": ["common/math", "common/system"],
    "common/wire": ["common/config", "schema"],
    "common/files": ["common/wire"],
    "common/security": ["common/config"],
    "common/daemon": ["common/security", "common/wire"],
    "common/devices": ["common/base"],
    "common/doctor": ["common/daemon", "common/devices"],
    "session/shared": ["common/wire"],
    "session": ["common/devices", "session/shared"],
    "server/chunk": ["common/wire"],
    "server/shard": ["server/chunk"],
    "server/checkpoint": ["common/files", "server/chunk"],
    "server/coordinator/cluster": ["common/daemon", "common/files", "server/chunk"],
    "server/coordinator/round": ["common/wire"],
    "server/coordinator/orders": ["server/coordinator/cluster"],
    "server/coordinator/job": ["server/coordinator/orders", "server/coordinator/round"],
    "server/coordinator": ["server/coordinator/job"],
    "server/coordinator/show": ["server/coordinator"],
    "server/store": ["server/checkpoint", "server/coordinator/cluster", "server/shard"],
    "server/copies": ["server/store"],
    "server/lane": ["server/coordinator/cluster", "server/shard"],
    "server/orders": ["server/checkpoint", "server/coordinator", "common/doctor"],
    "server": ["server/coordinator/show", "server/copies", "server/lane", "server/orders"],
    "worker/reduce": ["session/shared"],
    "worker/device": ["common/daemon", "common/devices", "worker/reduce"],
    "worker/node": ["worker/device"],
    "worker/allreduce": ["server/checkpoint", "worker/node"],
    "worker": ["server/coordinator/show", "server/orders", "worker/allreduce"],
    "train": ["common/daemon", "common/files", "session"],
    "tools/cluster": ["common/daemon", "common/files"],
    "tools/lab": ["tools/cluster"],
    "tools/trace": ["common/wire"],
    "bench": ["tools/lab"],
    "bench/pushpull": ["session", "bench"],
    "bench/gpu": ["bench/pushpull"],
    "bench/lab": ["session", "bench"],
    "tools/cli/parts": ["tools/cluster"],
    "tools/cli/plan": ["tools/cli/parts"],
    "tools/cli/run": ["session", "tools/cli/parts"],
    "tools/cli/bench": ["bench", "tools/cli/parts"],
    "tools/cli": ["common/doctor", "server/checkpoint", "tools/cli/plan", "tools/trace"],
    "python/tributary": [],
    "python/tributary/torch/lion": [],
    "python/tributary/torch/_base": [],
    "python/tributary/torch/_model": ["python/tributary", "python/tributary/torch/_base"],
    "python/tributary/torch/_steps": ["python/tributary/torch/_model", "python/tributary/torch/lion"],
    "python/tributary/torch/_session": ["python/tributary/torch/_steps"],
    "python/tributary/torch/_run": ["python/tributary/torch/_session"],
    "python/tributary/torch/_rounds": ["python/tributary/torch/_run"],
    "python/tributary/torch/sampler": ["python/tributary/torch/_run"],
    "python/tributary/torch/optimizer": ["python/tributary/torch/_rounds"],
    "python/tributary/torch/_loaders": ["python/tributary/torch/optimizer", "python/tributary/torch/sampler"],
    "python/tributary/torch": ["python/tributary/torch/_loaders"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = {".h", ".cc", ".cu", ".cuh"}


def usable(rooms: dict[str, list[str]]) -> dict[str, set[str]]:
    """Returns the rooms that each room may use, also indirectly. ValueError: one uses a room not listed before it."""
    may: dict[str, set[str]] = {}
    for room, direct in rooms.items():
        for other in direct:
            if other not in may:
                raise ValueError(f"{room} uses {other}, which does not stand before it in the table")
        may[room] = set(direct).union(*(may[other] for other in direct))
    return may


def used_by(file: pathlib.Path, root: pathlib.Path) -> list[str]:
    """Returns the files that a source includes, or that a module imports at its top; indented imports are for types."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return INCLUDE.findall(text)
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tributary":
            base = "python/" + str(node.module).replace(".", "/")
            package = "/__init__" if (root / base).is_dir() else ""
            modules = [f"{base}/{name.name}" for name in node.names]
            found += [f"{one if (root / f'{one}.py').is_file() else base + package}.py" for one in modules]
    return found


def room_of(path: pathlib.PurePath, rooms: dict[str, list[str]]) -> str:
    module = path.with_suffix("").as_posix()
    return module if path.suffix == ".py" and module in rooms else path.parent.as_posix()


def faults(root: pathlib.Path, rooms: dict[str, list[str]]) -> list[str]:
    """Returns the faults of the includes under root, a line each."""
    may = usable(rooms)
    wrong: list[str] = []
    used: set[tuple[str, str]] = set()
    tops = sorted({room.split("/")[0] for room in rooms})
    files = [file for top in tops for file in sorted((root / top).rglob("*")) if file.suffix in SOURCES]
    for file in [*files, *sorted((root / "python/tributary").rglob("*.py"))]:
        path = file.relative_to(root)
        room = room_of(path, rooms)
        if room not in may:
            wrong.append(f"{path}: {room} is no room of the table")
            continue
        for name in used_by(file, root):
            other = room_of(pathlib.PurePosixPath(name), rooms)
            if other not in may or not (name.endswith(".capnp.h") or (root / name).is_file()):
                wrong.append(f"{path} includes {name}, which no room has")
            elif other != room:
                used.add((room, other))
                if other not in may[room]:
                    wrong.append(f"{path} includes {name}: {room} may not use {other}")
    wrong += [
        f"{room} may use {other} and does not"
        for room, direct in rooms.items()
        for other in direct
        if (room, other) not in used
    ]
    return wrong


FORWARD = re.compile(r"^(?:class|struct) (\w+);", re.MULTILINE)
DEFINED = re.compile(r"^(?:class|struct) (\w+)\b[^;{]*\{", re.MULTILINE)


def pairs(root: pathlib.Path, rooms: dict[str, list[str]]) -> list[str]:
    """Returns headers that know each other: one declares a type forward, and the type's header includes that one."""
    tops = sorted({room.split("/")[0] for room in rooms})
    text = {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
        for top in tops
        for file in sorted((root / top).rglob("*.h"))
    }
    home = {name: path for path, content in text.items() for name in DEFINED.findall(content)}

    def reached(path: str) -> set[str]:
        seen: set[str] = set()
        ahead = [path]
        while ahead:
            new = [name for name in INCLUDE.findall(text.get(ahead.pop(), "")) if name not in seen]
            seen.update(new)
            ahead += new
        return seen

    return [
        f"{path} declares {name} forward, and {home[name]} includes {path}"
        for path, content in text.items()
        for name in FORWARD.findall(content)
        if name in home and home[name] != path and path in reached(home[name])
    ]


def left_over(root: pathlib.Path) -> list[str]:
    """Returns sources that no CMake list has, and headers that no file includes.

    A list has a source by its name, as a fuzzer (`fuzz_NAME.cc`), or by a GLOB of the source's folder.
    """
    tops = [
        folder
        for folder in root.iterdir()
        if folder.is_dir() and folder.name not in {"build", "runs", ".git", ".cache"}
    ]
    files = [file for top in tops for file in sorted(top.rglob("*")) if file.is_file()]
    text = {
        file: file.read_text(encoding="utf-8") for file in files if file.suffix in SOURCES | {".c", ".txt", ".cmake"}
    }
    lists = [file for file in text if file.name == "CMakeLists.txt" or file.suffix == ".cmake"]
    words = {word for file in lists for word in re.split(r'[\s()"/>;]+', text[file])}
    globs = {
        file.parent / folder
        for file in lists
        for names in re.findall(r"file\(GLOB ([^)]*)\)", text[file])
        for folder in re.findall(r"(\S*)\*\.cc", names)
    }
    included = {name for file in text for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text[file], re.M)}
    left = []
    for file in text:
        if file.suffix in {".h", ".cuh"}:
            used = file.name in words or any(f"/{file}".endswith(f"/{name}") for name in included)
        elif file.suffix in {".cc", ".c", ".cu"}:
            used = file.name in words or file.stem.removeprefix("fuzz_") in words or file.parent in globs
        else:
            continue
        if not used:
            left.append(str(file.relative_to(root)))
    return left


class Rooms(unittest.TestCase):
    def test_product(self) -> None:
        self.assertEqual(faults(ROOT, ROOMS), [])

    def test_no_two_know_each_other(self) -> None:
        self.assertEqual(pairs(ROOT, ROOMS), [])
        with tempfile.TemporaryDirectory() as folder:
            room = pathlib.Path(folder) / "room"
            room.mkdir()
            (room / "job.h").write_text("class Lane;\nclass Job {\n  Lane& lane;\n};\n", encoding="utf-8")
            (room / "lane.h").write_text('#include "room/job.h"\nclass Lane final {\n};\n', encoding="utf-8")
            found = pairs(pathlib.Path(folder), {"room": []})
            self.assertEqual(found, ["room/job.h declares Lane forward, and room/lane.h includes room/job.h"])

    def test_every_file_is_used(self) -> None:
        self.assertEqual(left_over(ROOT), [])
        with tempfile.TemporaryDirectory() as folder:
            room = pathlib.Path(folder) / "room"
            room.mkdir()
            (room / "CMakeLists.txt").write_text("add_library(room used.cc)\n", encoding="utf-8")
            for name in ("used.h", "dead.cc", "dead.h"):
                (room / name).touch()
            (room / "used.cc").write_text('#include "room/used.h"\n', encoding="utf-8")
            self.assertEqual(left_over(pathlib.Path(folder)), ["room/dead.cc", "room/dead.h"])

    def test_each_fault_is_found(self) -> None:
        rooms: dict[str, list[str]] = {"below": [], "above": ["below"]}
        files = {"below/a.h": "", "above/b.h": '#include "below/a.h"\n'}
        self.assertEqual(self.faults_of(files, rooms), [])
        for name, text, fault in [
            ("below/c.cc", '#include "above/b.h"', "below may not use above"),
            ("aside/d.cc", "", ""),
            ("below/aside/d.cc", "", "below/aside is no room"),
            ("above/e.cc", '#include "below/gone.h"', "which no room has"),
            ("above/b.h", "", "above may use below and does not"),
        ]:
            found = self.faults_of({**files, name: text}, rooms)
            self.assertEqual(len(found), 1 if fault else 0, name)
            self.assertTrue(not fault or fault in found[0], found)

    def test_imports_are_uses(self) -> None:
        one, below, above = [f"python/tributary/{name}" for name in ("one", "below", "above")]
        table = {one: [], below: [], above: [one, below]}
        for text, fault in [
            ("if TYPE_CHECKING:\n    from tributary.above import b", ""),
            ("from tributary.above import b", f"{below} may not use {above}"),
            ("from tributary.gone import a", "which no room has"),
        ]:
            files = {f"{one}.py": "", f"{below}/a.py": text}
            files[f"{above}/b.py"] = "from tributary.below import a\nfrom tributary.one import ONE"
            found = self.faults_of(files, table)
            self.assertEqual(len(found), 1 if fault else 0, found)
            self.assertTrue(not fault or fault in found[0], found)

    def test_a_table_with_a_circle_is_refused(self) -> None:
        self.assertRaises(ValueError, usable, {"one": ["other"], "other": ["one"]})

    def faults_of(self, files: dict[str, str], rooms: dict[str, list[str]]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text + "\n", encoding="utf-8")
            return faults(root, rooms)


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1))
    unittest.main()
