//! `[store]` of kind etcd: members, certificates and user.

use super::{Checked, RawStore, StoreConfig};
use crate::lease::{EtcdSecurity, EtcdUser, Password, identities_at_once};
use crate::tls::{ClientFiles, TlsFiles};
use std::path::PathBuf;

/// Keys that only this kind knows.
pub(super) fn given(raw: &RawStore) -> [(&'static str, bool); 9] {
    [
        ("endpoints", raw.endpoints.is_some()),
        ("prefix", raw.prefix.is_some()),
        ("max_txn_ops", raw.max_txn_ops.is_some()),
        ("ca_file", raw.ca_file.is_some()),
        ("cert_file", raw.cert_file.is_some()),
        ("key_file", raw.key_file.is_some()),
        ("username", raw.username.is_some()),
        ("password_file", raw.password_file.is_some()),
        ("password", raw.password.is_some()),
    ]
}

/// etcd's own default of `--max-txn-ops`.
const TXN_OPS: u64 = 128;
/// The keys of a new cell are made by so many.
const TXN_OPS_MIN: u64 = 64;
/// A transaction of more than these would be above the 1.5 MiB that etcd takes as one request.
const TXN_OPS_MAX: u64 = 4_096;

pub(super) fn check_txn_ops(given: Option<u64>) -> Checked<usize> {
    let ops = given.unwrap_or(TXN_OPS);
    usize::try_from(ops)
        .ok()
        .filter(|_| (TXN_OPS_MIN..=TXN_OPS_MAX).contains(&ops))
        .ok_or_else(|| format!("store.max_txn_ops = {ops} is not in {TXN_OPS_MIN} to {TXN_OPS_MAX}"))
}

/// Can a server have so many identities of a class in this store?
pub(super) fn check_count(store: &StoreConfig, count: usize) -> Checked<()> {
    let StoreConfig::Etcd { txn_ops_max, .. } = store else {
        return Ok(());
    };
    let count_max = identities_at_once(*txn_ops_max);
    if count <= count_max {
        return Ok(());
    }
    Err(format!(
        "etcd leases them in one transaction, and in one of {txn_ops_max} operations there is room for {count_max} (hint: \
         set --max-txn-ops of every member to {needed} or more, and store.max_txn_ops to the same; or lease less)",
        needed = 2 * count + 2
    ))
}

/// The members, all of them with TLS or none.
pub(super) fn check_endpoints(endpoints: &[String]) -> Checked<()> {
    if endpoints.is_empty() {
        return Err("store.endpoints is empty".into());
    }
    for endpoint in endpoints {
        let authority = endpoint
            .strip_prefix("http://")
            .or_else(|| endpoint.strip_prefix("https://"))
            .unwrap_or_default();
        if authority.is_empty() || authority.contains(['/', '@']) {
            return Err(format!(
                "store.endpoints: \"{endpoint}\" is not of the form https://host:port or http://host:port"
            ));
        }
    }
    Ok(())
}

/// How the members are trusted, and how they trust us. What would end in plain text by surprise is refused.
pub(super) fn check_security(raw: &RawStore, endpoints: &[String]) -> Checked<EtcdSecurity> {
    let (with, without): (Vec<&String>, Vec<&String>) = endpoints
        .iter()
        .partition(|endpoint| endpoint.starts_with("https://"));
    let files = check_files(raw)?;
    let tls = match (files, with.first(), without.first()) {
        (Some(_), _, Some(plain)) => {
            return Err(format!(
                "store.endpoints: {plain} is not https://, and store.ca_file asks for TLS; there is no plain text \
                 beside it"
            ));
        }
        (None, Some(secure), _) => {
            return Err(format!(
                "store.endpoints: {secure} needs store.ca_file, the authorities to believe"
            ));
        }
        (files, _, _) => files,
    };
    Ok(EtcdSecurity {
        tls,
        user: check_user(raw)?,
    })
}

fn check_files(raw: &RawStore) -> Checked<Option<TlsFiles>> {
    let path = |file: &Option<String>| file.clone().map(PathBuf::from);
    let client = match (path(&raw.cert_file), path(&raw.key_file)) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some(ClientFiles { cert, key }),
        _ => return Err("store.cert_file and store.key_file belong together".into()),
    };
    match (path(&raw.ca_file), client) {
        (None, Some(_)) => Err("store.cert_file needs store.ca_file: without it there is no TLS".into()),
        (None, None) => Ok(None),
        (Some(ca), client) => Ok(Some(TlsFiles { ca, client })),
    }
}

fn check_user(raw: &RawStore) -> Checked<Option<EtcdUser>> {
    let password = match (&raw.password_file, &raw.password) {
        (Some(_), Some(_)) => {
            return Err("store.password_file and IDGEND_STORE__PASSWORD are both given".into());
        }
        (Some(file), None) => Some(Password::File(file.into())),
        (None, Some(password)) => Some(Password::Given(password.clone())),
        (None, None) => None,
    };
    match (&raw.username, password) {
        (None, None) => Ok(None),
        (Some(name), Some(password)) => Ok(Some(EtcdUser {
            name: name.clone(),
            password,
        })),
        (Some(_), None) => Err(
            "store.username needs store.password_file or IDGEND_STORE__PASSWORD (a user that comes \
             from the client certificate needs neither)"
                .into(),
        ),
        (None, Some(_)) => Err("a password for etcd needs store.username".into()),
    }
}
