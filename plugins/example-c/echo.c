/*
 * The smallest useful skillgate plugin in C: a "sandbox" that runs nothing and
 * gives back the arguments.  It shows every part that a plugin needs.  A store
 * with all its calls is in store.c.
 *
 *     cc -std=c99 -O2 -fPIC -shared -I ../abi/include -o echo.so echo.c
 *     skillgate plugin inspect echo.so
 */
#include "skillgate_plugin.h"

#include <stdlib.h>
#include <string.h>

/* What the host reads before any of this code has run. */
SKG_NOTE("org.skillgate.example-c", 0);

/* An instance: the table that the host sees, and what is behind it. */
struct echo {
    skg_sandbox table;
    const skg_host *host;
};

/* Ends an op with a result; the host copies it before complete() returns. */
static int32_t answer(struct echo *e, skg_op op, const void *result) {
    skg_completion c;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.status = SKG_OK;
    c.result = result;
    return e->host->complete(e->host->ctx, op, &c);
}

static int32_t caps(void *self, skg_sandbox_caps *out) {
    (void)self;
    /* The host set out->struct_size and zeroed the rest. */
    if (SKG_HAS(skg_sandbox_caps, out, egress)) out->egress = SKG_EGRESS_CAN_DENY;
    return SKG_OK;
}

/* Never blocks, so it may run on the host's event loop: no SKG_F_BLOCKING.
 * What takes time would be done on a thread of the plugin's own, which calls
 * complete() when it is ready. */
static int32_t run(void *self, skg_op op, const skg_run_request *req) {
    struct echo *e = self;
    skg_run_result r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.status = SKG_RUN_COMPLETED;
    r.output_json = req->args_json;
    answer(e, op, &r);
    return SKG_OK;
}

/* Every run ends before run() returns: there is nothing to cancel or drain. */
static void cancel(void *self, skg_op op) {
    (void)self;
    (void)op;
}

static int32_t drain(void *self, skg_op op) {
    answer(self, op, NULL);
    return SKG_OK;
}

static int32_t health(void *self, skg_op op) {
    skg_health h;
    memset(&h, 0, sizeof h);
    h.struct_size = sizeof h;
    h.state = SKG_HEALTH_OK;
    answer(self, op, &h);
    return SKG_OK;
}

static void destroy(void *self) { free(self); }

static int32_t create(const skg_host *host, const skg_create_request *req,
                      const skg_sandbox **out, skg_error *err) {
    struct echo *e = calloc(1, sizeof *e);
    (void)req;
    if (e == NULL) {
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
    SKG_LIT("gives back its arguments"), SKG_LIT("Apache-2.0"), SKG_LIT(""), SKG_LIT("") };

const skg_entry_v1 skillgate_plugin_entry_v1 = {
    SKG_MAGIC, sizeof(skg_entry_v1), SKG_ABI_MAJOR, SKG_ABI_MINOR, 0, 0, &info, get_factory };
