//! Keys that are fetched: how often, how long they are good, and who waits. The issuer is a function; time stands still
//! until a test moves it.

use super::super::cache::Generation;
use super::super::challenge::Challenge;
use super::super::jwks::{Ages, Fetch, GetError, Keys, Remote, WAIT_MAX};
use super::super::keys::{BadKeys, KeySet, Strictness};
use super::super::verify::{Issuer, Verifier};
use super::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// What the issuer answers.
#[derive(Debug, Clone)]
enum Answer {
    Keys(String),
    Nothing,
    Silence,
    Panic,
}

/// An issuer on a network, which can be told what to answer and counts how often it is asked.
struct Idp {
    answer: Arc<Mutex<Answer>>,
    fetches: Arc<AtomicU64>,
    hands: Hands,
    verifier: Verifier,
    remote: Arc<Remote>,
}

impl Idp {
    fn new(answer: Answer) -> Idp {
        Idp::at("here", answer)
    }

    fn at(source: &str, answer: Answer) -> Idp {
        let answer = Arc::new(Mutex::new(answer));
        let fetches = Arc::new(AtomicU64::new(0));
        let fetch: Fetch = {
            let (answer, fetches) = (answer.clone(), fetches.clone());
            Arc::new(move || {
                fetches.fetch_add(1, Ordering::SeqCst);
                let answer = answer.lock().unwrap().clone();
                async move {
                    match answer {
                        Answer::Keys(text) => Ok(KeySet::from_jwks(
                            &text,
                            &[Algorithm::ES256],
                            Strictness::Remote,
                        )?),
                        Answer::Nothing => Err(GetError::Keys(BadKeys::Neither)),
                        Answer::Silence => std::future::pending().await,
                        Answer::Panic => panic!("a fetch that panics"),
                    }
                }
                .boxed()
            })
        };
        let hands = Hands::default();
        let generation = Generation::default();
        let ages = Ages {
            fresh: Duration::from_secs(600),
            stale: Duration::from_secs(3600),
        };
        let remote = Remote::new(
            A,
            source.to_owned(),
            fetch,
            ages,
            hands.clock(),
            generation.clone(),
            Arc::default(),
        );
        let config = configuration(&format!(
            "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"{A}\"\naudiences = [\"{AUDIENCE}\"]\n\
             discovery = true\nalgorithms = [\"ES256\"]\n"
        ))
        .unwrap();
        let issuer = Issuer::new(&config.auth.issuers[0], Keys::Remote(remote.clone()));
        let issuers = HashMap::from([(A.to_owned(), issuer)]);
        let verifier = Verifier::new(issuers, 100, generation, hands.clock());
        Idp {
            answer,
            fetches,
            hands,
            verifier,
            remote,
        }
    }

    fn publishes(&self, keys: &[&DevelopmentKey]) {
        let keys: Vec<Value> = keys
            .iter()
            .map(|key| key.jwks()["keys"][0].clone())
            .collect();
        self.answers(Answer::Keys(json!({ "keys": keys }).to_string()));
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn asked(&self) -> u64 {
        self.fetches.load(Ordering::SeqCst)
    }

    async fn why(&self, token: &str) -> &'static str {
        match self.verifier.verify(token).await {
            Ok(_) => "taken",
            Err(refused) => refused.reason(),
        }
    }
}

fn key() -> DevelopmentKey {
    DevelopmentKey::generate("ES256").unwrap()
}

/// A token that lives long, by this key under this name.
fn token(key: &DevelopmentKey, kid: &str) -> String {
    let mut header = header(Algorithm::ES256, key);
    header["kid"] = kid.into();
    let mut claims = claims_of(A);
    claims["exp"] = json!(NOW + 1_000_000);
    signed(
        key,
        Algorithm::ES256,
        &header.to_string(),
        &claims.to_string(),
    )
}

fn own(key: &DevelopmentKey) -> String {
    token(key, key.kid())
}

