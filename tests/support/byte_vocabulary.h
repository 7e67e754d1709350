// The smallest vocabulary of a byte-level tokenizer: id = byte.
#ifndef LONGDECODE_TESTS_SUPPORT_BYTE_VOCABULARY_H_
#define LONGDECODE_TESTS_SUPPORT_BYTE_VOCABULARY_H_

#include "runner/tokenizer/byte_alphabet.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::runner {

inline TokenizerData byte_vocabulary() {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(byte_to_alphabet(static_cast<uint8_t>(byte)));
  }
  data.types.assign(256, static_cast<int32_t>(TokenType::kNormal));
  return data;
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_TESTS_SUPPORT_BYTE_VOCABULARY_H_
