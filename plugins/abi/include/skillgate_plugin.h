/*
 * skillgate_plugin.h - the skillgate plugin contract, ABI major 1
 *
 * A plugin is one shared object that exports ONE data symbol:
 *
 *     const skg_entry_v1 skillgate_plugin_entry_v1;
 *
 * The host calls the plugin through tables of C function pointers; the plugin
 * calls the host through the table given to create().  Nothing is linked:
 * the plugin has no undefined symbol that the gateway must provide.
 *
 * THE FIVE RULES
 *
 * 1. BORROW ONLY.  No memory changes owner across this boundary.  What a call
 *    receives by pointer is valid until that call returns, unless a comment
 *    says "until the op completes".  Results are pushed: the plugin calls
 *    host->complete() with pointers to its own memory and the host copies
 *    what it keeps before that call returns.  Nobody ever frees the other
 *    side's memory.  (One exception, file descriptors: see SKG_FD.)
 *
 * 2. GROW AT THE END.  Every struct that may grow starts with struct_size,
 *    which its producer sets to sizeof.  A consumer reads a field only when
 *    SKG_HAS says that it is there, and ignores what it does not know.  Lists
 *    carry their stride.  Types marked [frozen] never change in major 1.
 *
 * 3. ONE OP, ONE COMPLETION.  A call that takes a skg_op is asynchronous.
 *    SKG_OK means accepted: the op is completed exactly once, from any thread,
 *    possibly before the call has returned.  A result < 0 means refused: the
 *    op is never completed.  Ops are generation-checked handles: a second, a
 *    late or an invented completion gets SKG_E_STALE and does no harm.
 *
 * 4. NO UNWINDING.  No exception, panic or longjmp crosses this boundary, in
 *    either direction.
 *
 * 5. LEAVE THE PROCESS ALONE.  A plugin never changes process-wide state
 *    (signal dispositions, cwd, umask, environment, locale, rlimits, uid),
 *    never calls exit(), never forks without exec, never closes descriptors
 *    that it did not open, and writes nothing to stdin/stdout/stderr or into
 *    the working directory.
 *
 * Threads: unless marked [once], every function may be called from any thread
 * at any time, concurrently with itself.  A plugin without SKG_F_BLOCKING
 * returns within about a millisecond, as it is called on the host's event loop,
 * except from what is "called on a thread that may wait".
 *
 * Only 64-bit little-endian targets.  C99 or C++11.  No compiler extensions.
 */
#ifndef SKILLGATE_PLUGIN_H
#define SKILLGATE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKG_ABI_MAJOR 1u
#define SKG_ABI_MINOR 0u
#define SKG_MAGIC     0x31474b53u /* "SKG1" */

#if defined(_WIN32)
#  define SKG_EXPORT __declspec(dllexport)
#elif defined(__GNUC__) || defined(__clang__)
#  define SKG_EXPORT __attribute__((visibility("default")))
#else
#  define SKG_EXPORT
#endif

/* Is `field` inside the struct that the other side gave us? */
#define SKG_HAS(T, p, field) \
    ((size_t)(p)->struct_size >= offsetof(T, field) + sizeof(((const T *)0)->field))

/* ------------------------------------------------------------------ basics */

/* UTF-8, not NUL-terminated; ptr may be NULL only when len is 0. [frozen] */
typedef struct skg_str   { const char    *ptr; uint64_t len; } skg_str;
typedef struct skg_bytes { const uint8_t *ptr; uint64_t len; } skg_bytes; /* [frozen] */

/* len elements, `stride` bytes apart: the producer's element may be larger
 * than the one this header declares.  Use SKG_AT, never ptr[i]. [frozen] */
typedef struct skg_list  { const void *ptr; uint32_t len; uint32_t stride; } skg_list;
#define SKG_AT(list, T, i) \
    ((const T *)((const char *)(list).ptr + (size_t)(i) * (size_t)(list).stride))

/* An operation in flight.  0 is never valid. */
typedef uint64_t skg_op;

/* SKG_FD: a POSIX file descriptor, opened O_CLOEXEC, or -1.  The one thing
 * whose ownership moves: the receiver closes it.  In an answer it moves when
 * complete() has returned SKG_OK, and not before: after any other result it is
 * still the plugin's.  One where none is due (beside SKG_CONTENT_DATA, in the
 * answer of blob_open) is SKG_E_PROTOCOL: write -1.  A descriptor inside a
 * *request* stays the sender's (borrowed until the op completes: dup it). */
typedef int32_t skg_fd;

/* Results of calls, and the status of a completion.  A plugin's functions return
 * SKG_OK or one that is less than 0: a positive number is none of them. */
#define SKG_OK                    0
#define SKG_E_CANCELLED          -1
#define SKG_E_UNKNOWN            -2
#define SKG_E_INVALID_ARGUMENT   -3
#define SKG_E_DEADLINE           -4
#define SKG_E_NOT_FOUND          -5
#define SKG_E_ALREADY_EXISTS     -6
#define SKG_E_PERMISSION         -7
#define SKG_E_EXHAUSTED          -8  /* quota, pool, disk                     */
#define SKG_E_PRECONDITION       -9
#define SKG_E_ABORTED           -10  /* conflict: retry the whole thing       */
#define SKG_E_OUT_OF_RANGE      -11
#define SKG_E_UNIMPLEMENTED     -12
#define SKG_E_INTERNAL          -13
#define SKG_E_UNAVAILABLE       -14
#define SKG_E_CORRUPT           -15  /* digest mismatch, data loss            */
#define SKG_E_STALE            -100  /* op or handle unknown or already done  */
#define SKG_E_WOULD_DEADLOCK   -101  /* blocking host call on the event loop  */
#define SKG_E_PANIC            -102  /* an SDK caught a panic or exception    */
#define SKG_E_PROTOCOL         -103  /* the other side broke this contract    */
#define SKG_E_CRASHED          -104  /* the plugin's process died (host-made) */

