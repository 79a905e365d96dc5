//! What the extension and the daemon must agree on before they talk.

/// Version of the control functions (`idgen.server_clock`, `idgen.install_lease`, …): their names,
/// arguments and meaning. Raised by every incompatible change; both sides refuse any other value.
pub const CONTRACT_VERSION: i32 = 1;
