//! The allowed arrows of the house, as a test.
