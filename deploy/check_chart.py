"""Lints and renders the Helm chart with helm, and compares every object with the schemas of Kubernetes.

    python deploy/check_chart.py

It needs the packages of `python/requirements-chart.txt`. helm is the program beside Python, or in the path.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import kubernetes_validate
import yaml

CHART = pathlib.Path(__file__).parent / "helm" / "tiffin"
# The first version that the chart names, and the latest one that is known.
VERSIONS = ("1.26", kubernetes_validate.latest_version())
ALWAYS = {"Service", "StatefulSet", "DaemonSet"}
# Custom resources: Kubernetes has no schema for them.
CUSTOM = {"ServiceMonitor"}
EVERYTHING = {
    "token.existingSecret": "tiffin-token",
    "tls.existingSecret": "tiffin-tls",
    "serviceMonitor.enabled": "true",
    "pullSecrets": "{first,second}",
    "image.tag": "1.2.3",
    "master.settings.TIFFIN_MASTER_SLOW": "2s",
    "master.state.storageClass": "fast",
    "master.nodeSelector.role": "control",
    "master.tolerations[0].key": "control",
    "master.tolerations[0].operator": "Exists",
    "nodes.hostNetwork": "false",
    "nodes.poolHostPath": "/dev/shm/tiffin",
    "nodes.disks[0].path": "/mnt/nvme0/tiffin",
    "nodes.disks[0].size": "500GiB",
    "nodes.disks[1].path": "/mnt/nvme1/tiffin",
    "nodes.disks[1].size": "500GiB",
    "nodes.settings.TIFFIN_LOG_LEVEL": "debug",
    "nodes.nodeSelector.role": "gpu",
    "nodes.tolerations[0].key": "gpu",
    "nodes.tolerations[0].operator": "Exists",
}
RENDERED = {
    "a token in the values": ({"token.value": "secret"}, ALWAYS | {"Secret"}),
    "every value": (EVERYTHING, ALWAYS | {"ServiceMonitor"}),
}
REFUSED = {
    "set token.existingSecret or token.value": {},
    "nodes.memory": {"token.value": "secret", "nodes.memory": "lots"},
    "runAsUser": {"token.value": "secret", "runAsUser": "0"},
    "nods": {"token.value": "secret", "nods.memory": "1GiB"},
}


def helm(*arguments: str, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
    program = shutil.which("helm", path=path)
    if not program:
        sys.exit("error: helm is not installed\n\nhint: run `make check-chart`, which installs it")
    options = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return subprocess.run([program, *arguments, str(CHART), *options], capture_output=True, text=True)


def rendered(values: dict[str, str]) -> list[dict]:
    linted = helm("lint", "--strict", values=values)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    done = helm("template", "store", values=values)
    assert done.returncode == 0, done.stderr
    return [it for it in yaml.safe_load_all(done.stdout) if it]


def violation(thing: dict, version: str) -> str | None:
    """What is wrong with an object, or None."""
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{error.message} at {error.path}"
    return None


def check_objects(objects: list[dict], kinds: set[str]) -> None:
    assert {it["kind"] for it in objects} == kinds, objects
    for thing in objects:
        if thing["kind"] in CUSTOM:
            continue
        for version in VERSIONS:
            problem = violation(thing, version)
            assert problem is None, f"{thing['kind']} in Kubernetes {version}: {problem}"


def check_the_schemas_notice(objects: list[dict]) -> None:
    """A field that Kubernetes does not know is a violation, so the checks above can fail."""
    nodes = next(it for it in objects if it["kind"] == "DaemonSet")
    nodes["spec"]["template"]["spec"]["hostNetworks"] = True
    assert all(violation(nodes, version) for version in VERSIONS)


def main() -> None:
    for values, kinds in RENDERED.values():
        objects = rendered(values)
        check_objects(objects, kinds)
    check_the_schemas_notice(objects)
    for reason, values in REFUSED.items():
        done = helm("template", "store", values=values)
        assert done.returncode != 0 and reason in done.stderr, (reason, done.stderr)
    print(f"the chart renders, and fits Kubernetes {' and '.join(VERSIONS)}")


if __name__ == "__main__":
    main()
