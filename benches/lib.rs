//! Nothing is here: a package needs a library target, and the benchmarks stand beside it.
