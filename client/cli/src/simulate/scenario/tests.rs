//! tests come
