"""The modules of Mooncake that are not in this package. Importing one says which package has it."""

OFFICIAL = "mooncake-transfer-engine"

#: Each with what it is for.
MODULES = {
    "mooncake.allocator": "it allocates memory for transports that the store does not have here",
    "mooncake.engine": (
        "it moves bytes without a store. A store needs none: leave the argument engine of setup out"
    ),
    "mooncake.ep": "it exchanges tokens between experts",
    "mooncake.mooncake_ep_buffer": "it exchanges tokens between experts",
    "mooncake.pg": "it is a process group for collective operations",
}


def refuse(module: str) -> ImportError:
    """The error of a module that only the official package has."""
    return ImportError(
        f"{module} is not part of tiffin-mooncake: {MODULES[module]}\n\n"
        f"hint: the package {OFFICIAL} has it; install that in an environment without tiffin-mooncake",
        name=module,
    )
