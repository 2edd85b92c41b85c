//! What is made of an instance that does not say how it is.

use skillgate_plugin_sdk::abi;
use skillgate_plugin_sdk::model::{Health, Result};

/// The contract lets a plugin leave `health` out, as any other function: such a one is asked in vain, and works until a call
/// shows otherwise. Any other error is that of one that wanted to say, and could not.
pub(super) fn heard(said: Result<Health>) -> Result<Health> {
    match said {
        Err(error) if error.code == abi::E_UNIMPLEMENTED => Ok(Health {
            state: abi::HEALTH_OK,
            message: "it does not say how it is".into(),
            ..Health::default()
        }),
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use skillgate_plugin_sdk::model::Error;

    use super::*;

    #[test]
    fn only_who_has_no_health_is_taken_to_be_well() {
        let none = Error::new(abi::E_UNIMPLEMENTED, "health: does not offer this call");
        let taken = heard(Err(none)).unwrap();
        assert_eq!(
            (taken.state, taken.message.as_str()),
            (abi::HEALTH_OK, "it does not say how it is")
        );
        for code in [abi::E_UNAVAILABLE, abi::E_PROTOCOL, abi::E_INTERNAL] {
            let error = heard(Err(Error::new(code, "x"))).unwrap_err();
            assert_eq!(error.code, code);
        }
        let down = Health {
            state: abi::HEALTH_DOWN,
            ..Health::default()
        };
        assert_eq!(heard(Ok(down)).unwrap().state, abi::HEALTH_DOWN);
    }
}