#[tokio::test]
async fn a_thousand_unknown_kids_cause_one_fetch_in_thirty_seconds() {
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
    assert_eq!(idp.asked(), 1);

    let mut number = 0_u32;
    let mut flood = || {
        let tokens: Vec<String> = (0..1000)
            .map(|_| {
                number += 1;
                token(&old, &format!("unknown-{number}"))
            })
            .collect();
        let idp = &idp;
        async move {
            // All at once: who comes while a fetch is under way waits for that one.
            let answers = join_all(tokens.iter().map(|token| idp.why(token))).await;
            assert!(answers.iter().all(|why| *why == "signature"));
        }
    };
    flood().await;
    assert_eq!(idp.asked(), 1, "the first fetch was just now");
    idp.hands.pass(29);
    flood().await;
    assert_eq!(idp.asked(), 1);
    for round in 1..=10 {
        idp.hands.pass(if round == 1 { 1 } else { 30 });
        flood().await;
        assert_eq!(idp.asked(), 1 + round, "11,000 tokens, one fetch in 30 s");
    }
    assert_eq!(
        idp.why(&own(&old)).await,
        "taken",
        "the good key is still there"
    );
}

#[tokio::test]
async fn a_new_key_is_taken_at_once_and_a_withdrawn_one_no_more() {
    let (idp, old, new) = (Idp::new(Answer::Nothing), key(), key());
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
    assert_eq!(idp.verifier.cached(), 1);
    idp.hands.pass(31);

    idp.publishes(&[&old, &new]);
    assert_eq!(
        idp.why(&own(&new)).await,
        "taken",
        "an unknown kid is looked up"
    );
    assert_eq!(idp.asked(), 2);
    assert_eq!(idp.why(&own(&old)).await, "taken");

    // Withdrawn: seen at the latest when the keys are as old as they may be, by tokens that were verified before too.
    idp.publishes(&[&new]);
    assert_eq!(idp.why(&own(&old)).await, "taken", "nobody knows yet");
    idp.hands.pass(600);
    assert_eq!(
        idp.why(&own(&new)).await,
        "taken",
        "fresh keys are asked for beside"
    );
    idp.remote
        .refresh()
        .expect("one is under way or just done")
        .await;
    assert_eq!(idp.asked(), 3);
    assert_eq!(idp.why(&own(&old)).await, "signature");
    assert_eq!(idp.why(&own(&new)).await, "taken");
}

/// Else each fetch, of which there is one every few minutes, would have all signatures checked again.
#[tokio::test]
async fn the_same_keys_again_leave_what_was_verified_by_them() {
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    idp.publishes(&[&old]);
    let token = own(&old);
    assert_eq!(idp.why(&token).await, "taken", "and the keys are here");
    let first = idp.verifier.verify(&token).await.unwrap();
    let again = async || {
        idp.hands.pass(31);
        idp.remote.refresh().expect("a fetch begins").await;
        idp.verifier.verify(&token).await.unwrap()
    };
    assert!(Arc::ptr_eq(&first, &again().await));
    assert_eq!(idp.asked(), 2);
    idp.publishes(&[&old, &key()]);
    assert!(!Arc::ptr_eq(&first, &again().await), "others beside it");
}

/// The same for whoever was let in before, when it begins with something.
#[tokio::test]
async fn who_was_let_in_is_asked_about_again_by_the_newest_keys() {
    let (idp, old, new) = (Idp::new(Answer::Nothing), key(), key());
    let refreshed = async || {
        idp.hands.pass(31);
        idp.remote.refresh().expect("a fetch begins").await;
    };
    idp.publishes(&[&old]);
    let subject = idp.verifier.verify(&own(&old)).await.unwrap();
    idp.publishes(&[&new, &old]);
    refreshed().await;
    assert_eq!(idp.verifier.lapsed(&subject), None);
    idp.answers(Answer::Nothing);
    refreshed().await;
    assert_eq!(
        idp.verifier.lapsed(&subject),
        None,
        "no answer takes nothing away"
    );
    idp.publishes(&[&new]);
    assert_eq!(idp.verifier.lapsed(&subject), None, "nobody knows yet");
    refreshed().await;
    let gone = Some(Lapsed::Withdrawn);
    assert_eq!(idp.verifier.lapsed(&subject), gone);
    idp.publishes(&[&old]);
    refreshed().await;
    assert_eq!(idp.verifier.lapsed(&subject), None);
    idp.hands.pass(3600);
    let unknown = Some(Lapsed::KeysUnavailable);
    assert_eq!(idp.verifier.lapsed(&subject), unknown, "too old to be used");
    let asked = idp.asked();
    tokio::task::yield_now().await;
    assert_eq!(idp.asked(), asked, "whoever asks this makes nobody ask");
}

