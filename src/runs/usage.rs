//! What a sandbox says that a run has used, held against what can be: its words reach callers and records, who sum them up.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{RunResult, SandboxCaps};

/// What each processor may have done more than the gateway's clock says: clocks differ, and an interpreter is warmed before its run.
const SLACK: Duration = Duration::from_secs(1);

/// The machine, as far as it bounds what one run can use.
#[derive(Debug, Clone, Copy)]
struct Machine {
    processors: u64,
    memory_bytes: u64,
}

/// A sandbox whose runs are elsewhere has another machine, of which no more is known than that there is none so large.
const ELSEWHERE: Machine = Machine {
    processors: 1 << 16,
    memory_bytes: 1 << 50,
};

impl Machine {
    /// Of this host, from what the kernel writes in /proc/stat and /proc/meminfo. A number that is not there bounds nothing.
    fn of(stat: &str, meminfo: &str) -> Machine {
        let of_one = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
        };
        let total = meminfo.lines().find_map(|it| it.strip_prefix("MemTotal:"));
        let kib = total.and_then(|it| it.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Machine {
            processors: match stat.lines().filter(of_one).count() {
                0 => ELSEWHERE.processors,
                count => count as u64,
            },
            memory_bytes: kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024)),
        }
    }

    fn here() -> Machine {
        static HERE: OnceLock<Machine> = OnceLock::new();
        // Of the kernel's memory, so nothing waits for a disk.
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        *HERE.get_or_init(|| Machine::of(&read("/proc/stat"), &read("/proc/meminfo")))
    }

    /// Takes out what no run can have used that took so long: what that was, in words.
    fn hold(self, result: &mut RunResult, took: Duration) -> Option<String> {
        let most = took.saturating_add(SLACK).as_micros();
        let most = most.saturating_mul(u128::from(self.processors));
        let mut said = Vec::new();
        if u128::from(result.cpu_us) > most {
            said.push(format!("cpu_us is {}", result.cpu_us));
            result.cpu_us = 0;
        }
        if result.peak_memory_bytes > self.memory_bytes {
            said.push(format!("peak_memory_bytes is {}", result.peak_memory_bytes));
            result.peak_memory_bytes = 0;
        }
        (!said.is_empty()).then(|| said.join(", "))
    }
}

/// Takes out of results what cannot be, as if it had not been counted. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Counted(Arc<Mutex<Option<String>>>);

impl Counted {
    /// `took`: from when the plugin was asked until its answer.
    pub(super) fn hold(
        &self,
        result: &mut RunResult,
        took: Duration,
        plugin: &str,
        caps: &SandboxCaps,
    ) {
        let machine = match caps.isolation {
            abi::ISO_REMOTE => ELSEWHERE,
            _ => Machine::here(),
        };
        if let Some(said) = machine.hold(result, took) {
            self.tell(plugin, &said, took);
        }
    }

    /// Once for a plugin: it says so of each run as a rule.
    fn tell(&self, plugin: &str, said: &str, took: Duration) {
        // A panic while it was held leaves one name or the other.
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_deref() == Some(plugin) {
            return;
        }
        *told = Some(plugin.to_owned());
        drop(told);
        tracing::warn!(
            plugin,
            said,
            wall_ms = took.as_millis() as u64,
            "a sandbox says that a run has used more than this machine has: the number is left out, as if it had not been counted, here and \
             of later runs; this is for its vendor to mend"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::logged::Log;

    const MACHINE: Machine = Machine {
        processors: 2,
        memory_bytes: 1000,
    };

    fn of(cpu_us: u64, peak_memory_bytes: u64) -> RunResult {
        RunResult {
            cpu_us,
            peak_memory_bytes,
            ..RunResult::default()
        }
    }

    #[test]
    fn what_cannot_be_is_not_counted() {
        // Of two processors, a second and the slack of one more each.
        let most = 4_000_000;
        for (said, left, is_told) in [
            ((0, 0), (0, 0), false),
            ((most, 1000), (most, 1000), false),
            ((most + 1, 1000), (0, 1000), true),
            ((most, 1001), (most, 0), true),
            ((u64::MAX, u64::MAX), (0, 0), true),
        ] {
            let mut result = of(said.0, said.1);
            let told = MACHINE.hold(&mut result, Duration::from_secs(1));
            assert_eq!((result.cpu_us, result.peak_memory_bytes), left, "{said:?}");
            assert_eq!(told.is_some(), is_told, "{said:?}: {told:?}");
        }
        let mut result = of(u64::MAX, 1);
        let told = MACHINE.hold(&mut result, Duration::MAX);
        assert_eq!((told, result.cpu_us), (None, u64::MAX));
    }

    #[test]
    fn a_machine_is_what_the_kernel_says() {
        let stat = "cpu  1 2 3\ncpu0 1 2\ncpu1 1 2\nintr 5\ncpufreq 1\n";
        let machine = Machine::of(stat, "MemTotal:       2048 kB\nMemFree: 1 kB\n");
        assert_eq!((machine.processors, machine.memory_bytes), (2, 2 << 20));
        let unknown = Machine::of("", "");
        assert_eq!(unknown.memory_bytes, u64::MAX);
        assert_eq!(unknown.processors, ELSEWHERE.processors);
        let here = Machine::here();
        assert!(here.processors < 1 << 16 && here.memory_bytes < 1 << 50);
    }

    #[test]
    fn a_plugin_is_named_once() {
        let (log, _here) = Log::begin();
        let counted = Counted::default();
        let caps = SandboxCaps::default();
        for plugin in ["com.acme.one", "com.acme.one", "com.acme.two"] {
            let mut result = of(u64::MAX, u64::MAX);
            counted.hold(&mut result, Duration::from_secs(1), plugin, &caps);
            assert_eq!((result.cpu_us, result.peak_memory_bytes), (0, 0));
        }
        let lines = log.taken();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        let numbers = format!("cpu_us is {0}, peak_memory_bytes is {0}", u64::MAX);
        assert!(lines.contains(&numbers), "{lines}");
        // Another machine may be larger than this one.
        let caps = SandboxCaps {
            isolation: abi::ISO_REMOTE,
            ..caps
        };
        let mut result = of(1, 1 << 49);
        counted.hold(&mut result, Duration::from_secs(1), "com.acme.far", &caps);
        assert_eq!(result.peak_memory_bytes, 1 << 49);
    }
}
