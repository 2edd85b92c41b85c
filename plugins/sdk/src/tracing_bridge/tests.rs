//! Events in, records of a host out.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use tracing::subscriber::with_default;
use tracing::{debug, error, event, info, info_span, span, trace, warn};

use super::*;

/// Each record as `Level target: message name=value ...`.
type Records = Arc<Mutex<Vec<String>>>;

fn keep(records: &Records) -> Host {
    let records = Arc::clone(records);
    Host::for_tests(move |level, target, message, fields| {
        records
            .lock()
            .unwrap()
            .push(shown(level, target, message, fields));
    })
}

fn shown(level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> String {
    let fields: String = fields.iter().map(|(k, v)| format!(" {k}={v}")).collect();
    format!("{level:?} {target}: {message}{fields}")
}

/// Its own, so that tests do not hear each other.
fn hosts() -> &'static Hosts {
    Box::leak(Box::new(Hosts::new()))
}

/// The records that `f`'s events become.
fn records(f: impl FnOnce()) -> Vec<String> {
    let (hosts, kept) = (hosts(), Records::default());
    let host = keep(&kept);
    hosts.add(&host);
    with_default(Bridge::new(hosts), f);
    let kept = kept.lock().unwrap();
    kept.clone()
}

/// A host that keeps some levels, and can be gone while somebody has it.
struct Instance {
    name: &'static str,
    least: Level,
    gone: AtomicBool,
    records: Records,
}

impl Service for Instance {
    fn log(&self, level: Level, target: &str, message: &str, fields: &[(&str, &str)]) -> bool {
        let here = !self.gone.load(Ordering::Relaxed);
        if here {
            let record = shown(level, target, message, fields);
            let mut records = self.records.lock().unwrap();
            records.push(format!("{}: {record}", self.name));
        }
        here
    }
    fn log_enabled(&self, level: Level, _: &str) -> Option<bool> {
        let here = !self.gone.load(Ordering::Relaxed);
        here.then_some(level >= self.least)
    }
}

fn instance(name: &'static str, least: Level, records: &Records) -> Arc<Instance> {
    Arc::new(Instance {
        name,
        least,
        gone: AtomicBool::new(false),
        records: Arc::clone(records),
    })
}

fn host(instance: &Arc<Instance>) -> Host {
    Host {
        service: Arc::<Instance>::clone(instance),
    }
}

#[test]
fn an_event_is_a_record_with_level_target_message_and_fields() {
    let records = records(|| {
        error!(target: "store", path = "a b", bytes = 3, ratio = 0.5, ok = true, "{} failed", "put");
        warn!(why = ?Some("x"), code = %42, "odd");
        event!(target: "t", tracing::Level::DEBUG, only = 1_u8);
        trace!(target: "t", "fine");
    });
    let here = module_path!();
    assert_eq!(
        records[0],
        "Error store: put failed path=a b bytes=3 ratio=0.5 ok=true"
    );
    assert_eq!(
        records[1],
        format!("Warn {here}: odd why=Some(\"x\") code=42")
    );
    // Without a message: where it is.
    assert!(records[2].starts_with("Debug t: event "), "{records:?}");
    assert!(records[2].ends_with(" only=1"), "{records:?}");
    assert_eq!(records[3..], ["Trace t: fine"]);
}

#[test]
fn the_fields_of_its_spans_come_first_and_the_innermost_value_wins() {
    let records = records(|| {
        let run = info_span!("run", run = "r1", step = 0, late = tracing::field::Empty);
        let _run = run.enter();
        run.record("late", "now");
        let step = info_span!("step", step = 1);
        step.in_scope(|| info!(target: "t", more = 2, "in both"));
        info!(target: "t", step = 9, "in one");
        info!(target: "t", parent: &step, "named");
        info!(target: "t", parent: None, "root");
        let root = span!(parent: None, tracing::Level::INFO, "root", r = 1);
        root.in_scope(|| info!(target: "t", "in a root"));
        std::thread::scope(|s| {
            s.spawn(|| assert!(tracing::Span::current().is_none()))
                .join()
        })
        .unwrap();
        assert_eq!(tracing::Span::current(), run);
    });
    assert_eq!(
        records,
        [
            "Info t: in both run=r1 step=1 late=now more=2",
            "Info t: in one run=r1 step=9 late=now",
            "Info t: named run=r1 step=1 late=now",
            "Info t: root",
            "Info t: in a root r=1",
        ]
    );
}

#[test]
fn spans_are_left_in_any_order_and_forgotten_with_their_last_handle() {
    let (hosts, kept) = (hosts(), Records::default());
    let host = keep(&kept);
    hosts.add(&host);
    let dispatch = Dispatch::new(Bridge::new(hosts));
    let open = || dispatch.downcast_ref::<Bridge>().unwrap().spans().len();
    dispatcher::with_default(&dispatch, || {
        let (a, b) = (info_span!("a", a = 1), info_span!("b", b = 2));
        let (in_a, in_b) = (a.clone().entered(), b.clone().entered());
        drop(in_a);
        info!(target: "t", "in b");
        drop(in_b);
        info!(target: "t", "in none");
        assert_eq!(open(), 2);
        let other = a.clone();
        drop((a, b));
        assert_eq!(open(), 1, "a has a handle");
        drop(other);
        assert_eq!(open(), 0);
    });
    assert_eq!(
        *kept.lock().unwrap(),
        ["Info t: in b b=2", "Info t: in none"]
    );
}

