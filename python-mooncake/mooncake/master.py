"""The command `mooncake_master`: Tiffin's master with Mooncake's flags."""

import signal
import sys

from tiffin._native import mooncake as _native


def main() -> int:
    """Run a master until a signal arrives. Its flags are Mooncake's: see `mooncake_master --help`."""
    # The master handles Ctrl-C itself; the interpreter must not raise an interrupt in it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.mooncake_master(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
