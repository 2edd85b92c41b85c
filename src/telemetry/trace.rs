//! W3C Trace Context: which trace a request belongs to.
//!
//! A valid `traceparent` is taken over with a new span id of our own, else a new trace begins. Invalid ones are ignored
//! whole (Trace Context, section 4.3). The ids are in the log's spans, in the answer's `traceparent` header, and with
//! each call for whoever records it. `tracestate` belongs to whoever calls other services; this gateway does not.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Request};

/// Both of a request and of its answer.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Where a request is in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    trace_id: u128,
    span_id: u64,
    sampled: bool,
}

impl Trace {
    /// The first span of a new trace.
    pub fn new() -> Self {
        // Zero would be invalid (sections 3.2.2.3 and 3.2.2.4); so rare that one is as good as another.
        Trace {
            trace_id: rand::random::<u128>().max(1),
            span_id: rand::random::<u64>().max(1),
            sampled: false,
        }
    }

    /// A new span in the trace that the request names.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(&TRACEPARENT).iter();
        match (values.next().and_then(parse), values.next()) {
            (Some((trace_id, sampled)), None) => Trace {
                trace_id,
                sampled,
                ..Trace::new()
            },
            _ => Trace::new(),
        }
    }

    /// The one that a request has been given, as it comes in; else a new one.
    pub fn in_request<B>(request: &Request<B>) -> Self {
        let trace = request.extensions().get::<Trace>().copied();
        trace.unwrap_or_default()
    }

    /// 32 hex digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// 16 hex digits: this gateway's part of the work.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// As a header.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.to_string()).ok()
    }
}

impl Default for Trace {
    fn default() -> Self {
        Trace::new()
    }
}

impl fmt::Display for Trace {
    /// `traceparent` of version 00.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(
            f,
            "00-{:032x}-{:016x}-{flags:02x}",
            self.trace_id, self.span_id
        )
    }
}

/// Section 3.2: `version-traceid-parentid-flags`, lower case hex. A higher version may have more behind it.
fn parse(value: &HeaderValue) -> Option<(u128, bool)> {
    let text = value.to_str().ok()?;
    let mut parts = text.splitn(5, '-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let fits = part.len() == digits && part.bytes().all(lower);
        if fits {
            u128::from_str_radix(part, 16).ok()
        } else {
            None
        }
    };
    let (version, trace_id, parent_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let more = parts.next().is_some();
    if version == 0xff || (version == 0 && more) || trace_id == 0 || parent_id == 0 {
        return None;
    }
    Some((trace_id, flags & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::{TRACEPARENT, Trace};
    use http::{HeaderMap, HeaderValue};

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn of(values: &[&str]) -> Trace {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        Trace::of(&headers)
    }

    #[test]
    fn valid_ones_go_on() {
        for (value, flags) in [
            (format!("00-{TRACE}-{SPAN}-01"), "01"),
            (format!("00-{TRACE}-{SPAN}-00"), "00"),
            // Unknown flags are not passed on (section 3.2.2.5).
            (format!("00-{TRACE}-{SPAN}-fe"), "00"),
            (format!("cc-{TRACE}-{SPAN}-01"), "01"),
            (
                format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be"),
                "01",
            ),
        ] {
            let trace = of(&[&value]);
            assert_eq!(trace.trace_id(), TRACE, "{value}");
            assert_ne!(trace.span_id(), SPAN, "a span of our own");
            let ours = trace.to_string();
            assert_eq!(ours, format!("00-{TRACE}-{}-{flags}", trace.span_id()));
            assert_eq!(of(&[&ours]).trace_id(), TRACE, "and others read it");
        }
    }

    #[test]
    fn invalid_ones_are_ignored() {
        let upper = TRACE.to_uppercase();
        let zeros = "0".repeat(32);
        for value in [
            String::new(),
            "00".into(),
            TRACE.into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{upper}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}_{SPAN}_01"),
        ] {
            let trace = of(&[&value]);
            assert_ne!(trace.trace_id(), TRACE, "{value}");
            assert_eq!(trace.to_string().len(), 55);
        }
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert_ne!(of(&[&good, &good]).trace_id(), TRACE, "two are none");
        assert_ne!(of(&[]).trace_id(), of(&[]).trace_id());
    }
}
