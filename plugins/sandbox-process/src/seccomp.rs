//! The system call filter: `allow.rs` is the list, this file turns it into a BPF program.
//!
//! The program is a binary search over the call's number (about eight comparisons instead of two hundred), with the
//! rules on arguments at its leaves. A call of a foreign architecture (`int 0x80`) or of the x32 ABI ends the process:
//! their numbers mean other things, and no program that we run makes them. A zygote's children have it in two layers, the
//! larger of which they inherit.

mod allow;

use libc::sock_filter;

/// A line of the list.
#[derive(Debug)]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "name, reason and the other machine's number are for the reader and the tests"
    )
)]
struct Entry {
    name: &'static str,
    x86_64: Option<u32>,
    aarch64: Option<u32>,
    rule: Rule,
    /// Why a run may make it: for the one who wants to remove it.
    reason: &'static str,
}

/// When a call is allowed. Arguments are looked at as 32 bits, as the kernel does for each of these; a pointer as two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Always,
    /// The argument is one of these.
    OneOf {
        arg: u32,
        values: &'static [u32],
    },
    /// None of these bits is set in the argument.
    NoneOf {
        arg: u32,
        mask: u32,
    },
    /// All tests of one of these lists hold.
    AnyOf(&'static [&'static [Test]]),
    /// All tests of one of the lists of `any` hold. If those of `tests` do this is the answer, an error or 0 as if it had been
    /// made, instead of EPERM.
    OrAnswer {
        any: &'static [&'static [Test]],
        tests: &'static [Test],
        answer: i32,
    },
    /// Never: this is the answer, an error or 0 as if it had been made, instead of EPERM.
    Answer(i32),
}

/// Of the argument, the bits of the mask are one of these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    /// With [`UPPER_HALF`]: its upper 32 bits.
    arg: u32,
    mask: u32,
    values: &'static [u32],
}

const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;
/// Beside the number of an argument.
const UPPER_HALF: u32 = 8;
const X32_BIT: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const NATIVE_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE_ARCH: u32 = 0xc000_00b7;

fn op(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter of a run, for the machine that this is compiled for. With `network` it may have TCP sockets, which lead
/// to its own loopback interface and nowhere else.
pub(crate) fn program(network: bool) -> Vec<sock_filter> {
    assemble(rules(entries(network)), None)
}

/// The filter of a zygote, which its children inherit: what a run may, and what they do until they are one.
pub(crate) fn of_zygote() -> Vec<sock_filter> {
    let calls = rules(entries(false)).filter(|call| !is_changed(call.0));
    assemble(calls.chain(changed().map(|n| (n, Rule::Always))), None)
}

/// What makes [`program`] out of [`of_zygote`], under which it is installed: a filter can only take away. To prepare one
/// costs the kernel time for each instruction, and this one has a few.
pub(crate) fn last_of_child(network: bool) -> Vec<sock_filter> {
    let entries = entries(network);
    let rule = |number| {
        let entry = entries.iter().find(|e| native_number(e) == Some(number));
        (number, entry.map_or(Rule::Answer(libc::EPERM), |e| e.rule))
    };
    assemble(changed().map(rule), Some(Rule::Always))
}

/// The calls for which a zygote has another rule than a run.
fn changed() -> impl Iterator<Item = u32> {
    let entries = allow::BIRTH.iter().chain(allow::NETWORK);
    entries.filter_map(native_number)
}

fn is_changed(number: u32) -> bool {
    changed().any(|n| n == number)
}

fn rules<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> impl Iterator<Item = (u32, Rule)> {
    let numbered = |e: &Entry| Some((native_number(e)?, e.rule));
    entries.into_iter().filter_map(numbered)
}

fn entries(network: bool) -> Vec<&'static Entry> {
    let changed = if network { allow::NETWORK } else { &[] };
    let stays = |e: &&Entry| changed.iter().all(|c| c.name != e.name);
    allow::ALLOWED.iter().filter(stays).chain(changed).collect()
}

fn native_number(e: &Entry) -> Option<u32> {
    if cfg!(target_arch = "x86_64") {
        e.x86_64
    } else {
        e.aarch64
    }
}

