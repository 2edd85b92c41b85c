//! The C contract: sizes, older and newer hosts, empty values, configurations that make no sense.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::CreateRequest;

use crate::bench::{Bench, CALL_LIMIT, Done, LISTEN, Stop, demand, failed, failed_at};
use crate::raw::{
    Called, End, HostShape, Kind, Made, RawInstance, RawPlugin, Shape, Values, taking_back, tour,
};

/// How often an instance is made and destroyed.
const LIVES: usize = 10;
/// A configuration that nests deeper than any parser should follow.
const NESTED: usize = 100_000;

/// Makes an instance that must be made.
pub(crate) fn make(
    bench: &Bench,
    plugin: &RawPlugin,
    kind: Kind,
    name: &str,
    host: HostShape,
    shape: Shape,
) -> Done<RawInstance> {
    let request = bench.request(name)?;
    bench.step(format!("create ({kind:?}, {host:?} host)"));
    match plugin.create(kind, host, &request, shape)? {
        Made::Instance(instance) => Ok(*instance),
        Made::Refused(code, message) => Err(failed_at(
            "create",
            format!(
                "it makes no instance from its configuration: {message} (code {code}); does --config fit it?"
            ),
        )),
    }
}

pub(crate) fn go_round(
    bench: &Bench,
    instance: &RawInstance,
    values: Values,
    shape: Shape,
) -> Done<Vec<(Called, End)>> {
    tour(instance, values, shape, CALL_LIMIT, |name| bench.step(name))
}

/// Destroys an instance; nothing may have gone wrong with it.
pub(crate) fn destroy(bench: &Bench, instance: &RawInstance) -> Done {
    bench.step("destroy");
    instance.destroy();
    no_wrongs(&instance.host.wrongs())
}

pub(crate) fn no_wrongs(wrongs: &[String]) -> Done {
    demand(wrongs.is_empty(), || wrongs.join("; "))
}

/// Does `work` for each kind that the plugin offers, in C.
pub(crate) fn each_kind(bench: &Bench, mut work: impl FnMut(&RawPlugin, Kind) -> Done) -> Done {
    let plugin = bench.load()?;
    let raw = RawPlugin::new(&plugin, &bench.dir)?;
    bench
        .kinds(&plugin)
        .into_iter()
        .try_for_each(|kind| work(&raw, kind))
}

/// Before all that needs one.
pub(crate) fn instance(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        destroy(bench, &instance)
    })
}

pub(crate) fn sizes(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        if plugin.entry.abi_minor != abi::ABI_MINOR {
            return Err(Stop::Skipped(format!(
                "it is built with minor {} of the contract, whose sizes this kit does not know",
                plugin.entry.abi_minor
            )));
        }
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        let mut sizes = plugin.sizes();
        sizes.extend(instance.sizes.iter().copied());
        let ends = go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        sizes.extend(ends.iter().flat_map(|(_, end)| end.sizes.iter().copied()));
        destroy(bench, &instance)?;
        let lies: Vec<_> = sizes
            .into_iter()
            .filter(|(_, said, declared)| said != declared)
            .map(|(name, said, declared)| {
                format!(
                    "a {name} says that it has {said} bytes, and in this minor it has {declared}"
                )
            })
            .collect();
        demand(lies.is_empty(), || lies.join("; "))
    })
}

pub(crate) fn unknown_ids(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        for id in [
            c"",
            c"skillgate.sandbox/99",
            c"skillgate.storage",
            c"nobody.knows/1",
        ] {
            bench.step(format!("get_factory of {id:?}"));
            demand(plugin.factory_of(id) == 0, || {
                format!("get_factory gives something for {id:?}")
            })?;
        }
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        bench.step("get_extension of an unknown id");
        let given = instance.unknown_extension();
        destroy(bench, &instance)?;
        if given == 0 {
            Ok(())
        } else {
            Err(failed_at(
                "get_extension",
                "it gives something for an unknown id",
            ))
        }
    })
}

pub(crate) fn older_host(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let (host, shape) = (HostShape::Oldest, Shape::Oldest);
        let instance = make(bench, plugin, kind, "a", host, shape)?;
        bench.step("caps");
        instance.caps(shape)?;
        for values in [Values::Plain, Values::Null] {
            go_round(bench, &instance, values, shape)?;
        }
        destroy(bench, &instance)
    })
}

pub(crate) fn newer_host(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let now = make(bench, plugin, kind, "now", HostShape::Now, Shape::Whole)?;
        let today = go_round(bench, &now, Values::Plain, Shape::Whole)?;
        let caps = now.caps(Shape::Whole)?;
        destroy(bench, &now)?;
        let newer = make(
            bench,
            plugin,
            kind,
            "newer",
            HostShape::Newer,
            Shape::Longer,
        )?;
        let then = go_round(bench, &newer, Values::Plain, Shape::Longer)?;
        demand(newer.caps(Shape::Longer)? == caps, || {
            "caps says other things to a newer host".into()
        })?;
        for ((called, today), (_, then)) in today.iter().zip(&then) {
            if today.status != then.status {
                let (name, today, code, why) =
                    (called.name, today.status, then.status, &then.message);
                return Err(failed_at(
                    called.name,
                    format!(
                        "{name} ends with {today} for this host, and with {code} for a newer one: {why}"
                    ),
                ));
            }
        }
        destroy(bench, &newer)
    })
}