#define SKG_ERR_RETRYABLE     0x1u   /* same request may succeed later        */
#define SKG_ERR_NOT_EXECUTED  0x2u   /* no skill code ran: safe to run again  */
#define SKG_ERR_TENANT        0x4u   /* with SKG_E_EXHAUSTED: this tenant has
                                        used up what it may have.  The caller is
                                        told so, and not that the store is full;
                                        SKG_ERR_RETRYABLE where it ends by itself */

typedef struct skg_error {
    uint32_t struct_size;
    int32_t  code;             /* SKG_E_*                                     */
    uint32_t flags;            /* SKG_ERR_*                                   */
    uint32_t retry_after_ms;   /* 0: no advice                                */
    skg_str  message;          /* one line for operators; no secrets          */
    skg_str  detail_json;      /* optional, for logs                          */
} skg_error;

/* How an op ends.  Texts and lists in a result are copied before complete()
 * returns.  The host bounds them: an answer of more than 64 MiB, a name, id or
 * path of more than 1 KiB, a text of more than 1 MiB, a document of more than
 * 8 MiB, a text that is not UTF-8, a page of more than was asked for, more than
 * 100000 files of a skill or 10000 blobs of a run, or an output of more than the
 * request's limit makes the op fail with SKG_E_PROTOCOL.  The texts of a
 * skg_error are cut instead. */
typedef struct skg_completion {
    uint32_t         struct_size;
    int32_t          status;   /* SKG_OK or SKG_E_*                           */
    const skg_error *error;    /* optional, when status != SKG_OK             */
    const void      *result;   /* the op's result struct, when SKG_OK; each
                                  vtable entry names its type, or "none"      */
} skg_completion;

/* -------------------------------------------------------------------- host */

#define SKG_LOG_TRACE 1u
#define SKG_LOG_DEBUG 2u
#define SKG_LOG_INFO  3u
#define SKG_LOG_WARN  4u
#define SKG_LOG_ERROR 5u

typedef struct skg_kv { skg_str key; skg_str value; } skg_kv; /* [frozen] */

typedef struct skg_log_record {
    uint32_t struct_size;
    uint32_t level;
    skg_op   op;               /* 0, or the op this is about (its span)       */
    skg_str  target;           /* module path or component                    */
    skg_str  message;
    skg_list fields;           /* skg_kv                                      */
} skg_log_record;

#define SKG_STDOUT 1u
#define SKG_STDERR 2u
#define SKG_RUNLOG 3u          /* runtime.log of the in-sandbox helper        */

typedef struct skg_blob_stat {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t size_bytes;
    skg_str  id;               /* "blob:" and at least 128 random bits, as 22 to
                                  123 of A-Z a-z 0-9 . _ - (base64url, hex), the
                                  first of them no '.'                        */
    skg_str  kind;             /* MIME type                                   */
    skg_str  sha256;           /* 64 lower-case hex digits                    */
    skg_str  owner;            /* subject that created it                     */
    uint64_t created_unix_ms;
} skg_blob_stat;

/* Given to create(); valid until that instance's destroy() has returned.
 * Every function is thread-safe.  Functions marked [blocking] may wait for
 * I/O: called on the host's event loop (inside a call that the host makes into
 * a plugin without SKG_F_BLOCKING, and inside cancel() of any plugin) they refuse
 * with SKG_E_WOULD_DEADLOCK instead of hanging.  All others may be called there: a plugin without
 * SKG_F_BLOCKING has run_output, secret_read and gate_serve inside run() too,
 * in the gateway and in a process of its own.  What a function gets by pointer
 * is its own for the call only. */
