/* The chat page, made of chat.html by the Makefile. */
#ifndef HH_SERVER_CHAT_PAGE_H
#define HH_SERVER_CHAT_PAGE_H

#include <stddef.h>

extern const unsigned char hh_chat_page[];
extern const size_t hh_chat_page_size;

#endif
