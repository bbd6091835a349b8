/* Requests as bad as they come, one kind after the other; each is a function of its number alone. */
#ifndef HH_TESTS_SUPPORT_HOSTILE_H
#define HH_TESTS_SUPPORT_HOSTILE_H

#include "support/http_client.h"

/* Sends hostile request number i. Slow ones go on for at most `patience` seconds. Returns NULL, or what was wrong with
 * the answer (freed by the caller): a status that says the server is to blame, or none where there must be one. */
char *hostile_request(server s, int i, double patience);
int hostile_kinds(void);
const char *hostile_name(int i);

#endif
