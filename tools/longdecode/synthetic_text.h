// A made-up text where a benchmark has no real one.
#ifndef LONGDECODE_TOOLS_SYNTHETIC_TEXT_H_
#define LONGDECODE_TOOLS_SYNTHETIC_TEXT_H_

#include <cstdint>
#include <string>

namespace longdecode::tool {

// Sentences of common English words, few of them often and many seldom as in real texts (Zipf's
// law), in a fixed pseudo-random order. The same num_words gives the same text anywhere.
std::string synthetic_text(int64_t num_words);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_SYNTHETIC_TEXT_H_
