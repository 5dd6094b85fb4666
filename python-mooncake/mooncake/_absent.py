"""What is said of the parts of Mooncake that are not in this package."""

OFFICIAL = "mooncake-transfer-engine"


def refuse(module: str, purpose: str) -> ImportError:
    """The error of a module that only the official package has."""
    return ImportError(
        f"{module} is not part of tiffin-mooncake: {purpose}\n\n"
        f"hint: the package {OFFICIAL} has it; install that in an environment without tiffin-mooncake",
        name=module,
    )
