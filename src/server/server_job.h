/* A request and its answers, between the thread that speaks HTTP and the thread that computes. */
#ifndef HH_SERVER_SERVER_JOB_H
#define HH_SERVER_SERVER_JOB_H

#include "server/stream_text.h"

#include <jansson.h>
#include <stdatomic.h>
#include <time.h>

#define HH_MAX_STOPS   16
#define HH_MAX_ANSWERS 1024

typedef struct hh_prompt_ids {
    char *text; /* given as text, or NULL */
    int32_t *ids;
    int64_t n;
} hh_prompt_ids;

/* What was asked for; read from JSON in request.c. */
typedef struct hh_request {
    bool chat, stream, include_usage, echo;
    int64_t n, max_tokens; /* answers to each prompt; -1: what the context leaves */
    int64_t n_top;         /* most likely tokens told beside each; -1: no log-probabilities */
    hh_sampler_options sampling;
    hh_logit_bias *bias;
    char *schema;
    char *stop[HH_MAX_STOPS];
    int n_stops;
    hh_prompt_ids *prompt;
    int64_t n_prompts;
    json_t *messages; /* of a chat: its prompt is made of them */
} hh_request;

typedef enum hh_answer_state { HH_ANSWER_WAITING, HH_ANSWER_READING, HH_ANSWER_MAKING, HH_ANSWER_DONE } hh_answer_state;

typedef struct hh_job hh_job;

/* One of the n answers to one of the prompts. */
typedef struct hh_answer {
    hh_job *job;
    int64_t index;
    const hh_prompt_ids *prompt;
    hh_answer_state state;
    hh_sequence *sequence;
    hh_sampler *sampler; /* while it is made */
    int32_t next;        /* drawn, and not yet read by the sequence */
    int64_t n_made, n_cached;
    float *scores, *top; /* of an echoed prompt's tokens, as hh_sequence_score has them */
    int32_t *top_ids;
    hh_stream_text text;
    hh_buf whole;        /* what was made so far, for an answer that is not streamed */
    json_t *tokens;      /* tokens with log-probabilities that were not told yet */
    int64_t text_offset; /* of the next token in the text; completions tell it */
    const char *finish;  /* "stop", "length" */
} hh_answer;

typedef enum hh_job_state { HH_JOB_NEW, HH_JOB_ADMITTED, HH_JOB_DONE } hh_job_state;

struct hh_job {
    atomic_int references;
    hh_job *next; /* in the list of new jobs, or of those under way */
    hh_request request;
    char id[40];
    time_t created;
    hh_answer *answer;
    int64_t n_answers;
    int64_t n_begun, n_held, n_done; /* answers that were given a slot, have one now, are finished */
    int64_t given;                   /* when it came, or was last given a slot: the scheduler's count */
    int64_t n_told;                  /* tokens whose log-probabilities are held */
    double last_output;              /* when something was last written: for keep-alive comments */

    /* shared by both threads, under the server's lock */
    hh_job_state state;
    int status;  /* HTTP */
    hh_buf out;  /* body, or server-sent events so far */
    size_t sent; /* of out */
    bool complete, gone, suspended;
    void *connection; /* MHD's */
    int socket;
};

hh_job *hh_job_new(void);
void hh_job_release(hh_job *j); /* the last release frees */

/* Reads a request's body. Returns 0, or an HTTP status with a sentence in err. */
int hh_request_read(hh_request *r, const char *body, size_t size, bool chat, hh_error *err);
void hh_request_release(hh_request *r);

/* The API's JSON (respond.c). What returns json_t is a new reference. */
json_t *hh_error_json(int status, const char *sentence);
void hh_out_json(hh_buf *out, json_t *j); /* takes j */
void hh_out_event(hh_buf *out, json_t *j);
json_t *hh_usage_json(const hh_job *j);
json_t *hh_result_json(const hh_job *j, const char *model);
/* A piece of a streamed answer; text may be "". `role`: the first. */
json_t *hh_chunk_json(hh_answer *a, const char *model, const char *text, bool first);
json_t *hh_usage_chunk_json(const hh_job *j, const char *model);
/* Remembers a token's log-probability and the n_top most likely ones. */
void hh_answer_add_token(hh_answer *a, const hh_engine *e, int32_t id, double log_probability, const int32_t *top_id,
                         const double *top, int64_t n_top);

#endif
