//! Skills: published once, found by their tenant, in order.

use super::*;
use skillgate_plugin_sdk::abi;

const LONG: &str = concat!(
    "resources/a-directory-with-a-name-that-is-longer-than-most-people-would-write-it/",
    "and-a-file-in-it-that-does-not-fit-into-a-hundred-bytes.txt"
);

fn files() -> Vec<(&'static str, &'static [u8])> {
    vec![
        ("SKILL.md", "---\nname: x\n---\nä\n".as_bytes()),
        ("code/empty.py", b""),
        ("code/main.py", b"x = 1\n"),
        (LONG, &[0, 255, 10]),
        ("skill.toml", b"name = \"x\"\n"),
    ]
}

#[tokio::test]
async fn what_was_published_is_what_is_found() {
    let store = store().await;
    let put = skill_of("acme", "acme.x", "1.0.0", &files());
    let told = store.skill_put(put.clone()).await.unwrap();
    assert_eq!(
        told,
        store.skill_get("acme", "acme.x", "1.0.0").await.unwrap()
    );
    assert_eq!(told, store.skill_get("acme", "acme.x", "").await.unwrap());
    let texts = (
        told.name.as_str(),
        told.version.as_str(),
        told.namespace.as_str(),
        told.kind.as_str(),
        told.description.as_str(),
        told.publisher.as_str(),
    );
    assert_eq!(
        texts,
        ("acme.x", "1.0.0", "acme", "action", "does ä", "alice")
    );
    assert_eq!(told.tree_sha256, put.tree_sha256);
    assert_eq!(told.manifest_json, put.manifest_json);
    assert!(!told.read_only);
    assert_eq!(told.files.len(), files().len());
    for (file, (path, content)) in told.files.iter().zip(files()) {
        let seen = (file.path.as_str(), file.size_bytes, file.sha256.as_str());
        assert_eq!(
            seen,
            (path, content.len() as u64, hex_digest(content).as_str())
        );
        let read = store.skill_read("acme", "acme.x", "", path).await.unwrap();
        assert_eq!(data(read), content, "{path}");
    }
    end(store).await;
}

#[tokio::test]
async fn the_directory_is_a_tar_of_the_files() {
    let store = store().await;
    let put = skill_of("acme", "acme.x", "1.0.0", &files());
    store.skill_put(put).await.unwrap();
    let (fd, size) = match store.skill_tree("acme", "acme.x", "").await.unwrap() {
        Content::Tar(fd, size) => (fd, size),
        other => panic!("{other:?}"),
    };
    let file = std::fs::File::from(fd);
    assert_eq!(file.metadata().unwrap().len(), size);
    assert!(
        file.set_len(0).is_err(),
        "who is given it cannot change it for another"
    );
    let mut archive = tar::Archive::new(file);
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o644);
        found.push((entry.path().unwrap().display().to_string(), content));
    }
    let expected: Vec<_> = files()
        .iter()
        .map(|(path, content)| ((*path).to_owned(), content.to_vec()))
        .collect();
    assert_eq!(found, expected);
    end(store).await;
}

#[tokio::test]
async fn a_version_never_changes() {
    let store = store().await;
    let put = small("acme", "acme.x", "1.0.0");
    let first = store.skill_put(put.clone()).await.unwrap();
    // The same once more, in other words: it is as it was.
    let mut again = put.clone();
    again.description = "other words".into();
    assert_eq!(store.skill_put(again).await.unwrap(), first);
    let other = skill_of("acme", "acme.x", "1.0.0", &[("SKILL.md", b"other")]);
    assert_eq!(code(store.skill_put(other).await), abi::E_ALREADY_EXISTS);
    assert_eq!(
        store.skill_get("acme", "acme.x", "1.0.0").await.unwrap(),
        first
    );
    assert_eq!(
        listed(&store, "acme", "", ("", "", ""), 10).await,
        ["acme.x@1.0.0"]
    );
    end(store).await;
}

#[tokio::test]
async fn of_two_that_publish_at_once_one_wins() {
    let store = store().await;
    let tasks: Vec<_> = (0..16_u8)
        .map(|n| {
            let store = Arc::clone(&store);
            let content = [n % 4];
            let put = skill_of("acme", "acme.x", "1.0.0", &[("SKILL.md", &content)]);
            tokio::spawn(async move { (n % 4, store.skill_put(put).await) })
        })
        .collect();
    let mut winners = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            (content, Ok(_)) => winners.push(content),
            (_, Err(error)) => assert_eq!(error.code, abi::E_ALREADY_EXISTS),
        }
    }
    let read = store.skill_read("acme", "acme.x", "", "SKILL.md").await;
    let kept = data(read.unwrap());
    assert_eq!(
        winners,
        vec![kept[0]; 4],
        "four have the content that is kept"
    );
    assert_eq!(listed(&store, "acme", "", ("", "", ""), 1).await.len(), 1);
    end(store).await;
}

