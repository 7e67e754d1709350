// Well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#ifndef LONGDECODE_RUNNER_TOKENIZER_UTF8_H_
#define LONGDECODE_RUNNER_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace longdecode::runner {

// Bytes (1..4) of the well-formed sequence that starts at text[pos], 0 when there is none.
size_t utf8_sequence_bytes(std::string_view text, size_t pos);

// Offset of the first byte that is not part of a well-formed sequence; text.size() when all are.
size_t utf8_valid_prefix(std::string_view text);

// Bytes at the end of `text` that could become a well-formed sequence when more arrive: 0..3.
size_t utf8_incomplete_suffix(std::string_view text);

// The code point at text[pos], which must start a well-formed sequence; pos moves past it.
uint32_t utf8_next(std::string_view text, size_t& pos);

void utf8_append(uint32_t code_point, std::string& text);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_UTF8_H_
