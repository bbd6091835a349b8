/* Making and freeing jobs. */
#include "server/server_job.h"

hh_job *hh_job_new(void) {
    hh_job *j = hh_alloc(sizeof *j);
    j->references = 1;
    j->created = time(NULL);
    j->socket = -1;
    return j;
}

void hh_job_release(hh_job *j) {
    if (!j || atomic_fetch_sub(&j->references, 1) != 1) return;
    for (int64_t i = 0; i < j->n_answers; i++) {
        hh_answer *a = &j->answer[i];
        hh_sampler_free(a->sampler);
        hh_stream_text_release(&a->text);
        hh_buf_release(&a->whole);
        hh_free(a->scores);
        hh_free(a->top);
        hh_free(a->top_ids);
        json_decref(a->tokens);
    }
    hh_free(j->answer);
    hh_request_release(&j->request);
    hh_buf_release(&j->out);
    hh_free(j);
}
