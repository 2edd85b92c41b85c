//! Which addresses the gate dials: public ones, and those that the operator has named in `gate.allow_private`.
//!
//! Sources: the IANA special-purpose address registries for IPv4 and IPv6 (RFC 6890 and its updates), RFC 4291 for the
//! IPv6 architecture. IPv4 lists what is not public; IPv6 begins from the one range that is given out (2000::/3) and
//! takes out what in it is not. Metadata services of clouds lie in these ranges but for one, which is on the list too.
//! An address with NAT64's well-known prefix, which DNS64 gives for a host that has IPv4 alone, is as public as the IPv4 address
//! in it. The prefix for networks of one's own (64:ff9b:1::/48, RFC 8215) is not: what is behind it nobody here knows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustix::io::Errno;

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

#[rustfmt::skip]
const NOT_PUBLIC_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),          // this network
    v4(10, 0, 0, 0, 8),         // private
    v4(100, 64, 0, 0, 10),      // shared by carriers; Alibaba's metadata service
    v4(127, 0, 0, 0, 8),        // loopback
    v4(168, 63, 129, 16, 32),   // Azure's wire server: public by number, inside by nature
    v4(169, 254, 0, 0, 16),     // link-local; metadata services
    v4(172, 16, 0, 0, 12),      // private
    v4(192, 0, 0, 0, 24),       // protocol assignments; Oracle's metadata service
    v4(192, 0, 2, 0, 24),       // documentation
    v4(192, 31, 196, 0, 24),    // AS112
    v4(192, 52, 193, 0, 24),    // AMT
    v4(192, 88, 99, 0, 24),     // relays of 6to4
    v4(192, 168, 0, 0, 16),     // private
    v4(192, 175, 48, 0, 24),    // AS112
    v4(198, 18, 0, 0, 15),      // benchmarks
    v4(198, 51, 100, 0, 24),    // documentation
    v4(203, 0, 113, 0, 24),     // documentation
    v4(224, 0, 0, 0, 4),        // multicast
    v4(240, 0, 0, 0, 4),        // reserved, and broadcast
];

const GLOBAL_UNICAST_V6: Ipv6Net = v6(0x2000, 0, 0, 3);

#[rustfmt::skip]
const NOT_PUBLIC_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 0, 23),       // protocol assignments: Teredo, benchmarks, ORCHID
    v6(0x2001, 0xdb8, 0, 32),   // documentation
    v6(0x2002, 0, 0, 16),       // 6to4: an IPv4 address inside
    v6(0x2620, 0x4f, 0x8000, 48), // AS112
    v6(0x3ffe, 0, 0, 16),       // the 6bone, given back
    v6(0x3fff, 0, 0, 20),       // documentation
];

const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 96);
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 0, 16);

/// Whether an address is one of the public Internet's.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) if NAT64.contains(&address) => {
            embedded(address).is_some_and(|inner| is_public(inner.into()))
        }
        IpAddr::V6(address) => {
            GLOBAL_UNICAST_V6.contains(&address)
                && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address))
        }
    }
}

/// The IPv4 address that an IPv6 address leads to: mapped and compatible (RFC 4291, 2.5.5), NAT64 (RFC 6052, 2.1),
/// 6to4 (RFC 3056, 2).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bytes = address.octets();
    let at = |i: usize| Ipv4Addr::new(bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]);
    if let Some(mapped) = address.to_ipv4_mapped() {
        Some(mapped)
    } else if address.is_loopback() {
        // It begins like a compatible one (RFC 4291, 2.5.3).
        None
    } else if NAT64.contains(&address) || bytes[..12].iter().all(|b| *b == 0) {
        Some(at(12))
    } else if SIX_TO_FOUR.contains(&address) {
        Some(at(2))
    } else {
        None
    }
}

fn named(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

/// Why an address is not dialled. Its words are for records, not for a run: a run learns no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is in one of the policy's `deny_cidrs`.
    Denied,
    /// It is not public, and the operator has not named it.
    NotPublic,
    /// It is one of this machine's own.
    Own,
    /// Nobody says whether it is one of this machine's own.
    Unknown(Errno),
}

