//! Preparing fails without harm and with a place to look at; installing changes everything at once.

use super::*;

fn one_issuer(source: &str, algorithm: &str) -> String {
    format!(
        "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{A}\"\naudiences = [\"{AUDIENCE}\"]\n{source}\n\
         algorithms = [\"{algorithm}\"]\n"
    )
}

async fn why(source: &str, algorithm: &str) -> String {
    let config = configuration(&one_issuer(source, algorithm)).unwrap();
    match prepare(&config, Hands::default().clock()).await {
        Ok(_) => "prepared".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

#[tokio::test]
async fn files_of_keys_that_are_wrong_are_refused_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let good = DevelopmentKey::generate("ES256").unwrap();
    let place = "./skillgate.toml:6:13: auth.issuers[0].jwks_file: ";
    for (name, text, expected) in [
        ("missing", None, "No such file"),
        (
            "empty",
            Some(String::new()),
            "neither a JWKS nor a PEM public key",
        ),
        (
            "text",
            Some("hello".to_owned()),
            "neither a JWKS nor a PEM public key",
        ),
        (
            "cut",
            Some(good.jwks().to_string()[..80].to_owned()),
            "not a JWKS: ",
        ),
        ("none", Some("{\"keys\":[]}".to_owned()), "no key for ES256"),
        ("private", Some(good.to_pem()), "holds a private key"),
        (
            "weak",
            Some(fixture("rsa-1024.pub.pem")),
            "RSA keys of less than 2048 bits",
        ),
        (
            "another",
            Some(fixture("rsa-2048.pub.pem")),
            "no key for ES256",
        ),
        (
            "large",
            Some(" ".repeat(262_145)),
            "larger than 262144 bytes",
        ),
    ] {
        let path = dir.path().join(name);
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let said = why(&format!("jwks_file = {path:?}"), "ES256").await;
        let found = said
            .strip_prefix(place)
            .unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(
            found.starts_with(&path.display().to_string()) && found.contains(expected),
            "{found}"
        );
    }
    let said = why(&format!("jwks_file = {:?}", dir.path()), "ES256").await;
    assert!(said.starts_with(place), "a directory: {said}");

    // Of each issuer, for whoever mends them.
    let missing = |name: &str| format!("jwks_file = {:?}", dir.path().join(name));
    let both = format!(
        "{}\nalgorithms = [\"ES256\"]\n[[auth.issuers]]\nissuer = \"https://b.example\"\naudiences = [\"x\"]\n{}",
        missing("ours"),
        missing("theirs")
    );
    let said = why(&both, "ES256").await;
    for (at, name) in ["ours", "theirs"].iter().enumerate() {
        assert!(
            said.contains(&format!("auth.issuers[{at}].jwks_file: ")),
            "{said}"
        );
        assert!(said.contains(name), "{said}");
    }

    let secret = dir.path().join("secret");
    std::fs::write(&secret, "too short").unwrap();
    let said = why(&format!("secret_file = {secret:?}"), "HS256").await;
    assert!(
        said.contains("auth.issuers[0].secret_file: ") && said.contains("at least 32 bytes"),
        "{said}"
    );
    std::fs::write(&secret, good.jwks().to_string()).unwrap();
    let said = why(&format!("secret_file = {secret:?}"), "HS256").await;
    assert!(said.contains("everybody may know"), "{said}");

    let said = why(&format!("discovery = true\nca_file = {secret:?}"), "ES256").await;
    assert!(
        said.starts_with("./skillgate.toml:7:11: auth.issuers[0].ca_file: "),
        "{said}"
    );
    assert!(said.contains("holds no PEM certificate"), "{said}");
}

#[tokio::test]
async fn installing_counts_from_the_next_request_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let keys: Vec<DevelopmentKey> = (0..3)
        .map(|_| DevelopmentKey::generate("ES256").unwrap())
        .collect();
    let write = |key: &DevelopmentKey| std::fs::write(&path, key.jwks().to_string()).unwrap();
    write(&keys[0]);
    let config = configuration(&one_issuer(&format!("jwks_file = {path:?}"), "ES256")).unwrap();
    let hands = Hands::default();
    let auth = Authenticator::new(prepare(&config, hands.clock()).await.unwrap());
    let same = auth.clone();
    let ask = |key: &DevelopmentKey| {
        let token = key.token(claims_of(A).as_object().unwrap()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
        );
        let auth = same.clone();
        async move { auth.authenticate(&headers, None, IP).await.is_ok() }
    };
    assert!(ask(&keys[0]).await && !ask(&keys[1]).await);

    write(&keys[1]);
    assert!(ask(&keys[0]).await, "a file counts when it is installed");
    let prepared = prepare(&config, hands.clock()).await.unwrap();
    assert!(
        ask(&keys[0]).await && !ask(&keys[1]).await,
        "prepared is not installed"
    );
    auth.install(prepared);
    assert!(
        !ask(&keys[0]).await,
        "what was verified by the old key, too"
    );
    assert!(ask(&keys[1]).await);

    std::fs::write(&path, "broken").unwrap();
    assert!(prepare(&config, hands.clock()).await.is_err());
    assert!(ask(&keys[1]).await, "the last good ones stay");

    let off = configuration("").unwrap();
    auth.install(prepare(&off, hands.clock()).await.unwrap());
    assert!(ask(&keys[2]).await, "nobody is asked any more");
    assert!(auth.issuers().is_empty());
}

