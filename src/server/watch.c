/* Time limits of connections; see watch.h. */
#include "server/watch.h"

#include "base/memory.h"
#include "base/progress.h"

#include <sys/socket.h>

struct hh_watched {
    int socket;
    double end; /* 0: no limit */
    hh_watched *next, **at;
};

void hh_watch_init(hh_watch *w) {
    pthread_mutex_init(&w->lock, NULL);
    w->first = NULL;
}

void hh_watch_release(hh_watch *w) {
    pthread_mutex_destroy(&w->lock);
}

hh_watched *hh_watch_add(hh_watch *w, int socket, double seconds) {
    hh_watched *x = hh_alloc(sizeof *x);
    pthread_mutex_lock(&w->lock);
    *x = (hh_watched){.socket = socket, .end = hh_now() + seconds, .next = w->first, .at = &w->first};
    if (x->next) x->next->at = &x->next;
    w->first = x;
    pthread_mutex_unlock(&w->lock);
    return x;
}

void hh_watch_remove(hh_watch *w, hh_watched *x) {
    if (!x) return;
    pthread_mutex_lock(&w->lock);
    *x->at = x->next;
    if (x->next) x->next->at = x->at;
    pthread_mutex_unlock(&w->lock);
    hh_free(x);
}

void hh_watch_begin(hh_watch *w, hh_watched *x, double seconds) {
    if (!x) return;
    pthread_mutex_lock(&w->lock);
    x->end = seconds > 0 ? hh_now() + seconds : 0;
    pthread_mutex_unlock(&w->lock);
}

void hh_watch_extend(hh_watch *w, hh_watched *x, double seconds) {
    if (!x) return;
    pthread_mutex_lock(&w->lock);
    if (x->end > 0) x->end += seconds;
    pthread_mutex_unlock(&w->lock);
}

void hh_watch_look(hh_watch *w) {
    const double now = hh_now();
    pthread_mutex_lock(&w->lock);
    for (hh_watched *x = w->first; x; x = x->next) {
        if (x->end <= 0 || now < x->end) continue;
        shutdown(x->socket, SHUT_RDWR); /* the HTTP library sees the end and cleans up */
        x->end = 0;
    }
    pthread_mutex_unlock(&w->lock);
}
