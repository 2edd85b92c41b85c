//! Operations: each is completed once, whatever happens to it.

use std::sync::Barrier;
use std::time::Duration;

use skillgate_plugin_sdk::abi;

use crate::bench::{Bench, CALL_LIMIT, Done, LISTEN, Stop, demand, failed_at};
use crate::contract::{destroy, each_kind, go_round, make, no_wrongs};
use crate::process_state::threads;
use crate::raw::{
    Called, HostShape, Kind, READ_BYTES, RawInstance, Room, Shape, Values, keep, run_code,
};
use crate::sandbox::NO_PYTHON;

/// How many calls are in flight at once.
const IN_FLIGHT: usize = 256;
/// Of which so many are runs of a sandbox.
const RUNS_IN_FLIGHT: usize = 16;
/// How soon a cancelled call has to end.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// How soon a plugin that does not block has to return, on a machine that has other things to do too.
const RETURN_LIMIT: Duration = Duration::from_millis(50);
/// A call may be unlucky: the quickest of so many counts.
const RETURN_TRIES: usize = 5;
/// What is written while it is cancelled.
const WRITTEN_BYTES: usize = 8 << 20;

/// A run that says that it has begun, and then waits.
const WAITS: &str =
    "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(300)\n";

fn whole(bench: &Bench, plugin: &crate::raw::RawPlugin, kind: Kind) -> Done<RawInstance> {
    make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)
}

pub(crate) fn exactly_once(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        for _ in 0..3 {
            go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        }
        bench.step("listening for completions that nobody waits for");
        no_wrongs(&instance.host.listen(LISTEN))?;
        destroy(bench, &instance)
    })
}

/// A call of a kind that every plugin of it has.
fn some_call(instance: &RawInstance, kind: Kind, number: usize) -> std::io::Result<Called> {
    match kind {
        Kind::Sandbox if number < RUNS_IN_FLIGHT => {
            instance.run(run_code(), Values::Plain, Shape::Whole)
        }
        Kind::Storage if number.is_multiple_of(3) => {
            instance.skill_list(Values::Plain, Shape::Whole)
        }
        Kind::Storage if number % 3 == 1 => Ok(instance.skill_get(Values::Plain)),
        _ => Ok(instance.health()),
    }
}

pub(crate) fn many_in_flight(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        bench.step(format!("{IN_FLIGHT} calls at once"));
        let start = Barrier::new(IN_FLIGHT);
        let calls: Vec<std::io::Result<Called>> = std::thread::scope(|scope| {
            let one = |number| {
                let (start, instance) = (&start, &instance);
                scope.spawn(move || {
                    start.wait();
                    some_call(instance, kind, number)
                })
            };
            let threads: Vec<_> = (0..IN_FLIGHT).map(one).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(std::io::Error::other("a thread of the kit panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        for called in calls {
            let called = called?;
            bench.step(format!(
                "the end of one of {IN_FLIGHT} calls ({})",
                called.name
            ));
            let end = instance.end(&called, CALL_LIMIT)?;
            let fair = matches!(
                end.status,
                abi::OK | abi::E_EXHAUSTED | abi::E_UNAVAILABLE | abi::E_NOT_FOUND
            ) || end.status == abi::E_UNIMPLEMENTED;
            if !fair {
                let (name, code, why) = (called.name, end.status, end.message);
                return Err(failed_at(
                    name,
                    format!("with {IN_FLIGHT} in flight {name} ends with {code}: {why}"),
                ));
            }
        }
        no_wrongs(&instance.host.listen(LISTEN))?;
        destroy(bench, &instance)
    })
}

pub(crate) fn cancel_before(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        bench.step("cancel of ops that are not there");
        for op in [0, 1, u64::MAX] {
            instance.cancel(op);
        }
        bench.step("a call that was cancelled before it began");
        let instance = kept(instance);
        match kind {
            Kind::Sandbox => {
                let op = instance.host.next_op();
                let run = waits(instance, true);
                ends_soon(instance, op, "a run that was cancelled before it began")?;
                instance.end(&joined(run)?, CANCEL_LIMIT)?;
            }
            Kind::Storage => {
                instance.end(&instance.cancelled_skill_list()?, CANCEL_LIMIT)?;
            }
        }
        no_wrongs(&instance.host.listen(LISTEN))?;
        destroy(bench, instance)
    })
}