/// A key without a name is tried for every token: that there is one does not mean that it is the right one.
#[tokio::test]
async fn a_new_key_is_looked_up_where_the_old_one_has_no_name() {
    let nameless = |key: &DevelopmentKey| {
        let mut jwk = key.jwks()["keys"][0].clone();
        jwk.as_object_mut().unwrap().remove("kid");
        Answer::Keys(json!({ "keys": [jwk] }).to_string())
    };
    let without_kid = |key: &DevelopmentKey| {
        let mut claims = claims_of(A);
        claims["exp"] = json!(NOW + 1_000_000);
        signed(
            key,
            Algorithm::ES256,
            r#"{"alg":"ES256","typ":"JWT"}"#,
            &claims.to_string(),
        )
    };
    let (old, new) = (key(), key());
    for (published, token) in [
        (Answer::Keys(new.jwks().to_string()), own(&new)),
        (nameless(&new), without_kid(&new)),
    ] {
        let idp = Idp::new(nameless(&old));
        assert_eq!(idp.why(&without_kid(&old)).await, "taken");
        idp.answers(published);
        idp.hands.pass(30);
        assert_eq!(idp.why(&token).await, "taken");
        assert_eq!(idp.asked(), 2);
        assert_eq!(idp.why(&without_kid(&old)).await, "signature");

        // Whoever sends what nobody has signed cannot make us ask more often, and a good token waits for nothing.
        let forged = without_kid(&key());
        let flood = || join_all((0..1000).map(|_| idp.why(&forged)));
        assert!(flood().await.iter().all(|why| *why == "signature"));
        assert_eq!(idp.asked(), 2);
        idp.answers(Answer::Silence);
        idp.hands.pass(30);
        let waits = idp.verifier.verify(&forged).now_or_never();
        assert!(waits.is_none(), "it waits for the answer");
        tokio::task::yield_now().await;
        assert_eq!(idp.asked(), 3);
        let at_once = idp.verifier.verify(&token).now_or_never();
        assert!(at_once.is_some_and(|outcome| outcome.is_ok()));
    }
    // One whose name is known is not by another key, whatever the issuer has by now.
    let idp = Idp::new(Answer::Nothing);
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
    idp.hands.pass(30);
    assert_eq!(idp.why(&token(&new, old.kid())).await, "signature");
    assert_eq!(idp.asked(), 1);
}

/// An answer without keys is one: the issuer has taken back all of them. It is asked again until it has some.
#[tokio::test]
async fn an_issuer_that_withdraws_all_its_keys_is_not_trusted_by_the_old_ones() {
    for none in [
        json!([]),
        json!([{ "kty": "RSA", "n": "AQAB", "e": "AQAB" }]),
    ] {
        let (idp, old) = (Idp::new(Answer::Nothing), key());
        idp.publishes(&[&old]);
        let token = own(&old);
        assert_eq!(idp.why(&token).await, "taken");
        idp.answers(Answer::Keys(json!({ "keys": none }).to_string()));
        idp.hands.pass(600);
        idp.remote.refresh().expect("it is time").await;
        assert_eq!(idp.why(&token).await, "keys_unavailable", "though cached");
        assert!(idp.remote.failing(), "the operator is told");
        assert!(idp.remote.usable().is_none());
        // Neither a fetch that fails nor a later life brings them back.
        idp.answers(Answer::Nothing);
        idp.hands.pass(30);
        assert_eq!(idp.why(&token).await, "keys_unavailable");
        let later = Idp::new(Answer::Keys(json!({ "keys": [] }).to_string()));
        assert_eq!(later.why(&token).await, "keys_unavailable");
        let earlier = Idp::new(Answer::Nothing);
        earlier.publishes(&[&old]);
        assert_eq!(earlier.why(&token).await, "taken");
        later.remote.inherit(&earlier.remote);
        assert_eq!(later.why(&token).await, "keys_unavailable");

        idp.publishes(&[&old]);
        idp.hands.pass(30);
        assert_eq!(idp.why(&token).await, "taken", "as soon as it has one");
        assert!(!idp.remote.failing());
    }
}

