//! Right servers that are not as ours is, the toy again.

/// One way to be right that is not skillgate's.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// How the ids of the cases begin that see it.
    pub(crate) cases: &'static [&'static str],
    /// Shown to the cases that need isolation.
    pub(crate) sandbox: bool,
    /// Cases that it leaves undecided.
    pub(crate) undecided: &'static [&'static str],
    /// How often the same server is shown to them: what the suite leaves there for good is no fault of the server's.
    pub(crate) times: usize,
}

/// The protocol's rows must stay green on each of them: a demand that one of them fails is `product`.
pub(crate) const WAYS: &[Way] = &[
    Way {
        name: "otherwise",
        what: "errors have an HTTP status, there is nothing to GET, notifications are 202, errors say their code in words and no more, codes that JSON-RPC leaves open are its own, what is unknown is passed over, paths are made plain, results have more members, members of a run that have nothing are null, a kind may be any text, and a name as long as one likes, and entrypoint and export any text until they are called, code has half a megabyte at most, a failed run says what was raised and not where, and in its summary no more than that it failed, a page has a hundred at most, a cursor is a number and never the same twice, arguments may be thousands deep, a request has two megabytes at most, Python is 3.10, no coroutine is awaited, write_text takes a content alone, a process that exits is a process that ended, a manifest is described as it was given, a limit of zero is an empty page and a timeout of zero no time",
        cases: &[""],
        sandbox: false,
        undecided: &[],
        times: 2,
    },
    Way {
        name: "wordy",
        what: "an error says again all that was asked, a call may be five thousand deep, a traceback has every frame",
        cases: &[
            "blob.unknown",
            "code.recursion",
            "codes.method-long",
            "list.cursor-size",
            "read.long-path",
        ],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "own-words",
        what: "JSON is written with line ends and in ASCII, and so is what is measured of an output, which has to be less than 4 KB; `/` alone divides a path; other addresses are forbidden; names of media types are in capitals, too",
        cases: &[
            "inside.write",
            "output.",
            "publish.bad-files",
            "read.odd-paths",
            "transport.get",
            "transport.path",
            "transport.post",
        ],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "lenient",
        what: "codes are its own wherever JSON-RPC names none, an id is any number and comes back in its spelling, half a character is replaced, params by position are taken, a cursor is the last name of a full page and any text a place, errors are HTTP 422",
        cases: &[""],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "busy",
        what: "it takes one of three requests and tells the others when to come, by Retry-After or in the error",
        cases: &["list.", "blob.", "batch", "execute.", "codes.run"],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "inhabited",
        what: "there are skills of its own users, in the namespaces that the texts name, too, and below them, more than a page has",
        cases: &["list.", "namespace.", "texts.", "guide."],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "slow-start",
        what: "a sandbox takes a second to begin, of the run's own time",
        cases: &["time."],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "slow-sandbox",
        what: "a sandbox is made in two seconds, before the run's own time begins",
        cases: &["time.", "execute.timeout-one", "codes.run-ends"],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "slow-refusals",
        what: "a refusal takes three seconds: a registry elsewhere was asked, or the machine has much to do",
        cases: &["codes.depth#1", "mounted.many-unknown"],
        sandbox: false,
        undecided: &[],
        times: 1,
    },
    Way {
        name: "container",
        what: "runs see an ordinary container of their own, as a user of the group 0 and in a directory below /workspace",
        cases: &[
            "sandbox.user",
            "sandbox.become-root",
            "sandbox.processes",
            "sandbox.threads",
            "sandbox.forks",
            "sandbox.disk",
            "sandbox.only-mounted",
            "sandbox.own-skill",
            "sandbox.side-by-side",
            "sandbox.skill-mount",
            "sandbox.workspace",
            "sandbox.writes",
            "sandbox.host-files",
            "sandbox.environment",
            "sandbox.memory-at-once",
            // It has more than 4 GiB, or no limit.
            "sandbox.memory",
        ],
        sandbox: true,
        undecided: &["sandbox.memory"],
        times: 1,
    },
];
