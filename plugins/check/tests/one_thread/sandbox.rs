//! A sandbox that answers later, with one thread for all of its runs: what its programs do is the thread's here, as it would
//! be a cloud's elsewhere.

#![forbid(unsafe_code)]

mod worker;

use std::collections::HashMap;
use std::sync::Arc;

use skillgate_plugin_sdk::model::{
    CreateRequest, Error, Health, Result, RunRequest, RunResult, SandboxCaps,
};
use skillgate_plugin_sdk::{Host, Reply, RunServices, Sandbox, abi};

use worker::{Post, Worker};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.one-thread-sandbox",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "skillgate",
    description: "runs, all of them served by one thread",
    license: "Apache-2.0",
    config_schema: r#"{"type":"object","additionalProperties":false}"#,
    sandbox: crate::Runs,
}

struct Runs(Worker<Cloud>);

impl Sandbox for Runs {
    fn create(_: Host, _: CreateRequest) -> Result<Self> {
        Worker::start("cloud").map(Runs)
    }
    fn caps(&self) -> SandboxCaps {
        SandboxCaps {
            egress: abi::EGRESS_CAN_DENY,
            isolation: abi::ISO_REMOTE,
            ..SandboxCaps::default()
        }
    }
    fn health(&self, reply: Reply<Health>) {
        self.0.ask(move |cloud| reply.ok(cloud.health()));
    }
    fn run(&self, request: RunRequest, services: Arc<dyn RunServices>, reply: Reply<RunResult>) {
        if request.language != "echo" {
            let error = Error::new(abi::E_UNIMPLEMENTED, "this sandbox runs \"echo\"");
            return reply.fail(error.not_executed());
        }
        let post = self.0.post();
        self.0
            .ask(move |cloud| cloud.run(request, services, reply, post));
    }
}

#[derive(Default)]
struct Cloud {
    last: u64,
    /// Runs that go on until nobody wants them, by a number of their own.
    waiting: HashMap<u64, Reply<RunResult>>,
    /// Of the latest run that has been answered.
    kept: Option<Arc<dyn RunServices>>,
}

fn completed(output_json: Vec<u8>) -> RunResult {
    RunResult {
        completed: true,
        output_json,
        ..RunResult::default()
    }
}

impl Cloud {
    fn health(&self) -> Health {
        Health {
            state: abi::HEALTH_OK,
            in_flight: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            ..Health::default()
        }
    }

    /// Does what the program says; without one, gives back its arguments.
    fn run(
        &mut self,
        request: RunRequest,
        services: Arc<dyn RunServices>,
        reply: Reply<RunResult>,
        post: Post<Cloud>,
    ) {
        match request.code.as_str() {
            "wait" => self.wait(&*services, reply, post),
            "store" => reply.finish(store(&*services)),
            // With the services of the run before.
            "late" => reply.finish(match &self.kept {
                Some(late) => store(&**late),
                None => Err(Error::new(abi::E_PRECONDITION, "there was no run")),
            }),
            _ => reply.ok(completed(request.args_json)),
        }
        self.kept = Some(services);
    }

    fn wait(&mut self, services: &dyn RunServices, reply: Reply<RunResult>, post: Post<Cloud>) {
        self.last += 1;
        let number = self.last;
        reply.on_cancel(move || {
            post.send(move |cloud| {
                if let Some(reply) = cloud.waiting.remove(&number) {
                    reply.fail(Error::new(abi::E_CANCELLED, "nobody wants it any more"));
                }
            });
        });
        self.waiting.insert(number, reply);
        services.output(abi::STDOUT, b"waiting\n");
    }
}

/// Makes a blob of a secret.
fn store(services: &dyn RunServices) -> Result<RunResult> {
    let secret = services.secret("KEY")?;
    let writer = services.blob_create("text/plain")?;
    services.blob_write(writer, &secret)?;
    let id = services.blob_finish(writer, true)?;
    Ok(RunResult {
        output_blobs: id.into_iter().collect(),
        ..completed(b"null".to_vec())
    })
}
