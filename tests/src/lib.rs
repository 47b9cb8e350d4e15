//! What the tests of the whole share: the simulated world, and what drives real processes.
//!
//! Nothing of this is in the product. `world` runs the production decisions on virtual time, `corun`
//! whole pipelines on the emulated GPU's model.

pub mod corun;
pub mod script;
pub mod world;
