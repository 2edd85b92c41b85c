//! `[gate]`: the egress gate of runs.

use std::net::IpAddr;

use ipnet::IpNet;

use super::check::{MS_MAX, TIB};
use super::raw;
use super::section::Section;

/// `[gate]`
#[derive(Debug, Clone)]
pub struct Gate {
    /// Addresses that may be connected to although they are not public.
    pub allow_private: Vec<IpNet>,
    /// Of all runs, at the same time.
    pub max_tunnels: usize,
    /// Of one run, at the same time.
    pub max_run_connections: usize,
    /// That one tenant's runs make, one after the other.
    pub tenant_connections_per_s: u64,
    /// At once.
    pub tenant_connections_burst: u64,
    /// From one run.
    pub max_run_upload_bytes: u64,
    /// To one run.
    pub max_run_download_bytes: u64,
    /// For name and connection together.
    pub connect_timeout_ms: u64,
    /// Without a byte in either direction.
    pub idle_timeout_ms: u64,
    /// For the head of a request.
    pub header_timeout_ms: u64,
    /// Of the head of a request.
    pub max_header_bytes: usize,
    /// For the ClientHello.
    pub hello_timeout_ms: u64,
    /// Of the ClientHello.
    pub max_hello_bytes: usize,
}

pub(super) fn read(s: &Section<'_>) -> Gate {
    Gate {
        allow_private: networks(s, "allow_private"),
        max_tunnels: s.count("max_tunnels", 1..=1_000_000),
        max_run_connections: s.count("max_run_connections", 1..=10_000),
        tenant_connections_per_s: s.integer("tenant_connections_per_s", 1..=1_000_000),
        tenant_connections_burst: s.integer("tenant_connections_burst", 1..=1_000_000),
        max_run_upload_bytes: s.integer("max_run_upload_bytes", 1..=TIB),
        max_run_download_bytes: s.integer("max_run_download_bytes", 1..=TIB),
        connect_timeout_ms: s.integer("connect_timeout_ms", 1..=MS_MAX),
        idle_timeout_ms: s.integer("idle_timeout_ms", 1..=MS_MAX),
        header_timeout_ms: s.integer("header_timeout_ms", 1..=MS_MAX),
        max_header_bytes: s.count("max_header_bytes", 8192..=(1 << 20)),
        hello_timeout_ms: s.integer("hello_timeout_ms", 1..=MS_MAX),
        max_hello_bytes: s.count("max_hello_bytes", 1024..=65536),
    }
}

/// CIDRs, and addresses, which stand for themselves.
fn networks(s: &Section<'_>, key: &'static str) -> Vec<IpNet> {
    let read = |text: &String| {
        let net = text
            .parse::<IpNet>()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        if net.is_err() {
            s.wrong(
                key,
                format!(
                    "{:?} is no address range, expected one like \"10.20.0.0/16\" or \"fd00::/8\"",
                    raw::cut(text)
                ),
            );
        }
        net.ok()
    };
    s.texts(key, None).iter().filter_map(read).collect()
}
