//! Judgements, by example.
