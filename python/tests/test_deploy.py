"""The files in `deploy/`: settings that load, units that systemd accepts, values that fit their schema."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import jsonschema
import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tiffin"
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def tiffin(*arguments, **environment):
    command = [sys.executable, "-m", "tiffin", *map(str, arguments)]
    return subprocess.run(command, env={"HOME": "/nonexistent"} | environment, capture_output=True, text=True)


def settings():
    """Every setting of the program, by its environment variable."""
    lines = tiffin("settings", "--json").stdout.splitlines()
    return {line["variable"]: line for line in map(json.loads, lines)}


def test_settings_file_is_valid(tmp_path):
    path = DEPLOY / "tiffin.toml"
    checked = tiffin("config", "check", path, "--json", TIFFIN_TOKEN="secret")
    assert checked.returncode == 0, checked.stderr
    told = json.loads(checked.stdout)
    assert told["master"]["listen"] == "0.0.0.0:7400" and told["node"]["memory"] == 8 << 30
    # Servers that others can reach need a token.
    assert tiffin("config", "check", path).returncode == 1


def test_commented_settings_are_valid_too(tmp_path):
    text = (DEPLOY / "tiffin.toml").read_text()
    path = tmp_path / "tiffin.toml"
    text = re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE)
    # With several masters the state is in etcd.
    path.write_text(re.sub(r"^state_dir = .*$", "", text, flags=re.MULTILINE))
    assert path.read_text().count(" = ") > 20
    checked = tiffin("config", "check", path, "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["node"]["disks"] == 1


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_systemd_accepts_the_units(tmp_path, unit):
    # The program and the user of the units are not on this machine.
    text = unit.read_text().replace("/usr/local/bin/tiffin", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text.replace("User=tiffin", "User=root").replace("Group=tiffin", "Group=root"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
    )
    told = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert (checked.returncode, told) == (0, []), checked.stderr
    # It does find mistakes.
    copy.write_text(text.replace("[Service]", "[Service]\nRestart=sometimes"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
    )
    assert "sometimes" in checked.stderr


def test_units_and_image_run_commands_that_exist():
    starts = [
        line.partition("=")[2].split()[1:]
        for unit in (DEPLOY / "systemd").glob("*.service")
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart")
    ]
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    starts += [service["command"] for service in services.values() if "tiffin" in service["image"]]
    starts += re.findall(r'args: \["(\w+)"', "".join(map(pathlib.Path.read_text, templates())))
    names = {start if isinstance(start, str) else start[0] for start in starts}
    assert names == {"config", "master", "node"}
    for name in names:
        assert tiffin(name, "--help").returncode == 0


def templates():
    return sorted((CHART / "templates").glob("*.yaml"))


def test_variables_are_settings():
    known = set(settings())
    assert {"TIFFIN_TOKEN", "TIFFIN_MASTER", "TIFFIN_NODE_MEMORY"} <= known
    # Variables of Compose and of the program that names its settings file.
    known |= {"TIFFIN_IMAGE", "TIFFIN_CONFIG"}
    for path in [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.service"), DEPLOY / "Dockerfile"]:
        used = set(re.findall(r"\bTIFFIN_[A-Z_]+\b", path.read_text()))
        assert used <= known, (path, used - known)


def test_compose_file():
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"grafana", "master", "node-1", "node-2", "prometheus"}
    for service in services.values():
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]
        for config in service.get("configs", []):
            assert provided(compose, config["source"])
        # Nothing is open to other hosts without a decision of the operator.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    # Two nodes need names of their own, to find their memory again.
    names = [services[node]["command"][-1] for node in ("node-1", "node-2")]
    assert len(set(names)) == 2
    # Without a token nothing starts.
    assert services["node-1"]["environment"]["TIFFIN_TOKEN"].startswith("${TIFFIN_TOKEN:?")


def provided(compose, name):
    """The contents of a file that Compose puts into a container. JSON is YAML, too."""
    config = compose["configs"][name]
    text = config["content"] if "content" in config else (DEPLOY / "compose" / config["file"]).read_text()
    return yaml.safe_load(text)


def test_compose_provisions_the_dashboard_and_the_alerts():
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())

    def files(service):
        """What a service finds at its start, by path."""
        configs = compose["services"][service]["configs"]
        return {config["target"]: provided(compose, config["source"]) for config in configs}

    prometheus, grafana = files("prometheus"), files("grafana")
    scraped = prometheus["/etc/prometheus/prometheus.yml"]
    for rules in scraped["rule_files"]:
        assert prometheus[rules]["groups"]
    targets = [
        it for job in scraped["scrape_configs"] for group in job["static_configs"] for it in group["targets"]
    ]
    # Only the master is scraped: nodes and clients report to it.
    assert targets == ["master:7401"]
    assert compose["services"]["master"]["environment"]["TIFFIN_MASTER_HTTP"].endswith(":7401")
    provisioning = "/etc/grafana/provisioning"
    source = grafana[f"{provisioning}/datasources/tiffin.yaml"]["datasources"][0]
    host, port = source["url"].removeprefix("http://").split(":")
    assert host in compose["services"] and f":{port}:{port}" in compose["services"][host]["ports"][0]
    folder = grafana[f"{provisioning}/dashboards/tiffin.yaml"]["providers"][0]["options"]["path"]
    dashboards = [
        it for path, it in grafana.items() if pathlib.PurePath(path).parent == pathlib.PurePath(folder)
    ]
    assert [it["uid"] for it in dashboards] == ["tiffin"]
    # The dashboard takes its data from the source that is provisioned.
    variable = dashboards[0]["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
    assert {panel["datasource"]["uid"] for panel in dashboards[0]["panels"]} == {f"${{{variable['name']}}}"}


def test_chart_values_fit_their_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    for path, wrong in [
        (("nodes", "memory"), "lots"),
        (("nodes", "disks"), [{"path": "relative", "size": "1GiB"}]),
        (("master", "port"), 0),
        (("master", "settings"), {"MASTER_AWAY": "1m"}),
        (("token", "value"), "two words"),
        (("runAsUser",), 0),
        (("unknown",), 1),
    ]:
        changed = json.loads(json.dumps(values))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, schema)


def test_chart_has_the_version_of_the_program():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


# `make check-chart` renders them with helm.
@pytest.mark.parametrize("template", templates(), ids=lambda path: path.name)
def test_template_uses_values_that_exist(template):
    """Every value and template that the chart names exists, and every block is closed."""
    text = template.read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in re.findall(r"\.Values((?:\.\w+)+)", text):
        inner = values
        for part in name.split(".")[1:]:
            assert part in inner, f"{template.name}: .Values{name}"
            inner = inner[part]
    defined = set(re.findall(r'define "([\w.]+)"', (CHART / "templates" / "_helpers.tpl").read_text()))
    assert set(re.findall(r'include "([\w.]+)"', text)) <= defined
    assert text.count("{{") == text.count("}}")
    opened = len(re.findall(r"\{\{-? *(?:if|range|with|define)\b", text))
    assert opened == len(re.findall(r"\{\{-? *end\b", text))
    assert "\t" not in text


def test_page_and_files_name_the_same_ports():
    page = (ROOT / "docs" / "deploy.md").read_text()
    files = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    ports = set(re.findall(r"\b740\d\b", files)) - {"7400"}
    assert ports == {"7401", "7402", "7403"}
    for port in ports:
        assert f"| {port} " in page


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool; `make check-alerts` installs it")
def test_alert_rules_are_valid():
    for command, file in (("check", "alerts.yml"), ("test", "alerts_test.yml")):
        rules = DEPLOY / "prometheus" / file
        checked = subprocess.run(["promtool", command, "rules", rules], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
