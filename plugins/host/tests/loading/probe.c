/* A plugin that keeps or breaks the contract as its build and its calls ask: for the host's tests.
 * It does not block: what waits, waits on a thread of its own.
 *
 *   -DNOTE_MAJOR=9 -DENTRY_MAJOR=9 -DMIN_HOST=7 -DFLAGS=... -DNO_NOTE -DNO_ENTRY -DENTRY_ID="..."
 *   -DNO_ENTRY -DENTRY_FUNCTION: a function has the name of the entry
 *   -DVERSION="..." of the plugin     -DANY_FACTORY: gives its factory for every id
 *   -DGO: has the build id of a program in Go     -DGO_WITHOUT_ID: its build information alone     -DTEXTREL: an address in its code
 *   -DSTATIC_TLS: reserves thread-local storage at program start
 *   -DCONSTRUCTOR: creates the file that $SKG_PROBE names as soon as any of its code runs
 *   -DHANG_IN_CREATE: writes its process's number to the file that config_json names, and does not come back
 *   -DCRASH_IN_DESTROY, -DHANG_IN_DESTROY: says something on standard error then, and ends, or does not
 *   -DHANG_IN_GET: a store that does the same in skill_get
 *   -DREFUSE_CAPS: a store that fails in caps, and takes its time in destroy: then it makes the file that config_json names */
#include "skillgate_plugin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/socket.h>

#ifndef ENTRY_MAJOR
#define ENTRY_MAJOR SKG_ABI_MAJOR
#endif
#ifndef NOTE_MAJOR
#define NOTE_MAJOR SKG_ABI_MAJOR
#endif
#ifndef MIN_HOST
#define MIN_HOST 0
#endif
#ifndef FLAGS
#define FLAGS 0
#endif
#ifndef ENTRY_ID
#define ENTRY_ID "org.skillgate.probe"
#endif
#ifndef NOTE_ID
#define NOTE_ID "org.skillgate.probe"
#endif
#ifndef VERSION
#define VERSION "1.0.0"
#endif
#ifndef MAGIC
#define MAGIC SKG_MAGIC
#endif

#ifndef NO_NOTE
__attribute__((used, section(".note.skillgate"), aligned(4)))
static const skg_note_v1 note = {
    10u, (uint32_t)(sizeof(skg_note_v1) - offsetof(skg_note_v1, magic)), SKG_NOTE_TYPE, "SkillGate",
    SKG_MAGIC, NOTE_MAJOR, SKG_ABI_MINOR, MIN_HOST, FLAGS, NOTE_ID };
#endif

#ifdef GO
__attribute__((used, section(".note.go.buildid"), aligned(4)))
static const struct { uint32_t namesz, descsz, type; char name[4], desc[8]; } go = { 4, 8, 4, "Go\0", "x/y/z/w" };
#endif

#ifdef GO_WITHOUT_ID
/* as the linker of Go 1.18 writes it: the mark, the size of a pointer, flags */
__attribute__((used, aligned(16))) static unsigned char go_build_information[32] = "\xff Go buildinf:\x08\x02";
#endif

#ifdef STATIC_TLS
__attribute__((tls_model("initial-exec"))) __thread int reserved;
int *skg_probe_reserved(void) { return &reserved; }
#endif

#ifdef TEXTREL
__asm__(".pushsection .text\n.quad skillgate_plugin_entry_v1\n.popsection");
#endif

#ifdef CONSTRUCTOR
__attribute__((constructor)) static void ran(void) {
    const char *path = getenv("SKG_PROBE");
    int fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) close(fd);
}
#endif

#if defined(HANG_IN_CREATE) || defined(HANG_IN_GET) || defined(REFUSE_CAPS)
static char told[4096];
static void tell(skg_bytes path) {
    if (path.len >= sizeof told) abort();
    memcpy(told, path.ptr, path.len);
}
static void hang(void) {
    char line[32];
    int n = snprintf(line, sizeof line, "%ld\n", (long)getpid());
    int fd = open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n) abort();
    alarm(45); /* when nobody ends it */
    for (;;) pause();
}
#endif

struct instance {
    skg_sandbox table;
    const skg_host *host;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    skg_op cancelled;     /* the last op that was cancelled */
    skg_op last;          /* the last op that was completed */
    int threads;
};

static int eq(skg_str a, const char *b) { return a.len == strlen(b) && memcmp(a.ptr, b, a.len) == 0; }

