//! Names of secrets. A secret reaches a run as an environment variable, so a name must not be one
//! that changes what the interpreter, the loader or a library does.

use thiserror::Error;

use crate::text::quoted;

/// Longest secret name, in bytes.
pub const SECRET_NAME_BYTES_MAX: usize = 64;

/// Why a text is not a secret's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SecretNameError {
    /// Outside `[A-Z][A-Z0-9_]{0,63}`.
    #[error(
        "secret name {0} is not a capital letter followed by at most 63 capitals, digits or `_`, such as STRIPE_API_KEY"
    )]
    Grammar(String),
    /// A variable that already means something to what runs the code.
    #[error("secret name {name} is refused: {reason}; give the secret another name")]
    Refused {
        /// The name.
        name: String,
        /// What the variable would change.
        reason: &'static str,
    },
}

/// The name of a secret, such as `SALESFORCE_API_KEY`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(String);

string_type!(SecretName, SecretNameError);

impl SecretName {
    /// Parses a name: `[A-Z][A-Z0-9_]{0,63}`, and not a variable that changes what runs the code.
    pub fn parse(text: &str) -> Result<Self, SecretNameError> {
        let grammar = text.len() <= SECRET_NAME_BYTES_MAX
            && text.starts_with(|c: char| c.is_ascii_uppercase())
            && text
                .bytes()
                .all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_'));
        if !grammar {
            return Err(SecretNameError::Grammar(quoted(text)));
        }
        match refusal(text) {
            Some(reason) => Err(SecretNameError::Refused {
                name: text.to_owned(),
                reason,
            }),
            None => Ok(SecretName(text.to_owned())),
        }
    }
}

const LOADER: &str = "it steers the dynamic loader or the C library";
const INTERPRETER: &str = "it steers the interpreter";
const RUN: &str = "it is part of every run's environment";
const LOCALE: &str = "it steers the locale or the time zone";
const PROXY: &str = "it steers where connections go";
const TRUST: &str = "it steers which certificates and cryptography are trusted";
const SHELL: &str = "it steers shells";

/// Names that begin so.
const PREFIXES: &[(&str, &str)] = &[
    ("LD_", LOADER),
    ("DYLD_", LOADER),
    ("MALLOC_", LOADER),
    ("GLIBC_", LOADER),
    ("RES_", LOADER),
    ("PYTHON", INTERPRETER),
    ("NODE_OPTIONS", INTERPRETER),
    ("PERL5", INTERPRETER),
    ("RUBYOPT", INTERPRETER),
    ("RUBYLIB", INTERPRETER),
    ("LC_", LOCALE),
    ("BASH_", SHELL),
    ("SKILLGATE_", "it is skillgate's own"),
];

/// Names that end so.
const SUFFIXES: &[(&str, &str)] = &[("_PROXY", PROXY)];

/// Names that are so.
const NAMES: &[(&str, &str)] = &[
    ("GCONV_PATH", LOADER),
    ("GETCONF_DIR", LOADER),
    ("HOSTALIASES", LOADER),
    ("LOCALDOMAIN", LOADER),
    ("LOCPATH", LOADER),
    ("NIS_PATH", LOADER),
    ("NLSPATH", LOADER),
    ("HOME", RUN),
    ("LOGNAME", RUN),
    ("PATH", RUN),
    ("PWD", RUN),
    ("TEMP", RUN),
    ("TMP", RUN),
    ("TMPDIR", RUN),
    ("USER", RUN),
    ("LANG", LOCALE),
    ("LANGUAGE", LOCALE),
    ("TZ", LOCALE),
    ("TZDIR", LOCALE),
    ("CURL_CA_BUNDLE", TRUST),
    ("OPENSSL_CONF", TRUST),
    ("OPENSSL_ENGINES", TRUST),
    ("OPENSSL_MODULES", TRUST),
    ("REQUESTS_CA_BUNDLE", TRUST),
    ("SSLKEYLOGFILE", TRUST),
    ("SSL_CERT_DIR", TRUST),
    ("SSL_CERT_FILE", TRUST),
    ("CDPATH", SHELL),
    ("ENV", SHELL),
    ("IFS", SHELL),
    ("PS4", SHELL),
    ("SHELL", SHELL),
    ("SHELLOPTS", SHELL),
];

fn refusal(name: &str) -> Option<&'static str> {
    let prefix = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
    let suffix = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix));
    let exact = NAMES.iter().find(|(exact, _)| name == *exact);
    prefix.or(suffix).or(exact).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good() {
        let longest = format!("A{}", "_".repeat(63));
        for good in [
            "SALESFORCE_API_KEY",
            "SALESFORCE_ORG_ID",
            "STRIPE_API_KEY",
            "A",
            "A1",
            "A_",
            "HOME_TOKEN",
            "PATHS",
            "LANGFUSE_KEY",
            "PROXY_TOKEN",
            "NO_PROXYX",
            "ENV_TOKEN",
            "LDAP_PASSWORD",
            "OPENSSL_KEY",
            &longest,
        ] {
            assert_eq!(
                SecretName::parse(good).map(|n| n.to_string()).as_deref(),
                Ok(good)
            );
        }
    }

    #[test]
    fn bad() {
        let long = "A".repeat(65);
        for bad in [
            "", "*", "a", "Api", "1A", "_A", "A-B", "A B", "A=B", "A\n", "A\0", "É", "API_KEY ",
            "$A", &long,
        ] {
            assert!(
                matches!(SecretName::parse(bad), Err(SecretNameError::Grammar(_))),
                "{bad:?}"
            );
        }
        for bad in [
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PYTHON",
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "TMPDIR",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "NO_PROXY",
            "IFS",
            "BASH_ENV",
            "SKILLGATE_RUN_ID",
            "GCONV_PATH",
            "LOCPATH",
            "MALLOC_PERTURB_",
            "GLIBC_TUNABLES",
            "SSL_CERT_FILE",
            "OPENSSL_CONF",
            "RES_OPTIONS",
            "TZ",
            "ENV",
            "NODE_OPTIONS",
        ] {
            assert!(
                matches!(SecretName::parse(bad), Err(SecretNameError::Refused { .. })),
                "{bad:?}"
            );
        }
    }
}
