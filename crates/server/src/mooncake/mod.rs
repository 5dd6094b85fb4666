//! The command `mooncake_master`.
