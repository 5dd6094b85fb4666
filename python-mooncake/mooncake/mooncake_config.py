"""The settings of a store for Mooncake's services and connectors, from a JSON file or variables."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824

_CLIENT_HTTP_PORT = 9300
_TENANT = "default"
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
_SIZES = ("global_segment_size", "local_buffer_size")
_KNOWN_PROTOCOLS = {
    *("ascend", "barex", "cxl", "efa", "hip", "maca", "musa", "nvlink", "nvlink_intra", "nvmeof", "rdma"),
    *("rpc_only", "sunrise_link", "tcp", "ub", "ubshmem"),
}
_TRUE = frozenset(("true", "1", "yes", "on", "enable"))
_FALSE = frozenset(("false", "0", "no", "off", "disable", ""))
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

_log = logging.getLogger(__name__)


@dataclass
class MooncakeConfig:
    """The arguments of `MooncakeDistributedStore.setup`, under the names of Mooncake's settings file.

    >>> MooncakeConfig("localhost", "P2PHANDSHAKE", 0, 0, "TCP", "", "127.0.0.1:50051").protocol
    'tcp'
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = _TENANT
    enable_client_http_server: bool = False
    client_http_port: int = _CLIENT_HTTP_PORT

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"Invalid protocol: {self.protocol!r}")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _KNOWN_PROTOCOLS:
            _log.warning("unknown protocol %r", self.protocol)
        for name in _SIZES:
            size = getattr(self, name)
            if size < 0:
                raise ValueError(f"Invalid {name}: {size}. Size must be non-negative.")
        for name in _REQUIRED:
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"Config field '{name}' must be a non-empty string, got {text!r}.")

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Read a JSON object. Unknown keys are ignored."""
        with open(file_path, encoding="utf-8") as file:
            return _from_mapping(json.load(file))

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """Read the file that `MOONCAKE_CONFIG_PATH` names, or the variables `MOONCAKE_MASTER` and so on."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if "MOONCAKE_MASTER" not in os.environ:
            raise ValueError(
                "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set."
            )
        given = {field: os.environ[name] for field, name in _VARIABLES.items() if name in os.environ}
        return _from_mapping({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **given})

    def to_setup(self) -> dict[str, Any]:
        """The argument of `MooncakeDistributedStore.setup`."""
        return {
            "local_hostname": self.local_hostname,
            "metadata_server": self.metadata_server,
            "global_segment_size": self.global_segment_size,
            "local_buffer_size": self.local_buffer_size,
            "protocol": self.protocol,
            "rdma_devices": self.device_name or "",
            "master_server_addr": self.master_server_address,
            "enable_ssd_offload": self.enable_ssd_offload,
            "ssd_offload_path": self.ssd_offload_path,
            "tenant_id": self.tenant_id,
            "enable_client_http_server": self.enable_client_http_server,
            "client_http_port": self.client_http_port,
        }


_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _from_mapping(given: Mapping[str, Any]) -> MooncakeConfig:
    for name in _REQUIRED:
        if name not in given:
            raise ValueError(f"Missing required config field: {name}")
    tenant = given.get("tenant_id", _TENANT)
    return MooncakeConfig(
        local_hostname=given["local_hostname"],
        metadata_server=given["metadata_server"],
        global_segment_size=_size(given.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=_size(given.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=given.get("protocol", "tcp"),
        device_name=given.get("device_name", ""),
        master_server_address=given["master_server_address"],
        enable_ssd_offload=_boolean(given.get("enable_ssd_offload", False)),
        ssd_offload_path=given.get("ssd_offload_path", ""),
        tenant_id=_TENANT if tenant is None else tenant,
        enable_client_http_server=_boolean(given.get("enable_client_http_server", False)),
        client_http_port=int(given.get("client_http_port", _CLIENT_HTTP_PORT)),
    )


def _size(value: Any) -> int:
    """A number of bytes, or text such as `1.5 GB` in powers of 1024."""
    if not isinstance(value, str):
        return int(value)
    text = value.strip().lower()
    if not text:
        raise ValueError("Invalid segment size: empty string")
    number = text.removesuffix("b")
    unit = number[-1:] if number[-1:] in "kmgt" else ""
    number = number.removesuffix(unit).strip()
    if not number:
        raise ValueError(f"Invalid segment size: missing number before '{text}'")
    return int(float(number) * (1 << _UNITS[unit]))


def _boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    text = value.strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(f"Invalid boolean value: {value!r}")
    return text in _TRUE