typedef struct skg_host {
    uint32_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t flags;
    void    *ctx;              /* first argument of everything below          */
    skg_str  name;             /* "skillgate"                                 */
    skg_str  version;

    /* Ends an op; exactly once per op, see rule 3.  SKG_OK: taken, with every
     * descriptor in it.  SKG_E_STALE: there is no such op (any more).
     * SKG_E_PROTOCOL: the answer broke this contract, and the op has ended with
     * that error.  The host never calls the plugin from inside. */
    int32_t (*complete)(void *ctx, skg_op op, const skg_completion *c);
    /* 1 when the caller no longer wants this op, or it has ended; else 0: for
     * code that polls.  Set before cancel() is called. */
    int32_t (*op_cancelled)(void *ctx, skg_op op);

    /* 1 when a record of this level would be kept. */
    int32_t (*log_enabled)(void *ctx, uint32_t level, skg_str target);
    /* Writes a record.  Texts are cut at 64 KiB, a target at 256 bytes, a field
     * at 4 KiB; the fields count up to 64. */
    void    (*log)(void *ctx, const skg_log_record *rec);

    /* id is NUL-terminated, "vendor.name/revision"; NULL when not offered.
     * What it gives is static. */
    const void *(*get_extension)(void *ctx, const char *id);

    /* ---- services of one run; `run` is the op of skg_sandbox.run.  All of
     * them say SKG_E_STALE when the op is complete.  blob_create, blob_write,
     * blob_finish and gate_serve say SKG_E_CANCELLED when it is not and the host
     * has given the run up: end it.  A call carries at most 64 MiB. ---- */

    /* Output of the skill, in order per stream.  The host keeps what its
     * limits allow; SKG_E_EXHAUSTED says: keep draining, send no more.
     * SKG_E_INVALID_ARGUMENT: no such stream. */
    int32_t (*run_output)(void *ctx, skg_op run, uint32_t stream, skg_bytes data);

    /* Copies the plaintext of a secret that the request named into buf.
     * Returns its length; more than cap means nothing was copied.  A read is
     * not recorded: the run's audit record has the names of the secrets that it
     * was granted.  Wipe buf as soon as the sandbox has the value.
     * SKG_E_PERMISSION: the request does not name it. */
    int64_t (*secret_read)(void *ctx, skg_op run, skg_str name, void *buf, uint64_t cap);

    /* Input blobs, and those that this run has made.  blob_fd: a readable,
     * seekable descriptor (SKG_FD), or SKG_E_UNIMPLEMENTED when the store has
     * none: then read ranges.  blob_read: bytes read, 0 at the end.
     * SKG_E_NOT_FOUND: not a blob of this run; SKG_E_CORRUPT: digest. */
    int32_t (*blob_fd)(void *ctx, skg_op run, skg_str id);                 /* [blocking] */
    int64_t (*blob_read)(void *ctx, skg_op run, skg_str id, uint64_t offset,
                         void *buf, uint64_t cap);                         /* [blocking] */
    /* Output blobs: create gives a writer (> 0); write any number of times, one
     * after the other; then finish: commit=1 stores it, copies its id to buf and
     * returns the id's length, commit=0 throws it away and returns 0.  An id has
     * at most 128 bytes: a commit with a smaller cap is SKG_E_INVALID_ARGUMENT
     * and the writer stays; any other write or commit that fails ends it, and it
     * is SKG_E_STALE then.  Writers that are left when the run ends are thrown
     * away.  SKG_E_EXHAUSTED, SKG_E_OUT_OF_RANGE: a quota is reached; a run has
     * 8 writers at once, and create is SKG_E_OUT_OF_RANGE beyond. */
    int64_t (*blob_create)(void *ctx, skg_op run, skg_str kind);           /* [blocking] */
    int32_t (*blob_write)(void *ctx, skg_op run, int64_t writer, skg_bytes data); /* [blocking] */
    int64_t (*blob_finish)(void *ctx, skg_op run, int64_t writer, int32_t commit,
                           char *id_buf, uint64_t cap);                    /* [blocking] */

    /* From now until the op completes, or the host gives the run up, the host
     * accepts on this listening socket and is the run's gate there.  Takes the descriptor (SKG_FD) when
     * it returns SKG_OK; else it stays the plugin's.  May be called more than
     * once: a run has up to 4 listeners.  SKG_E_INVALID_ARGUMENT: one more, or
     * no listening socket.  SKG_E_PERMISSION: the run has no gate. */
    int32_t (*gate_serve)(void *ctx, skg_op run, skg_fd listener);
} skg_host;

/* What an instance is made from; borrowed during create().
 *
 * Id and directory belong to a place in the gateway's configuration (its store,
 * its sandbox), whichever plugin has it: after a restart it is the same one or
 * another.  A sandbox that a reload puts beside the one in use, whose runs go on,
 * gets a place of its own for as long as it lives.  At its next start the gateway
 * calls create() and destroy() with that id and directory once more, so that what
 * was left can be swept, and then removes the directory: what has to last is where
 * config_json says. */
typedef struct skg_create_request {
    uint32_t struct_size;
    uint32_t flags;
    skg_str  instance_id;      /* the same after a restart, another where the path
                                  of the gateway's plugins.state_dir is another:
                                  mark what you make with it, and in create()
                                  remove what bears your mark, which an earlier
                                  life has left behind, and nothing else         */
    skg_str  state_dir;        /* a private directory, kept across restarts: what
                                  another plugin has left there is not yours     */
    skg_bytes config_json;     /* the plugin's own section of the configuration,
                                  an object; {} where there is none              */
} skg_create_request;

/* ----------------------------------------------------------------- sandbox */

#define SKG_SANDBOX_ID "skillgate.sandbox/1"

/* How a sandbox can be kept to the policy (skg_sandbox_caps.egress).  The
 * plugin guarantees CONTAINMENT (no path out but the gate); the gateway, which
 * is the gate, ENFORCES the policy and audits it. */
#define SKG_EGRESS_CAN_DENY      0x1u /* no network at all                        */
#define SKG_EGRESS_GATE_LISTENER 0x2u /* hands host->gate_serve a listener that is
                                         reachable from inside; nothing else is   */
#define SKG_EGRESS_GATE_URL      0x4u /* remote: gate.url is reachable from inside;
                                         nothing else is                          */
#define SKG_EGRESS_SELF_ENFORCED 0x8u /* enforces `rules` itself; this version of
                                         the gateway does not use it             */

typedef struct skg_sandbox_caps {
    uint32_t struct_size;
    uint32_t egress;            /* SKG_EGRESS_*                                   */
    uint32_t max_concurrent;    /* 0: no limit of its own                         */
    uint32_t isolation;         /* SKG_ISO_*                                      */
    uint64_t max_memory_bytes;  /* largest limit it can enforce; 0: cannot        */
    uint64_t max_timeout_ms;    /* longest wall_ms that it takes; 0: any          */
    uint32_t enforces;          /* SKG_LIMIT_* that it really enforces            */
    uint32_t reserved;
} skg_sandbox_caps;

#define SKG_ISO_PROCESS    1u
#define SKG_ISO_CONTAINER  2u
#define SKG_ISO_MICROVM    3u
#define SKG_ISO_REMOTE     4u   /* on another machine, whatever isolates runs there:
                                   of any other a usage beyond what this machine
                                   has is left out                                */

