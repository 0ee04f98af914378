//! Everything a user tunes, as plain values.
