//! A body on its way in: in so much time, of so many bytes, and with a place when it is more than a few.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use http_body::Body as _;

use super::{Rpc, SMALL_BYTES_MAX};
use crate::rescue::Refusal;
use crate::server::{Body, next_piece};
use crate::slots::{Slot, Slots};

/// A body may take so many times `server.body_timeout_ms` in all. Without a bound one that comes drop by drop, each in time,
/// would keep its connection and its part of the memory for as long as it likes.
pub(super) const BODY_TIMEOUTS_MAX: u32 = 10;

/// A body of no more bytes is simply here, and so is an answer. One of more, and small all the same, takes a place of its own
/// kind, a body when it has come so far and until it is answered, an answer until it has left: else a connection that never
/// sends the last byte, or does not read, would have [`SMALL_BYTES_MAX`] for nothing.
pub(super) const FIRST_BYTES_MAX: usize = 16 << 10;
/// Places of that kind for each of a large one: the default has 1,024 of them, 256 MiB.
pub(super) const SMALL_PLACES: usize = 16;

/// What a body has: nothing at first, then one or the other.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) small: Option<Slot>,
    pub(super) large: Option<Slot>,
}

impl<S> Rpc<S> {
    pub(super) async fn read_body(
        &self,
        body: Body,
        tenant: &str,
    ) -> Result<(Bytes, Held), Refusal> {
        let most = self.limits.body_timeout * BODY_TIMEOUTS_MAX;
        let whole = tokio::time::timeout(most, self.read_pieces(body, tenant)).await;
        whole.unwrap_or_else(|_| {
            Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                format!(
                    "the body did not arrive in {BODY_TIMEOUTS_MAX} times server.body_timeout_ms"
                ),
            ))
        })
    }

    async fn read_pieces(&self, mut body: Body, tenant: &str) -> Result<(Bytes, Held), Refusal> {
        let max = self.limits.body_bytes_max;
        let too_large = || {
            Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload_too_large",
                format!(
                    "the body is over {max} bytes (server.max_body_bytes); send large data to POST /blobs and pass its blob id"
                ),
            )
        };
        // What its Content-Length says is refused before any of it is sent, to who waits for a `100 Continue`.
        if usize::try_from(body.size_hint().lower()).map_or(true, |bytes| bytes > max) {
            return Err(too_large());
        }
        let (mut whole, mut held) = (BytesMut::new(), Held::default());
        while let Some(piece) = next_piece(&mut body, self.limits.body_timeout).await {
            let piece = piece?;
            if piece.len() > max - whole.len() {
                return Err(too_large());
            }
            self.hold(&mut held, whole.len() + piece.len(), tenant)
                .await?;
            // Most come in one piece, which need not be copied.
            if whole.is_empty() && body.is_end_stream() {
                return Ok((piece, held));
            }
            whole.extend_from_slice(&piece);
        }
        Ok((whole.freeze(), held))
    }

    /// The place for a body of so many bytes. Meanwhile the rest of it waits with its sender.
    async fn hold(&self, held: &mut Held, bytes: usize, tenant: &str) -> Result<(), Refusal> {
        if bytes > SMALL_BYTES_MAX {
            if held.large.is_none() {
                held.large = Some(
                    self.place(&self.places.large, SMALL_BYTES_MAX, tenant)
                        .await?,
                );
                held.small = None;
            }
        } else if bytes > FIRST_BYTES_MAX && held.small.is_none() {
            held.small = Some(
                self.place(&self.places.small, FIRST_BYTES_MAX, tenant)
                    .await?,
            );
        }
        Ok(())
    }

    /// One of these, which are for bodies of over `bytes`.
    async fn place(&self, of: &Arc<Slots>, bytes: usize, tenant: &str) -> Result<Slot, Refusal> {
        let place = tokio::time::timeout(self.limits.body_timeout, of.wait(tenant)).await;
        place.map_err(|_| {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                format!(
                    "there are too many bodies of over {bytes} bytes here (server.max_large_bodies): send this one again later, \
                     or its data to POST /blobs and pass the blob id"
                ),
            )
            .with(header::RETRY_AFTER, "5")
        })
    }
}
