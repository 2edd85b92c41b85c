//! A process that says anything.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use skillgate_plugin_sdk::model::Health;

use super::*;
use crate::wire::Wire as _;
use crate::written::put_error;

const ROUNDS: usize = 200;

/// Which calls were told how they ended, in that order.
type Told = Arc<Mutex<Vec<u64>>>;

/// A call that a health answers.
fn begin(other: &Other, call: u64, is_run: bool, told: &Told) {
    let told = Arc::clone(told);
    let run = is_run.then(|| {
        Arc::new(RunContext {
            host: Arc::new(Taker::default()),
            request: Arc::default(),
        })
    });
    let pending = Pending {
        name: "health",
        started: !is_run,
        run,
        taken: services::Taken::default(),
        open: services::Open::default(),
        ends: None,
        done: Box::new(move |answer| {
            told.lock().unwrap().push(call);
            answer.map_or(Ok(()), |from| {
                Health::take(from)?;
                from.end()
            })
        }),
    };
    let packet = Packet::new(Kind::Call, 0, |_| {}).unwrap();
    let begun = other.link.begin(packet, pending);
    assert_eq!(begun.map_err(drop), Ok(call));
}

/// About one of the calls, or one that never was; and mostly as a process says it.
fn said(random: &mut SmallRng, calls: u64) -> Frame {
    let kinds = [
        Kind::Answer,
        Kind::Failed,
        Kind::Unheard,
        Kind::Log,
        Kind::Output,
        Kind::Service,
        Kind::Service,
        Kind::Service,
    ];
    let kind = *kinds.choose(random).unwrap();
    let (call, service) = (
        random.random_range(0..=calls + 1),
        random.random_range(0..=8),
    );
    let mut frame = frame(kind, call, |out| match kind {
        Kind::Answer => Health::default().put(out),
        Kind::Failed | Kind::Unheard => put_error(&Error::new(abi::E_INTERNAL, "x"), out),
        Kind::Log => {
            out.u32(abi::LOG_INFO);
            let texts = ["target", "run", "key=value", "message"];
            texts.iter().for_each(|text| out.text(text));
        }
        Kind::Output => {
            out.u8(1);
            out.data(b"text");
        }
        _ => {
            out.u8(service);
            out.u64(7);
            match service {
                // A secret, a blob's descriptor, a new blob.
                1 | 3 | 5 => out.text("blob:a"),
                // A part of one.
                4 => {
                    out.text("blob:a");
                    out.u64(0);
                    out.u64(16);
                }
                // More of one, and its end.
                6 => {
                    out.u64(1);
                    out.data(b"text");
                }
                7 => {
                    out.u64(1);
                    out.u8(1);
                }
                _ => {}
            }
        }
    });
    if random.random_bool(0.3) {
        let at = random.random_range(0..frame.body.len());
        match random.random_range(0..3) {
            0 => frame.body[at] = random.random(),
            1 => frame.body.truncate(at),
            _ => frame.body.push(0),
        }
    }
    frame
}

/// As the link hears it.
fn heard(link: &Arc<Link>, mut frame: Frame) -> Read<()> {
    match frame.kind {
        Kind::Answer | Kind::Failed | Kind::Unheard => link.answer(frame),
        Kind::Log => {
            let pace = crate::logs::Pace::default();
            services::log("plugin", "instance", &pace, &mut frame, |run| {
                link.has_run(run)
            })
        }
        Kind::Output => services::output(link, &mut frame),
        _ => services::service(link, frame, &tokio::runtime::Handle::current()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_told_once_whatever_its_process_says() {
    let mut random = SmallRng::seed_from_u64(7411);
    let (mut refused, mut ended, mut open) = (0, 0, 0);
    for round in 0..ROUNDS {
        let (other, told) = (other(), Told::default());
        let calls = random.random_range(1..=3);
        for call in 1..=calls {
            begin(&other, call, random.random(), &told);
        }
        for _ in 0..random.random_range(1..8) {
            if heard(&other.link, said(&mut random, calls)).is_err() {
                // Then it is ended.
                refused += 1;
                break;
            }
        }
        let served = async {
            while other.link.services.load(Ordering::Acquire) > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.unwrap();
        ended += told.lock().unwrap().len();
        open += other.link.bury().0;
        let mut told = told.lock().unwrap().clone();
        told.sort_unstable();
        assert_eq!(told, (1..=calls).collect::<Vec<_>>(), "round {round}");
    }
    // Neither refuses all of it, nor takes all.
    let counted = [refused, ended, open];
    assert!(counted.iter().all(|n| *n > ROUNDS / 4), "{counted:?}");
}
