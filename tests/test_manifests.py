"""Kubernetes' manifests: valid, as the schemas say, of one mind with each other; daemons take what they tell them."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import kubernetes_validate
import yaml

FOLDER = pathlib.Path(sys.argv[1]) / "packaging" / "kubernetes"
PROGRAMS = pathlib.Path(sys.argv[2])


def manifests() -> list[dict[str, Any]]:
    return [one for file in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]


def the(kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


class Manifests(unittest.TestCase):
    def test_valid(self) -> None:
        for one in manifests():
            with self.subTest(kind=one["kind"], name=one["metadata"]["name"]):
                kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)

    def test_a_wrong_one_is_found(self) -> None:
        wrong = the("Job", "tributary-training")
        wrong["spec"]["paralelism"] = 2
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)

    def test_of_one_mind(self) -> None:
        """Numbers and names that are said in several places."""
        config = the("ConfigMap", "tributary")["data"]
        servers = the("StatefulSet", "tributary-server")["spec"]
        self.assertIn(f"servers = {servers['replicas']}\n", config["server.toml"])
        self.assertEqual(servers["serviceName"], the("Service", "tributary-servers")["metadata"]["name"])
        job = the("Job", "tributary-training")["spec"]
        self.assertEqual(job["completions"], job["parallelism"])
        pod = job["template"]["spec"]
        environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        self.assertEqual(environment["WORLD_SIZE"], str(job["completions"]))
        self.assertIn(f'socket = "{environment["TRIBUTARY_SOCKET"]}"', config["worker.toml"])
        lanes = 4
        self.assertIn(f"lanes = {lanes}\n", config["server.toml"])
        ports = the("NetworkPolicy", "tributary-servers")["spec"]["ingress"][0]["ports"]
        self.assertIn({"protocol": "TCP", "port": 7080, "endPort": 7080 + lanes - 1}, ports)
        for spec in (servers["template"]["spec"], pod):
            names = {volume["name"] for volume in spec["volumes"]} | {
                claim["metadata"]["name"] for claim in servers["volumeClaimTemplates"]
            }
            for container in spec["containers"] + spec.get("initContainers", []):
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, names)

    def mounted(
        self, container: dict[str, Any], volumes: list[dict[str, Any]], environment: dict[str, str]
    ) -> set[str]:
        """Paths of the files of secrets with private keys or tokens, `secret/key` each, that a container sees."""
        secret = {one["name"]: one["secret"] for one in volumes if "secret" in one}
        seen = set()
        for mount in container["volumeMounts"]:
            if mount["name"] != "keys":
                continue
            names = {one["name"] for one in container["env"]}
            within = mount.get("subPathExpr", "")
            for name, value in environment.items():
                if f"$({name})" in within:
                    self.assertIn(name, names, "is a variable of the container")
                    within = within.replace(f"$({name})", value)
            self.assertNotIn("$", within)
            for item in secret["keys"].get("items", [{"key": within, "path": within}]):
                if item["path"] == within or item["path"].startswith(within + "/"):
                    seen.add(item["key"])
        return seen

    def test_a_pod_sees_its_own_key_and_no_other(self) -> None:
        servers = the("StatefulSet", "tributary-server")["spec"]
        pod = servers["template"]["spec"]
        for index in range(servers["replicas"]):
            environment = {"POD_NAME": f"tributary-server-{index}"}
            own = {"coordinator.key", "admin.token"} if index == 0 else {f"server-{index}.key"}
            self.assertEqual(self.mounted(pod["containers"][0], pod["volumes"], environment), own)
        job = the("Job", "tributary-training")["spec"]
        pod = job["template"]["spec"]
        for index in range(job["completions"]):
            environment = {"JOB_COMPLETION_INDEX": str(index)}
            self.assertEqual(self.mounted(pod["initContainers"][0], pod["volumes"], environment), {f"node-{index}.key"})
        trainer = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        self.assertLessEqual(trainer, {"run", "shm"}, "neither keys nor what the worker is started with")

    def test_memory_is_limited(self) -> None:
        for spec in (
            the("StatefulSet", "tributary-server")["spec"]["template"]["spec"],
            the("Job", "tributary-training")["spec"]["template"]["spec"],
        ):
            for container in spec["containers"] + spec.get("initContainers", []):
                self.assertIn("memory", container["resources"]["limits"], container["name"])
                self.assertNotIn("latest", container["image"])
            for volume in spec["volumes"]:
                if "emptyDir" in volume:
                    self.assertIn("sizeLimit", volume["emptyDir"], volume["name"])

    def starts(self, folder: pathlib.Path, script: str, daemon: str, environment: dict[str, str]) -> str:
        """Runs a start script of the manifests in `folder`; the daemon only checks its configuration."""
        config = the("ConfigMap", "tributary")["data"]
        for name, text in config.items():
            text = text.replace("/etc/tributary", f"{folder}/etc").replace("/run/tributary-worker", f"{folder}/run")
            text = text.replace("/run/tributary", f"{folder}/run")
            text = text.replace(f"exec {daemon} ", f"exec {PROGRAMS}/{daemon} --check-config ")
            (folder / "etc" / "config" / name).write_text(text)
        done = subprocess.run(
            ["sh", str(folder / "etc" / "config" / script)],
            env={**os.environ, "NODE_NAME": "machine-1", "POD_IP": "10.1.2.3", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return f"{done.returncode}\n{done.stdout}{done.stderr}"

    def test_the_daemons_take_them(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in ("etc/config", "etc/public", "run"):
                (folder / part).mkdir(parents=True)
            keys = folder / "keys"
            pods_keys = folder / "etc" / "keys"

            def make(*words: str) -> None:
                subprocess.run([str(PROGRAMS / "tributary"), "keys", *words], check=True, capture_output=True)

            make("init", str(keys))
            make("new", "server-1", "--role", "server", "--dir", str(keys))
            make("new", "node-0", "--role", "worker", "--dir", str(keys))
            (folder / "etc" / "authorized").symlink_to(keys / "authorized")
            (folder / "etc" / "public" / "coordinator.pub").symlink_to(keys / "coordinator.pub")
            for script, daemon, environment, files, telling in (
                (
                    "start-server",
                    "tributary-server",
                    {"HOSTNAME": "tributary-server-0"},
                    {"server.key": "coordinator.key", "admin.token": "admin.token"},
                    'coordinator = "tcp://10.1.2.3:7070"',
                ),
                (
                    "start-server",
                    "tributary-server",
                    {"HOSTNAME": "tributary-server-1"},
                    {"server.key": "server-1.key"},
                    'coordinator = "tcp://tributary-server-0.tributary-servers:7070"',
                ),
                (
                    "start-worker",
                    "tributary-worker",
                    {"JOB_COMPLETION_INDEX": "0"},
                    {"node.key": "node-0.key"},
                    'name = "node-0"',
                ),
            ):
                with self.subTest(script=script, **environment):
                    shutil.rmtree(pods_keys, ignore_errors=True)
                    pods_keys.mkdir()
                    for target, source in files.items():
                        shutil.copy(keys / source, pods_keys / target)
                    said = self.starts(folder, script, daemon, environment)
                    self.assertTrue(said.startswith("0\n"), said)
                    file = "server.toml" if daemon == "tributary-server" else "worker.toml"
                    self.assertIn(telling, (folder / "run" / file).read_text())
            with self.subTest("a node without a key"):
                shutil.rmtree(pods_keys)
                (pods_keys / "node.key").mkdir(parents=True)  # as Kubernetes does with what the secret has not
                said = self.starts(folder, "start-worker", "tributary-worker", {"JOB_COMPLETION_INDEX": "7"})
                self.assertTrue(said.startswith("2\n"), said)
                self.assertIn("node.key", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
