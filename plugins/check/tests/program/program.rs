//! The program whose children the kit's cases are, in the tests; `skillgate` is its own. It also checks, for tests that end
//! whoever does.

use std::path::Path;
use std::process::ExitCode;

use skillgate_plugin_check::Settings;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let why = match args.as_slice() {
        ["case", job] => match skillgate_plugin_check::run_case(Path::new(job)) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error.to_string(),
        },
        ["check", plugin, config, case] => {
            let settings = Settings {
                config_json: (*config).to_owned(),
                only: vec![(*case).to_owned()],
                ..Settings::new(plugin, &["case"], &["host"])
            };
            match skillgate_plugin_check::check(&settings, |_| Ok(())) {
                Ok(report) => match report.write_json(&mut std::io::stdout()) {
                    Ok(()) => return ExitCode::SUCCESS,
                    Err(error) => error.to_string(),
                },
                Err(error) => error.to_string(),
            }
        }
        ["host"] => {
            let Err(why) = skillgate_plugin_host::serve_plugin();
            why
        }
        _ => format!("started as {args:?}"),
    };
    eprintln!("{why}");
    ExitCode::FAILURE
}