static int32_t finish(struct instance *s, skg_op op, const char *out, uint64_t n) {
    skg_run_result r;
    skg_completion c;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.status = SKG_RUN_COMPLETED;
    r.output_json.ptr = (const uint8_t *)out;
    r.output_json.len = n;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.result = &r;
    return s->host->complete(s->host->ctx, op, &c);
}

/* One record of the log, and the end of the run. */
static void say(struct instance *s, skg_op op, skg_str message, const skg_kv *kv, uint32_t fields) {
    skg_log_record rec;
    memset(&rec, 0, sizeof rec);
    rec.struct_size = sizeof rec;
    rec.level = SKG_LOG_WARN;
    rec.op = op;
    rec.target = skg_str_of("probe::run", 10);
    rec.message = message;
    rec.fields = skg_list_of(kv, fields, sizeof kv[0]);
    s->host->log(s->host->ctx, &rec);
    finish(s, op, "logged", 6);
}

struct job { struct instance *s; skg_op op; };

static void thread_done(struct instance *s) {
    pthread_mutex_lock(&s->lock);
    s->threads--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Completes when the op has been cancelled. */
static void *when_cancelled(void *p) {
    struct job j = *(struct job *)p;
    free(p);
    pthread_mutex_lock(&j.s->lock);
    while (j.s->cancelled != j.op) pthread_cond_wait(&j.s->changed, &j.s->lock);
    pthread_mutex_unlock(&j.s->lock);
    finish(j.s, j.op, "late", 4);
    thread_done(j.s);
    return NULL;
}
static void *soon(void *p) {
    struct job j = *(struct job *)p;
    free(p);
    finish(j.s, j.op, "from a thread", 13);
    thread_done(j.s);
    return NULL;
}
static void start(struct instance *s, skg_op op, void *(*f)(void *)) {
    struct job *j = malloc(sizeof *j);
    pthread_t t;
    j->s = s;
    j->op = op;
    pthread_mutex_lock(&s->lock);
    s->threads++;
    pthread_mutex_unlock(&s->lock);
    if (pthread_create(&t, NULL, f, j) == 0) pthread_detach(t);
}

/* One thread for all, which is there from the first job on: for measurements. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct job jobs[256];
    unsigned from, to;
    int started;
} worker = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { { 0, 0 } }, 0, 0, 0 };

static void *work(void *nothing) {
    for (;;) {
        struct job j;
        pthread_mutex_lock(&worker.lock);
        while (worker.from == worker.to) pthread_cond_wait(&worker.filled, &worker.lock);
        j = worker.jobs[worker.from++ % 256];
        pthread_mutex_unlock(&worker.lock);
        finish(j.s, j.op, "from the worker", 15);
    }
    return nothing;
}

static int32_t give_to_worker(struct instance *s, skg_op op) {
    pthread_t t;
    int32_t code = SKG_E_EXHAUSTED;
    pthread_mutex_lock(&worker.lock);
    if (!worker.started && pthread_create(&t, NULL, work, NULL) == 0) {
        pthread_detach(t);
        worker.started = 1;
    }
    if (worker.started && worker.to - worker.from < 256) {
        worker.jobs[worker.to % 256].s = s;
        worker.jobs[worker.to++ % 256].op = op;
        code = SKG_OK;
    }
    pthread_mutex_unlock(&worker.lock);
    pthread_cond_signal(&worker.filled);
    return code;
}

static int32_t run(void *self, skg_op op, const skg_run_request *r) {
    struct instance *s = self;
    const skg_host *h = s->host;
    skg_run_result result;
    skg_completion c;
    memset(&result, 0, sizeof result);
    result.struct_size = sizeof result;
    result.status = SKG_RUN_COMPLETED;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.result = &result;
    s->last = op;
    if (eq(r->function, "echo")) {
        finish(s, op, (const char *)r->args_json.ptr, r->args_json.len);
    } else if (eq(r->function, "thread")) {
        start(s, op, soon);
    } else if (eq(r->function, "worker")) {
        return give_to_worker(s, op);
    } else if (eq(r->function, "when cancelled")) {
        start(s, op, when_cancelled);
    } else if (eq(r->function, "twice")) {
        /* the answer says what the second completion was told */
        int32_t first, second;
        char code[2];
        first = finish(s, op, "first", 5);
        second = finish(s, op, "second", 6);
        code[0] = first == SKG_OK ? 'y' : 'n';
        code[1] = second == SKG_E_STALE ? 'y' : 'n';
        h->run_output(h->ctx, op, SKG_STDOUT, (skg_bytes){ (const uint8_t *)code, 2 });
        if (first != SKG_OK || second != SKG_E_STALE) abort();
    } else if (eq(r->function, "invented")) {
        if (finish(s, 0, "x", 1) != SKG_E_STALE || finish(s, op + 1, "x", 1) != SKG_E_STALE ||
            finish(s, op ^ (1ull << 40), "x", 1) != SKG_E_STALE || finish(s, UINT64_MAX, "x", 1) != SKG_E_STALE) abort();
        finish(s, op, "refused", 7);
    } else if (eq(r->function, "refuse")) {
        return SKG_E_EXHAUSTED;
    } else if (eq(r->function, "refuse and complete")) {
        finish(s, op, "kept", 4);
        return SKG_E_EXHAUSTED;
    } else if (eq(r->function, "forget")) {
        return SKG_OK;
    } else if (eq(r->function, "not utf-8")) {
        result.summary = skg_str_of("\xff\xfe", 2);
        return h->complete(h->ctx, op, &c) == SKG_E_PROTOCOL ? SKG_OK : SKG_E_INTERNAL;
    } else if (eq(r->function, "huge")) {
        result.summary = skg_str_of("x", UINT64_C(1) << 60);
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "null with length")) {
        result.summary = skg_str_of(NULL, 5);
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "too much output")) {
        static char out[8192];
        finish(s, op, out, sizeof out);
    } else if (eq(r->function, "spilled and there") || eq(r->function, "spilled nowhere")) {
        result.output_spilled = 1;
        if (eq(r->function, "spilled and there")) result.output_json.ptr = (const uint8_t *)"{}", result.output_json.len = 2;
        if (h->complete(h->ctx, op, &c) != SKG_E_PROTOCOL) abort();
    } else if (eq(r->function, "short completion")) {
        c.struct_size = 8;
        if (h->complete(h->ctx, op, &c) != SKG_E_PROTOCOL) abort();
    } else if (eq(r->function, "no result")) {
        c.result = NULL;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "no size")) {
        result.struct_size = 0;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "positive status")) {
        c.status = 5;
        if (h->complete(h->ctx, op, &c) != SKG_E_PROTOCOL) abort();
    } else if (eq(r->function, "short result")) {
        /* not set to sizeof: the struct ends before summary does; what follows is not the host's to read */
        struct { skg_run_result r; } padded;
        memset(&padded, 0xee, sizeof padded);
        memcpy(&padded.r, &result, offsetof(skg_run_result, error_type));
        padded.r.struct_size = (uint32_t)offsetof(skg_run_result, error_type);
        c.result = &padded;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "stride")) {
        /* a newer plugin: list elements are larger than ours; and walk the host's list with its stride */
        struct wide { skg_str id; uint64_t more; } ids[2] = { { SKG_LIT("blob:a"), 1 }, { SKG_LIT("blob:b"), 2 } };
        uint32_t i;
        uint64_t n = 0;
        result.output_blobs = skg_list_of(ids, 2, sizeof ids[0]);
        for (i = 0; i < r->skills.len; i++) n += SKG_AT(r->skills, skg_run_skill, i)->name.len;
        result.exec_us = n;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "empty")) {
        /* null with length 0, everywhere */
        result.exec_us = r->code.len + r->args_json.len + r->skills.len;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "error")) {
        skg_error e;
        memset(&e, 0, sizeof e);
        e.struct_size = sizeof e;
        e.code = SKG_E_UNAVAILABLE;
        e.flags = SKG_ERR_RETRYABLE | SKG_ERR_NOT_EXECUTED;
        e.retry_after_ms = 250;
        e.message = skg_str_of("no machine \xff free", 17);
        c.status = SKG_E_UNAVAILABLE;
        c.error = &e;
        h->complete(h->ctx, op, &c);
    } else if (eq(r->function, "blocking host call")) {
        uint8_t b[8];
        int64_t n = h->blob_read(h->ctx, op, skg_str_of("blob:1", 6), 0, b, sizeof b);
        finish(s, op, n == SKG_E_WOULD_DEADLOCK ? "refused" : "taken", n == SKG_E_WOULD_DEADLOCK ? 7 : 5);
    } else if (eq(r->function, "secret")) {
        /* under the lock that health() and cancel() take too */
        char value[64];
        int64_t n;
        pthread_mutex_lock(&s->lock);
        n = h->secret_read(h->ctx, op, skg_str_of("TOKEN", 5), value, sizeof value);
        pthread_mutex_unlock(&s->lock);
        finish(s, op, value, n < 0 ? 0 : (uint64_t)n);
    } else if (eq(r->function, "gate")) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (h->gate_serve(h->ctx, op, fd) == SKG_OK) {
            finish(s, op, "served", 6);
        } else {
            if (fd >= 0) close(fd);
            finish(s, op, "refused", 7);
        }
    } else if (eq(r->function, "services after the end")) {
        finish(s, op, "done", 4);
        if (h->run_output(h->ctx, op, SKG_STDOUT, (skg_bytes){ NULL, 0 }) != SKG_E_STALE) abort();
        if (h->secret_read(h->ctx, op, skg_str_of("A", 1), NULL, 0) != SKG_E_STALE) abort();
        if (h->gate_serve(h->ctx, op, 0) != SKG_E_STALE) abort();
        if (h->op_cancelled(h->ctx, op) != 1) abort();
    } else if (eq(r->function, "log lines")) {
        skg_kv kv[2] = { { SKG_LIT("n"), SKG_LIT("42") }, { SKG_LIT("a b"), SKG_LIT("1 c=\"2\"\n") } };
        say(s, op, skg_str_of("a\nb\x1b[2J", 7), kv, 2);
    } else if (eq(r->function, "log on and on")) {
        /* 255 records of 64 KiB, and the end of the run with the last. */
        static char much[65536];
        memset(much, 'x', sizeof much);
        for (int i = 0; i < 255; i++) {
            skg_log_record record;
            memset(&record, 0, sizeof record);
            record.struct_size = sizeof record;
            record.level = SKG_LOG_INFO;
            record.op = op;
            record.target = skg_str_of("probe::run", 10);
            record.message = skg_str_of(much, sizeof much);
            record.fields = skg_list_of(NULL, 0, sizeof(skg_kv));
            h->log(h->ctx, &record);
        }
        say(s, op, skg_str_of("the last", 8), NULL, 0);
    } else if (eq(r->function, "log") || eq(r->function, "log much")) {
        /* The second of 65 fields, of which 64 are counted. */
        skg_kv kv[65];
        uint32_t fields = eq(r->function, "log") ? 1 : 65;
        for (uint32_t i = 0; i < fields; i++) kv[i] = (skg_kv){ SKG_LIT("n"), SKG_LIT("42") };
        say(s, op, skg_str_of("something is off", 16), kv, fields);
    } else {
        finish(s, op, "?", 1);
    }
    return SKG_OK;
}