/// For as long as the case's process: a run that does not end must not keep the verdict.
fn kept(instance: RawInstance) -> &'static RawInstance {
    keep(Box::new(instance))
}

type Run = std::thread::JoinHandle<std::io::Result<Called>>;

/// On a thread of its own: of a plugin that blocks, the call returns when the run has ended.
fn waits(instance: &'static RawInstance, cancelled: bool) -> Run {
    std::thread::spawn(move || instance.run_to_cancel(WAITS, cancelled))
}

fn joined(run: Run) -> Done<Called> {
    let called = run
        .join()
        .map_err(|_| crate::bench::failed("a thread of the kit panicked"))?;
    Ok(called?)
}

/// A run that was cancelled has ended, or was refused, soon.
fn ends_soon(instance: &RawInstance, op: abi::Op, what: &str) -> Done {
    if instance.host.is_over(op, CANCEL_LIMIT) {
        return Ok(());
    }
    let limit = CANCEL_LIMIT.as_secs();
    Err(failed_at(
        "cancel",
        format!("{what} goes on {limit} s later, and nothing but its wall_ms would end it"),
    ))
}

/// Starts a run that waits; gives its op when it has begun. The run itself ends when it is cancelled.
fn with_waiting_run<T>(
    bench: &Bench,
    instance: &'static RawInstance,
    work: impl FnOnce(abi::Op) -> Done<T>,
) -> Done<T> {
    bench.step("a run that waits");
    let first = instance.host.next_op();
    let run = waits(instance, false);
    let done = if instance.host.has_output(first, CALL_LIMIT) {
        work(first)
    } else {
        Err(failed_at(
            "run_output",
            "a run that prints and waits is not heard of",
        ))
    };
    // Whatever has gone wrong, it ends; one that was waited for and does not is not waited for again.
    instance.cancel(first);
    bench.step("the end of a run that was cancelled");
    if done.is_err() && !instance.host.is_over(first, LISTEN) {
        return done;
    }
    ends_soon(instance, first, "a run that was cancelled")?;
    let end = instance.end(&joined(run)?, CANCEL_LIMIT)?;
    if end.status == abi::E_UNIMPLEMENTED && end.not_executed {
        return Err(Stop::Skipped(NO_PYTHON.into()));
    }
    done
}

pub(crate) fn cancel_during(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        let instance = kept(instance);
        cancels_soon(|| match kind {
            Kind::Sandbox => cancel_run(bench, instance),
            Kind::Storage => cancel_write(bench, instance),
        })?;
        no_wrongs(&instance.host.listen(LISTEN))?;
        destroy(bench, instance)
    })
}

/// It is called on the event loop, whatever the plugin is: it never blocks. `cancel` cancels something that is under way, and
/// gives how long that took; another one is when it took too long.
fn cancels_soon(mut cancel: impl FnMut() -> Done<Duration>) -> Done {
    let mut quickest = Duration::MAX;
    for _ in 0..RETURN_TRIES {
        quickest = quickest.min(cancel()?);
        if quickest <= RETURN_LIMIT {
            return Ok(());
        }
    }
    let ms = quickest.as_millis();
    Err(failed_at(
        "cancel",
        format!("it never blocks, and returns after {ms} ms when what it cancels is under way"),
    ))
}

/// Of a run that waits.
fn cancel_run(bench: &Bench, instance: &'static RawInstance) -> Done<Duration> {
    with_waiting_run(bench, instance, |op| {
        bench.step("cancel of a run that has begun");
        let Some(took) = instance.cancel(op) else {
            return Err(Stop::Skipped("it has no cancel".into()));
        };
        ends_soon(instance, op, "a run that was cancelled")?;
        let Some(end) = instance.host.ended(op, CANCEL_LIMIT) else {
            return Err(failed_at("run", "a run that has begun was refused"));
        };
        let fair = matches!(end.status, abi::E_CANCELLED | abi::OK);
        demand(fair, || {
            format!("a cancelled run ends with {}: {}", end.status, end.message)
        })?;
        Ok(took)
    })
}

