//! Skills: published once, listed in order, whole or not there.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{SkillKey, SkillQuery};

use super::{OTHER, TENANT, digest, refused, same, same_head, skill, skill_of, strict_umask, tree};
use crate::bench::{Bench, Done, Stop, Store, demand, failed, failed_at};
use crate::contract::{destroy, make};
use crate::raw::{HostShape, Kind, RawPlugin, Shape};

/// Publishers of one version at the same time.
const PUBLISHERS: usize = 8;
/// Rounds of that.
const ROUNDS: usize = 5;
/// In the order of the contract: ascending names, descending versions.
const ORDER: [(&str, &str); 14] = [
    ("check.a", "10.0.0"),
    ("check.a", "2.0.0+build.2"),
    ("check.a", "2.0.0+build.1"),
    ("check.a", "2.0.0"),
    ("check.a", "2.0.0-rc.1"),
    ("check.a", "2.0.0-beta.11"),
    ("check.a", "2.0.0-beta.2"),
    ("check.a", "2.0.0-beta"),
    ("check.a", "2.0.0-alpha.beta"),
    ("check.a", "2.0.0-alpha.1"),
    ("check.a", "2.0.0-alpha"),
    ("check.a", "1.9.0"),
    ("check.aa", "1.0.0"),
    ("check.b", "0.0.1"),
];
/// SKG_ST_*.
const PROMISED_IN_MINOR_0: u32 =
    abi::ST_SKILLS | abi::ST_SKILLS_WRITE | abi::ST_BLOBS | abi::ST_BLOB_FD | abi::ST_VOLATILE;
/// What is not in the namespace "check" itself.
const AROUND: [(&str, &str); 2] = [("checker.z", "1.0.0"), ("check.deep.c", "1.0.0")];
const CODE: &[u8] = b"def main(args):\n    return 1\n";

pub(crate) fn publish_and_read(bench: &Bench) -> Done {
    strict_umask();
    let store = bench.storage()?;
    store.needs_publishing()?;
    let put = skill(TENANT, "check.whole", "1.0.0", b"\0\xff\r\n");
    let answer = store.put(put.clone())?;
    demand(
        answer.tree_sha256 == put.tree_sha256 && answer.name == put.name,
        || {
            format!(
                "skill_put is answered with {} {}",
                answer.name, answer.tree_sha256
            )
        },
    )?;
    same(&store, &put, &store.get(TENANT, "check.whole", "1.0.0")?)?;
    let listed = store.list(query("check", 1000))?.skills;
    let listed = listed
        .iter()
        .find(|skill| skill.name == put.name && skill.version == put.version);
    let listed = listed.ok_or_else(|| failed_at("skill_list", "what was put is not listed"))?;
    same_head(&put, listed).map_err(in_list)?;
    let tree = store.call("skill_tree", |store| async move {
        store.skill_tree(TENANT, "check.whole", "1.0.0").await
    })?;
    tree::same(&put, tree)?;
    for (name, version) in [("check.none", "1.0.0"), ("check.whole", "9.0.0")] {
        refused(
            "skill_get",
            "a skill that is not there",
            abi::E_NOT_FOUND,
            store.get(TENANT, name, version),
        )?;
    }
    let missing = store.try_read(TENANT, "check.whole", "1.0.0", "code/none.py");
    refused(
        "skill_read",
        "a file that is not there",
        abi::E_NOT_FOUND,
        missing,
    )
}

/// What is wrong is what a list says.
fn in_list(stop: Stop) -> Stop {
    match stop {
        Stop::Failed { seen, .. } => failed_at("skill_list", format!("in a list: {seen}")),
        other => other,
    }
}