static void cancel(void *self, skg_op op) {
    struct instance *s = self;
    pthread_mutex_lock(&s->lock);
    s->cancelled = op;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int32_t caps(void *self, skg_sandbox_caps *out) {
    (void)self;
    out->egress = SKG_EGRESS_CAN_DENY;
    return SKG_OK;
}

static int32_t health(void *self, skg_op op) {
    struct instance *s = self;
    skg_health h;
    skg_completion c;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_unlock(&s->lock);
    memset(&h, 0, sizeof h);
    h.struct_size = sizeof h;
    h.state = SKG_HEALTH_OK;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.result = &h;
    return s->host->complete(s->host->ctx, op, &c);
}

static void destroy(void *self) {
    struct instance *s = self;
#if defined(CRASH_IN_DESTROY) || defined(HANG_IN_DESTROY)
    static const char words[] = "destroy has no end\n";
    if (write(2, words, sizeof words - 1) < 0) return;
#ifdef CRASH_IN_DESTROY
    abort();
#endif
    alarm(45); /* when nobody ends it */
    for (;;) pause();
#endif
    pthread_mutex_lock(&s->lock);
    while (s->threads > 0) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    free(s);
}

/* Can this plugin open the file that its code came from? */
static int open_myself(void) {
    Dl_info where;
    char magic[4] = { 0 };
    int fd;
    if (dladdr((const void *)(uintptr_t)&caps, &where) == 0) return 0;
    fd = open(where.dli_fname, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if (read(fd, magic, 4) != 4) magic[0] = 0;
    close(fd);
    return memcmp(magic, "\177ELF", 4) == 0;
}

static int32_t create(const skg_host *host, const skg_create_request *req, const skg_sandbox **out, skg_error *err) {
#ifdef CRASH_IN_CREATE
    static const char words[] = "create has no future\n";
    if (write(2, words, sizeof words - 1) > 0) abort();
#endif
#ifdef HANG_IN_CREATE
    tell(req->config_json);
    hang();
#endif

    struct instance *s;
    if (req->config_json.len == 6 && memcmp(req->config_json.ptr, "refuse", 6) == 0) {
        err->code = SKG_E_PRECONDITION;
        err->message = skg_str_of("told to", 7);
        return SKG_E_PRECONDITION;
    }
    if (req->config_json.len == 6 && memcmp(req->config_json.ptr, "myself", 6) == 0 && !open_myself()) return SKG_E_NOT_FOUND;
    if (req->config_json.len == 4 && memcmp(req->config_json.ptr, "null", 4) == 0) return SKG_OK;
    s = calloc(1, sizeof *s);
    s->host = host;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->table.struct_size = sizeof s->table;
    if (req->config_json.len == 5 && memcmp(req->config_json.ptr, "short", 5) == 0) {
        /* not set to sizeof: the table ends after cancel, and what follows is not the host's to read */
        s->table.struct_size = (uint32_t)offsetof(skg_sandbox, health);
        s->table.health = (int32_t (*)(void *, skg_op))(uintptr_t)1;
        s->table.drain = (int32_t (*)(void *, skg_op))(uintptr_t)1;
        s->table.destroy = (void (*)(void *))(uintptr_t)1;
    } else if (req->config_json.len != 4 || memcmp(req->config_json.ptr, "bare", 4) != 0) {
        s->table.health = health;
        s->table.destroy = destroy;
    }
    s->table.self = s;
    s->table.caps = caps;
    s->table.run = run;
    s->table.cancel = cancel;
    *out = &s->table;
    return SKG_OK;
}

static const skg_sandbox_factory factory = { sizeof(skg_sandbox_factory), 0, create };
#if defined(HANG_IN_GET) || defined(REFUSE_CAPS)
static int32_t get(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r) {
    (void)self, (void)op, (void)tenant, (void)r;
    hang();
    return SKG_OK;
}
static int32_t store_caps(void *self, uint32_t *flags) {
    (void)self;
    *flags = SKG_ST_SKILLS;
#ifdef REFUSE_CAPS
    return SKG_E_INTERNAL;
#endif
    return SKG_OK;
}
static void store_destroy(void *self) {
    (void)self;
#ifdef REFUSE_CAPS
    struct timespec a_while = { 0, 300 * 1000 * 1000 };
    nanosleep(&a_while, NULL);
    close(open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
#endif
}
static int32_t store_create(const skg_host *host, const skg_create_request *req, const skg_storage **out, skg_error *err) {
    static skg_storage table;
    (void)host, (void)err;
    tell(req->config_json);
    table.struct_size = sizeof table;
    table.caps = store_caps;
    table.destroy = store_destroy;
    table.skill_get = get;
    *out = &table;
    return SKG_OK;
}
static const skg_storage_factory store_factory = { sizeof(skg_storage_factory), 0, store_create };
static const void *get_factory(const char *id) { return strcmp(id, SKG_STORAGE_ID) == 0 ? &store_factory : NULL; }
#elif defined(ANY_FACTORY)
static const void *get_factory(const char *id) { (void)id; return &factory; }
#else
static const void *get_factory(const char *id) { return strcmp(id, SKG_SANDBOX_ID) == 0 ? &factory : NULL; }
#endif
#ifndef INFO_BYTES
#define INFO_BYTES sizeof(skg_plugin_info)
#endif
static const skg_plugin_info info = {
    INFO_BYTES, 0, SKG_LIT(ENTRY_ID), SKG_LIT(VERSION), { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 } };

#ifdef NO_ENTRY
#ifdef ENTRY_FUNCTION
SKG_EXPORT int entry_function(void) __asm__("skillgate_plugin_entry_v1");
int entry_function(void) { return 0; }
#endif
/* the same table under another name */
SKG_EXPORT const skg_entry_v1 not_the_entry = {
    MAGIC, sizeof(skg_entry_v1), ENTRY_MAJOR, SKG_ABI_MINOR, MIN_HOST, FLAGS, &info, get_factory };
#else
SKG_EXPORT const skg_entry_v1 skillgate_plugin_entry_v1 = {
    MAGIC, sizeof(skg_entry_v1), ENTRY_MAJOR, SKG_ABI_MINOR, MIN_HOST, FLAGS, &info, get_factory };
#endif
