"""Features of Mooncake that this package does not have. Each reports that with its name."""

import sys

from mooncake._codes import NOT_SUPPORTED


def _refuse(call: str, feature: str) -> int:
    line = f"{call} failed ({NOT_SUPPORTED}): not supported: {feature}"
    print(f"mooncake.store: {line}", file=sys.stderr)
    return NOT_SUPPORTED


class MooncakeDistributedNoFRegister:
    """Registers NVMe-oF namespaces with a master. That is not supported: every call returns -1012."""

    __module__ = "mooncake.store"

    def real_register(
        self, nqn: str, nsid: int, traddr: str, trsvcid: int, base: int, size: int, master: str, /
    ) -> int:
        """Returns -1012."""
        return _refuse("real_register", "NVMe-oF")

    def real_unregister_by_endpoint(
        self, nqn: str, nsid: int, traddr: str, trsvcid: int, master: str, /
    ) -> int:
        """Returns -1012."""
        return _refuse("real_unregister_by_endpoint", "NVMe-oF")
