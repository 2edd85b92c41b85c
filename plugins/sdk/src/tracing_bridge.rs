//! Events of the `tracing` crate as records of the host's log (feature `tracing`; the compiler that tracing-core needs).
//!
//! A shared object has its own copy of `tracing`, and so a global default of its own: [`log_to`] sets that, and nobody
//! else's events are touched.
//!
//! An event becomes one record: its level, its target, its message (or, without one, the name that `tracing` gives it:
//! where it is in the source), and its fields as text. The fields of the span that it is in come first. A span has its
//! parent's fields as they were when it began, then its own. Each name is there once, with the innermost value.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use skillgate_plugin_abi as abi;
use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{dispatcher, Dispatch, Event, Metadata, Subscriber};

use crate::host::Service;
use crate::model::{Error, Result};
use crate::{Host, Level};

#[cfg(test)]
mod tests;

/// Most fields of a record. Of more, the outermost are left out. As many as the contract's host reads.
pub const FIELDS_MAX: usize = 64;
/// Most bytes of a field's text; the rest is not even formatted. As many as the contract's host reads.
pub const FIELD_BYTES_MAX: usize = 4 << 10;
/// Most bytes of a message, likewise.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The field that `tracing` puts an event's message into.
const MESSAGE: &str = "message";

/// From now on this plugin's `tracing` events go to the host's log. For `create`; each instance calls it.
///
/// The instances of a plugin share the log: a record goes through the instance that called this last and is not yet
/// destroyed. With none left, events go nowhere. A host for tests counts until its last clone is dropped.
///
/// # Errors
///
/// `E_PRECONDITION`: the plugin has set another global default of `tracing` before.
pub fn log_to(host: &Host) -> Result<()> {
    static HOSTS: Hosts = Hosts::new();
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        dispatcher::set_global_default(Dispatch::new(Bridge::new(&HOSTS))).map_err(|_| {
            Error::new(
                abi::E_PRECONDITION,
                "tracing has another global default in this plugin",
            )
        })?;
        *installed = true;
    }
    HOSTS.add(host);
    Ok(())
}

// === the hosts ===

/// Whom to tell, the latest last. Weak: who is destroyed is not kept.
struct Hosts(RwLock<Vec<Weak<dyn Service>>>);

thread_local! {
    /// This thread is asking a host.
    static ASKING: Cell<bool> = const { Cell::new(false) };
    /// The spans that this thread is in, the innermost last.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Asking;

impl Drop for Asking {
    fn drop(&mut self) {
        // A thread that ends has no flag any more.
        let _ended = ASKING.try_with(|asking| asking.set(false));
    }
}

impl Hosts {
    const fn new() -> Self {
        Hosts(RwLock::new(Vec::new()))
    }

    fn add(&self, host: &Host) {
        let new = Arc::downgrade(&host.service);
        let mut hosts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // What is not there any more, and this one's earlier place.
        hosts.retain(|old| {
            old.strong_count() > 0 && old.as_ptr().cast::<()>() != new.as_ptr().cast::<()>()
        });
        hosts.push(new);
    }

    /// The answer of the latest host that has one. None, too, when the host itself makes an event while it is asked (a
    /// test's host, or one linked with the plugin): it would be asked for ever.
    fn ask<A>(&self, question: impl Fn(&dyn Service) -> Option<A>) -> Option<A> {
        // A thread that ends asks no more.
        if ASKING
            .try_with(|asking| asking.replace(true))
            .unwrap_or(true)
        {
            return None;
        }
        let _asking = Asking;
        // Not under the lock: the host is called.
        let hosts: Vec<_> = {
            let hosts = self.0.read().unwrap_or_else(PoisonError::into_inner);
            hosts.iter().rev().filter_map(Weak::upgrade).collect()
        };
        hosts.iter().find_map(|host| question(&**host))
    }
}

// === fields ===

/// By name, the outermost first.
#[derive(Clone, Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    /// One more, further inside than all before.
    fn put(&mut self, name: &'static str, text: String) {
        if let Some((_, old)) = self.0.iter_mut().find(|(known, _)| *known == name) {
            *old = text;
            return;
        }
        if self.0.len() == FIELDS_MAX {
            self.0.remove(0);
        }
        self.0.push((name, text));
    }

    fn put_all(&mut self, inner: Fields) {
        for (name, text) in inner.0 {
            self.put(name, text);
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(at).1)
    }
}

/// As much of a text as there is room for.
struct Cut {
    text: String,
    bytes_max: usize,
}

