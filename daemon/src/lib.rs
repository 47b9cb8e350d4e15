//! Placeholder until its first code lands.
