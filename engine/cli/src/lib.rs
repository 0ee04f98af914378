//! The `lossfeed` command line as one library function.