/// In the order of a listing.
const VERSIONS: [&str; 16] = [
    "18446744073709551615.0.0",
    "10.0.0",
    "2.0.0",
    "1.0.0+b",
    "1.0.0+a",
    "1.0.0+9",
    "1.0.0+10",
    "1.0.0",
    "1.0.0-rc.1",
    "1.0.0-beta.11",
    "1.0.0-beta.2",
    "1.0.0-beta",
    "1.0.0-alpha.beta",
    "1.0.0-alpha.1",
    "1.0.0-alpha",
    "0.9.0",
];

#[tokio::test]
async fn versions_are_listed_from_the_highest() {
    let store = store().await;
    for at in 0..VERSIONS.len() {
        // In another order than that in which they are expected.
        let version = VERSIONS[at * 7 % VERSIONS.len()];
        store.skill_put(small("t", "a.b", version)).await.unwrap();
    }
    let expected = VERSIONS.map(|version| format!("a.b@{version}"));
    for limit in [1, 2, 5, 1000] {
        assert_eq!(
            listed(&store, "t", "", ("", "", ""), limit).await,
            expected,
            "{limit} at a time"
        );
    }
    assert_eq!(
        store.skill_get("t", "a.b", "").await.unwrap().version,
        VERSIONS[0]
    );
    assert_eq!(
        store
            .skill_get("t", "a.b", "1.0.0+a")
            .await
            .unwrap()
            .version,
        "1.0.0+a"
    );
    end(store).await;
}

#[tokio::test]
async fn latest_is_the_highest_release() {
    let store = store().await;
    for (name, version) in [
        ("a.b", "1.9.0"),
        ("a.b", "1.10.0"),
        ("a.b", "2.0.0-rc.1"),
        ("a.pre", "1.0.0-alpha"),
        ("a.pre", "1.0.0-beta"),
    ] {
        store.skill_put(small("t", name, version)).await.unwrap();
    }
    assert_eq!(
        store.skill_get("t", "a.b", "").await.unwrap().version,
        "1.10.0"
    );
    assert_eq!(
        store.skill_get("t", "a.pre", "").await.unwrap().version,
        "1.0.0-beta"
    );
    for missing in ["1.0", "latest", "3.0.0", "1.9.0+x", "01.9.0", "1.9.0-"] {
        assert_eq!(
            code(store.skill_get("t", "a.b", missing).await),
            abi::E_NOT_FOUND,
            "{missing}"
        );
    }
    end(store).await;
}

#[tokio::test]
async fn a_namespace_means_itself_and_what_is_below() {
    let store = store().await;
    for (namespace, name, version) in [
        ("skills", "skills.x", "1.0.0"),
        ("skills-old", "skills-old.x", "1.0.0"),
        ("skills.protocol", "skills.protocol.guide", "1.0.0"),
        ("skills.protocol", "skills.protocol.guide", "1.1.0"),
        ("skillset", "skillset.x", "1.0.0"),
        ("zzz", "zzz.x", "1.0.0"),
    ] {
        let mut put = small("t", name, version);
        put.namespace = namespace.into();
        store.skill_put(put).await.unwrap();
    }
    let guide = "skills.protocol.guide";
    let (new, old) = (format!("{guide}@1.1.0"), format!("{guide}@1.0.0"));
    let all = ["skills.x@1.0.0", &new, &old];
    let store = &store;
    let below = |namespace: &'static str, after| listed(store, "t", namespace, after, 2);
    assert_eq!(below("skills", ("", "", "")).await, all);
    assert_eq!(
        below("skills", ("skills", "skills.x", "1.0.0")).await,
        all[1..]
    );
    assert_eq!(
        below("skills", ("skills-old", "skills-old.x", "1.0.0")).await,
        all[1..]
    );
    assert_eq!(
        below("skills", ("skills.protocol", guide, "1.1.0")).await,
        all[2..]
    );
    assert!(
        below("skills", ("skills.protocol", guide, "1.0.0"))
            .await
            .is_empty()
    );
    assert_eq!(below("skills.protocol", ("a", "", "")).await, all[1..]);
    assert!(below("skill", ("", "", "")).await.is_empty());
    assert_eq!(below("", ("", "", "")).await.len(), 6);
    // A place whose entry is not there, or has no version, works as well.
    assert_eq!(
        below("", ("skillset", "skillset.x", "0.5.0")).await,
        ["zzz.x@1.0.0"]
    );
    assert_eq!(below("", ("skillset", "", "")).await.len(), 2);
    assert_eq!(below("", ("skillset", "skillset.x", "")).await.len(), 2);
}

