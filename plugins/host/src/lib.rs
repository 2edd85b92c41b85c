//! Inspects, loads and calls plugins.