#define SKG_LIMIT_WALL     0x01u
#define SKG_LIMIT_CPU      0x02u
#define SKG_LIMIT_MEMORY   0x04u
#define SKG_LIMIT_PIDS     0x08u
#define SKG_LIMIT_DISK     0x10u
#define SKG_LIMIT_NONROOT  0x20u

typedef struct skg_limits {
    uint32_t struct_size;
    uint32_t max_pids;
    uint64_t wall_ms;           /* always set; the host cancels at this deadline,
                                   and a moment after it where caps says that the
                                   sandbox ends the run (SKG_LIMIT_WALL)          */
    uint64_t cpu_ms;            /* 0: no limit, here and below                    */
    uint64_t memory_bytes;
    uint64_t disk_bytes;        /* /workspace, /tmp and /dev/shm together         */
    uint64_t disk_inodes;
    uint64_t output_bytes;      /* largest `output` the host will take: the guest
                                   stores what is larger as a blob, see
                                   skg_run_result.output_spilled                   */
} skg_limits;

#define SKG_SRC_PATH 1u         /* a directory or file that the host can see      */
#define SKG_SRC_FD   2u         /* an open descriptor; a directory may be one     */
#define SKG_SRC_TAR  3u         /* fd of a tar of the directory, as a store gives
                                   it: see SKG_CONTENT_TAR                        */
#define SKG_SRC_BLOB 4u         /* fetch with host->blob_fd / blob_read           */

typedef struct skg_mount {
    uint32_t struct_size;
    uint32_t source_kind;       /* SKG_SRC_*                                      */
    uint32_t read_only;
    skg_fd   fd;                /* borrowed until the op completes, or -1         */
    skg_str  target;            /* absolute path inside, e.g. "/skills/acme.x"    */
    skg_str  path;              /* SKG_SRC_PATH                                   */
    skg_str  blob_id;           /* SKG_SRC_BLOB                                   */
    skg_str  sha256;            /* of the content (tree digest); a cache key      */
    uint64_t size_bytes;
} skg_mount;

/* A skill that the code can import; its directory is mounted at /skills/<name>. */
typedef struct skg_run_skill {
    uint32_t struct_size;
    uint32_t reserved;
    skg_str  name;              /* "salesforce.leads.sync"                        */
    skg_str  version;
    skg_str  entrypoint;        /* "code/main.py"; empty: an instruction skill    */
    skg_str  function;          /* runtime.export of the manifest                 */
} skg_run_skill;

typedef struct skg_egress_rule {
    uint32_t struct_size;
    uint32_t port;              /* 0: the scheme's                                */
    skg_str  scheme;            /* "https", "http", "tcp"                         */
    skg_str  host;              /* "api.example.com" or "*.example.com"           */
    skg_str  path_prefix;
} skg_egress_rule;

#define SKG_NET_NONE 0u         /* no network: gate_serve is SKG_E_PERMISSION     */
#define SKG_NET_GATE 1u         /* only through the gate, which enforces policy   */
#define SKG_NET_SELF 2u         /* the plugin enforces `rules`                    */

/* The gate: the gateway's own per-run endpoint.  It speaks HTTP/1.1: CONNECT
 * and absolute-form requests are the egress proxy; "/rt/..." is kept for the
 * run's runtime API (blobs, log), and this version answers 404 there: bring
 * these to host->blob_* and run_output by a channel of your own.  It is the
 * only thing a sandbox ever needs to reach.  Two ways to reach it:
 *
 *   listener  the plugin creates a listening stream socket that only the inside
 *             can connect to, and gives it to host->gate_serve(): a TCP socket
 *             made in the sandbox's network namespace, a unix socket in a
 *             bind-mounted directory, Firecracker's host-side vsock socket.
 *             The listener identifies the run; no token is needed.
 *   url       for sandboxes elsewhere: TLS, and `token` identifies the run.
 *
 * This version has the listener alone: url, token, ca_pem and rules are empty,
 * SKG_NET_SELF is not sent, and a run that is granted network needs a sandbox
 * with SKG_EGRESS_GATE_LISTENER. */
typedef struct skg_gate {
    uint32_t struct_size;
    uint32_t mode;              /* SKG_NET_*                                      */
    skg_str  url;               /* https://host:port, or empty                    */
    skg_str  token;             /* Proxy-Authorization / Authorization: Bearer    */
    skg_str  ca_pem;            /* CA to trust inside, or empty                   */
    skg_list rules;             /* skg_egress_rule: for defence in depth          */
} skg_gate;

/* skg_run_request.flags.  Policy asks for it: the interpreter of this run is not
 * to share an address layout or a hash seed with any other run's.  A plugin that
 * ignores the flag must never share these, or must document that it does.        */
#define SKG_REQUEST_FRESH 0x1u

typedef struct skg_run_request {
    uint32_t struct_size;
    uint32_t flags;             /* SKG_REQUEST_*                                  */
    skg_str  run_id;
    skg_str  tenant;
    skg_str  language;          /* "python"; see skg_sandbox.run                  */
    skg_str  code;              /* run_code: source; execute_skill: empty         */
    skg_str  skill;             /* execute_skill: which of `skills` to call       */
    skg_str  function;          /* what to call: runtime.export, or run_code's
                                   entrypoint                                     */
    skg_bytes args_json;        /* a JSON object                                  */
    skg_list skills;            /* skg_run_skill                                  */
    skg_list mounts;            /* skg_mount: the skills' directories, the blobs  */
    skg_list env;               /* skg_kv: plain, not secret                      */
    skg_list secrets;           /* skg_str: names; host->secret_read has values   */
    const skg_limits *limits;   /* never NULL                                     */
    const skg_gate   *gate;     /* go by its mode; NULL is as SKG_NET_NONE        */
    skg_str  traceparent;       /* W3C Trace Context, of the call: what you do for
                                   it may be a span below; may be empty           */
} skg_run_request;