/// `others`: what there is for all other numbers.
fn assemble(calls: impl Iterator<Item = (u32, Rule)>, others: Option<Rule>) -> Vec<sock_filter> {
    let mut calls: Vec<(u32, Rule)> = calls.collect();
    calls.sort_by_key(|c| c.0);
    // Every number from 0 up belongs to one interval: (first number, what then).
    let mut intervals: Vec<(u32, Option<Rule>)> = vec![(0, others)];
    for (number, rule) in calls {
        push(&mut intervals, number, Some(rule));
        push(&mut intervals, number + 1, others);
    }
    let mut out = vec![
        op(LOAD, ARCH, 0, 0),
        op(JUMP_EQUAL, NATIVE_ARCH, 1, 0),
        op(RETURN, RET_KILL_PROCESS, 0, 0),
        op(LOAD, NUMBER, 0, 0),
    ];
    if cfg!(target_arch = "x86_64") {
        out.extend([
            op(JUMP_AT_LEAST, X32_BIT, 0, 1),
            op(RETURN, RET_KILL_PROCESS, 0, 0),
        ]);
    }
    out.extend(search(&intervals));
    out
}

/// Starts an interval at `from`: one that starts there already is replaced, one with the same rule goes on.
fn push(intervals: &mut Vec<(u32, Option<Rule>)>, from: u32, rule: Option<Rule>) {
    if intervals.last().is_some_and(|l| l.0 == from) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|l| l.1 != rule) {
        intervals.push((from, rule));
    }
}

fn search(intervals: &[(u32, Option<Rule>)]) -> Vec<sock_filter> {
    if let [(_, rule)] = intervals {
        return leaf(*rule);
    }
    let (low, high) = intervals.split_at(intervals.len() / 2);
    let (below, above) = (search(low), search(high));
    // A conditional jump reaches 255 instructions; a plain one goes on from there.
    let mut out = match u8::try_from(below.len()) {
        Ok(skip) => vec![op(JUMP_AT_LEAST, high[0].0, skip, 0)],
        Err(_) => vec![
            op(JUMP_AT_LEAST, high[0].0, 0, 1),
            op(JUMP, below.len() as u32, 0, 0),
        ],
    };
    out.extend(below);
    out.extend(above);
    out
}

fn leaf(rule: Option<Rule>) -> Vec<sock_filter> {
    let refuse = op(RETURN, RET_ERRNO | libc::EPERM as u32, 0, 0);
    let allow = op(RETURN, RET_ALLOW, 0, 0);
    match rule {
        None => vec![refuse],
        Some(Rule::Always) => vec![allow],
        Some(Rule::Answer(errno)) => vec![op(RETURN, RET_ERRNO | errno as u32, 0, 0)],
        Some(Rule::NoneOf { arg, mask }) => vec![
            op(LOAD, ARGS + 8 * arg, 0, 0),
            op(JUMP_ANY_BIT, mask, 0, 1),
            refuse,
            allow,
        ],
        Some(Rule::AnyOf(lists)) => {
            let mut out: Vec<_> = lists.iter().flat_map(|t| all_of(t, allow)).collect();
            out.push(refuse);
            out
        }
        Some(Rule::OrAnswer { any, tests, answer }) => {
            let mut out: Vec<_> = any.iter().flat_map(|t| all_of(t, allow)).collect();
            out.extend(all_of(tests, op(RETURN, RET_ERRNO | answer as u32, 0, 0)));
            out.push(refuse);
            out
        }
        Some(Rule::OneOf { arg, values }) => {
            let mut out = vec![op(LOAD, ARGS + 8 * arg, 0, 0)];
            for (i, value) in values.iter().enumerate() {
                out.push(op(JUMP_EQUAL, *value, (values.len() - i) as u8, 0));
            }
            out.extend([refuse, allow]);
            out
        }
    }
}

/// Where half of an argument is, in what the kernel gives to the program. Both machines have the lower one first.
fn offset(arg: u32) -> u32 {
    ARGS + 8 * (arg % UPPER_HALF) + 4 * (arg / UPPER_HALF)
}