#[tokio::test]
async fn keys_serve_while_the_issuer_is_away_but_not_for_ever() {
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    assert_eq!(idp.why(&own(&old)).await, "keys_unavailable", "none yet");
    assert!(idp.remote.failing());
    let refused = idp.verifier.verify(&own(&old)).await.unwrap_err();
    assert_eq!(refused, Refused::Unavailable);
    assert_eq!(refused.retry_after_s(), Some(30));
    assert_eq!(idp.asked(), 1, "a failed fetch counts like a good one");

    idp.hands.pass(30);
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
    assert!(!idp.remote.failing());
    idp.answers(Answer::Nothing);
    for passed in [700, 700, 700, 700, 700] {
        idp.hands.pass(passed);
        assert_eq!(idp.why(&own(&old)).await, "taken");
        assert_eq!(idp.why(&token(&old, "other")).await, "signature");
    }
    idp.hands.pass(100);
    assert_eq!(
        idp.why(&token(&old, old.kid())).await,
        "keys_unavailable",
        "3600 s are over"
    );
    idp.hands.pass(30);
    idp.publishes(&[&old]);
    assert_eq!(
        idp.why(&own(&old)).await,
        "taken",
        "by itself, without a restart"
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_limit_and_nobody_ends_a_fetch_for_others() {
    let (idp, old) = (Idp::new(Answer::Silence), key());
    let began = tokio::time::Instant::now();
    assert_eq!(idp.why(&own(&old)).await, "keys_unavailable");
    assert!((WAIT_MAX..WAIT_MAX * 2).contains(&began.elapsed()));

    // Those with keys do not wait at all.
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
    idp.answers(Answer::Silence);
    idp.hands.pass(601);
    let began = tokio::time::Instant::now();
    assert_eq!(idp.why(&own(&old)).await, "taken");
    assert!(began.elapsed().is_zero());
    assert_eq!(idp.why(&token(&old, "unknown")).await, "signature");
    assert_eq!(idp.asked(), 2);

    // Whoever goes away takes nothing along: the fetch is nobody's own.
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    idp.publishes(&[&old]);
    {
        let token = own(&old);
        let mut gone = Box::pin(idp.verifier.verify(&token));
        assert!(gone.as_mut().now_or_never().is_none(), "it waits");
    }
    assert_eq!(idp.why(&own(&old)).await, "taken");
    assert_eq!(idp.asked(), 1);
}

#[tokio::test]
async fn a_fetch_that_panics_is_one_that_failed() {
    let (idp, old) = (Idp::new(Answer::Panic), key());
    assert_eq!(idp.why(&own(&old)).await, "keys_unavailable");
    idp.hands.pass(30);
    idp.publishes(&[&old]);
    assert_eq!(idp.why(&own(&old)).await, "taken");
}

#[tokio::test]
async fn a_later_life_takes_over_what_an_earlier_one_has_fetched() {
    let (earlier, old) = (Idp::new(Answer::Nothing), key());
    earlier.publishes(&[&old]);
    assert_eq!(earlier.why(&own(&old)).await, "taken");
    earlier.hands.pass(1000);

    let later = Idp::new(Answer::Nothing);
    later.hands.pass(1000);
    assert_eq!(later.why(&own(&old)).await, "keys_unavailable");
    later.remote.inherit(&earlier.remote);
    assert_eq!(later.why(&own(&old)).await, "taken");
    // As old as they are: not good for another hour.
    later.hands.pass(2601);
    assert_eq!(later.why(&own(&old)).await, "keys_unavailable");

    // What was fetched elsewhere, or by whoever trusted others, is not what this one would be told.
    let elsewhere = Idp::at("elsewhere", Answer::Nothing);
    assert_eq!(elsewhere.why(&own(&old)).await, "keys_unavailable");
    elsewhere.remote.inherit(&earlier.remote);
    assert_eq!(elsewhere.why(&own(&old)).await, "keys_unavailable");
}

/// The fetch of the later life ends while it looks at how old the keys of the earlier one are.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_a_later_life_fetches_meanwhile_is_not_lost() {
    let (old, new) = (key(), key());
    let later = Idp::new(Answer::Nothing);
    later.publishes(&[&new]);
    let is_time = Arc::new(AtomicBool::new(false));
    let clock = {
        let (is_time, remote, clock) = (is_time.clone(), later.remote.clone(), later.hands.clock());
        Clock::new(move || {
            if is_time.swap(false, Ordering::SeqCst) {
                remote.refresh();
                while remote.usable().is_none() {
                    std::thread::yield_now();
                }
            }
            clock.now()
        })
    };
    let keys = KeySet::from_jwks(
        &old.jwks().to_string(),
        &[Algorithm::ES256],
        Strictness::Remote,
    );
    let keys = keys.unwrap();
    let fetch: Fetch = Arc::new(move || std::future::ready(Ok(keys.clone())).boxed());
    let ages = Ages {
        fresh: Duration::from_secs(600),
        stale: Duration::from_secs(3600),
    };
    let earlier = Remote::new(
        A,
        "here".to_owned(),
        fetch,
        ages,
        clock,
        Generation::default(),
        Arc::default(),
    );
    assert!(earlier.ask().await.is_ok());
    is_time.store(true, Ordering::SeqCst);
    later.remote.inherit(&earlier);
    assert_eq!(
        later.why(&own(&old)).await,
        "signature",
        "it was taken back"
    );
    assert_eq!(later.why(&own(&new)).await, "taken");
}

/// The same text each time, which is in the cache from the first on.
#[tokio::test]
async fn a_token_that_was_verified_before_is_no_better_than_the_keys() {
    let (idp, old, new) = (Idp::new(Answer::Nothing), key(), key());
    idp.publishes(&[&old]);
    let token = own(&old);
    assert_eq!(idp.why(&token).await, "taken");
    idp.publishes(&[&new]);
    idp.hands.pass(599);
    assert_eq!(idp.why(&token).await, "taken");
    assert_eq!(idp.asked(), 1);
    idp.hands.pass(1);
    assert_eq!(idp.why(&token).await, "taken", "nobody knows yet");
    tokio::task::yield_now().await;
    assert_eq!(idp.asked(), 2, "it has begun a fetch all the same");
    assert_eq!(idp.why(&token).await, "signature");

    let token = own(&new);
    assert_eq!(idp.why(&token).await, "taken");
    idp.answers(Answer::Nothing);
    idp.hands.pass(3599);
    assert_eq!(idp.why(&token).await, "taken");
    idp.hands.pass(1);
    assert_eq!(idp.why(&token).await, "keys_unavailable");
}

#[tokio::test(start_paused = true)]
async fn keys_are_asked_for_though_nobody_sends_a_token() {
    let (idp, old) = (Idp::new(Answer::Nothing), key());
    let challenge = Challenge {
        resource: None,
        required_scopes: Vec::new(),
        issuers: Vec::new(),
    };
    let Idp {
        answer,
        fetches,
        hands,
        verifier,
        ..
    } = idp;
    let mode = Mode::Jwt(Box::new(Jwt {
        verifier,
        challenge,
    }));
    let authenticator = Authenticator::new(Prepared(mode));
    let keeping = tokio::spawn(authenticator.clone().housekeeping());
    // The time of tokio passes by itself while all wait.
    let looked = || tokio::time::sleep(TEND_EVERY + Duration::from_millis(1));
    let asked = || fetches.load(Ordering::SeqCst);
    let has = || authenticator.issuers()[0].keys;

    looked().await;
    assert_eq!((asked(), has()), (1, 0), "it has none yet");
    *answer.lock().unwrap() = Answer::Keys(old.jwks().to_string());
    hands.pass(29);
    looked().await;
    assert_eq!((asked(), has()), (1, 0), "the last fetch was just now");
    hands.pass(1);
    looked().await;
    assert_eq!((asked(), has()), (2, 1), "by itself");
    hands.pass(599);
    looked().await;
    assert_eq!(asked(), 2, "they are fresh");
    hands.pass(1);
    looked().await;
    assert_eq!((asked(), has()), (3, 1));
    // A failure takes nothing away, and is tried again.
    *answer.lock().unwrap() = Answer::Nothing;
    hands.pass(600);
    looked().await;
    hands.pass(30);
    looked().await;
    assert_eq!((asked(), has()), (5, 1));
    keeping.abort();
}