#define SKG_RUN_COMPLETED 1u
#define SKG_RUN_FAILED    2u    /* the skill's own failure: not a skg_error       */

typedef struct skg_run_result {
    uint32_t struct_size;
    uint32_t status;            /* SKG_RUN_*                                      */
    skg_bytes output_json;      /* empty: none (failed, or stored as a blob)      */
    skg_str  summary;           /* what the code said of itself, or empty         */
    skg_str  error_type;        /* SKG_RUN_FAILED: "AuthenticationError"          */
    skg_str  error_message;
    skg_list output_blobs;      /* skg_str: ids from host->blob_finish            */
    int32_t  exit_code;
    int32_t  signal;
    uint64_t create_us;         /* until the sandbox was ready                    */
    uint64_t exec_us;
    uint64_t cpu_us;            /* 0: not known                                   */
    uint64_t peak_memory_bytes; /* 0: not known                                   */
    uint32_t output_spilled;    /* 1: the output was over limits.output_bytes and
                                   is the last of output_blobs                    */
    uint32_t reserved;
} skg_run_result;

/* error_type of a run that the sandbox, not the code, ended.  Anything else is
 * the class name of the exception that the code raised. */
#define SKG_RUN_TIMEOUT            "Timeout"
#define SKG_RUN_OUT_OF_MEMORY      "OutOfMemory"
#define SKG_RUN_TOO_MANY_PROCESSES "TooManyProcesses"
#define SKG_RUN_DISK_FULL          "DiskFull"
#define SKG_RUN_CANCELLED          "Cancelled"
#define SKG_RUN_SANDBOX_ERROR      "SandboxError"

#define SKG_HEALTH_OK       1u
#define SKG_HEALTH_DEGRADED 2u
#define SKG_HEALTH_DOWN     3u

typedef struct skg_health {
    uint32_t struct_size;
    uint32_t state;             /* SKG_HEALTH_*                                   */
    uint32_t in_flight;
    uint32_t capacity;          /* how many more it would take now                */
    skg_str  message;
    skg_str  metrics_json;      /* flat {"name": number}, or empty.  "blob_bytes" of
                                   a store: the bytes of its blobs                */
    skg_str  report_json;       /* what this host can and cannot enforce, layer by
                                   layer: [{"layer","state","detail","advice"}],
                                   state "ok" | "degraded" | "missing"; or empty.
                                   A create() that refuses because of a missing
                                   layer gives the same in its error's detail_json */
} skg_health;

/* An instance.  `self` goes back as the first argument of every function.  The
 * host copies the table: its content never changes.  A function may be NULL:
 * then it is SKG_E_UNIMPLEMENTED.  Requests are borrowed for the call only,
 * except for descriptors (SKG_FD). */
typedef struct skg_sandbox {
    uint32_t struct_size;
    uint32_t reserved;
    void    *self;
    /* Fills *out, as far as out->struct_size (set by the host) reaches.  Asked
     * once, after create(). */
    int32_t (*caps)(void *self, skg_sandbox_caps *out);
    /* One run: create, execute, collect, destroy.  When it is over nothing of it
     * is left, no process and no file: what it has started is waited for, at the
     * latest when the next run begins.  A failure of the code is a
     * result (SKG_RUN_FAILED), a failure of the sandbox an error: with
     * SKG_ERR_NOT_EXECUTED when no code of the skill has run.  SKG_E_EXHAUSTED:
     * no room now.  SKG_E_UNIMPLEMENTED, not executed: it does not run this
     * language.  SKG_E_OUT_OF_RANGE, not executed: its code and arguments are
     * more than it takes. */
    int32_t (*run)(void *self, skg_op op, const skg_run_request *req);   /* -> skg_run_result */
    /* Advice, idempotent, never blocks; races with completion, and with the
     * beginning of run(): who registers an op asks op_cancelled() after that.
     * The plugin still completes the op, soon, with SKG_E_CANCELLED or its
     * result. */
    void    (*cancel)(void *self, skg_op op);
    /* Asked now and then, and by `doctor`.  An instance without it is taken to
     * be well. */
    int32_t (*health)(void *self, skg_op op);                            /* -> skg_health */
    /* Take no new work (SKG_E_UNAVAILABLE); complete when nothing is in flight. */
    int32_t (*drain)(void *self, skg_op op);                             /* -> none */
    /* [once] All ops are complete, and every call into the instance has
     * returned.  Returns when every thread that the instance started is gone;
     * the host table is invalid afterwards.  Called on a thread that may
     * wait. */
    void    (*destroy)(void *self);
    /* As in skg_host; may be NULL. */
    const void *(*get_extension)(void *self, const char *id);
} skg_sandbox;

typedef struct skg_sandbox_factory {
    uint32_t struct_size;
    uint32_t reserved;
    /* [once per instance] Returns SKG_OK and sets *out to an instance that
     * stays valid until its destroy(); or an error < 0, with *err filled (its
     * struct_size is set by the host; its strings static, or valid until the
     * next call on this thread).  Called on a thread that may wait.  Refuses
     * with SKG_E_PRECONDITION when this host lacks what the configuration
     * requires, SKG_E_INVALID_ARGUMENT when the configuration is wrong.  The
     * name that dladdr() gives for the plugin's own code can be opened for
     * reading: it is the file that was checked. */
    int32_t (*create)(const skg_host *host, const skg_create_request *req,
                      const skg_sandbox **out, skg_error *err);
} skg_sandbox_factory;

/* ----------------------------------------------------------------- storage */

