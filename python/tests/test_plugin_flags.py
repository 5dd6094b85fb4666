"""The flags and settings on the pages of docs/integrations, read by the packages themselves.

Only the real packages know their flags, so that these tests run with `make check-plugins` alone.
"""

import argparse
import json
import os
import pathlib
import re
import shlex

import pytest

import frameworks

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "integrations"

pytestmark = pytest.mark.skipif(
    not frameworks.IS_REAL, reason="needs the real packages: `make check-plugins`"
)


def needed(name):
    try:
        return __import__(name, fromlist=["_"])
    except Exception as error:
        pytest.skip(f"{name} cannot be imported here: {type(error).__name__}: {error}")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page, start):
    """The words of each command on a page that begins like this."""
    texts = [text.replace("\\\n", " ") for text in blocks(page, "sh")]
    return [shlex.split(text[text.index(start) :]) for text in texts if start in text]


def test_sglang_accepts_the_flags():
    parser = argparse.ArgumentParser()
    needed("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    (words,) = commands("sglang.md", "python -m sglang.launch_server")
    flags = parser.parse_args(words[3:])
    assert flags.hicache_storage_backend == "dynamic" and flags.enable_hierarchical_cache
    assert json.loads(flags.hicache_storage_backend_extra_config)["class_name"] == "TiffinHiCache"


def test_vllm_accepts_the_flags(monkeypatch):
    platforms = needed("vllm.platforms")
    # Defaults depend on the device, and this machine may have none that vLLM knows.
    monkeypatch.setattr(platforms, "_current_platform", needed("vllm.platforms.cpu").CpuPlatform())
    arguments = needed("vllm.engine.arg_utils").EngineArgs
    parser = arguments.add_cli_args(needed("vllm.utils.argparse_utils").FlexibleArgumentParser())
    found = commands("vllm.md", "vllm serve") + commands("lmcache.md", "vllm serve")
    configs = [parser.parse_args(["--model", *words[2:]]).kv_transfer_config for words in found]
    connectors = ["OffloadingConnector", "TiffinConnector", "LMCacheConnectorV1"]
    assert [it.kv_connector for it in configs] == connectors
    assert configs[0].kv_connector_extra_config["secondary_tiers"][0]["type"] == "TiffinTier"


def test_lmcache_reads_the_settings(tmp_path):
    module = needed("lmcache.v1.config")
    (text,) = blocks("lmcache.md", "yaml")
    path = tmp_path / "lmcache.yaml"
    path.write_text(text)
    config = module.LMCacheEngineConfig.from_file(os.fspath(path))
    assert config.remote_storage_plugins == ["tiffin"]
    assert config.extra_config["remote_storage_plugin.tiffin.class_name"] == "TiffinAdapter"
