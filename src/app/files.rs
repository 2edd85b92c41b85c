//! How many files may be open: a connection is one, and so are a dozen things of a run.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of the files that may be open, connections have one in so many at most: runs, what waits for them and the store need theirs.
const SHARE_OF_CONNECTIONS: usize = 2;

/// Lets this process, and what it starts, have as many files open as its hard limit says. A login or a service begins with 1024,
/// since programs that call select(2) can have no more; nothing here does.
pub fn allow_all_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused, it stays what it was, and what is taken from it goes by what it is.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// How many connections may be open, where `server.max_connections` is `configured`: as many, or what this process can hold.
pub(super) fn connections(configured: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    let files = files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    });
    let connections = within(configured, files);
    if connections < configured {
        tracing::warn!(
            max_connections = configured,
            connections,
            open_files_max = files,
            "fewer connections than server.max_connections can be open: raise the limit of open files (ulimit -Hn, LimitNOFILE=)"
        );
    }
    connections
}

fn within(configured: usize, files: usize) -> usize {
    configured.min((files / SHARE_OF_CONNECTIONS).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_half_of_the_files_to_the_rest() {
        assert_eq!(within(10_000, 1 << 20), 10_000);
        assert_eq!(within(10_000, 1024), 512);
        assert_eq!(within(100, 1024), 100);
        assert_eq!(within(100, 1), 1);
    }
}
