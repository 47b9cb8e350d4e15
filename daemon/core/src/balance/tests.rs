//! Windows, detectors and refits, by example.
