//! What HTTP says to whoever is not let in: RFC 6750 section 3, and where to get a token, RFC 9728.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::json;

use super::refused::Refused;
use crate::rescue::Refusal;

/// Where the document of RFC 9728 section 3 is.
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// What a challenge and the metadata are made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Challenge {
    /// `auth.resource`; absent: what the request called us.
    pub(super) resource: Option<String>,
    /// `auth.required_scopes`
    pub(super) required_scopes: Vec<String>,
    /// Those who give out tokens.
    pub(super) issuers: Vec<String>,
}

impl Challenge {
    /// The metadata of RFC 9728 section 2, for a request with these headers.
    pub(super) fn metadata(&self, headers: &HeaderMap) -> String {
        let mut document = json!({
            "resource": self.resource(headers),
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
            "resource_name": "skillgate",
        });
        if !self.required_scopes.is_empty() {
            document["scopes_supported"] = json!(self.required_scopes);
        }
        document.to_string()
    }

    /// The answer to a request whose token is not taken.
    pub(super) fn refuse(&self, refused: &Refused, headers: &HeaderMap) -> Refusal {
        // Not the caller's fault, and another token would not help.
        if let Some(retry_after_s) = refused.retry_after_s() {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let mut refusal = Refusal::new(status, "unavailable", refused.to_string());
            let wait = (header::RETRY_AFTER, HeaderValue::from(retry_after_s));
            refusal.headers.push(wait);
            return refusal;
        }
        let (status, kind, error) = match refused {
            // RFC 6750 section 3.1: who has sent nothing is told no error code.
            Refused::Missing => (StatusCode::UNAUTHORIZED, "unauthenticated", None),
            Refused::BadRequest => (
                StatusCode::BAD_REQUEST,
                "bad_request",
                Some("invalid_request"),
            ),
            Refused::InUrl => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                Some("invalid_request"),
            ),
            _ => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                Some("invalid_token"),
            ),
        };
        let mut refusal = Refusal::new(status, kind, refused.to_string());
        refusal
            .headers
            .push(self.header(error, &refusal.message, headers));
        refusal
    }

    /// The answer to a good token without a scope that every caller must have.
    pub(super) fn insufficient_scope(&self, headers: &HeaderMap) -> Refusal {
        let message = format!(
            "the token lacks a scope that this server asks of every caller: {}",
            self.required_scopes.join(" ")
        );
        let mut refusal = Refusal::new(StatusCode::FORBIDDEN, "insufficient_scope", message);
        refusal.headers.push(self.header(
            Some("insufficient_scope"),
            "the token lacks a required scope",
            headers,
        ));
        refusal
    }

    /// What is said to whoever's token has expired while the request was under way.
    pub(super) fn expired(&self, message: &str, headers: &HeaderMap) -> (HeaderName, HeaderValue) {
        self.header(Some("invalid_token"), message, headers)
    }

    fn header(
        &self,
        error: Option<&str>,
        description: &str,
        headers: &HeaderMap,
    ) -> (HeaderName, HeaderValue) {
        let mut text = String::from("Bearer ");
        if let Some(error) = error {
            text += &format!(
                "error=\"{error}\", error_description={}, ",
                quoted(description)
            );
        }
        if !self.required_scopes.is_empty() {
            text += &format!("scope={}, ", quoted(&self.required_scopes.join(" ")));
        }
        text += &format!("resource_metadata={}", quoted(&self.metadata_url(headers)));
        // Everything above is printable ASCII; were it not, the bare scheme still is a challenge.
        let value =
            HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        (header::WWW_AUTHENTICATE, value)
    }

    /// RFC 9728 section 3.1: between the host and the path of the resource.
    fn metadata_url(&self, headers: &HeaderMap) -> String {
        let resource = self.resource(headers);
        let host_at = resource.find("://").map_or(0, |at| at + 3);
        let path_at = resource[host_at..]
            .find('/')
            .map_or(resource.len(), |at| host_at + at);
        let (base, path) = resource.split_at(path_at);
        let path = if path == "/" { "" } else { path };
        format!("{base}{METADATA_PATH}{path}")
    }

    /// The name of this server as a resource: as configured, or as the request called it, which the door has checked.
    fn resource(&self, headers: &HeaderMap) -> String {
        self.resource.clone().unwrap_or_else(|| {
            let host = headers
                .get(header::HOST)
                .and_then(|host| host.to_str().ok())
                .unwrap_or("localhost");
            format!("http://{host}")
        })
    }
}

/// A quoted-string of what RFC 6750 section 3 allows in one.
fn quoted(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' | '`' => '\'',
            ' '..='~' => c,
            _ => '?',
        })
        .collect();
    format!("\"{plain}\"")
}