/// Of a write that takes a while.
fn cancel_write(bench: &Bench, instance: &RawInstance) -> Done<Duration> {
    let data = Room::of(&vec![7; WRITTEN_BYTES])?;
    let created = instance.blob_create(Values::Plain, Shape::Whole)?;
    let writer = instance.end(&created, CALL_LIMIT)?.handle;
    bench.step("cancel of a blob_write that may be under way");
    let op = instance.host.next_op();
    let (took, called) = std::thread::scope(|scope| {
        let write = scope.spawn(|| instance.blob_write(writer, data));
        (instance.cancel(op), write.join())
    });
    let called = called.map_err(|_| crate::bench::failed("a thread of the kit panicked"))?;
    instance.end(&called, CANCEL_LIMIT)?;
    instance.let_go(writer, 0);
    Ok(took.unwrap_or_default())
}

pub(crate) fn cancel_after(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        let ends = go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        bench.step("cancel of what has ended");
        for _ in 0..2 {
            for (called, _) in &ends {
                instance.cancel(called.op);
            }
        }
        no_wrongs(&instance.host.listen(LISTEN))?;
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        destroy(bench, &instance)
    })
}

pub(crate) fn returns(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = whole(bench, plugin, kind)?;
        if plugin.entry.flags & abi::F_BLOCKING != 0 {
            returns_complete(&instance, kind)?;
        } else {
            returns_soon(bench, &instance)?;
        }
        destroy(bench, &instance)
    })
}

/// Of one that blocks every call is complete when it returns. Others than these the host makes in the storage cases, and
/// refuses what is not.
fn returns_complete(instance: &RawInstance, kind: Kind) -> Done {
    let health = || Ok(instance.health());
    let of_kind = || match kind {
        Kind::Storage => instance.skill_list(Values::Plain, Shape::Whole),
        Kind::Sandbox => instance.run(run_code(), Values::Plain, Shape::Whole),
    };
    let calls: [&dyn Fn() -> std::io::Result<Called>; 2] = [&health, &of_kind];
    for call in calls {
        for _ in 0..RETURN_TRIES {
            let called = call()?;
            let name = called.name;
            let refused = called.code.is_none_or(|code| code < 0);
            if !refused && !instance.host.has_ended(called.op) {
                let seen =
                    format!("it is SKG_F_BLOCKING, and {name} has returned without a completion");
                return Err(failed_at(name, seen));
            }
            instance.end(&called, CALL_LIMIT)?;
        }
    }
    Ok(())
}

/// One that does not block comes back soon from every call: each is made on the event loop.
fn returns_soon(bench: &Bench, instance: &RawInstance) -> Done {
    let mut quickest: Vec<Called> = Vec::new();
    for _ in 0..RETURN_TRIES {
        for (called, _) in go_round(bench, instance, Values::Plain, Shape::Whole)? {
            match quickest.iter_mut().find(|other| other.name == called.name) {
                Some(other) if called.took < other.took => *other = called,
                Some(_) => {}
                None => quickest.push(called),
            }
        }
    }
    match quickest.iter().find(|called| called.took > RETURN_LIMIT) {
        None => Ok(()),
        Some(called) => Err(failed_at(
            called.name,
            format!(
                "it is not SKG_F_BLOCKING, and {} returns after {} ms",
                called.name,
                called.took.as_millis()
            ),
        )),
    }
}

