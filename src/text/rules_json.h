/* The parts of tokenizer.json that are rules: normalizer, pre_tokenizer, post_processor, decoder. */
#ifndef HH_TEXT_RULES_JSON_H
#define HH_TEXT_RULES_JSON_H

#include "text/parts.h"

#include "format/json.h"

/* Every key of the object is among `allowed` ("a|b|c"); the first that is not is refused by its name. */
hh_code hh_rules_only(hh_json_object o, const char *allowed, hh_error *err);

/* Each reads its field of the file's top object into the tokenizer. The post-processor needs the whole vocabulary. */
hh_code hh_rules_read_normalizer(hh_tokenizer *t, hh_json_object top, hh_error *err);
hh_code hh_rules_read_pre_tokenizer(hh_tokenizer *t, hh_json_object top, hh_error *err);
hh_code hh_rules_read_post_processor(hh_tokenizer *t, hh_json_object top, hh_error *err);
hh_code hh_rules_check_decoder(hh_json_object top, hh_error *err);

#endif
