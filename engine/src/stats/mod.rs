//! (this room is being built)
