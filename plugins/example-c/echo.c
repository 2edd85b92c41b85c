/*
 * The smallest useful skillgate plugin in C: a sandbox for a language of its
 * own, "echo", whose programs give back their arguments.  It shows every part
 * that a plugin needs.  A store with all its calls is in store.c.
 *
 *     cc -std=c99 -O2 -fPIC -shared -pthread -I ../abi/include -o echo.so echo.c
 *     skillgate plugin inspect echo.so
 */
#include "skillgate_plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What the host reads before any of this code has run. */
SKG_NOTE("org.skillgate.example-c", 0);

/* An op that is completed later. */
struct pending {
    skg_op op;
    int is_run; /* else a drain */
    struct pending *next;
};

/* An instance: the table that the host sees, and what is behind it. */
struct echo {
    skg_sandbox table;
    const skg_host *host;
    /* Guards what follows.  Never held while the host is called. */
    pthread_mutex_t lock;
    struct pending *pending;
    uint32_t in_flight; /* runs */
    int draining;
};

static int is(skg_str s, const char *text) {
    return s.len == strlen(text) && (s.len == 0 || memcmp(s.ptr, text, s.len) == 0);
}

/* Ends an op with a result; the host copies it before complete() returns. */
static int32_t answer(struct echo *e, skg_op op, const void *result) {
    skg_completion c;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.status = SKG_OK;
    c.result = result;
    e->host->complete(e->host->ctx, op, &c);
    return SKG_OK;
}

/* Ends an op that was accepted with an error: that is SKG_OK, too. */
static int32_t fail(struct echo *e, skg_op op, int32_t code, uint32_t flags, const char *why) {
    skg_error error;
    skg_completion c;
    memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
    error.code = code;
    error.flags = flags;
    error.message = skg_str_of(why, strlen(why));
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.status = code;
    c.error = &error;
    e->host->complete(e->host->ctx, op, &c);
    return SKG_OK;
}

/* Takes `op` from the list, or whatever is first there when it is 0. */
static struct pending *take(struct echo *e, skg_op op) {
    struct pending **at = &e->pending, *found;
    while (*at != NULL && op != 0 && (*at)->op != op) at = &(*at)->next;
    found = *at;
    if (found != NULL) *at = found->next;
    return found;
}

/* 0: there is no memory for it. */
static int add(struct echo *e, skg_op op, int is_run) {
    struct pending *p = malloc(sizeof *p);
    if (p == NULL) return 0;
    p->op = op;
    p->is_run = is_run;
    p->next = e->pending;
    e->pending = p;
    return 1;
}

/* After a run's completion.  The last one lets the drains end. */
static void run_has_ended(struct echo *e) {
    struct pending *drains = NULL;
    pthread_mutex_lock(&e->lock);
    if (--e->in_flight == 0) {
        /* No run is in flight: what is left in the list are drains. */
        drains = e->pending;
        e->pending = NULL;
    }
    pthread_mutex_unlock(&e->lock);
    while (drains != NULL) {
        struct pending *next = drains->next;
        answer(e, drains->op, NULL);
        free(drains);
        drains = next;
    }
}

/* Say only what is enforced: the gateway, and whoever runs it, rely on it. */
static int32_t caps(void *self, skg_sandbox_caps *out) {
    (void)self;
    /* The host set out->struct_size and zeroed the rest. */
    if (SKG_HAS(skg_sandbox_caps, out, egress)) out->egress = SKG_EGRESS_CAN_DENY;
    return SKG_OK;
}

/* Advice: the op may have ended, or never have been here. */
static void cancel(void *self, skg_op op) {
    struct echo *e = self;
    struct pending *p;
    pthread_mutex_lock(&e->lock);
    p = op == 0 ? NULL : take(e, op);
    pthread_mutex_unlock(&e->lock);
    if (p == NULL) return;
    fail(e, op, SKG_E_CANCELLED, 0, "cancelled");
    if (p->is_run) run_has_ended(e);
    free(p);
}

/* The program "wait": it prints a line, and goes on until it is cancelled, which
 * the host does at limits->wall_ms at the latest.  Yours would be a process or a
 * virtual machine now, and a thread of the plugin's own that waits for its end. */
