//! Compiles `evenkeel/v1/*.proto` with protox, so that no protoc is needed.
use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 6] = ["common", "leases", "jobs", "profiles", "plans", "node"];
    let files = FILES.map(|f| format!("evenkeel/v1/{f}.proto"));
    println!("cargo:rerun-if-changed=evenkeel");
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("evenkeel.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::SmallBuffers")
        .compile_fds(descriptors)?;
    Ok(())
}
