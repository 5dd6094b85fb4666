"""Mooncake's return codes that the Python parts return or expect. The others are in Rust."""

INVALID = -600
NOT_FOUND = -704
NOT_SUPPORTED = -1012
FILE_NOT_FOUND = -1100
