//! The ledger on real SQLite files: what goes in comes out, what must not be is refused, and what breaks is
//! told apart.
#[path = "ledger/happen.rs"]
mod happen;
#[path = "ledger/kit.rs"]
mod kit;
#[path = "ledger/roundtrip.rs"]
mod roundtrip;