pub(crate) fn empty_values(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        for values in [Values::Null, Values::Dangling] {
            bench.step(format!(
                "requests whose texts and lists are empty ({values:?})"
            ));
            go_round(bench, &instance, values, Shape::Whole)?;
        }
        // It is still of use.
        go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        destroy(bench, &instance)?;
        for values in [Values::Null, Values::Dangling] {
            bench.step(format!("create with a request of empty texts ({values:?})"));
            let (text, bytes) = (values.text(""), values.bytes(b""));
            let made = plugin.create_of(kind, HostShape::Now, text, text, bytes, Shape::Whole)?;
            if let Made::Instance(instance) = made {
                destroy(bench, &instance)?;
            }
        }
        Ok(())
    })
}

pub(crate) fn borrowed(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        taking_back(|| {
            let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
            // A second time, for what was kept of the first.
            for _ in 0..2 {
                let step = |name: &str| {
                    bench.step(format!(
                        "{name}, where nothing can be read any more that a call before it was given"
                    ));
                };
                tour(&instance, Values::Plain, Shape::Whole, CALL_LIMIT, step)?;
            }
            no_wrongs(&instance.host.listen(LISTEN))?;
            destroy(bench, &instance)
        })
    })
}

pub(crate) fn bad_configuration(bench: &Bench) -> Done {
    let nested = "[".repeat(NESTED).into_bytes();
    let bad: [&[u8]; 7] = [
        b"{",
        b"null",
        b"\xff\xfe",
        br#"{"no such key of any plugin":{"at":"all"}}"#,
        b"{\"a\":1}trailing",
        b"\0\0\0\0",
        &nested,
    ];
    each_kind(bench, |plugin, kind| {
        for (i, bad) in bad.iter().enumerate() {
            let request = CreateRequest {
                config_json: bad.to_vec(),
                ..bench.request(&format!("bad{i}"))?
            };
            let shown = String::from_utf8_lossy(&bad[..bad.len().min(50)]).into_owned();
            bench.step(format!("create with the configuration {shown:?}"));
            match plugin.create(kind, HostShape::Now, &request, Shape::Whole)? {
                // It may not need one.
                Made::Instance(instance) => destroy(bench, &instance)?,
                Made::Refused(code, message) => {
                    demand(!message.is_empty(), || {
                        format!(
                            "the configuration {shown:?} is refused with {code}, and *err says nothing"
                        )
                    })?;
                }
            }
        }
        let good = make(bench, plugin, kind, "good", HostShape::Now, Shape::Whole)?;
        destroy(bench, &good)
    })
}

pub(crate) fn many_lives(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        for life in 0..LIVES {
            let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
            bench.step(format!("health in life {life}"));
            instance.end(&instance.health(), CALL_LIMIT)?;
            destroy(bench, &instance)?;
        }
        Ok(())
    })
}

pub(crate) fn two_instances(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        if plugin.entry.flags & abi::F_SINGLETON != 0 {
            return Err(Stop::Skipped(
                "it allows one instance (SKG_F_SINGLETON)".into(),
            ));
        }
        let one = make(bench, plugin, kind, "one", HostShape::Now, Shape::Whole)?;
        let two = make(bench, plugin, kind, "two", HostShape::Now, Shape::Whole)?;
        go_round(bench, &one, Values::Plain, Shape::Whole)?;
        go_round(bench, &two, Values::Plain, Shape::Whole)?;
        destroy(bench, &one)?;
        bench.step("calls of the other instance");
        go_round(bench, &two, Values::Plain, Shape::Whole)?;
        destroy(bench, &two)?;
        no_wrongs(&one.host.listen(LISTEN))
    })
}

pub(crate) fn answers(bench: &Bench) -> Done {
    each_kind(bench, |plugin, kind| {
        let instance = make(bench, plugin, kind, "a", HostShape::Now, Shape::Whole)?;
        instance.caps(Shape::Whole)?;
        let ends = go_round(bench, &instance, Values::Plain, Shape::Whole)?;
        destroy(bench, &instance)?;
        for (called, end) in ends {
            // These are for hosts and SDKs; a plugin that says them of a plain call has gone wrong inside.
            if matches!(
                end.status,
                abi::E_PANIC | abi::E_PROTOCOL | abi::E_CRASHED | abi::E_UNKNOWN
            ) {
                let (name, code, why) = (called.name, end.status, end.message);
                return Err(failed_at(name, format!("{name} ends with {code}: {why}")));
            }
        }
        Ok(())
    })?;
    // The gateway's own reading: sizes, texts, descriptors, lists.
    for kind in bench.kinds(&bench.load()?) {
        let plugin = bench.open(kind)?;
        let (malformed, mut destroyed) = match kind {
            Kind::Storage => {
                let store = bench.storage_of(&plugin, "host")?;
                let destroyed = store.instance.destroyed();
                (crate::storage::plain_calls(&store), destroyed)
            }
            Kind::Sandbox => {
                let sandbox = bench.sandbox_of(&plugin, "host")?;
                let destroyed = sandbox.destroyed();
                (crate::sandbox::plain_calls(bench, &sandbox), destroyed)
            }
        };
        if let Err(error) = malformed
            && error.code == abi::E_PROTOCOL
        {
            return Err(failed(error.message));
        }
        bench.until_destroyed(destroyed.wait())?;
    }
    Ok(())
}
