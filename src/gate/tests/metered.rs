//! What a connection may carry, byte by byte.

use super::super::meter::{Meter, Metered};
use super::limits::{host_and_grant, world};
use super::*;

/// What there is room for comes through. Then it is an error, or a reader would take a part for the whole.
#[tokio::test]
async fn bytes_beyond_the_limit_are_no_end() {
    const MAX: usize = 16;
    let few = Settings {
        run_download_bytes_max: MAX as u64,
        run_upload_bytes_max: MAX as u64,
        ..settings()
    };
    let (_host, _, grant) = host_and_grant(b"").await;
    let world = world(few, grant.clone());
    let meter = || Meter::new(world.gate.open(grant.clone()).run.clone(), Arc::default());
    for (there, piece, is_spent) in [
        (MAX, MAX, false),
        (MAX, 7, false),
        (MAX + 1, MAX, true),
        (MAX + 1, 7, true),
        (MAX + 1, MAX + 1, true),
    ] {
        let meter = meter();
        let there = vec![7; there];
        let mut reader = Metered::new(&there[..], meter.clone());
        let (mut piece, mut got) = (vec![0; piece], 0);
        let ended = loop {
            match reader.read(&mut piece).await {
                Ok(0) => break true,
                Ok(n) => got += n,
                Err(_) => break false,
            }
        };
        let about = format!("{} in pieces of {}", there.len(), piece.len());
        assert_eq!((got, ended), (MAX, !is_spent), "{about}");
        assert_eq!(meter.is_spent(), is_spent, "{about}");
    }
    let meter = meter();
    let mut writer = Metered::new(Vec::new(), meter.clone());
    assert_eq!(writer.write(&[7; MAX + 1]).await.unwrap(), MAX);
    assert_eq!(writer.write(&[]).await.unwrap(), 0);
    assert!(!meter.is_spent());
    assert!(writer.write(&[7]).await.is_err() && meter.is_spent());
}
