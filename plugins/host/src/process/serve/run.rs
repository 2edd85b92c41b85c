//! A run's services, as its plugin's process has them: each is asked of the gateway, and its reply waited for. That
//! comes because whoever reads never calls a plugin that has runs ([`super::Served::HAS_RUNS`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use skillgate_plugin_abi as abi;
use skillgate_plugin_sdk::model::{Error, Result};

use super::super::frame::{Kind, Packet};
use super::super::services::{OUTPUT_BYTES, PIECE_BYTES, Service, replied};
use super::line::Line;
use crate::answer::NAME_BYTES;
use crate::instance::on_event_loop;
use crate::sandbox::RunHost;
use crate::wire::{In, Out, Read};

pub(super) struct RemoteRun {
    line: Arc<Line>,
    call: u64,
}

impl RemoteRun {
    pub(super) fn new(line: &Arc<Line>, call: u64) -> Self {
        RemoteRun {
            line: Arc::clone(line),
            call,
        }
    }

    fn ask<T>(
        &self,
        service: Service,
        write: impl FnOnce(&mut Out),
        read: impl FnOnce(&mut In<'_>) -> Read<T>,
    ) -> Result<T> {
        let (number, reply) = self.line.expect();
        let packet = Packet::new(Kind::Service, self.call, |out| {
            out.u8(service as u8);
            out.u64(number);
            write(out);
        });
        let packet = packet.map_err(|e| Error::new(abi::E_EXHAUSTED, e.to_string()));
        let sent = packet.and_then(|packet| self.line.try_send(&packet));
        if let Err(error) = sent {
            self.line.forget(number);
            return Err(error);
        }
        match reply.recv() {
            Ok(frame) => replied(frame, read),
            Err(_) => Err(Error::new(abi::E_INTERNAL, "there will be no reply")),
        }
    }
}

impl RunHost for RemoteRun {
    fn output(&self, stream: u32, data: &[u8]) -> bool {
        let window = self.line.window(self.call);
        let Ok(stream) = u8::try_from(stream) else {
            return false;
        };
        for piece in data.chunks(OUTPUT_BYTES) {
            // A call that promises not to block does not wait for room; there is a millisecond of this (contract).
            let enters = match on_event_loop() {
                true => window.enter_at_once(piece.len()),
                false => window.enter(piece.len()),
            };
            if !enters {
                return false;
            }
            let packet = Packet::new(Kind::Output, self.call, |out| {
                out.u8(stream);
                out.data(piece);
            });
            if let Ok(packet) = packet {
                self.line.send(&packet);
            }
        }
        window.more()
    }

    fn secret(&self, name: &str) -> Result<Vec<u8>> {
        self.ask(
            Service::Secret,
            |out| out.text(name),
            |from| from.data("value", PIECE_BYTES).map(<[u8]>::to_vec),
        )
    }

    fn blob_fd(&self, id: &str) -> Result<OwnedFd> {
        self.ask(Service::BlobFd, |out| out.text(id), |from| from.fd("fd"))
    }

    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let cap = buf.len().min(PIECE_BYTES);
        let data = self.ask(
            Service::BlobRead,
            |out| {
                out.text(id);
                out.u64(offset);
                out.u64(cap as u64);
            },
            |from| from.data("data", cap).map(<[u8]>::to_vec),
        )?;
        buf[..data.len()].copy_from_slice(&data);
        Ok(data.len())
    }

    fn blob_create(&self, kind: &str) -> Result<i64> {
        self.ask(
            Service::BlobCreate,
            |out| out.text(kind),
            |from| from.u64("writer").map(u64::cast_signed),
        )
    }

    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()> {
        for piece in data.chunks(PIECE_BYTES) {
            let write = |out: &mut Out| {
                out.u64(writer.cast_unsigned());
                out.data(piece);
            };
            self.ask(Service::BlobWrite, write, |_| Ok(()))?;
        }
        Ok(())
    }

    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>> {
        self.ask(
            Service::BlobFinish,
            |out| {
                out.u64(writer.cast_unsigned());
                out.u8(u8::from(commit));
            },
            |from| {
                let there = from.flag("there")?;
                let id = from.text("id", NAME_BYTES)?;
                Ok(there.then_some(id))
            },
        )
    }

    fn gate_serve(&self, listener: OwnedFd) -> Result<()> {
        self.ask(Service::GateServe, |out| out.fds.push(listener), |_| Ok(()))
    }
}
