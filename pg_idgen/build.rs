//! Builds the C shim against the headers of the server that `PGRX_PG_CONFIG_PATH` names.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=c/shim.c");
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    let pg_config = std::env::var("PGRX_PG_CONFIG_PATH").unwrap_or_else(|_| "pg_config".into());
    match Command::new(&pg_config).arg("--includedir-server").output() {
        Ok(found) if found.status.success() => {
            let include = String::from_utf8_lossy(&found.stdout);
            cc::Build::new()
                .file("c/shim.c")
                .include(include.trim())
                .warnings(false)
                .compile("idgen_shim");
        }
        _ => {
            println!("cargo::error={pg_config} --includedir-server does not answer: set PGRX_PG_CONFIG_PATH")
        }
    }
}
