"""The command `tiffin`, which the wheel installs."""

import signal
import sys

from . import _native


def main() -> None:
    """Run the command line with the arguments of this process, and exit with its status."""
    # Python's handler only sets a flag, which the interpreter would not check before the command ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.cli(sys.argv))


if __name__ == "__main__":
    main()
