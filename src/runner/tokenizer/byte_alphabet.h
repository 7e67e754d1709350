// The byte alphabet of GPT-2's byte-level BPE: every byte is written as one printable character, so
// that a vocabulary is a list of readable strings. Printable Latin-1 bytes stand for themselves,
// the other 68 are U+0100.. in order. Source: `bytes_to_unicode` of openai/gpt-2 (encoder.py).
#ifndef LONGDECODE_RUNNER_TOKENIZER_BYTE_ALPHABET_H_
#define LONGDECODE_RUNNER_TOKENIZER_BYTE_ALPHABET_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace longdecode::runner {

// The character (as UTF-8) that writes `byte`.
std::string byte_to_alphabet(uint8_t byte);

// The bytes that a token's text writes. A character outside the alphabet stands for itself.
std::string alphabet_to_bytes(std::string_view token_text);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_BYTE_ALPHABET_H_
