//! Curves: what a fit says at, between and beyond its points.