/// A plugin of another minor may have bits that this kit does not know: of those that there were in minor 0 it is asked all the same.
fn promises(bench: &Bench) -> Done {
    let plugin = bench.load()?;
    let plugin = RawPlugin::new(&plugin, &bench.dir)?;
    let (kind, host, shape) = (Kind::Storage, HostShape::Now, Shape::Whole);
    let store = make(bench, &plugin, kind, "raw", host, shape)?;
    bench.step("caps");
    let (_, flags) = store.caps(shape)?;
    let known = PROMISED_IN_MINOR_0
        | if plugin.entry.abi_minor == abi::ABI_MINOR {
            u32::MAX
        } else {
            0
        };
    let broken = store.broken_promises(flags & known);
    destroy(bench, &store)?;
    if broken.is_empty() {
        return Ok(());
    }
    Err(failed_at("caps", broken.join("; ")))
}

/// Of a read-only store nothing else is asked about publishing, so it is asked here whether it is one.
pub(crate) fn caps(bench: &Bench) -> Done {
    promises(bench)?;
    let store = bench.storage()?;
    let put = store.put(skill(TENANT, "check.taken", "1.0.0", CODE));
    if store.instance.caps() & abi::ST_SKILLS_WRITE == 0 {
        let what = "a skill for a store whose caps says that it is read-only";
        return refused("skill_put", what, abi::E_UNIMPLEMENTED, put);
    }
    put.map(drop).map_err(|error| {
        let seen = format!("caps says SKG_ST_SKILLS_WRITE, and a skill is not taken: {error}");
        failed_at("skill_put", seen)
    })
}

pub(crate) fn publish_twice(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    let first = skill(TENANT, "check.twice", "1.0.0", b"first");
    store.put(first.clone())?;
    // The same content again changes nothing.
    store.put(first.clone())?;
    let other = skill(TENANT, "check.twice", "1.0.0", b"other");
    refused(
        "skill_put",
        "the same version with other content",
        abi::E_ALREADY_EXISTS,
        store.put(other),
    )?;
    same(&store, &first, &store.get(TENANT, "check.twice", "1.0.0")?)
}

fn query(namespace: &str, limit: u32) -> SkillQuery {
    SkillQuery {
        limit,
        tenant: TENANT.into(),
        namespace: namespace.into(),
        after: SkillKey::default(),
    }
}

/// Follows the pages to the end. More pages than there are skills is a loop.
fn walk(store: &Store<'_>, mut query: SkillQuery) -> Done<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut promised = false;
    loop {
        let page = store.list(query.clone())?;
        demand(page.skills.len() <= query.limit as usize, || {
            format!(
                "a page of at most {} has {}",
                query.limit,
                page.skills.len()
            )
        })?;
        let Some(last) = page.skills.last() else {
            demand(!page.more, || {
                "an empty page says that there is more".into()
            })?;
            demand(!promised, || {
                format!(
                    "after {} {} there is said to be more, and the next page is empty",
                    query.after.name, query.after.version
                )
            })?;
            return Ok(all);
        };
        promised = page.more;
        query.after = SkillKey {
            namespace: last.namespace.clone(),
            name: last.name.clone(),
            version: last.version.clone(),
        };
        let pairs = page
            .skills
            .iter()
            .map(|s| (s.name.clone(), s.version.clone()));
        for pair in pairs {
            demand(!all.contains(&pair), || {
                format!(
                    "{} {} is on two pages: the cursor does not go on",
                    pair.0, pair.1
                )
            })?;
            all.push(pair);
        }
        if !page.more {
            return Ok(all);
        }
    }
}

fn fill(store: &Store<'_>) -> Done {
    // Not in their order.
    for step in [5, 3, 1] {
        for (name, version) in ORDER.iter().step_by(step) {
            store.put(skill(TENANT, name, version, CODE))?;
        }
    }
    for (name, version) in AROUND {
        store.put(skill(TENANT, name, version, CODE))?;
    }
    Ok(())
}