/// An address, and the one inside it.
fn both(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let inner = match address {
        IpAddr::V6(v6) => embedded(v6).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    [Some(address), inner].into_iter().flatten()
}

/// Whether the policy's `deny_cidrs` name an address.
pub(super) fn is_denied(address: IpAddr, deny: &[IpNet]) -> bool {
    both(address).any(|address| named(deny, address))
}

/// Whether the gate may dial an address. `is_own`: whether it is one of this machine's.
pub(super) fn vet(
    is_own: impl Fn(IpAddr) -> Result<bool, Errno>,
    address: IpAddr,
    allow: &[IpNet],
    deny: &[IpNet],
) -> Result<(), Unfit> {
    if is_denied(address, deny) {
        return Err(Unfit::Denied);
    }
    // Both count: to name NAT64's prefix does not open the private addresses behind it, nor do they open the way by it.
    if both(address).any(|address| !is_public(address) && !named(allow, address)) {
        return Err(Unfit::NotPublic);
    }
    // By NAT64 too: it leads back to what this machine has for itself.
    for address in both(address).filter(|address| !named(allow, *address)) {
        if is_own(address).map_err(Unfit::Unknown)? {
            return Err(Unfit::Own);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_ones() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2001:200::1",
            "2003::1",
            "3ffd::1",
            "2a00:1450:4001::1",
            // NAT64
            "64:ff9b::808:808",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn others() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "169.254.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "192.31.196.1",
            "192.52.193.1",
            "192.175.48.1",
            // unspecified, loopback, compatible, mapped
            "::",
            "::1",
            "::7f00:1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:127.0.0.1",
            // NAT64, discard, segment routing
            "64:ff9b::7f00:1",
            "64:ff9b::a01:203",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::a83f:8110",
            "64:ff9b::1:101:101",
            "64:ff9b:1::1",
            "64:ff9b:1::808:808",
            "100::1",
            "100:0:0:1::1",
            "5f00::1",
            // Teredo, benchmarks, ORCHID, documentation, 6to4
            "2001::1",
            "2001:0:7f00:1::",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "3ffe::1",
            "2620:4f:8000::1",
            // unique local, link-local, site-local, multicast, clouds' metadata
            "fc00::1",
            "fd00::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "4000::1",
            "1fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn what_the_operator_and_the_policy_name() {
        let ok = |address: &str, allow: &[&str], deny: &[&str]| {
            let nobodys = |_| Ok(false);
            vet(nobodys, address.parse().unwrap(), &nets(allow), &nets(deny))
        };
        assert_eq!(ok("1.1.1.1", &[], &[]), Ok(()));
        assert_eq!(ok("10.1.2.3", &[], &[]), Err(Unfit::NotPublic));
        assert_eq!(ok("10.1.2.3", &["10.1.0.0/16"], &[]), Ok(()));
        assert_eq!(ok("10.2.2.3", &["10.1.0.0/16"], &[]), Err(Unfit::NotPublic));
        // The policy has the last word.
        assert_eq!(
            ok("10.1.2.3", &["10.0.0.0/8"], &["10.1.2.0/24"]),
            Err(Unfit::Denied)
        );
        assert_eq!(ok("1.1.1.1", &[], &["1.1.1.1/32"]), Err(Unfit::Denied));
        // An address inside an address.
        assert_eq!(ok("64:ff9b::101:101", &[], &[]), Ok(()));
        for denied in ["1.1.1.0/24", "64:ff9b::/96"] {
            let said = ok("64:ff9b::101:101", &["::/0"], &[denied]);
            assert_eq!(said, Err(Unfit::Denied), "{denied}");
        }
        for allow in [&[][..], &["10.0.0.0/8"], &["64:ff9b::/96"]] {
            let said = ok("64:ff9b::a01:203", allow, &[]);
            assert_eq!(said, Err(Unfit::NotPublic), "{allow:?}");
        }
        assert_eq!(ok("64:ff9b:1::101:101", &[], &[]), Err(Unfit::NotPublic));
        assert_eq!(
            ok("64:ff9b::a01:203", &["64:ff9b::/96", "10.0.0.0/8"], &[]),
            Ok(())
        );
        assert_eq!(ok("64:ff9b::101:101", &["64:ff9b::/96"], &[]), Ok(()));
        assert_eq!(
            ok("64:ff9b::101:101", &["64:ff9b::/96"], &["1.1.1.0/24"]),
            Err(Unfit::Denied)
        );
        assert_eq!(
            ok("::ffff:10.1.2.3", &["10.0.0.0/8"], &[]),
            Err(Unfit::NotPublic)
        );
        assert_eq!(
            ok("2002:a01:203::1", &["2002::/16"], &[]),
            Err(Unfit::NotPublic)
        );
        assert_eq!(ok("127.0.0.1", &["127.0.0.0/8"], &[]), Ok(()));
        assert_eq!(ok("::1", &["::1/128"], &[]), Ok(()));
        assert_eq!(ok("::1", &["127.0.0.0/8"], &[]), Err(Unfit::NotPublic));
        assert_eq!(ok("::1", &["::1/128"], &["::1/128"]), Err(Unfit::Denied));
        // Linux takes both for its own loopback.
        assert_eq!(ok("::", &["::/0"], &["0.0.0.0/8"]), Err(Unfit::Denied));
        assert_eq!(ok("::a01:203", &["::/96"], &[]), Err(Unfit::NotPublic));
        // What stands where others have a private address is a number like another.
        for address in [
            "2606:4700::10.1.2.3",
            "2606:4700::127.0.0.1",
            "2a00:a01:203::1",
            "2a00:7f00:1::1",
        ] {
            assert_eq!(ok(address, &[], &["10.0.0.0/8"]), Ok(()), "{address}");
        }
    }

    /// A machine on the Internet has services for itself alone, as another one inside has.
    #[test]
    fn an_own_address_is_dialled_where_the_operator_names_it() {
        let on_one = |own: &str, address: &str, allow: &[&str]| {
            let own: IpAddr = own.parse().unwrap();
            let is_own = |address| Ok(address == own);
            vet(is_own, address.parse().unwrap(), &nets(allow), &[])
        };
        for own in ["1.1.1.1", "2606:4700::1111"] {
            assert_eq!(on_one(own, own, &[]), Err(Unfit::Own));
            assert_eq!(on_one(own, own, &["10.0.0.0/8"]), Err(Unfit::Own));
            assert_eq!(on_one(own, own, &["1.1.1.0/24", "2606::/16"]), Ok(()));
            assert_eq!(on_one(own, "1.1.1.2", &[]), Ok(()));
        }
        let by_nat64 = |allow| on_one("1.1.1.1", "64:ff9b::101:101", allow);
        assert_eq!(by_nat64(&[]), Err(Unfit::Own));
        assert_eq!(by_nat64(&["64:ff9b::/96"]), Err(Unfit::Own));
        assert_eq!(by_nat64(&["1.1.1.1/32"]), Ok(()));
        // It may be an address of this machine itself.
        let nat64 = "64:ff9b::101:101";
        assert_eq!(on_one(nat64, nat64, &["1.1.1.1/32"]), Err(Unfit::Own));
    }

    #[test]
    fn one_that_may_be_an_own_address_is_not_dialled() {
        let unknown = |allow| {
            let nobody_says = |_| Err(Errno::MFILE);
            vet(nobody_says, "1.1.1.1".parse().unwrap(), allow, &[])
        };
        assert_eq!(unknown(&[]), Err(Unfit::Unknown(Errno::MFILE)));
        // Of one that the operator has named nobody is asked.
        assert_eq!(unknown(&nets(&["1.1.1.0/24"])), Ok(()));
    }
}
