#include "runner/tokenizer/stream_decoder.h"

#include <utility>

#include "runner/tokenizer/utf8.h"

namespace longdecode::runner {

std::string StreamDecoder::push(std::string_view bytes) {
  std::string text = std::exchange(held_, {});
  text += bytes;
  const size_t incomplete = utf8_incomplete_suffix(text);
  held_ = text.substr(text.size() - incomplete);
  text.resize(text.size() - incomplete);
  return text;
}

std::string StreamDecoder::flush() { return std::exchange(held_, {}); }

}  // namespace longdecode::runner