pub(crate) fn order(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    fill(&store)?;
    let page = store.list(query("", 1000))?;
    let mine = |skill: &&skillgate_plugin_sdk::model::Skill| skill.namespace == "check";
    let got: Vec<_> = page
        .skills
        .iter()
        .filter(mine)
        .map(|s| (s.name.as_str(), s.version.as_str()))
        .collect();
    demand(got == ORDER, || {
        format!("the order is {got:?}, and has to be {ORDER:?}")
    })?;
    let spaces: Vec<_> = page.skills.iter().map(|s| s.namespace.as_str()).collect();
    demand(spaces.is_sorted(), || {
        format!("namespaces are not ascending: {spaces:?}")
    })?;
    let below = walk(&store, query("check", 1000))?;
    let inside = below
        .iter()
        .filter(|(name, _)| name == "check.deep.c")
        .count()
        == 1
        && below.len() == ORDER.len() + 1;
    demand(inside, || {
        format!(
            "the namespace \"check\" has {below:?}: itself and what is below it, and nothing else"
        )
    })
}

pub(crate) fn cursors(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    fill(&store)?;
    let whole = walk(&store, query("", 1000))?;
    let put = || ORDER.iter().chain(&AROUND);
    let missing = put().find(|(name, version)| {
        let mut listed = whole.iter();
        !listed.any(|(n, v)| n == name && v == version)
    });
    demand(missing.is_none(), || {
        format!("{missing:?} was published and is not listed")
    })?;
    // There may be others, of the operator's.
    let page = store.list(query("", 1000))?;
    let stranger = page.skills.iter().find(|skill| {
        !skill.read_only && !put().any(|(n, v)| *n == skill.name && *v == skill.version)
    });
    demand(stranger.is_none(), || {
        let skill = stranger.map(|skill| (&skill.name, &skill.version));
        format!("{skill:?} is listed; it was not published, and is not read-only")
    })?;
    for limit in [1, 2, 5] {
        let pages = walk(&store, query("", limit))?;
        demand(pages == whole, || {
            format!("pages of {limit} give {pages:?}, one page gives {whole:?}")
        })?;
    }
    // After a place where there is nothing.
    let mut after = query("", 1000);
    after.after = SkillKey {
        namespace: "check".into(),
        name: "check.a".into(),
        version: "1.9.1".into(),
    };
    let next = store.list(after)?.skills.first().map(|s| s.version.clone());
    demand(next.as_deref() == Some("1.9.0"), || {
        format!("after 1.9.1, which is not there, comes {next:?} instead of 1.9.0")
    })
}

pub(crate) fn latest(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    let check = |name: &str, versions: &[&str], wanted: &str| -> Done {
        for version in versions {
            store.put(skill(TENANT, name, version, CODE))?;
        }
        let got = store.get(TENANT, name, "")?.version;
        demand(got == wanted, || {
            format!("of {versions:?} the latest is said to be {got}, and is {wanted}")
        })
    };
    check("check.number", &["9.0.0", "10.0.0", "1.0.0"], "10.0.0")?;
    check("check.pre", &["1.0.0", "2.0.0-rc.1"], "1.0.0")?;
    check("check.only", &["1.0.0-alpha", "1.0.0-beta"], "1.0.0-beta")
}