/// Answers so when every test holds; goes on behind it when one does not.
fn all_of(tests: &[Test], answer: sock_filter) -> Vec<sock_filter> {
    let mut out = vec![answer];
    for test in tests.iter().rev() {
        let mut block = vec![op(LOAD, offset(test.arg), 0, 0), op(AND, test.mask, 0, 0)];
        for (i, value) in test.values.iter().enumerate() {
            block.push(op(JUMP_EQUAL, *value, (test.values.len() - i) as u8, 0));
        }
        block.push(op(JUMP, out.len() as u32, 0, 0));
        block.extend(out);
        out = block;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn run(program: &[sock_filter], arch: u32, number: u32, args: [u32; 6]) -> u32 {
        run_wide(program, arch, number, args.map(u64::from))
    }

    /// Runs the program as the kernel would.
    fn run_wide(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let (mut at, mut acc) = (0, 0);
        loop {
            let i = program[at];
            at += 1;
            match i.code {
                LOAD => {
                    acc = match i.k {
                        NUMBER => number,
                        ARCH => arch,
                        k => (args[((k - ARGS) / 8) as usize] >> (8 * ((k - ARGS) % 8))) as u32,
                    }
                }
                RETURN => return i.k,
                AND => acc &= i.k,
                JUMP => at += i.k as usize,
                code => {
                    let yes = match code {
                        JUMP_EQUAL => acc == i.k,
                        JUMP_AT_LEAST => acc >= i.k,
                        JUMP_ANY_BIT => acc & i.k != 0,
                        _ => panic!("an instruction that is never made: {code}"),
                    };
                    at += if yes { i.jt } else { i.jf } as usize;
                }
            }
        }
    }

    #[test]
    fn every_number_gets_what_the_list_says() {
        let eperm = RET_ERRNO | libc::EPERM as u32;
        for (network, number) in [false, true]
            .into_iter()
            .flat_map(|network| (0..1024).map(move |number| (network, number)))
        {
            let program = program(network);
            let list = entries(network);
            let entry = list.iter().find(|e| native_number(e) == Some(number));
            let got = |args| run(&program, NATIVE_ARCH, number, args);
            match entry.map(|e| e.rule) {
                None => assert_eq!(got([0; 6]), eperm, "{number}"),
                Some(Rule::Always) => assert_eq!(got([u32::MAX; 6]), RET_ALLOW, "{number}"),
                Some(Rule::Answer(e)) => assert_eq!(got([0; 6]), RET_ERRNO | e as u32, "{number}"),
                Some(Rule::OneOf { arg, values }) => {
                    for v in values {
                        let mut args = [u32::MAX - 1; 6];
                        args[arg as usize] = *v;
                        assert_eq!(got(args), RET_ALLOW, "{number} {v}");
                        args[arg as usize] = v.wrapping_sub(0x1000);
                        assert_eq!(got(args), eperm, "{number} {v}");
                    }
                }
                // `sockets` and `what_is_answered_and_not_made` have their arguments.
                Some(Rule::AnyOf(_) | Rule::OrAnswer { .. }) => {
                    assert_eq!(got([u32::MAX; 6]), eperm, "{number}");
                }
                Some(Rule::NoneOf { arg, mask }) => {
                    for bit in 0..32 {
                        let mut args = [0; 6];
                        args[arg as usize] = 1 << bit;
                        assert_eq!(
                            got(args),
                            if mask & (1 << bit) == 0 {
                                RET_ALLOW
                            } else {
                                eperm
                            },
                            "{number} bit {bit}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn two_layers_are_as_good_as_one() {
        // The kernel takes the answer of the two that has the lowest number, and of two errors the later filter's.
        let stricter = |first: u32, last: u32| {
            let action = |answer: u32| (answer & 0xffff_0000) as i32;
            if action(last) <= action(first) {
                last
            } else {
                first
            }
        };
        for network in [false, true] {
            let (whole, first, last) = (program(network), of_zygote(), last_of_child(network));
            assert!(
                last.len() * 2 < whole.len(),
                "{} of {}",
                last.len(),
                whole.len()
            );
            // Every value that a rule asks for, each in every place where one is asked for.
            let values: BTreeSet<u32> = whole.iter().map(|i| i.k).chain(0..32).collect();
            for number in (0..1024).chain([X32_BIT, X32_BIT | 1, u32::MAX]) {
                for value in &values {
                    for other in [0, 1, 2, 6, u32::MAX] {
                        for arg in 0..4 {
                            let mut args = [other; 6];
                            args[arg] = *value;
                            let got = |p| run(p, NATIVE_ARCH, number, args);
                            let both = stricter(got(&first), got(&last));
                            assert_eq!(both, got(&whole), "{number} {args:?}");
                        }
                    }
                }
            }
            for arch in [0x4000_0003, 0] {
                let got = |p| run(p, arch, 1, [0; 6]);
                assert_eq!(stricter(got(&first), got(&last)), RET_KILL_PROCESS);
            }
        }
    }

    #[test]
    fn sockets() {
        const INET: u32 = libc::AF_INET as u32;
        const STREAM: u32 = libc::SOCK_STREAM as u32;
        let flags = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as u32;
        let call = |network: bool, call: i64, args: [u32; 6]| {
            run(&program(network), NATIVE_ARCH, call as u32, args) == RET_ALLOW
        };
        let socket = |network, family, kind, protocol| {
            call(network, libc::SYS_socket, [family, kind, protocol, 0, 0, 0])
        };
        for network in [false, true] {
            for kind in [1, 2, 5, 1 | flags] {
                assert!(socket(network, 1, kind, 0), "unix sockets of every kind");
            }
            assert!(!call(
                network,
                libc::SYS_socketpair,
                [INET, STREAM, 0, 0, 0, 0]
            ));
        }
        for protocol in [0, 6] {
            for kind in [STREAM, STREAM | flags, STREAM | libc::SOCK_CLOEXEC as u32] {
                assert!(socket(true, INET, kind, protocol));
                assert!(!socket(false, INET, kind, protocol));
            }
        }
        for family in 0..64 {
            for kind in 0..16 {
                for protocol in [0, 1, 2, 6, 17, 33, 47, 58, 132, 136, 255, 256, 262] {
                    let fine = family == 1
                        || (family == INET && kind == STREAM && [0, 6].contains(&protocol));
                    assert_eq!(
                        socket(true, family, kind, protocol),
                        fine,
                        "{family} {kind} {protocol}"
                    );
                }
            }
        }
        let option = |level, name| call(true, libc::SYS_setsockopt, [3, level, name, 0, 0, 0]);
        assert!(option(1, 2) && option(1, 9) && option(6, 1) && option(6, 4) && option(6, 18));
        // TLS in the kernel, repair, congestion control, multicast, filters of netfilter, multipath.
        for (level, name) in [
            (6, 31),
            (6, 19),
            (6, 13),
            (6, 30),
            (0, 35),
            (0, 64),
            (41, 26),
            (284, 1),
            (282, 1),
            (255, 1),
        ] {
            assert!(!option(level, name), "{level} {name}");
        }
        const FASTOPEN: u32 = libc::MSG_FASTOPEN as u32;
        for (number, arg) in [
            (libc::SYS_sendto, 3),
            (libc::SYS_sendmsg, 2),
            (libc::SYS_sendmmsg, 3),
        ] {
            let mut args = [0; 6];
            assert!(call(true, number, args));
            args[arg] = FASTOPEN;
            assert!(
                !call(true, number, args),
                "a connection that connect() does not see"
            );
        }
        let dont_wait = libc::MSG_DONTWAIT as u32;
        for network in [false, true] {
            for (number, arg) in [
                (libc::SYS_sendto, 3),
                (libc::SYS_sendmsg, 2),
                (libc::SYS_sendmmsg, 3),
                (libc::SYS_recvfrom, 3),
                (libc::SYS_recvmsg, 2),
                (libc::SYS_recvmmsg, 3),
            ] {
                let mut args = [0; 6];
                args[arg] = dont_wait;
                assert!(call(network, number, args), "{number}");
                args[arg] |= libc::MSG_OOB as u32;
                assert!(!call(network, number, args), "{number} out of band");
            }
        }
    }

    #[test]
    fn what_is_answered_and_not_made() {
        let eperm = RET_ERRNO | libc::EPERM as u32;
        let call = |number: i64, args| run(&program(false), NATIVE_ARCH, number as u32, args);
        let fcntl = |command, arg| call(libc::SYS_fcntl, [3, command, arg, 0, 0, 0]);
        for command in [6, 7, 37, 38] {
            assert_eq!(fcntl(command, 0), RET_ERRNO, "{command}");
        }
        for command in [0, 1, 2, 3, 5, 36, 1030, 1032] {
            assert_eq!(fcntl(command, u32::MAX), RET_ALLOW, "{command}");
        }
        // SETOWN, SETSIG, SETLEASE, NOTIFY, SETPIPE_SZ, ADD_SEALS, SET_RW_HINT, SET_FILE_RW_HINT.
        for command in [8, 10, 1024, 1026, 1031, 1033, 1036, 1038, 99] {
            assert_eq!(fcntl(command, 0), eperm, "{command}");
        }
        let (append, nonblock) = (libc::O_APPEND as u32, libc::O_NONBLOCK as u32);
        assert_eq!(fcntl(4, append | nonblock), RET_ALLOW);
        for flag in [libc::O_ASYNC, libc::O_DIRECT] {
            assert_eq!(fcntl(4, append | flag as u32), eperm, "{flag}");
        }
        let msync = |flags| call(libc::SYS_msync, [0, 4096, flags, 0, 0, 0]);
        let answers = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(msync);
        let (yes, done, no) = (RET_ALLOW, RET_ERRNO, eperm);
        assert_eq!(answers, [yes, yes, yes, yes, done, no, done, no, no]);
        let ioctl = |request| call(libc::SYS_ioctl, [3, request, 4, 0, 0, 0]);
        let unknown = RET_ERRNO | libc::EOPNOTSUPP as u32;
        // TCGETS, FIONBIO; FICLONE; FICLONERANGE, TIOCSTI, TIOCLINUX.
        let answers = [0x5401, 0x5421, 0x4004_9409, 0x4020_940d, 0x5412, 0x541c].map(ioctl);
        assert_eq!(answers, [yes, yes, unknown, no, no, no]);
        let futex = |operation| call(libc::SYS_futex, [0, operation, 1, 0, 0, 0]);
        for flags in [0, 128, 256, 384] {
            let missing = RET_ERRNO | libc::ENOSYS as u32;
            let answers: Vec<u32> = (0..16).map(|operation| futex(operation | flags)).collect();
            let [y, n, m] = [yes, no, missing];
            // WAIT, WAKE, FD, REQUEUE, ... to LOCK_PI2, which is 13.
            let wanted = [y, y, n, y, y, y, m, m, m, y, y, m, m, m, n, n];
            assert_eq!(answers, wanted, "{flags}");
        }
        for number in [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_flock] {
            assert_eq!(call(number, [3; 6]), RET_ERRNO, "{number}");
        }
    }

    #[test]
    fn what_keeps_a_core_handler_away_cannot_be_changed() {
        let (yes, done, no) = (RET_ALLOW, RET_ERRNO, RET_ERRNO | libc::EPERM as u32);
        let call = |number: i64, args| run_wide(&program(false), NATIVE_ARCH, number as u32, args);
        // The upper half alone is an address, too.
        let somewhere = [1, 1 << 32, 0x7000_0000_0000];
        for limit in 0..=16 {
            let core = limit == u64::from(libc::RLIMIT_CORE);
            let other = if limit < 16 { yes } else { no };
            let set = call(libc::SYS_setrlimit, [limit, 1, 0, 0, 0, 0]);
            assert_eq!(set, if core { done } else { other }, "{limit}");
            for at in somewhere {
                let prlimit =
                    |pid, new, old| call(libc::SYS_prlimit64, [pid, limit, new, old, 0, 0]);
                assert_eq!(prlimit(0, 0, at), other, "{limit} is asked for");
                assert_eq!(prlimit(0, at, 0), if core { done } else { other });
                assert_eq!(prlimit(0, at, at), if core { no } else { other });
                assert_eq!(prlimit(1, 0, at), no, "of process 1");
                assert_eq!(prlimit(1, at, 0), no);
            }
        }
    }

    #[test]
    fn foreign_calls_kill() {
        let program = program(true);
        for arch in [0x4000_0003, 0x4000_0028, 0xc000_00f3, 0] {
            assert_eq!(run(&program, arch, 1, [0; 6]), RET_KILL_PROCESS);
        }
        #[cfg(target_arch = "x86_64")]
        for number in [X32_BIT, X32_BIT | 1, X32_BIT | 59, u32::MAX] {
            assert_eq!(run(&program, NATIVE_ARCH, number, [0; 6]), RET_KILL_PROCESS);
        }
        assert!(program.len() < 4096, "the kernel's limit");
    }

    #[test]
    fn the_list_is_sound() {
        for numbers in [|e: &Entry| e.x86_64, |e: &Entry| e.aarch64] {
            let all: Vec<u32> = entries(true).into_iter().filter_map(numbers).collect();
            assert_eq!(all.len(), allow::ALLOWED.iter().filter_map(numbers).count());
            assert_eq!(
                all.len(),
                all.iter().collect::<BTreeSet<_>>().len(),
                "a number twice"
            );
        }
        assert!(
            entries(true)
                .iter()
                .chain(&entries(false))
                .all(|e| !e.reason.is_empty() && (e.x86_64.is_some() || e.aarch64.is_some())),
            "a line without a reason"
        );
        let of = |name: &str| {
            allow::ALLOWED
                .iter()
                .find(|e| e.name == name)
                .and_then(native_number)
                .map(i64::from)
        };
        for (name, number) in [
            ("read", libc::SYS_read),
            ("openat", libc::SYS_openat),
            ("clone", libc::SYS_clone),
            ("socket", libc::SYS_socket),
            ("execve", libc::SYS_execve),
            ("prctl", libc::SYS_prctl),
            ("getrandom", libc::SYS_getrandom),
            ("close_range", libc::SYS_close_range),
        ] {
            assert_eq!(of(name), Some(number), "{name}");
        }
    }
}