#[test]
fn what_the_host_does_not_keep_is_not_even_formatted() {
    struct Counted<'a>(&'a AtomicUsize);
    impl Debug for Counted<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fetch_add(1, Ordering::Relaxed);
            f.write_str("x")
        }
    }
    let (hosts, kept) = (hosts(), Records::default());
    let instance = instance("a", Level::Info, &kept);
    hosts.add(&host(&instance));
    let formatted = AtomicUsize::new(0);
    with_default(Bridge::new(hosts), || {
        for gone in [false, true] {
            debug!(target: "t", v = ?Counted(&formatted), "debug");
            info!(target: "t", v = ?Counted(&formatted), "info");
            instance.gone.store(gone, Ordering::Relaxed);
        }
        info!(target: "t", v = ?Counted(&formatted), "nobody is left");
    });
    assert_eq!(
        *kept.lock().unwrap(),
        ["a: Info t: info v=x", "a: Info t: info v=x"]
    );
    assert_eq!(formatted.into_inner(), 2);
}

#[test]
fn the_latest_instance_that_is_left_has_the_records() {
    let (hosts, kept) = (hosts(), Records::default());
    let [a, b, c] = ["a", "b", "c"].map(|name| instance(name, Level::Info, &kept));
    with_default(Bridge::new(hosts), || {
        info!(target: "t", "before");
        hosts.add(&host(&a));
        hosts.add(&host(&b));
        info!(target: "t", "1");
        // Destroyed, and its Host is still somebody's.
        b.gone.store(true, Ordering::Relaxed);
        info!(target: "t", "2");
        hosts.add(&host(&c));
        info!(target: "t", "3");
        // Destroyed, and its Host is nobody's.
        drop(c);
        info!(target: "t", "4");
        a.gone.store(true, Ordering::Relaxed);
        info!(target: "t", "after");
    });
    assert_eq!(
        *kept.lock().unwrap(),
        [
            "b: Info t: 1",
            "a: Info t: 2",
            "c: Info t: 3",
            "a: Info t: 4"
        ]
    );
    drop(b);
    for _ in 0..3 {
        hosts.add(&host(&a));
    }
    assert_eq!(
        hosts.0.read().unwrap().len(),
        1,
        "the dead and the doubles go"
    );
}

#[test]
fn a_record_has_so_many_fields_the_innermost() {
    let names: [&'static str; FIELDS_MAX + 1] =
        std::array::from_fn(|i| &*Box::leak(format!("f{i}").into_boxed_str()));
    let mut fields = Fields::default();
    for name in names {
        fields.put(name, "x".into());
    }
    assert_eq!(fields.0.len(), FIELDS_MAX);
    assert_eq!((fields.0[0].0, fields.0[FIELDS_MAX - 1].0), ("f1", "f64"));
}

#[test]
fn texts_are_cut_between_characters_and_the_rest_is_not_formatted() {
    struct Endless<'a>(&'a AtomicUsize);
    impl Debug for Endless<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for _ in 0..FIELD_BYTES_MAX {
                self.0.fetch_add(1, Ordering::Relaxed);
                f.write_str("12345678")?;
            }
            Ok(())
        }
    }
    let steps = AtomicUsize::new(0);
    let long = format!("x{}", "ä".repeat(MESSAGE_BYTES_MAX));
    let records = records(|| {
        info!(target: "t", endless = ?Endless(&steps), "m");
        info!(target: "t", long, "m");
        info!(target: "t", "{long}");
    });
    let head = "Info t: m endless=".len();
    assert_eq!(records[0].len() - head, FIELD_BYTES_MAX);
    assert_eq!(steps.into_inner(), FIELD_BYTES_MAX / 8 + 1);
    // One x and whole characters of two bytes each: one byte is left over.
    assert_eq!(
        records[1].len() - "Info t: m long=".len(),
        FIELD_BYTES_MAX - 1
    );
    assert_eq!(records[2].len() - "Info t: ".len(), MESSAGE_BYTES_MAX - 1);
}

// Not with events: while some thread has a default of its own, `tracing` itself keeps them apart.
#[test]
fn a_host_that_makes_events_itself_is_not_asked_for_ever() {
    let hosts = hosts();
    let host = keep(&Records::default());
    hosts.add(&host);
    let from_inside = hosts.ask(|_| Some(hosts.ask(|_| Some(()))));
    assert_eq!(from_inside, Some(None));
    assert_eq!(hosts.ask(|_| Some(())), Some(()));
}

/// The one test with the global default of this program: the others have one for their thread.
#[test]
fn log_to_serves_every_thread_and_can_be_repeated() {
    let kept = Records::default();
    let instances = ["a", "b"].map(|name| instance(name, Level::Info, &kept));
    for instance in &instances {
        log_to(&host(instance)).unwrap();
        std::thread::spawn(|| info!(target: "t", "from a thread"))
            .join()
            .unwrap();
    }
    assert_eq!(
        *kept.lock().unwrap(),
        ["a: Info t: from a thread", "b: Info t: from a thread"]
    );
}