pub(crate) fn names(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    // Nothing may appear beside what is the instance's.
    let above = bench.dir.join("a");
    let listing = || -> Done<HashSet<String>> {
        let mut names = HashSet::new();
        for dir in [&bench.dir, &above] {
            for entry in std::fs::read_dir(dir)? {
                names.insert(entry?.path().display().to_string());
            }
        }
        Ok(names)
    };
    let good = skill(TENANT, "check.good", "1.0.0", CODE);
    store.put(good.clone())?;
    let before = listing()?;
    let paths = [
        "../escape",
        "/escape",
        "a/../../escape",
        "a//b",
        "./a",
        "",
        "..",
        "a\0b",
        "a/",
    ];
    for path in paths {
        let mut files = vec![("SKILL.md", CODE), (path, CODE), ("skill.toml", CODE)];
        files.sort_unstable();
        let put = skill_of(TENANT, "check.escape", "1.0.0", &files);
        bench.step(format!("skill_put with a file {path:?}"));
        refused_somehow(
            "skill_put",
            &format!("a file with the path {path:?}"),
            store.put(put),
        )?;
        let read = store.try_read(TENANT, "check.good", "1.0.0", path);
        refused_somehow("skill_read", &format!("the path {path:?}"), read)?;
    }
    // These need not be refused; they may lead nowhere else.
    for name in ["../escape", "..", "a/b", "check.\0", "", "/"] {
        let put = skill(TENANT, name, "1.0.0", CODE);
        sane("skill_put", &format!("the name {name:?}"), store.put(put))?;
        let got = store.get(TENANT, name, "1.0.0");
        sane("skill_get", &format!("the name {name:?}"), got)?;
    }
    for version in ["../1.0.0", "..", "1.0.0/../../escape", "not-a-version"] {
        let put = skill(TENANT, "check.escape", version, CODE);
        sane(
            "skill_put",
            &format!("the version {version:?}"),
            store.put(put),
        )?;
    }
    // A tenant may have any name; it is no path.
    for tenant in ["../check", "..", "/", "a/b"] {
        if store
            .put(skill(tenant, "check.tenant", "1.0.0", CODE))
            .is_ok()
        {
            let got = store.get(TENANT, "check.tenant", "1.0.0");
            refused(
                "skill_get",
                &format!("what the tenant {tenant:?} has put"),
                abi::E_NOT_FOUND,
                got,
            )?;
        }
    }
    let now = listing()?;
    let new: Vec<_> = now.difference(&before).collect();
    demand(new.is_empty(), || {
        format!("files have appeared outside the store: {new:?}")
    })?;
    same(&store, &good, &store.get(TENANT, "check.good", "1.0.0")?)
}

