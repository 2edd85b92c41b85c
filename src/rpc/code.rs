//! The error numbers of a JSON-RPC answer, and what each is for.
//!
//! The number is coarse; `error.data.kind` is the stable identifier.

/// JSON-RPC 2.0 section 5.1, and the server's own range as the contract assigns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The body is not JSON.
    Parse = -32700,
    /// The body is JSON but not a request; also every refusal before a request was read.
    InvalidRequest = -32600,
    /// No such method.
    MethodNotFound = -32601,
    /// Parameters that do not fit, or that name a thing that is not there.
    InvalidParams = -32602,
    /// Our fault; the log has it under the request id.
    Internal = -32603,
    /// No token, or one that does not hold.
    Unauthenticated = -32001,
    /// A policy says no.
    Denied = -32003,
    /// The name is taken by other content.
    AlreadyExists = -32004,
    /// Too many calls.
    RateLimited = -32005,
    /// More than an answer or a store may hold.
    TooLarge = -32006,
    /// Not now: queue full, plugin down, draining.
    Unavailable = -32007,
}

impl Code {
    /// The number on the wire.
    pub fn number(self) -> i32 {
        self as i32
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn numbers_are_those_of_the_contract() {
        let table = [
            (Code::Parse, -32700),
            (Code::InvalidRequest, -32600),
            (Code::MethodNotFound, -32601),
            (Code::InvalidParams, -32602),
            (Code::Internal, -32603),
            (Code::Unauthenticated, -32001),
            (Code::Denied, -32003),
            (Code::AlreadyExists, -32004),
            (Code::RateLimited, -32005),
            (Code::TooLarge, -32006),
            (Code::Unavailable, -32007),
        ];
        for (code, number) in table {
            assert_eq!(code.number(), number);
        }
    }
}
