"""The command `tiffin`, so that installing the wheel is enough to have it."""

import signal
import sys

from . import _native


def main() -> None:
    """Run the command line with the arguments of this process and leave with its status."""
    # Python's handler only sets a flag, which the interpreter would not check before the command has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.cli(sys.argv))


if __name__ == "__main__":
    main()