/* A store keeps skills and blobs of tenants.  What one tenant has stored does
 * not exist for another: the answer is SKG_E_NOT_FOUND, as for a thing that was
 * never there.  The host has checked every tenant, name, version and path before
 * a call; a store checks again what it turns into a path of its own.  The path of
 * a file that breaks these rules it refuses in any case, also when it keeps files
 * in a table and not in directories:
 *
 *   tenant   1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or a digit
 *   name     of a skill, and namespace of one: 1 to 16 parts with '.' between them,
 *            at most 128 bytes; a part is of a-z 0-9 _ -, the first of them a letter
 *            or a digit
 *   version  SemVer 2.0.0, at most 128 bytes
 *   path     1 to 16 parts with '/' between them, each of 1 to 128 bytes of UTF-8 in
 *            normal form C, together at most 512; none is "." or ".."; no backslash
 *            and no character that a reader does not see (control characters, zero
 *            width); the first begins with no '~' and is no drive ("C:").  Of one
 *            skill no path is another's directory, or differs from it in case only
 *
 * The id of a blob and the namespace to be listed are a caller's words as he wrote
 * them, any text: what is no id of this store's is SKG_E_NOT_FOUND.  Ids that the
 * store gives are held to what is said at skg_blob_stat.id: runs have their blobs
 * as files of these names, and a URL has them without escapes.  Other characters,
 * or more of them, are SKG_E_PROTOCOL.
 *
 * DURABILITY.  When skill_put or blob_commit has completed with SKG_OK, the thing
 * survives a power cut (of a store with SKG_ST_VOLATILE: it is there while the
 * instance's process lives).  Before, it is invisible; it is never visible in
 * part.  Skill versions and blobs never change after that. */

#define SKG_STORAGE_ID "skillgate.storage/1"

/* A bit of caps promises that what it is about is there: none of its functions
 * is NULL.  Without SKG_ST_SKILLS none of those for skills is called, and without
 * SKG_ST_BLOBS none of those for blobs.  Bits other than these are 0. */
#define SKG_ST_SKILLS       0x1u
#define SKG_ST_SKILLS_WRITE 0x2u
#define SKG_ST_BLOBS        0x4u
#define SKG_ST_BLOB_FD      0x8u /* blob_fd gives descriptors                     */
#define SKG_ST_VOLATILE     0x10u /* what it holds ends with the instance's process,
                                     if not before: for tests and caches          */

typedef struct skg_skill_ref { skg_str name; skg_str version; } skg_skill_ref; /* version empty: latest [frozen] */

/* A place in the order of skill_list: by namespace, then name (bytes,
 * ascending), then version (SemVer 2.0.0 precedence, DESCENDING; build metadata
 * as a last resort, bytes, descending).  All empty: before the first. [frozen] */
typedef struct skg_skill_key { skg_str namespace_; skg_str name; skg_str version; } skg_skill_key;

typedef struct skg_skill_file {
    uint32_t struct_size;
    uint32_t reserved;
    skg_str  path;              /* "code/main.py": '/', relative, no ".."         */
    skg_str  sha256;            /* 64 lower-case hex digits                       */
    uint64_t size_bytes;
} skg_skill_file;

#define SKG_SKILL_READ_ONLY 0x1u /* skg_skill.flags: from the operator's own
                                    directories, the same for every tenant: the
                                    bundled store's alone, of any other the skill
                                    is broken                                     */

typedef struct skg_skill {
    uint32_t struct_size;
    uint32_t flags;             /* SKG_SKILL_*                                    */
    skg_str  name;
    skg_str  version;
    skg_str  namespace_;
    skg_str  kind;              /* "action" or "instruction"                      */
    skg_str  description;
    skg_str  tree_sha256;       /* over its files, see skg_put_skill: 64
                                   lower-case hex digits                          */
    skg_str  publisher;         /* subject that published it, or empty            */
    skg_bytes manifest_json;    /* get and put: skill.toml as JSON                */
    skg_list files;             /* get and put: skg_skill_file, sorted by path    */
} skg_skill;

typedef struct skg_list_request {
    uint32_t struct_size;
    uint32_t limit;             /* 1 to 1000                                      */
    skg_str  tenant;
    skg_str  namespace_;        /* empty: all; "skills" finds "skills" itself and
                                   all below it ("skills.protocol")               */
    skg_skill_key after;        /* only what sorts strictly after this            */
} skg_list_request;

typedef struct skg_skill_page {
    uint32_t struct_size;
    uint32_t more;              /* 1: there is at least one more after these      */
    skg_list skills;            /* skg_skill, in the order of skg_skill_key       */
} skg_skill_page;

#define SKG_CONTENT_DATA 0u     /* `data` has the bytes                           */
#define SKG_CONTENT_FILE 1u     /* fd is a file, to be read from offset 0         */
#define SKG_CONTENT_DIR  2u     /* fd is the skill's directory                    */
#define SKG_CONTENT_TAR  3u     /* fd is a tar of the directory, not compressed:
                                   ustar, with the names that are too long for it
                                   as pax records (`path`) or as GNU's            */

typedef struct skg_content {
    uint32_t struct_size;
    uint32_t kind;              /* SKG_CONTENT_*                                  */
    skg_fd   fd;                /* owned by the receiver, or -1                   */
    uint32_t reserved;
    skg_bytes data;
    uint64_t size_bytes;        /* of the file or data                            */
} skg_content;

typedef struct skg_put_file { skg_str path; skg_bytes data; } skg_put_file; /* [frozen] */

