//! Compiles the part of etcd's wire that is spoken here, with protox: no protoc is needed.
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=etcd");
    let descriptors = protox::compile(["etcd.proto"], ["etcd"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