/// It may succeed or fail, but not break.
fn sane<T>(
    function: &'static str,
    what: &str,
    result: skillgate_plugin_sdk::model::Result<T>,
) -> Done {
    match result {
        Err(error) if matches!(error.code, abi::E_PANIC | abi::E_CRASHED | abi::E_PROTOCOL) => {
            Err(failed_at(function, format!("{what} ends with {error}")))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn refused_somehow<T>(
    function: &'static str,
    what: &str,
    result: skillgate_plugin_sdk::model::Result<T>,
) -> Done {
    if result.is_ok() {
        return Err(failed_at(function, format!("{what} is accepted")));
    }
    sane(function, what, result)
}

pub(crate) fn tenants(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    let mine = skill(TENANT, "check.mine", "1.0.0", b"mine");
    store.put(mine.clone())?;
    let code = abi::E_NOT_FOUND;
    refused(
        "skill_get",
        "another tenant's skill",
        code,
        store.get(OTHER, "check.mine", "1.0.0"),
    )?;
    refused(
        "skill_get",
        "another tenant's latest",
        code,
        store.get(OTHER, "check.mine", ""),
    )?;
    let read = store.try_read(OTHER, "check.mine", "1.0.0", "SKILL.md");
    refused("skill_read", "another tenant's file", code, read)?;
    let tree = store.call("skill_tree for another tenant", |store| async move {
        store.skill_tree(OTHER, "check.mine", "1.0.0").await
    });
    refused("skill_tree", "another tenant's tree", code, tree)?;
    let query = SkillQuery {
        tenant: OTHER.into(),
        ..query("", 1000)
    };
    let listed = store.list(query)?.skills;
    if listed.iter().any(|s| s.name == "check.mine") {
        return Err(failed_at("skill_list", "another tenant's skill is listed"));
    }
    // The same name is free for the other, with content of its own.
    let theirs = skill(OTHER, "check.mine", "1.0.0", b"theirs");
    store.put(theirs.clone())?;
    same(&store, &mine, &store.get(TENANT, "check.mine", "1.0.0")?)?;
    same(&store, &theirs, &store.get(OTHER, "check.mine", "1.0.0")?)
}

pub(crate) fn concurrent_publish(bench: &Bench) -> Done {
    let store = bench.storage()?;
    store.needs_publishing()?;
    for round in 0..ROUNDS {
        let version = format!("1.0.{round}");
        bench.step(format!(
            "{PUBLISHERS} publishers of {version} at once, and one reader"
        ));
        let done = Arc::new(AtomicBool::new(false));
        let reader = {
            let (instance, done, version) = (
                Arc::clone(&store.instance),
                Arc::clone(&done),
                version.clone(),
            );
            bench.spawn(async move {
                let mut torn = None;
                while !done.load(Ordering::Acquire) && torn.is_none() {
                    if let Ok(skill) = instance.skill_get(TENANT, "check.race", &version).await {
                        let lines = skill.files.iter().map(|f| format!("{}\0{}\n", f.path, f.sha256));
                        let tree = digest(lines.collect::<String>().as_bytes());
                        if tree != skill.tree_sha256 {
                            torn = Some(format!(
                                "while {version} was published it was seen with {} files whose digest is not its tree_sha256: a part of it",
                                skill.files.len()
                            ));
                        }
                    }
                }
                torn
            })
        };
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|i| {
                let put = skill(
                    TENANT,
                    "check.race",
                    &version,
                    format!("publisher {i}").as_bytes(),
                );
                let instance = Arc::clone(&store.instance);
                bench.spawn(async move { instance.skill_put(put).await })
            })
            .collect();
        let mut winners = Vec::new();
        let mut wrong = None;
        for publisher in publishers {
            match bench.wait(async { Ok(publisher.await) })? {
                Ok(Ok(skill)) => winners.push(skill.tree_sha256),
                // Whoever comes second has come too late, or has to try the whole again.
                Ok(Err(error)) if matches!(error.code, abi::E_ALREADY_EXISTS | abi::E_ABORTED) => {}
                Ok(Err(error)) => wrong = Some(error.to_string()),
                Err(error) => wrong = Some(error.to_string()),
            }
        }
        done.store(true, Ordering::Release);
        let torn = bench
            .wait(async { Ok(reader.await) })?
            .map_err(|error| failed(error.to_string()))?;
        if let Some(seen) = torn.or(wrong) {
            return Err(failed(seen));
        }
        demand(winners.len() == 1, || {
            format!(
                "{} of {PUBLISHERS} publishers of one version with different content were told that theirs is it",
                winners.len()
            )
        })?;
        let kept = store.get(TENANT, "check.race", &version)?.tree_sha256;
        demand(kept == winners[0], || {
            "the version that is kept is not the winner's".into()
        })?;
    }
    the_same_at_once(bench, &store)
}

/// The same content is no conflict, however many come with it.
fn the_same_at_once(bench: &Bench, store: &Store<'_>) -> Done {
    for round in 0..ROUNDS {
        let put = skill(TENANT, "check.race", &format!("2.0.{round}"), b"the same");
        bench.step(format!(
            "{PUBLISHERS} publishers of {} with the same content at once",
            put.version
        ));
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|_| {
                let (instance, put) = (Arc::clone(&store.instance), put.clone());
                bench.spawn(async move { instance.skill_put(put).await })
            })
            .collect();
        for publisher in publishers {
            match bench.wait(async { Ok(publisher.await) })? {
                Ok(Ok(_)) => {}
                // It has to try the whole again.
                Ok(Err(error)) if error.code == abi::E_ABORTED => {}
                Ok(Err(error)) => {
                    return Err(failed(format!(
                        "of {PUBLISHERS} publishers of one version with the same content at once one was refused: {error}"
                    )));
                }
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        same(store, &put, &store.get(TENANT, &put.name, &put.version)?)?;
    }
    Ok(())
}