/* A new version.  The same name and version with the same content succeeds and
 * changes nothing; with other content it is SKG_E_ALREADY_EXISTS.
 * tree_sha256 is the host's digest of the content: sha256 over, for each file in
 * the order of its path, "<path>\0<sha256 of its content>\n", this one as 64 lower-case
 * hex digits. */
typedef struct skg_put_skill {
    uint32_t struct_size;
    uint32_t flags;
    skg_str  tenant;
    skg_str  name;
    skg_str  version;
    skg_str  namespace_;
    skg_str  kind;
    skg_str  description;
    skg_str  publisher;
    skg_str  tree_sha256;
    skg_bytes manifest_json;
    skg_list files;             /* skg_put_file, skill.toml and SKILL.md included,
                                   sorted by path                                 */
} skg_put_skill;

typedef struct skg_blob_opened {
    uint32_t struct_size;
    skg_fd   fd;                /* blob_fd: owned by the receiver; else -1        */
    uint64_t reader;            /* blob_open: for blob_read and blob_close        */
    const skg_blob_stat *stat;  /* never NULL                                     */
} skg_blob_opened;

typedef struct skg_count { uint64_t n; uint64_t eof; } skg_count;       /* [frozen] */
typedef struct skg_handle { uint64_t handle; } skg_handle;              /* [frozen] */

typedef struct skg_blob_create_request {
    uint32_t struct_size;
    uint32_t flags;
    skg_str  tenant;
    skg_str  kind;
    skg_str  owner;             /* subject                                        */
    skg_str  run_id;            /* the run that made it, or empty                 */
    uint64_t max_bytes;         /* a write beyond it is SKG_E_OUT_OF_RANGE; 0 is a
                                   limit like any other                           */
    uint64_t ttl_s;             /* after this it is as if deleted; 0: never       */
} skg_blob_create_request;

/* An instance; what is said at skg_sandbox about self, NULL functions, requests,
 * cancel, health, drain and destroy holds here too.  But an op of a plugin with
 * SKG_F_BLOCKING may go on to its end: to flush or to digest what is large takes
 * its time, and the host waits for it, in a process of its own too.
 *
 * Errors of every call: SKG_E_NOT_FOUND for what is not there or is another
 * tenant's; SKG_E_INVALID_ARGUMENT; SKG_E_UNAVAILABLE and SKG_E_EXHAUSTED when
 * the store is down or full, with SKG_ERR_TENANT where it is full for this
 * tenant alone; SKG_E_CORRUPT for a digest that does not match.
 *
 * After drain() what is open goes on: blob_write, blob_commit, blob_abort,
 * blob_read and blob_close are no new work.
 *
 * Buffers of blob_read and blob_write stay valid until the op completes; the
 * memory of blob_read is initialised.  Ops of one reader or one writer come one
 * after the other, calls need not: the next one, blob_abort and blob_close too,
 * may come on another thread as soon as the op before has completed, while the
 * call that completed it has not returned.  So nothing of a reader or a writer is
 * touched after complete(). */
typedef struct skg_storage {
    uint32_t struct_size;
    uint32_t reserved;
    void    *self;
    /* Sets *out_flags (SKG_ST_*).  Asked once, after create(). */
    int32_t (*caps)(void *self, uint32_t *out_flags);
    void    (*cancel)(void *self, skg_op op);
    int32_t (*health)(void *self, skg_op op);                            /* -> skg_health */
    int32_t (*drain)(void *self, skg_op op);                             /* -> none       */
    void    (*destroy)(void *self);                                      /* [once]        */
    const void *(*get_extension)(void *self, const char *id);

    /* A page of the tenant's skills: every version is an element, without
     * manifest and files. */
    int32_t (*skill_list)(void *self, skg_op op, const skg_list_request *r); /* -> skg_skill_page */
    /* One version with manifest and files.  "latest": the highest version by
     * SemVer precedence, a pre-release only when there is nothing else. */
    int32_t (*skill_get)(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r); /* -> skg_skill */
    /* One file of a version. */
    int32_t (*skill_read)(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r,
                          skg_str path);                 /* -> skg_content: DATA or FILE */
    /* A version's directory, to be mounted where code reads it that may be another
     * user's: all that is in it, and it itself, is readable by others (files o+r,
     * directories o+rx), whatever the umask.  Modes inside a tar do not matter. */
    int32_t (*skill_tree)(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r);
                                                         /* -> skg_content: DIR or TAR   */
    /* Publishes a version; the answer is what skill_get would say.
     * SKG_E_ALREADY_EXISTS: it is there with other content.
     * SKG_E_OUT_OF_RANGE: it is larger than what is kept of one skill.
     * SKG_E_UNIMPLEMENTED: read-only (no SKG_ST_SKILLS_WRITE). */
    int32_t (*skill_put)(void *self, skg_op op, const skg_put_skill *r); /* -> skg_skill   */

    /* A writer (> 0), until blob_commit or blob_abort.  Of writers that nobody
     * ended, the next create() of this instance throws the remains away. */
    int32_t (*blob_create)(void *self, skg_op op, const skg_blob_create_request *r); /* -> skg_handle */
    /* Appends.  SKG_E_OUT_OF_RANGE: beyond max_bytes.  SKG_E_STALE: no such writer. */
    int32_t (*blob_write)(void *self, skg_op op, uint64_t writer, skg_bytes data);   /* -> none */
    /* Makes the blob visible.  The writer is gone with the op, also when that
     * fails.  Refused (a result < 0), there is no op: the writer stays, and
     * blob_abort follows. */
    int32_t (*blob_commit)(void *self, skg_op op, uint64_t writer);      /* -> skg_blob_stat */
    /* Throws the writer away; an unknown one is ignored.  No op of it is in
     * flight; the call that has completed the last one may not have returned yet.
     * Called on a thread that may wait. */
    void    (*blob_abort)(void *self, uint64_t writer);
    /* What is known of a blob. */
    int32_t (*blob_stat)(void *self, skg_op op, skg_str tenant, skg_str id); /* -> skg_blob_stat */
    /* A reader (> 0) of [offset, offset+len), until blob_close; len 0: to the
     * end.  What it gives has been checked against the digest, else
     * SKG_E_CORRUPT.  SKG_E_OUT_OF_RANGE: offset is beyond the end. */
    int32_t (*blob_open)(void *self, skg_op op, skg_str tenant, skg_str id,
                         uint64_t offset, uint64_t len);                 /* -> skg_blob_opened */
    /* The next bytes, at most cap.  n < cap is not the end: eof says that.  n is
     * 0 only at the end; with nothing to give yet, complete later. */
    int32_t (*blob_read)(void *self, skg_op op, uint64_t reader,
                         void *buf, uint64_t cap);                       /* -> skg_count */
    /* As blob_abort, for a reader. */
    void    (*blob_close)(void *self, uint64_t reader);
    /* A read-only, seekable descriptor of the checked content (SKG_ST_BLOB_FD).  It
     * is mounted as a directory of skill_tree is: a file that has a name is o+r. */
    int32_t (*blob_fd)(void *self, skg_op op, skg_str tenant, skg_str id);   /* -> skg_blob_opened */
    /* From then on it is as if it had never been; open readers may go on. */
    int32_t (*blob_delete)(void *self, skg_op op, skg_str tenant, skg_str id); /* -> none */
} skg_storage;

