"""The package `mooncake`, served by Tiffin."""