#[tokio::test]
async fn what_one_tenant_has_does_not_exist_for_another() {
    let store = store().await;
    store
        .skill_put(small("acme", "shared.x", "1.0.0"))
        .await
        .unwrap();
    let other = skill_of("acme.b", "shared.x", "1.0.0", &[("SKILL.md", b"another")]);
    assert!(
        listed(&store, "acme.b", "", ("", "", ""), 10)
            .await
            .is_empty()
    );
    for tenant in ["acme.b", "acm", "Acme", "zzz"] {
        let get = store.skill_get(tenant, "shared.x", "1.0.0").await;
        let read = store.skill_read(tenant, "shared.x", "", "SKILL.md").await;
        let tree = store.skill_tree(tenant, "shared.x", "").await;
        assert_eq!(
            (code(get), code(read), code(tree)),
            (abi::E_NOT_FOUND, abi::E_NOT_FOUND, abi::E_NOT_FOUND),
            "{tenant}"
        );
    }
    // The same name and version, with a content of its own.
    store.skill_put(other).await.unwrap();
    let read = store.skill_read("acme.b", "shared.x", "", "SKILL.md").await;
    assert_eq!(data(read.unwrap()), b"another");
    let read = store.skill_read("acme", "shared.x", "", "SKILL.md").await;
    assert_eq!(data(read.unwrap()), b"# x\n");
    assert_eq!(listed(&store, "acme", "", ("", "", ""), 1).await.len(), 1);
    end(store).await;
}

#[tokio::test]
async fn what_is_not_a_skill_is_not_published() {
    let store = store().await;
    let mut wrong = vec![];
    let mut add = |what: &'static str, put: PutSkill, code: i32| wrong.push((what, put, code));
    for path in [
        "../x", "a/../x", "/x", "a//x", "a/./x", "a/", "", ".", "a\\x", "a\0x",
    ] {
        let put = skill_of("t", "a.b", "1.0.0", &[(path, b"")]);
        add(path, put, abi::E_INVALID_ARGUMENT);
    }
    let long = "x".repeat(513);
    let put = skill_of("t", "a.b", "1.0.0", &[(&long, b"")]);
    add("a long path", put, abi::E_INVALID_ARGUMENT);
    let put = skill_of("t", "a.b", "1.0.0", &[("b", b""), ("a", b"")]);
    add("not sorted", put, abi::E_INVALID_ARGUMENT);
    let put = skill_of("t", "a.b", "1.0.0", &[("a", b""), ("a", b"")]);
    add("twice", put, abi::E_INVALID_ARGUMENT);
    let put = skill_of(
        "t",
        "a.b",
        "1.0.0",
        &[("a", b""), ("a-b", b""), ("a/c/d", b"")],
    );
    add("a file and a directory", put, abi::E_INVALID_ARGUMENT);
    let mut put = small("t", "a.b", "1.0.0");
    put.tree_sha256 = "0".repeat(64);
    add("another digest", put, abi::E_INVALID_ARGUMENT);
    for version in [
        "",
        "1.0",
        "v1.0.0",
        "1.0.0.0",
        "1.0.0-01",
        "1.0.0+",
        "1.0.0-a..b",
    ] {
        add(version, small("t", "a.b", version), abi::E_INVALID_ARGUMENT);
    }
    let version = format!("1.0.0-{}", "a".repeat(123));
    add(
        "a long version",
        small("t", "a.b", &version),
        abi::E_INVALID_ARGUMENT,
    );
    add(
        "no tenant",
        small("", "a.b", "1.0.0"),
        abi::E_INVALID_ARGUMENT,
    );
    add("no name", small("t", "", "1.0.0"), abi::E_INVALID_ARGUMENT);
    for (what, put, expected) in wrong {
        assert_eq!(code(store.skill_put(put).await), expected, "{what:?}");
    }
    assert!(listed(&store, "t", "", ("", "", ""), 10).await.is_empty());
    end(store).await;
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let store = store().await;
    let put = skill_of("t", "a.b", "1.0.0", &files());
    store.skill_put(put).await.unwrap();
    for (path, expected) in [
        ("missing", abi::E_NOT_FOUND),
        ("code/main.py/x", abi::E_NOT_FOUND),
        ("code/main.p", abi::E_NOT_FOUND),
        ("code", abi::E_INVALID_ARGUMENT),
        ("../SKILL.md", abi::E_INVALID_ARGUMENT),
        ("/SKILL.md", abi::E_INVALID_ARGUMENT),
        ("", abi::E_INVALID_ARGUMENT),
    ] {
        let read = store.skill_read("t", "a.b", "", path).await;
        assert_eq!(code(read), expected, "{path:?}");
    }
    assert_eq!(code(store.skill_get("t", "a", "").await), abi::E_NOT_FOUND);
    assert_eq!(
        code(store.skill_get("", "a.b", "").await),
        abi::E_INVALID_ARGUMENT
    );
    for (limit, version) in [(0, ""), (1001, ""), (1, "no version")] {
        let mut query = SkillQuery {
            limit,
            tenant: "t".into(),
            ..SkillQuery::default()
        };
        query.after.version = version.into();
        assert_eq!(
            code(store.skill_list(query).await),
            abi::E_INVALID_ARGUMENT,
            "{limit} {version}"
        );
    }
    end(store).await;
}
