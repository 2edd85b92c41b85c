//! skillgate: a gateway that runs skills for agents (Skills Protocol v0.1).
//!
//! ```text
//! HTTP bytes
//!   │ server     accept, read, drain                       bytes           → http::Request
//!   │ rescue     (outermost) names it; any error → one answer
//!   │ door       Host and Origin must be ours                                refuse or pass
//!   │ limit      count its address                                           refuse or pass
//!   │ auth       who asks                                  http::Request   → + Caller
//!   │ limit      count its caller                                            refuse or pass
//!   │ faces      which path: /rpc, /blobs, documents
//!   │ rpc        decode the envelope                       http::Request   → Call
//!   │ methods    (first half) parameters, what they name   Call            → Prepared
//!   │ policy     is it allowed                             Prepared        → Permitted<Prepared>
//!   │ limit      count it by method and skill                                refuse or pass
//!   │ methods    (second half) do the one thing            Permitted       → result
//!   │   ├ catalog   which skills there are
//!   │   ├ blobs     large data
//!   │   └ runs      make a sandbox job, read its result ── gate: the run's way out, kept to the permit
//!   │               audit: what was decided and done, chained, before the answer is given
//!   ▼ plugins/host   the only door to plugins              plain values    → C ABI → plugin
//! ```
//!
//! Beside the way: `cli` reads the command line, `app` puts the rooms together and `config` says what they are to be; `reload`
//! changes keys, policies, limits, secrets and plugins while they are in use; `secrets` has what runs may be given and looks for
//! it in what they give back; `slots` divides what there are only so many of between tenants, or addresses, and `pace` counts how
//! often each of them does something; `admin` and `telemetry` are what the operator sees; `json` reads what is too large or too
//! odd to be taken as it comes.
//!
//! Every step takes one type and gives the next; a step never calls back up. Two types carry the security:
//! [`auth::Caller`] (only `auth` makes one) and [`policy::Permitted`] (only `policy` makes one).
//!
//! # Rules of the house
//!
//! 1. Only `auth` makes a `Caller`; only `policy` makes a `Permit`; no method acts without one.
//! 2. Unsafe code only in `plugins/{abi,sdk,host}`, in `plugins/check/src/raw` and in plugins that need the OS; everything
//!    here forbids it.
//! 3. Only `config` reads settings; only `plugins/host` opens libraries; only plugins touch the stores; only they and their host make
//!    processes, but for a policy's trial (`policy::child`) and the gateway below process 1 (`cli::init`).
//! 4. `rpc` knows no skills; `methods` knows no HTTP; `catalog`, `blobs`, `runs`, `gate` know no JSON-RPC error.
//! 5. Only `rescue` decides what a caller is told. A run's failure is never a JSON-RPC error, and the other way round.
//! 6. Use goes down: main → cli → app → stack → admin → faces → methods → {limit → rpc, policy → auth, door} → runs → {catalog, blobs,
//!    gate} → {secrets, audit, host → abi}. Words that every room may use: `auth::Caller`, `policy::Permit`, `server`'s body,
//!    `rescue::Refusal` (not below `methods`), `json`, `slots`, `pace`, `telemetry`, `config`'s types and `reload::Part`. `rescue` alone
//!    knows the errors of all rooms.
//! 7. Everything has a limit with its unit in its name; what an operator may change is in `config/default.toml`.
//! 8. No blocking call on an async thread, but the audit log's: what it writes is in the file before its caller goes on, and one
//!    call at a time writes; and the log's, where stderr is a file: one at a time there too, and others wait 10 ms for room.
//!
//! `tests/tidy.rs` holds the tree to what of this can be checked by reading.
#![forbid(unsafe_code)]

// Public is what the program, the benches or the tests name: of all else the compiler says when nobody uses it.
pub mod cli;
pub mod config;

pub mod app;
mod reload;

pub mod server;
mod stack;

pub mod rescue;

mod door;

pub mod auth;

mod limit;

mod faces;

mod json;
mod rpc;

pub mod pace;
mod slots;

pub mod policy;

mod methods;

pub mod catalog;

mod blobs;

pub mod gate;

mod runs;

mod secrets;

pub mod audit;

mod admin;
pub mod telemetry;
