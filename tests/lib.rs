//! Nothing is here: a package needs a library target, and the tests stand beside it.
