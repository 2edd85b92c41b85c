//! Rows that are measured in turns, and what the benches that start a whole gateway have in common.

#![allow(dead_code, reason = "each of the programs that share this uses a part")]

pub(crate) mod machine;
pub(crate) mod rivals;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use skillgate::auth::DevelopmentKey;

use crate::support::gateway::{Gateway, House, Settings};
use crate::support::http::Client;
use crate::support::quantile;

/// Makes a client, on the thread that will be it: something to be done again and again, which says when it had its answer.
pub(crate) type Clients = Box<dyn Fn() -> Box<dyn FnMut() -> Instant> + Sync>;
/// What a client asks of a server over its connection.
pub(crate) type Operation = Arc<dyn Fn(&mut Client) + Send + Sync>;

/// One row of a table.
pub(crate) struct Row {
    name: String,
    clients: usize,
    /// Operations of each client in one slice.
    each: usize,
    /// What a client waits between two operations: the row is then about latency alone.
    pause: Duration,
    make: Clients,
    ms: Vec<f64>,
    busy: Duration,
    cpu: Duration,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, clients: usize, each: usize, make: Clients) -> Row {
        Row {
            name: name.into(),
            clients,
            each,
            pause: Duration::ZERO,
            make,
            ms: Vec::new(),
            busy: Duration::ZERO,
            cpu: Duration::ZERO,
        }
    }

    pub(crate) fn pausing(self, pause: Duration) -> Row {
        Row { pause, ..self }
    }

    fn slice(&mut self, keep: bool) {
        let (began, cpu) = (Instant::now(), machine::busy());
        let ms: Vec<f64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients)
                .map(|_| {
                    scope.spawn(|| {
                        let mut operation = (self.make)();
                        let mut ms = Vec::with_capacity(self.each);
                        for _ in 0..self.each {
                            std::thread::sleep(self.pause);
                            let began = Instant::now();
                            ms.push((operation() - began).as_secs_f64() * 1000.0);
                        }
                        ms
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        if keep {
            self.busy += began.elapsed();
            self.cpu += machine::busy().saturating_sub(cpu);
            self.ms.extend(ms);
        }
    }

    fn print(&mut self) {
        self.ms.sort_by(f64::total_cmp);
        let count = self.ms.len() as f64;
        let rate = if self.pause.is_zero() {
            format!("{:.0}", count / self.busy.as_secs_f64())
        } else {
            "–".to_owned()
        };
        let cpu = self.cpu.as_secs_f64() * 1000.0 / count;
        println!(
            "| {:<34} | {:>7} | {:>8} | {:>8.2} | {:>8.2} | {:>8.2} | {rate:>8} | {cpu:>8.2} |",
            self.name,
            self.clients,
            self.ms.len(),
            quantile(&self.ms, 0.5),
            quantile(&self.ms, 0.9),
            quantile(&self.ms, 0.99),
        );
    }
}

/// Measures all rows in turns, one slice of each after the other, so that whatever else the machine does meets them alike,
/// and prints the table. The first round is for caches and pools.
pub(crate) fn measure(rows: &mut [Row], rounds: usize) {
    for round in 0..=rounds {
        for row in &mut *rows {
            row.slice(round > 0);
        }
    }
    println!("{}", machine::description());
    println!("| operation | clients | measured | p50 ms | p90 ms | p99 ms | per second | CPU ms |");
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        row.print();
    }
}

/// Clients of a server, each with a connection of its own.
pub(crate) fn clients_of(address: &str, token: Option<&str>, operation: Operation) -> Clients {
    let (address, token) = (address.to_owned(), token.map(str::to_owned));
    Box::new(move || {
        let mut client = Client::open(&address).unwrap().bearing(token.as_deref());
        let operation = operation.clone();
        Box::new(move || {
            operation(&mut client);
            Instant::now()
        })
    })
}

/// A run that must complete.
pub(crate) fn run(params: Value) -> Operation {
    Arc::new(move |client| {
        let result = client.result("execute_skill", params.clone()).unwrap();
        assert_eq!(result["status"], "completed", "{result}");
    })
}

/// A gateway with everything on: a token from each caller, limits of each kind, the bundled policy, the audit log.
pub(crate) fn whole_stack(runs: &str, sandbox: Option<&str>) -> (House, Gateway, String) {
    let key = DevelopmentKey::generate("ES256").unwrap();
    let house = House::new(Settings::default());
    let keys = house.path().join("jwks.json");
    fs::write(&keys, key.jwks().to_string()).unwrap();
    let auth = format!(
        "[auth]\nmode = \"jwt\"\n[[auth.issuers]]\nissuer = \"https://idp.example.com\"\naudiences = [\"skillgate\"]\njwks_file = {keys:?}\nalgorithms = [\"ES256\"]\n"
    );
    let limits: String = [
        ("address", r#"["ip"]"#),
        ("subject", r#"["tenant", "subject"]"#),
        ("method", r#"["subject", "method"]"#),
    ]
    .map(|(name, key)| {
        format!("[[rate_limit]]\nname = \"{name}\"\nkey = {key}\nquota = 1000000000\nper_s = 1\n")
    })
    .concat();
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let policy = format!("[policy]\npath = {policies:?}\n");
    house.configure(Settings {
        runs,
        sandbox,
        extra: &(auth + &limits + &policy),
        ..Settings::default()
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let Value::Object(claims) = json!({
        "iss": "https://idp.example.com", "aud": "skillgate", "sub": "bench", "tenant": "default",
        "roles": ["operator"], "iat": now.as_secs(), "exp": now.as_secs() + 86_400,
    }) else {
        panic!("an object");
    };
    let token = key.token(&claims).unwrap();
    let gateway = house.start();
    (house, gateway, token)
}
