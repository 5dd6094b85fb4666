"""The command `mooncake_master`: Tiffin's master with Mooncake's flags."""

import sys

from tiffin._native import mooncake as _native


def main() -> int:
    """Run a master until a signal ends it. Its flags are Mooncake's: see `mooncake_master --help`."""
    return _native.mooncake_master(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
