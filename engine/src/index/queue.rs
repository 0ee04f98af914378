//! An indexed priority queue.