pub(crate) fn drain(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = kept(whole(bench, plugin, kind)?);
        if kind == Kind::Sandbox {
            with_waiting_run(bench, instance, |run| {
                bench.step("drain while a run is under way");
                std::thread::scope(|scope| {
                    let op = instance.host.next_op();
                    let drain = scope.spawn(|| instance.drain());
                    let early = instance.host.ended(op, LISTEN);
                    let went_on = !instance.host.has_ended(run);
                    instance.cancel(run);
                    let called = drain
                        .join()
                        .map_err(|_| crate::bench::failed("a thread of the kit panicked"))?;
                    let end = instance.end(&called, CANCEL_LIMIT)?;
                    if end.status == abi::E_UNIMPLEMENTED {
                        return Err(Stop::Skipped("it has no drain".into()));
                    }
                    demand(early.is_none() || !went_on, || {
                        "drain is completed while a run is in flight".into()
                    })
                })
            })?;
        } else {
            drain_with_open_blobs(bench, instance)?;
        }
        bench.step("a call after drain");
        let called = match kind {
            Kind::Sandbox => instance.run(run_code(), Values::Plain, Shape::Whole)?,
            Kind::Storage => store_call(instance)?,
        };
        let end = instance.end(&called, CALL_LIMIT)?;
        demand(end.status == abi::E_UNAVAILABLE, || {
            format!(
                "after drain {} ends with {} instead of SKG_E_UNAVAILABLE",
                called.name, end.status
            )
        })?;
        destroy(bench, instance)
    })
}

/// A call that begins something in a store, of what it says that it has.
fn store_call(instance: &RawInstance) -> Done<Called> {
    let (_, has) = instance.caps(Shape::Whole)?;
    if has & abi::ST_BLOBS != 0 {
        return Ok(instance.blob_create(Values::Plain, Shape::Whole)?);
    }
    if has & abi::ST_SKILLS != 0 {
        return Ok(instance.skill_list(Values::Plain, Shape::Whole)?);
    }
    let neither = "caps says that it has neither skills nor blobs";
    Err(Stop::Skipped(neither.into()))
}

/// Drains a store; what was open before goes on to its end.
fn drain_with_open_blobs(bench: &Bench, instance: &RawInstance) -> Done {
    bench.step("a blob and a reader of it before drain");
    let reader = instance.reader(CALL_LIMIT)?;
    bench.step("blob_create before drain");
    let created = instance.blob_create(Values::Plain, Shape::Whole)?;
    let open = instance.end(&created, CALL_LIMIT)?;
    bench.step("drain");
    let end = instance.end(&instance.drain(), CALL_LIMIT)?;
    if end.status == abi::E_UNIMPLEMENTED {
        return Err(Stop::Skipped("it has no drain".into()));
    }
    if open.status != abi::OK {
        // It keeps no blobs, or has no room for one.
        return Ok(());
    }
    let write = || Ok(Some(instance.blob_write(open.handle, Room::of(b"abc")?)));
    let commit = || Ok(Some(instance.blob_commit(open.handle)));
    let read = || {
        let read = reader.map(|reader| instance.blob_read(reader, READ_BYTES));
        read.transpose()
    };
    type Call<'a> = &'a dyn Fn() -> std::io::Result<Option<Called>>;
    let goes_on: [(&str, Call<'_>); 3] =
        [("writer", &write), ("writer", &commit), ("reader", &read)];
    for (who, call) in goes_on {
        bench.step(format!("what a {who} does that was open before drain"));
        let Some(called) = call()? else { continue };
        let end = instance.end(&called, CALL_LIMIT)?;
        if end.status != abi::OK {
            let (name, code, why) = (called.name, end.status, end.message);
            return Err(failed_at(
                name,
                format!("after drain {name} of a {who} that was open ends with {code}: {why}"),
            ));
        }
    }
    if let Some(reader) = reader {
        instance.let_go(0, reader);
    }
    Ok(())
}

pub(crate) fn after_destroy(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let before = threads()?;
        let instance = whole(bench, plugin, kind)?;
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        destroy(bench, &instance)?;
        bench.step("listening for calls after destroy() has returned");
        let after = threads()?;
        no_wrongs(&instance.host.listen(LISTEN))?;
        let left: Vec<_> = after
            .iter()
            .filter(|(id, _)| !before.contains_key(*id))
            .map(|(_, name)| name.as_str())
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(failed_at(
            "destroy",
            format!(
                "it has returned, and {} threads of the instance go on: {}",
                left.len(),
                left.join(", ")
            ),
        ))
    })
}
