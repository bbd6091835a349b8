/* Connections under a time limit: who sends or takes bytes too slowly is hung up on, however alive the connection looks.
 * (The HTTP library's own limit is for connections on which nothing moves at all.) */
#ifndef HH_SERVER_WATCH_H
#define HH_SERVER_WATCH_H

#include <pthread.h>

typedef struct hh_watched hh_watched; /* one connection */

typedef struct hh_watch {
    pthread_mutex_t lock;
    hh_watched *first;
} hh_watch;

void hh_watch_init(hh_watch *w);
void hh_watch_release(hh_watch *w); /* after every connection was removed */
hh_watched *hh_watch_add(hh_watch *w, int socket, double seconds);
void hh_watch_remove(hh_watch *w, hh_watched *x); /* before its socket is closed */
/* What is awaited must be there `seconds` from now; 0: nothing is awaited of the client. */
void hh_watch_begin(hh_watch *w, hh_watched *x, double seconds);
void hh_watch_extend(hh_watch *w, hh_watched *x, double seconds);
void hh_watch_look(hh_watch *w); /* hangs up on those whose time is over; called every so often */

#endif