typedef struct skg_storage_factory {
    uint32_t struct_size;
    uint32_t reserved;
    /* As that of skg_sandbox_factory. */
    int32_t (*create)(const skg_host *host, const skg_create_request *req,
                      const skg_storage **out, skg_error *err);
} skg_storage_factory;

/* ------------------------------------------------------------------- entry */

#define SKG_F_BLOCKING      0x1u /* calls but cancel() may block: the host runs them
                                    on a thread pool, and every op is complete when
                                    its call returns                                */
#define SKG_F_OWN_PROCESS   0x2u /* never load into the gateway itself: a host without
                                    plugin processes refuses the plugin            */
#define SKG_F_SINGLETON     0x4u /* at most one instance per process                */

typedef struct skg_plugin_info {
    uint32_t struct_size;
    uint32_t reserved;
    skg_str  id;                 /* "com.acme.firecracker": stable, reverse-DNS, at
                                    most 43 bytes                                   */
    skg_str  version;            /* SemVer of the plugin                             */
    skg_str  vendor;
    skg_str  description;
    skg_str  license;            /* SPDX                                             */
    skg_str  config_schema_json; /* JSON Schema of its section, or empty             */
    skg_str  build_info;         /* compiler, commit: for bug reports                */
} skg_plugin_info;

typedef struct skg_entry_v1 {
    uint32_t magic;              /* SKG_MAGIC                                        */
    uint32_t struct_size;
    uint32_t abi_major;          /* SKG_ABI_MAJOR of the header it was built with    */
    uint32_t abi_minor;          /* SKG_ABI_MINOR likewise                           */
    uint32_t min_host_minor;     /* the oldest host minor that it can work with      */
    uint32_t flags;              /* SKG_F_*                                          */
    const skg_plugin_info *info;
    /* The skg_*_factory of a kind (SKG_SANDBOX_ID, SKG_STORAGE_ID); NULL when
     * this plugin does not offer it.  Static, never freed. */
    const void *(*get_factory)(const char *kind_id);
} skg_entry_v1;

/* The one exported symbol.  A plugin for two majors exports _v1 and _v2. */
#if !defined(SKG_NO_ENTRY_DECL)
extern SKG_EXPORT const skg_entry_v1 skillgate_plugin_entry_v1;
#endif

/* The ELF note: lets the host refuse a wrong plugin before any of its code
 * (constructors included) has run, and lets `skillgate plugin inspect` read a
 * plugin without running it.  Required; it must say what the entry says.
 * Owner "SkillGate", type 1. */
#define SKG_NOTE_TYPE 1u
typedef struct skg_note_v1 {
    uint32_t namesz, descsz, type;
    char     name[12];           /* "SkillGate\0" and padding                        */
    uint32_t magic, abi_major, abi_minor, min_host_minor, flags;
    char     id[44];             /* info->id, cut, NUL-padded                        */
} skg_note_v1;
#if defined(__ELF__) && defined(__GNUC__)
#define SKG_NOTE(id_literal, flags_)                                                     \
    __attribute__((used, section(".note.skillgate"), aligned(4)))                        \
    static const skg_note_v1 skg_note_ = {                                               \
        10u, (uint32_t)(sizeof(skg_note_v1) - offsetof(skg_note_v1, magic)),             \
        SKG_NOTE_TYPE, "SkillGate", SKG_MAGIC, SKG_ABI_MAJOR, SKG_ABI_MINOR,             \
        0u, (flags_), id_literal }
#else
#define SKG_NOTE(id_literal, flags_) struct skg_note_unused_
#endif

/* ------------------------------------------------------------------ helpers */

#define SKG_LIT(s) { (s), sizeof(s) - 1 }       /* initialiser of a skg_str */
static inline skg_str skg_str_of(const char *p, uint64_t n) { skg_str s; s.ptr = p; s.len = n; return s; }
static inline skg_list skg_list_of(const void *p, uint32_t n, uint32_t stride) {
    skg_list l; l.ptr = p; l.len = n; l.stride = stride; return l; }

#ifdef __cplusplus
}
#endif
#endif /* SKILLGATE_PLUGIN_H */
