//! Empty: this crate is only its dependencies. See `Cargo.toml`.
