//! Users, roles and tokens of etcd.
