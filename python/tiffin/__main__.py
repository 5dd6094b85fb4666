"""The command `tiffin`, so that installing the wheel is enough to have it."""

import sys

from . import _native


def main() -> None:
    """Run the command line with the arguments of this process and leave with its status."""
    sys.exit(_native.cli(sys.argv))


if __name__ == "__main__":
    main()
