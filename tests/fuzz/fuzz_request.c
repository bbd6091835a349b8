/* Any bytes as the body of a request to the server (the first byte says which kind): refused with a sentence, or a
 * request whose every number is in its range. */
#include "server/server_job.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const hh_request *r, bool chat) {
    const hh_sampler_options *s = &r->sampling;
    HH_ASSERT(r->chat == chat && r->n >= 1 && r->n <= 16 && r->n_top >= -1 && r->n_top <= 20);
    HH_ASSERT(r->max_tokens >= (r->echo ? 0 : chat ? -1 : 1) && r->n_stops >= 0 && r->n_stops <= HH_MAX_STOPS);
    HH_ASSERT(s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0);
    for (int i = 0; i < r->n_stops; i++) HH_ASSERT(r->stop[i] && *r->stop[i]);
    for (int64_t i = 0; i < s->n_bias; i++) HH_ASSERT(s->bias[i].id >= 0);
    HH_ASSERT(r->n_prompts >= 1);
    for (int64_t i = 0; i < r->n_prompts; i++) {
        const hh_prompt_ids *p = &r->prompt[i];
        HH_ASSERT(chat || (p->text != NULL) != (p->ids != NULL));
        for (int64_t k = 0; k < p->n; k++) HH_ASSERT(p->ids[k] >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_request r;
    if (!size) return 0;
    const bool chat = data[0] & 1;
    const int status = hh_request_read(&r, (const char *)data + 1, size - 1, chat, &err);
    if (status)
        HH_ASSERT(status >= 400 && status < 500 && err.text[0]);
    else
        check(&r, chat);
    hh_request_release(&r);
    return 0;
}
