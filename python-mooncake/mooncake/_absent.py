"""The modules of Mooncake that are not in this package. Importing one names the package that has it."""

OFFICIAL = "mooncake-transfer-engine"

#: Each module with its purpose.
MODULES = {
    "mooncake.allocator": "it allocates memory for transports that are not supported",
    "mooncake.engine": (
        "it moves bytes without a store. A store needs no engine: leave out the argument engine of setup"
    ),
    "mooncake.ep": "it exchanges tokens between experts",
    "mooncake.mooncake_ep_buffer": "it exchanges tokens between experts",
    "mooncake.pg": "it is a process group for collective operations",
}


def refuse(module: str) -> ImportError:
    """The error for a module that only the official package has."""
    return ImportError(
        f"{module} is not part of tiffin-mooncake: {MODULES[module]}\n\n"
        f"hint: install the package {OFFICIAL} in an environment without tiffin-mooncake",
        name=module,
    )