impl Write for Cut {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let mut end = more.len().min(self.bytes_max - self.text.len());
        while !more.is_char_boundary(end) {
            end -= 1;
        }
        self.text.push_str(&more[..end]);
        if end < more.len() {
            // Full: nobody has to format the rest. What is full stays so, also for a shorter character.
            self.bytes_max = self.text.len();
            return Err(fmt::Error);
        }
        Ok(())
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let bytes_max = match field.name() {
            MESSAGE => MESSAGE_BYTES_MAX,
            _ => FIELD_BYTES_MAX,
        };
        let text = String::new();
        let mut cut = Cut { text, bytes_max };
        // An error says that it is full; of one that the value makes up, what came before is kept.
        let _full = write!(cut, "{value:?}");
        self.put(field.name(), cut.text);
    }

    /// Without the quotes.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

// === the subscriber ===

struct Span {
    metadata: &'static Metadata<'static>,
    /// With those of its parent.
    fields: Arc<Fields>,
    /// How many handles there are. With the last one it is closed, and forgotten.
    handles: usize,
}

struct Bridge {
    hosts: &'static Hosts,
    spans: Mutex<HashMap<u64, Span>>,
}

fn level(metadata: &Metadata<'_>) -> Level {
    match *metadata.level() {
        tracing_core::Level::TRACE => Level::Trace,
        tracing_core::Level::DEBUG => Level::Debug,
        tracing_core::Level::INFO => Level::Info,
        tracing_core::Level::WARN => Level::Warn,
        tracing_core::Level::ERROR => Level::Error,
    }
}

impl Bridge {
    fn new(hosts: &'static Hosts) -> Self {
        Bridge {
            hosts,
            spans: Mutex::default(),
        }
    }

    /// No code of the plugin or of the host runs under this lock.
    fn spans(&self) -> MutexGuard<'_, HashMap<u64, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `f` says of the innermost span that this thread is in.
    fn innermost<A>(&self, f: impl Fn(u64, &Span) -> A) -> Option<A> {
        let spans = self.spans();
        // A thread that ends is in none.
        ENTERED
            .try_with(|entered| {
                let entered = entered.borrow();
                let mut inside_out = entered.iter().rev();
                inside_out.find_map(|id| spans.get(id).map(|span| f(*id, span)))
            })
            .unwrap_or(None)
    }

    /// `own`, and around it the fields of the span that it is in: the one named as parent, none for a root, else where
    /// the thread is.
    fn inside(&self, parent: Option<&Id>, root: bool, own: Fields) -> Fields {
        let outer = match parent {
            Some(parent) => {
                let spans = self.spans();
                let span = spans.get(&parent.into_u64());
                span.map(|span| Arc::clone(&span.fields))
            }
            None if root => None,
            None => self.innermost(|_, span| Arc::clone(&span.fields)),
        };
        let mut fields = outer.map_or_else(Fields::default, |outer| Fields::clone(&outer));
        fields.put_all(own);
        fields
    }
}

impl Subscriber for Bridge {
    /// Asked again each time: the host's levels may change, and so may the host.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = level(metadata);
        self.hosts
            .ask(|host| host.log_enabled(level, metadata.target()))
            .unwrap_or(false)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut own = Fields::default();
        span.record(&mut own);
        let made = Span {
            metadata: span.metadata(),
            fields: Arc::new(self.inside(span.parent(), span.is_root(), own)),
            handles: 1,
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.spans().insert(id, made);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut own = Fields::default();
        values.record(&mut own);
        if let Some(span) = self.spans().get_mut(&id.into_u64()) {
            Arc::make_mut(&mut span.fields).put_all(own);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut own = Fields::default();
        event.record(&mut own);
        let message = own.take(MESSAGE);
        let message = message.as_deref().unwrap_or(metadata.name());
        let fields = self.inside(event.parent(), event.is_root(), own);
        let fields: Vec<_> = fields.0.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let level = level(metadata);
        self.hosts.ask(|host| {
            let taken = host.log(level, metadata.target(), message, &fields);
            taken.then_some(())
        });
    }

    fn enter(&self, id: &Id) {
        // A thread that ends is in none.
        let _ended = ENTERED.try_with(|entered| entered.borrow_mut().push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        let id = id.into_u64();
        let _ended = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            // Not always the innermost: spans may be left in any order.
            if let Some(at) = entered.iter().rposition(|known| *known == id) {
                entered.remove(at);
            }
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(span) = self.spans().get_mut(&id.into_u64()) {
            span.handles += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.spans();
        match spans.get_mut(&id.into_u64()) {
            Some(span) if span.handles > 1 => {
                span.handles -= 1;
                false
            }
            Some(_) => spans.remove(&id.into_u64()).is_some(),
            None => false,
        }
    }

    fn current_span(&self) -> Current {
        self.innermost(|id, span| Current::new(Id::from_u64(id), span.metadata))
            .unwrap_or_else(Current::none)
    }
}
