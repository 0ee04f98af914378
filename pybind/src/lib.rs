//! The Python face: translation only.