static int32_t run_wait(struct echo *e, skg_op op) {
    int added;
    skg_bytes line = { (const uint8_t *)"waiting\n", 8 };
    e->host->run_output(e->host->ctx, op, SKG_STDOUT, line);
    pthread_mutex_lock(&e->lock);
    added = add(e, op, 1);
    pthread_mutex_unlock(&e->lock);
    if (!added) {
        fail(e, op, SKG_E_EXHAUSTED, SKG_ERR_NOT_EXECUTED, "out of memory");
        run_has_ended(e);
    } else if (e->host->op_cancelled(e->host->ctx, op)) {
        /* Before it was in the list, where cancel() looks. */
        cancel(e, op);
    }
    return SKG_OK;
}

/* Never blocks, so it may run on the host's event loop: no SKG_F_BLOCKING. */
static int32_t run(void *self, skg_op op, const skg_run_request *req) {
    struct echo *e = self;
    skg_run_result r;
    int draining;
    /* The gateway asks for "python".  Begin here: who runs that is asked by the
     * conformance kit what its runs can see and do. */
    if (!is(req->language, "echo"))
        return fail(e, op, SKG_E_UNIMPLEMENTED, SKG_ERR_NOT_EXECUTED, "this sandbox runs \"echo\"");
    pthread_mutex_lock(&e->lock);
    draining = e->draining;
    if (!draining) e->in_flight++;
    pthread_mutex_unlock(&e->lock);
    if (draining)
        return fail(e, op, SKG_E_UNAVAILABLE, SKG_ERR_NOT_EXECUTED, "the sandbox is draining");
    if (is(req->code, "wait")) return run_wait(e, op);
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.status = SKG_RUN_COMPLETED;
    r.output_json = req->args_json;
    answer(e, op, &r);
    run_has_ended(e);
    return SKG_OK;
}

/* From now on nothing begins; it is completed by the last run that is in flight. */
static int32_t drain(void *self, skg_op op) {
    struct echo *e = self;
    int idle, added = 0;
    pthread_mutex_lock(&e->lock);
    e->draining = 1;
    idle = e->in_flight == 0;
    if (!idle) added = add(e, op, 0);
    pthread_mutex_unlock(&e->lock);
    if (idle) return answer(e, op, NULL);
    if (!added) return SKG_E_EXHAUSTED;
    if (e->host->op_cancelled(e->host->ctx, op)) cancel(e, op);
    return SKG_OK;
}

static int32_t health(void *self, skg_op op) {
    struct echo *e = self;
    skg_health h;
    memset(&h, 0, sizeof h);
    h.struct_size = sizeof h;
    h.state = SKG_HEALTH_OK;
    h.capacity = 64;
    pthread_mutex_lock(&e->lock);
    h.in_flight = e->in_flight;
    pthread_mutex_unlock(&e->lock);
    return answer(e, op, &h);
}

/* Every op is complete: nothing is pending. */
static void destroy(void *self) {
    struct echo *e = self;
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static int32_t create(const skg_host *host, const skg_create_request *req,
                      const skg_sandbox **out, skg_error *err) {
    struct echo *e = calloc(1, sizeof *e);
    (void)req;
    if (e == NULL || pthread_mutex_init(&e->lock, NULL) != 0) {
        free(e);
        err->code = SKG_E_EXHAUSTED;
        err->message = skg_str_of("out of memory", 13);
        return SKG_E_EXHAUSTED;
    }
    e->host = host;
    e->table.struct_size = sizeof e->table;
    e->table.self = e;
    e->table.caps = caps;
    e->table.run = run;
    e->table.cancel = cancel;
    e->table.health = health;
    e->table.drain = drain;
    e->table.destroy = destroy;
    *out = &e->table;
    return SKG_OK;
}

static const skg_sandbox_factory factory = { sizeof(skg_sandbox_factory), 0, create };

static const void *get_factory(const char *kind_id) {
    return strcmp(kind_id, SKG_SANDBOX_ID) == 0 ? &factory : NULL;
}

static const skg_plugin_info info = {
    sizeof(skg_plugin_info), 0,
    SKG_LIT("org.skillgate.example-c"), SKG_LIT("1.0.0"), SKG_LIT("skillgate"),
    SKG_LIT("a sandbox whose programs give back their arguments"), SKG_LIT("Apache-2.0"), SKG_LIT(""), SKG_LIT("") };

const skg_entry_v1 skillgate_plugin_entry_v1 = {
    SKG_MAGIC, sizeof(skg_entry_v1), SKG_ABI_MAJOR, SKG_ABI_MINOR, 0, 0, &info, get_factory };
