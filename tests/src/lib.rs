//! What the tests of the whole share: the simulated world, and what drives real processes.
//!
//! Nothing of this is in the product. `world` runs the production decisions on virtual time.

pub mod script;
pub mod world;