/// What has come before is asked again where it begins: by then its key or its issuer may be gone.
#[tokio::test]
async fn a_caller_is_let_in_no_more_when_its_key_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let keys = [(); 2].map(|()| DevelopmentKey::generate("ES256").unwrap());
    let [mine, other] = keys.each_ref().map(|key| key.jwks()["keys"][0].clone());
    let with = |member: &str, value: Value| {
        let mut jwk = mine.clone();
        jwk[member] = value;
        jwk
    };
    let text = one_issuer(&format!("jwks_file = {path:?}"), "ES256");
    let hands = Hands::default();
    let installed = async |auth: &Authenticator, text: &str, jwks: &[&Value]| {
        std::fs::write(&path, json!({ "keys": jwks }).to_string()).unwrap();
        let config = configuration(text).unwrap();
        auth.install(prepare(&config, hands.clock()).await.unwrap());
    };
    let auth = Authenticator::off();
    installed(&auth, &text, &[&mine]).await;
    let token = keys[0].token(claims_of(A).as_object().unwrap()).unwrap();
    let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
    let caller = auth.authenticate(&headers, None, IP).await.unwrap();

    let gone = Some(Lapsed::Withdrawn);
    let nameless = with("kid", Value::Null);
    let renamed = with("kid", json!("another"));
    let mut in_its_name = other.clone();
    in_its_name["kid"] = mine["kid"].clone();
    for (what, jwks, expected) in [
        ("the same", vec![&mine], None),
        ("one more", vec![&other, &mine], None),
        ("another one alone", vec![&other], gone),
        ("it is back", vec![&mine], None),
        ("without its name", vec![&nameless], None),
        ("under another name", vec![&renamed], gone),
        ("another one in its name", vec![&in_its_name], gone),
    ] {
        installed(&auth, &text, &jwks).await;
        assert_eq!(caller.lapsed(), expected, "{what}");
        let again = auth.authenticate(&headers, None, IP).await;
        assert_eq!(again.is_ok(), expected.is_none(), "{what}: a new request");
    }
    let elsewhere = text.replace(A, B);
    installed(&auth, &elsewhere, &[&mine]).await;
    assert_eq!(caller.lapsed(), gone, "its issuer is another one's");
    let by_another_algorithm = text.replace("[\"ES256\"]", "[\"ES384\", \"RS256\"]");
    let key = DevelopmentKey::generate("ES384").unwrap();
    let strong = key.jwks()["keys"][0].clone();
    installed(&auth, &by_another_algorithm, &[&mine, &strong]).await;
    assert_eq!(caller.lapsed(), gone, "its algorithm is off the list");
    installed(&auth, &text, &[&mine]).await;
    assert_eq!(caller.lapsed(), None);
}

/// As an issuer on the network that answers without a key: not a mistake that leaves the old ones in force.
#[tokio::test]
async fn a_file_that_has_no_key_any_more_withdraws_those_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let keys = [(); 2].map(|()| DevelopmentKey::generate("ES256").unwrap());
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let text = one_issuer(&format!("jwks_file = {path:?}"), "ES256");
    let config = configuration(&text).unwrap();
    let hands = Hands::default();
    write(&keys[0].jwks().to_string());
    let auth = Authenticator::new(prepare(&config, hands.clock()).await.unwrap());
    let headers = keys.each_ref().map(|key| {
        let token = key.token(claims_of(A).as_object().unwrap()).unwrap();
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, bearer)])
    });
    let caller = auth.authenticate(&headers[0], None, IP).await.unwrap();
    let again = async |text: &str| {
        let config = configuration(text).unwrap();
        let prepared = auth.prepare_again(&config, hands.clock()).await;
        prepared.map(|prepared| auth.install(prepared))
    };
    let shown = || auth.issuers().iter().map(|it| it.keys).collect::<Vec<_>>();

    // What may be half of something, and what is a mistake.
    for broken in [
        String::new(),
        "{".into(),
        "{}".into(),
        "[]".into(),
        r#"{"keys":[{}]}"#.into(),
        r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#.into(),
        fixture("rsa-2048.pub.pem"),
    ] {
        write(&broken);
        assert!(again(&text).await.is_err(), "{broken}");
        assert_eq!(caller.lapsed(), None, "{broken}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(again(&text).await.is_err(), "missing");
    write(r#"{"keys":[]}"#);
    let other = text.replace("ES256", "ES384");
    assert!(again(&other).await.is_err(), "other algorithms");
    assert!(again(&text.replace(A, B)).await.is_err(), "another issuer");
    std::fs::copy(&path, dir.path().join("other.json")).unwrap();
    let other = text.replace("keys.json", "other.json");
    assert!(again(&other).await.is_err(), "another file");
    assert_eq!((caller.lapsed(), shown()), (None, vec![1]));

    let foreign = DevelopmentKey::generate("EdDSA").unwrap();
    for none in [r#"{"keys":[]}"#.to_owned(), foreign.jwks().to_string()] {
        write(&keys[0].jwks().to_string());
        again(&text).await.unwrap();
        assert!(auth.authenticate(&headers[0], None, IP).await.is_ok());
        write(&none);
        // The next reload, of whatever, does not change it.
        for _ in 0..2 {
            again(&text).await.unwrap();
            assert_eq!(caller.lapsed(), Some(Lapsed::Withdrawn), "{none}");
            let refused = auth.authenticate(&headers[0], None, IP).await;
            assert_eq!(refused.unwrap_err().0, "signature", "{none}");
            assert_eq!(shown(), [0], "{none}");
        }
        let start = prepare(&config, hands.clock()).await.unwrap_err();
        assert!(start.to_string().contains("no key for ES256"), "{start}");
    }
    write(&keys[1].jwks().to_string());
    again(&text).await.unwrap();
    assert!(auth.authenticate(&headers[1], None, IP).await.is_ok());
    assert_eq!(
        (caller.lapsed(), shown()),
        (Some(Lapsed::Withdrawn), vec![1])
    );
}
